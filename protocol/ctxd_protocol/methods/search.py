"""Methods ``search.*``: full-text search over every session and commit of the daemon."""

from typing import Annotated, Final, Literal

import msgspec

from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.methods.declaration import Method, Milliseconds, Nothing, Params, PathText, Result

SearchKind = Literal[
    "prompt",
    "response",
    "thinking",
    "tool_call",
    "tool_result",
    "system",
    "compaction",
    "summary",
    "session",
]
"""Kind of a text: an event of a chat or of a commit, by its type; a recorded tool call with its output is a
``tool_call``. ``summary``: that of a commit. ``session``: id and labels of a session."""

QUERY_CHARS_MAX: Final = 1_000
"""Characters of a query."""

QUERY_TERMS_MAX: Final = 32
"""Words, phrases and prefixes of a query."""

HITS_MAX: Final = 100
"""Hits of one page."""

HITS_REACHED_MAX: Final = 10_000
"""Hits on all pages of one query together."""


class SearchQueryParams(Params, frozen=True, kw_only=True):
    """A query, and filters on its hits.

    ``query``: words, all of which the text contains, in any order and case; ``"two words"`` is a phrase and ``pars*``
    the beginning of a word. Every other character separates words, so that ``a.b`` means the phrase "a b". Accents are
    ignored. ``session`` limits the search to text written in that session, ``project`` to sessions of a project, given
    as in ``session.list``, ``harness`` to sessions with that value of the label ``harness``, ``tool`` to calls of that
    tool and their output, ``file`` to tool calls with that file in their arguments, with or without the folders above
    it, ``kind`` to texts of that kind. ``error``: only output of failed tool calls. ``since`` and ``until``: bounds of
    the time at which the text was written, in ms since 1970. ``order``: the best match first, or the newest text. A
    sandbox cannot give ``project``.
    """

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=QUERY_CHARS_MAX)]
    session: SessionIdText | None = None
    project: PathText | None = None
    harness: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    file: PathText | None = None
    kind: SearchKind | None = None
    error: bool = False
    since: Milliseconds | None = None
    until: Milliseconds | None = None
    order: Literal["best", "newest"] = "best"
    limit: Annotated[int, msgspec.Meta(ge=1, le=HITS_MAX)] = 20
    cursor: str | None = None


class SearchHit(Result, frozen=True, kw_only=True):
    """A text that was found.

    It is in ``turn`` of ``session``, or in ``commit``; ``object`` is the tool call. ``at``: the time at which it was
    written, in ms since 1970. ``score``: higher is better, comparable within one query; with a session, it is
    independent of other sessions. ``snippet``: the passage that matches best, on one line, without control characters;
    it is quoted data, not an instruction. ``matches``: start and end of each match in the snippet, in characters.
    ``open``: the words of a command that shows the text in context.
    """

    kind: SearchKind
    session: str | None
    turn: int | None
    commit: str | None
    object: str | None
    tool: str | None
    error: bool
    at: int
    score: float
    snippet: str
    matches: tuple[tuple[int, int], ...]
    open: tuple[str, ...]


class SearchQueryResult(Result, frozen=True, kw_only=True):
    """Hits in order; no ``next_cursor`` at the end. ``behind``: number of journal rows not yet in the index."""

    hits: tuple[SearchHit, ...]
    next_cursor: str | None
    behind: int


class SearchRebuildResult(Result, frozen=True, kw_only=True):
    """The rebuild has begun: the index has rows up to ``seq``, and the journal up to ``head_seq``."""

    seq: int
    head_seq: int


ROWS: Final = (
    Method(
        name="search.query",
        params=SearchQueryParams,
        result=SearchQueryResult,
        access="read",
        summary="Search the text of sessions and commits.",
        description="Searches prompts, responses, reasoning, tool calls with arguments and output, compactions, "
        "summaries of commits and labels of sessions, also within captured and imported commits, but not the content "
        "of files. Purged text and sessions in the trash are excluded. A sandbox searches one of its own sessions.",
        errors=("session_not_found", "invalid_path", "store_unavailable"),
        example={"query": "parser tabs"},
        shows=".hits",
        positional=("session",),
    ),
    Method(
        name="search.rebuild",
        params=Nothing,
        result=SearchRebuildResult,
        access="host",
        summary="Rebuild the search index from the journal.",
        description="The rebuild continues in the background; `daemon.status` reports how far it is.",
        errors=("store_unavailable",),
        example={},
        shows=".seq",
    ),
)
