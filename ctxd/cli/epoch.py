"""``ctx epoch``: show the system context that a model had received, and the file versions that it came from."""

import click
import msgspec

from ctxd.cli.common_options import Invocation, common, revision_argument
from ctxd.cli.revision_lookup import AssemblyKey, Located, assembly, locate, turn_of
from ctxd.click_support import Command, Group
from ctxd.formatting import moment, short
from ctxd.terminal import cell
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.epochs import EpochShowResult, EpochText


@click.group(cls=Group, examples="ctx epoch show s1@12")
@common
def epoch(run: Invocation) -> None:
    """Context epochs: the system context that a model has received."""


@epoch.command(
    cls=Command,
    examples="ctx epoch show\nctx epoch show s1@12\nctx epoch show 's1@{2 hours ago}'\n"
    "ctx epoch show ctx-1a2b3c4d --json | jq .texts[].key",
)
@revision_argument
@common
def show(run: Invocation, revision: str | None) -> None:
    """Show the system context that the model had received by REV, and the version of each file that it came from.

    The baseline comes first, then each update in order. REV is a session, SESSION@TURN, @~N (turns back), @{TIME} or a
    context id; see ctx --help. Only assemblies in the append layout, the default of provider requests, have an epoch.
    """
    with run.client() as client:
        found = _whole(client, locate(client, revision))
    if run.screen.as_json:
        run.screen.document({name: value for name, value in msgspec.to_builtins(found).items() if name != "next_after"})
        return
    screen = run.screen
    begins = "not recorded" if found.begins is None else found.begins
    screen.line(
        f"{screen.paint(cell(found.session), 'bold')}  epoch {found.epoch} ({cell(begins)})  turn {found.turn}  "
        f"assembly {found.number}  {moment(found.at)}"
    )
    if found.tools:
        screen.line(f"tools: {cell(', '.join(found.tools))}")
    for each in found.texts:
        screen.line()
        _show_text(run, each)


def _whole(client: SyncClient, found: Located) -> EpochShowResult:
    """Return the epoch with the texts of all pages, read at the assembly of the first page."""
    page = client.epoch_show(found.session, **_moment(client, found), limit=PAGE_ITEMS_MAX)
    texts = [*page.texts]
    while page.next_after is not None:
        page = client.epoch_show(found.session, number=page.number, after=page.next_after, limit=PAGE_ITEMS_MAX)
        texts += page.texts
    return msgspec.structs.replace(page, texts=tuple(texts))


def _moment(client: SyncClient, found: Located) -> AssemblyKey:
    key = assembly(client, found)
    # The turn must exist, but need not have a request.
    return {"turn": turn_of(client, found).turn} if "turn" in key else key


def _show_text(run: Invocation, shown: EpochText) -> None:
    screen = run.screen
    unsent = "" if shown.sent else "  not answered yet"
    screen.line(
        f"{screen.paint(f'{shown.part} {cell(shown.key)}', 'bold')}  turn {shown.turn}  assembly {shown.number}  "
        f"{moment(shown.at)}{unsent}"
    )
    for source in shown.sources:
        version = f"{short(source.object)} seq {source.tx}  {source.content_hash[:12]}"
        screen.line(screen.paint(f"  from {cell(source.path)}  {cell(version)}", "dim"))
    for line in shown.text.removesuffix("\n").split("\n"):
        screen.line(f"  {cell(line)}".rstrip())
