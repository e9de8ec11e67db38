"""``ctx watch``: show changes that others make to objects that a session has read, as they happen."""

import click

from ctxd.cli.common_options import Invocation, WholeNumber, session_argument, streaming
from ctxd.cli.revision_lookup import session_id
from ctxd.click_support import Command
from ctxd.formatting import moment, short
from ctxd.terminal import cell


@click.command(cls=Command, examples="ctx watch\nctx watch s1 --after 0\nctx watch s1 --json | jq .path")
@session_argument
@click.option("--after", type=WholeNumber(0), metavar="SEQ", help="Start after this journal sequence.")
@click.option("--count", "most", type=WholeNumber(1), metavar="N", help="End after N notices.")
@streaming
def watch(run: Invocation, session: str | None, after: int | None, most: int | None) -> None:
    """Follow the notices for SESSION until interrupted. With --json, prints one JSON document per line.

    --timeout limits single calls, not the time without notices.
    """
    with run.client() as client:
        notices = client.follow(session_id(client, session), after=after)
        for number, notice in enumerate(notices, 1):
            if run.screen.as_json:
                run.screen.record(notice)
            else:
                by = f" by {cell(notice.by_session)}" if notice.by_session else ""
                what = cell(notice.path or short(notice.object))
                run.screen.line(f"{moment(notice.valid_time)}  {notice.seq}  {notice.change}  {what}{by}")
            run.screen.out.flush()
            if number == most:
                break
        notices.close()
