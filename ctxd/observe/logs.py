"""Logs: one line per record on standard error, without content, and without any secret that a rule finds.

Owns the format and the level. Each part receives its logger; records contain methods, sizes, sequences, durations and
codes, and are escaped, so that no client can forge a line.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from ctxd.secrets.redaction import ephemeral_guard

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

LogEvent = Callable[[str, dict[str, Any]], None]
"""Logs an event by name, with its figures."""

_transformed: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Local variables hold clients' content, which must not be logged."""

_TEXTS: Final = ("exc_value", "exc_notes", "syntax_error")
"""Fields with an exception's own text, which may quote content."""


def _without_texts(stacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for stack in stacks:
        found = {name: value for name, value in stack.items() if name not in _TEXTS}
        found["exceptions"] = [_without_texts(group) for group in stack.get("exceptions", ())]
        kept.append(found)
    return kept


def _as_dict(exc_info: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - structlog's own
    return _without_texts(_transformed(exc_info))


def _as_text(stream: TextIO, exc_info: Any) -> None:  # noqa: ANN401 - structlog's own
    for stack in _as_dict(exc_info):
        frames = [f"  {frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in stack["frames"]]
        print(*frames, stack["exc_type"], sep="\n", file=stream)


class _Unfailing:
    """A text stream that ignores write errors: a log on a full disk must not stop a call."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class Threshold:
    """The minimum severity that is logged; it may change while loggers are in use."""

    def __init__(self, level: LogLevel) -> None:
        self.level = level

    def __call__(self, logger: object, name: str, record: Any) -> Any:  # noqa: ANN401 - structlog's own
        """Pass ``record`` on, or drop it."""
        if _LEVELS[name if name in _LEVELS else "error"] < _LEVELS[self.level]:
            raise structlog.DropEvent
        return record


_LEVELS: Final[dict[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}


def open_log(
    level: LogLevel | Threshold = "info",
    format: LogFormat | None = None,
    stream: TextIO | None = None,
    *,
    redact: Callable[[str], str] | None = None,
) -> FilteringBoundLogger:
    """A logger that writes one line per record to ``stream``, standard error by default.

    ``format`` None: ``console`` on a terminal, ``json`` elsewhere. Lines to the journal have their severity in front,
    as sd-daemon(3) defines it. ``redact`` is applied to each whole line, including traces, names and paths; None: the
    built-in rules.
    """
    target = stream or sys.stderr
    chosen = format or ("console" if target.isatty() else "json")
    return cast(
        FilteringBoundLogger,
        structlog.wrap_logger(
            structlog.PrintLogger(cast(TextIO, _Unfailing(target))),
            processors=[
                level if isinstance(level, Threshold) else Threshold(level),
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                *(
                    _json()
                    if chosen == "json"
                    else [structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=_as_text)]
                ),
                _redacting(redact or ephemeral_guard().redacted),
                *([_prioritised] if is_journal(target, os.environ) else []),
            ],
            # No filter in the class, which is fixed: the threshold, which may change, filters.
            wrapper_class=structlog.make_filtering_bound_logger(0),
        ),
    )


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True if ``stream`` is the connection to the journal that ``JOURNAL_STREAM`` names by device and inode."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _prioritised(logger: object, name: str, line: Any) -> str:  # noqa: ANN401 - structlog's own
    return f"<{_PRIORITIES.get(name, 3)}>{line}"


def _redacting(redact: Callable[[str], str]) -> Any:  # noqa: ANN401 - structlog's own
    return lambda logger, name, line: redact(line)


def _json() -> list[Any]:
    return [
        structlog.processors.ExceptionRenderer(_as_dict),
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]
