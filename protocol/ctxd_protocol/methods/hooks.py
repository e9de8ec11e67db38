"""Method ``session.hook``: one event of a harness, as its hook received it."""

from typing import Annotated, Literal

import msgspec

from ctxd_protocol.ids import OpIdText
from ctxd_protocol.methods.declaration import ACTIVE_ERRORS, Method, Milliseconds, Params, Result
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Harness


class SessionHookParams(Params, frozen=True, kw_only=True):
    """The standard input of a hook of ``harness``, as text, and the time of the event in ms since 1970.

    ``shorten_chars``: a tool's output with more characters is stored whole, but ``output`` of the result makes the
    harness show the model only its beginning, its end and the id of the stored output.
    """

    harness: Harness
    input: Annotated[str, msgspec.Meta(min_length=2)]
    at: Milliseconds | None = None
    shorten_chars: Annotated[int, msgspec.Meta(ge=200)] | None = None
    op_id: OpIdText | None = None


class SessionHookResult(Result, frozen=True, kw_only=True):
    """The session of the event. ``known``: it had the event already; ``ignored``: hooks of this kind add nothing to the
    conversation. ``output``: the text that the hook prints for the harness."""

    session: str
    outcome: Literal["captured", "known", "ignored"]
    output: str | None = None
    receipt: Receipt | None


ROWS = (
    Method(
        name="session.hook",
        params=SessionHookParams,
        result=SessionHookResult,
        access="host",
        writes=True,
        summary="Record an event of a harness in the session that captures it.",
        description="The session is created at the first event, with the harness and its own id of the session as"
        " labels, and is paused at the end of the harness's session; the next event resumes it. Prompts, tool calls and"
        " responses are recorded once, by the harness's own ids, even if several hooks report them.",
        errors=(*ACTIVE_ERRORS, "invalid_path"),
        example={
            "harness": "codex",
            "input": '{"session_id": "n1", "cwd": "/src", "hook_event_name": "UserPromptSubmit", "prompt": "fix it"}',
        },
        shows=".session",
    ),
)
