"""Logs: one line a record on standard error, never with content, and with no secret that a rule knows.

Owns the format and the level. A part gets its logger handed in; records name methods, sizes, sequences, durations and
codes, and are escaped, so that no client can forge a line.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from ctxd.secrets.guard import fleeting_guard

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

_frames_without_locals: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Local variables hold clients' content, which no log may show."""

_LEVELS: Final[dict[LogLevel, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def open_log(
    level: LogLevel = "info",
    format: LogFormat | None = None,
    stream: TextIO | None = None,
    *,
    redact: Callable[[str], str] | None = None,
) -> FilteringBoundLogger:
    """A logger that writes one line a record to ``stream``, standard error by default.

    ``format`` null: ``console`` on a terminal, ``json`` elsewhere, as journald wants it. Each line goes through
    ``redact``, null for the built-in rules, as a whole: traces, names and paths included.
    """
    target = stream or sys.stderr
    chosen = format or ("console" if target.isatty() else "json")
    return cast(
        FilteringBoundLogger,
        structlog.wrap_logger(
            structlog.PrintLogger(target),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                *(_json() if chosen == "json" else _console(colours=target.isatty())),
                _redacting(redact or fleeting_guard().redacted),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        ),
    )


def _redacting(redact: Callable[[str], str]) -> Any:  # noqa: ANN401 - structlog's own
    return lambda logger, name, line: redact(line)


def _json() -> list[Any]:
    return [
        structlog.processors.ExceptionRenderer(_frames_without_locals),
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]


def _console(*, colours: bool) -> list[Any]:
    return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)]
