"""``ctx rpc``: any method of the daemon, for scripts and for methods without a command."""

import difflib
import sys
from typing import Any

import click
import msgspec

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import USAGE
from ctxd.click_support import Command, Stop
from ctxd_client.wire import Call
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.declaration import Params
from ctxd_protocol.param_errors import described


def _completed(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in METHODS if name.startswith(begun)]


@click.command(
    cls=Command,
    examples='ctx rpc\nctx rpc context.current\nctx rpc session.get \'{"session": "s1"}\'\n'
    "echo '{\"limit\": 2}' | ctx rpc session.list -",
)
@click.argument("method", required=False, shell_complete=_completed)
@click.argument("params", required=False, metavar="[JSON|-]")
@common
def rpc(run: Invocation, method: str | None, params: str | None) -> None:
    """Call METHOD of the daemon, and print its result.

    The parameters are a JSON object; '-' reads it from standard input. Without METHOD, list the methods. A write gets a
    random op_id unless the parameters contain one.
    """
    if method is None:
        rows = [(row.name, row.capability, "writes" if row.writes else "", row.summary) for row in METHODS.values()]
        if run.screen.as_json:
            items = [
                {"method": row[0], "capability": row[1], "writes": bool(row[2]), "summary": row[3]} for row in rows
            ]
            run.screen.document({"items": items})
        else:
            run.screen.table(("METHOD", "NEEDS", "", "WHAT IT DOES"), rows)
        return
    call = Call(method, _params(method, params), msgspec.Raw)
    with run.client() as client:
        result = client.call(call)
    run.screen.document(msgspec.json.decode(result))


def _params(method: str, text: str | None) -> Params:
    row = METHODS.get(method)
    if row is None:
        near = difflib.get_close_matches(method, METHODS, n=1)
        raise Stop(
            USAGE, f"there is no method {method!r}", hint=f"did you mean {near[0]}?" if near else "ctx rpc lists them"
        )
    try:
        text = sys.stdin.read() if text == "-" else text
        named: Any = msgspec.json.decode(text) if text and text.strip() else {}
        return msgspec.convert(named, row.params)
    except (UnicodeError, RecursionError) as error:
        why = "they are nested too deeply" if isinstance(error, RecursionError) else "they are not UTF-8"
        message = f"{method}: the parameters cannot be read: {why}"
        raise Stop(USAGE, message, hint="give JSON in UTF-8", symbol="invalid_params") from error
    except msgspec.DecodeError as error:
        known = ", ".join(row.params.__struct_fields__) or "none"
        message, _ = described(error, row.params)
        raise Stop(USAGE, f"{method}: {message}", hint=f"its parameters: {known}", symbol="invalid_params") from error
