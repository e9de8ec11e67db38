"""Times as people write them. Separate because it is pure: no client, no clock."""

import re
from datetime import datetime, time, timedelta
from typing import Final

from ctxd.cli.exit_codes import USAGE
from ctxd.command_line import Stop
from ctxd_protocol.limits import SAFE_INTEGER_MAX

_AGE: Final = re.compile(
    r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|(?:sec(?:ond)?|min(?:ute)?|hour|hr|day|week)s?)(?:\s+ago)?$", re.ASCII
)
_CLOCK: Final = re.compile(r"^(?:today )?(yesterday )?(\d\d:\d\d(?::\d\d)?)$", re.ASCII)
_DIGITS_MAX: Final = 16
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def moment_ms(text: str, now_ms: int) -> int:
    """Return a point in time in ms since 1970.

    ``text`` is ``now``, ``yesterday`` (optionally with a time of day), an age (``2h``, ``2 hours ago``), a time of day
    (``13:44``, the latest such time that is past), an ISO 8601 date with or without time, or milliseconds since 1970.
    Times without an offset are local. Raises: ``Stop``, also beyond 2^53 ms from 1970.
    """
    found = _moment_ms(text.strip().lower(), now_ms)
    if found is None or abs(found) > SAFE_INTEGER_MAX:
        hint = "write 2h, 'yesterday 13:44', 2026-05-01T12:00, or milliseconds since 1970"
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
