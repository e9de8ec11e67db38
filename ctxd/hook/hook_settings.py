"""Settings of ``ctx-hook``: the time limit of a delivery, and the length to which outputs are shortened.

An invalid value is ignored, and noted for ``ctx doctor``, so that no event is lost. Separate, as the delivery only uses
the values.
"""

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Mapping

DELIVERY_S = 1.5
"""Seconds for delivering the new event and the waiting ones; $CTXD_HOOK_SECONDS overrides it."""

DELIVERY_S_MAX = 86_400.0
"""Maximum of $CTXD_HOOK_SECONDS."""

SHORTEN_CHARS_MIN = 200
"""Minimum of ``--shorten``."""


def delivery_s(environ: "Mapping[str, str]") -> float:
    """Seconds for delivering, from ``environ`` or by default."""
    return _seconds(environ.get("CTXD_HOOK_SECONDS", "")) or DELIVERY_S


def shorten_chars(given: str) -> int:
    """The number of characters ``given``; 0 if it is not a number, or not in the range that the daemon accepts."""
    chars = int(given) if given.isascii() and given.isdigit() and len(given) <= 15 else 0
    return chars if chars >= SHORTEN_CHARS_MIN else 0


def unusable_settings(environ: "Mapping[str, str]", shorten: str | None) -> list[str]:
    """Describe the settings that a hook ignores; ``shorten``: the value of ``--shorten``, None without the option."""
    found = []
    seconds = environ.get("CTXD_HOOK_SECONDS", "")
    if seconds and not _seconds(seconds):
        found.append(f"CTXD_HOOK_SECONDS={seconds[:40]} is not a positive number of seconds")
    if shorten is not None and not shorten_chars(shorten):
        given = shorten[:40] or "without a value"
        found.append(f"--shorten {given} is not a number of at least {SHORTEN_CHARS_MIN} characters")
    return found


def _seconds(given: str) -> float:
    """The number of seconds ``given``; 0 if it is not a number, or not in the range of a time limit."""
    try:
        seconds = float(given)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= DELIVERY_S_MAX else 0.0
