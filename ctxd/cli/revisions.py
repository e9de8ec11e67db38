"""Parsing of revisions and times that people write. Pure: no client, no clock.

A revision names a session and a moment of it, like git's revisions::

    revision = [session] [ "@" [ turn | "{" time "}" ] [ "~" [ count ] ] ] | context
    context  = "ctx-" and 8 to 64 hexadecimal digits, of a commit or of an assembly

Turn N begins with the N-th user message and ends before the next; turn 0 holds the messages before the first. Without a
moment a revision means now, without a session the command's own. ``~N`` goes N turns back: from the newest turn, from
the given turn, or from the turn that was under way at the given time. An id of a session may contain ``@``: a session
with exactly the written id takes precedence, and ``~0`` after a turn excludes that reading.
"""

import re
from datetime import datetime, time, timedelta
from typing import Final

import msgspec

from ctxd.cli.exit_codes import USAGE
from ctxd.click_support import Stop
from ctxd_protocol.ids import ID_PATTERN, is_context_id
from ctxd_protocol.limits import SAFE_INTEGER_MAX

_AGE: Final = re.compile(
    r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|(?:sec(?:ond)?|min(?:ute)?|hour|hr|day|week)s?)(?:\s+ago)?$", re.ASCII
)
_CLOCK: Final = re.compile(r"^(?:today )?(yesterday )?(\d\d:\d\d(?::\d\d)?)$", re.ASCII)
_DIGITS_MAX: Final = 16
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

REVISION_CHARS_MAX: Final = 512
"""Maximum characters of a revision: an id of a session has at most 128."""

_MOMENT: Final = re.compile(r"([^{}~]*?)@(?:([0-9]{1,9})|\{([^{}]*)\})?(?:~([0-9]{0,9}))?", re.ASCII)
_SESSION: Final = re.compile(ID_PATTERN)
_FORMS: Final = "write SESSION, SESSION@12 (a turn), @~2 (turns back), @{2 hours ago} or ctx-1a2b3c4d"


class Revision(msgspec.Struct, frozen=True):
    """A revision. ``session`` None: the command's own. ``back``: None without ``~``. ``context``: the id of a context.

    ``valid_time`` is in ms since 1970. ``literal``: the whole text could be the id of a session.
    """

    session: str | None = None
    turn: int | None = None
    valid_time: int | None = None
    back: int | None = None
    context: str | None = None
    literal: bool = False

    @property
    def is_now(self) -> bool:
        """True without a moment."""
        return all(each is None for each in (self.turn, self.valid_time, self.back, self.context))


def parse(text: str, now_ms: int) -> Revision:
    """Return ``text`` as a revision. Raises: ``Stop`` if it is not one."""
    if not text:
        return Revision()
    if len(text) > REVISION_CHARS_MAX:
        message = f"the revision has {len(text):,} characters; the maximum is {REVISION_CHARS_MAX}"
        raise Stop(USAGE, message, hint=_FORMS)
    literal = _SESSION.match(text) is not None
    if is_context_id(text):
        return Revision(context=text, literal=literal)
    found = _MOMENT.fullmatch(text)
    if found is None and literal:
        return Revision(session=text, literal=True)
    if found is None or not (found[1] == "" or _SESSION.match(found[1])):
        raise Stop(USAGE, f"invalid revision: {text!r}", hint=_FORMS)
    session, turn, at, back = found.groups()
    return Revision(
        session=session or None,
        turn=None if turn is None else int(turn),
        valid_time=None if at is None else past_ms(at, now_ms),
        back=None if back is None else int(back or 1),
        literal=literal,
    )


def is_revision(text: str) -> bool:
    """True if ``text`` is a revision, in an argument that may also be a time or a number."""
    return "@" in text or text.startswith("ctx-")


def past_ms(text: str, now_ms: int) -> int | None:
    """As ``moment_ms``, but None for ``now``, which includes everything recorded: valid times are ahead of a clock that
    was set back."""
    return None if text.strip().lower() == "now" else moment_ms(text, now_ms)


def moment_ms(text: str, now_ms: int) -> int:
    """Return a point in time in ms since 1970.

    ``text`` is ``now``, ``yesterday`` (optionally with a time of day), an age (``2h``, ``2 hours ago``), a time of day
    (``13:44``, the latest such time that is past), an ISO 8601 date with or without time, or milliseconds since 1970.
    Times without an offset are local. Raises: ``Stop``, also beyond 2^53 ms from 1970.
    """
    found = _moment_ms(text.strip().lower(), now_ms)
    if found is None or abs(found) > SAFE_INTEGER_MAX:
        hint = "write 2h, '2 days ago', 'yesterday 13:44', 2026-05-01T12:00, or milliseconds since 1970"
        raise Stop(USAGE, f"invalid time: {text!r}", hint=hint)
    return found


def _moment_ms(text: str, now_ms: int) -> int | None:
    if text.isdigit() and text.isascii():
        return int(text) if len(text) <= _DIGITS_MAX else None
    if text in ("now", "yesterday"):
        return now_ms - (_UNIT_MS["d"] if text == "yesterday" else 0)
    try:
        if age := _AGE.match(text):
            return now_ms - round(float(age[1]) * _UNIT_MS[age[2] if age[2] == "ms" else age[2][0]])
        if clock := _CLOCK.match(text):
            today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
            moment = datetime.combine(today, time.fromisoformat(clock[2]))
            if clock[1] or moment.timestamp() * 1000 > now_ms:
                moment -= timedelta(days=1)
        else:
            moment = datetime.fromisoformat(text.upper())
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
