"""Settings of ``ctx-hook``: the length to which outputs are shortened, and checks of all settings.

An invalid value is ignored, and noted for ``ctx doctor``, so that no event is lost. Separate, as it is loaded only if
there is a setting.
"""

from ctxd.hook.daemon_connection import seconds_of

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Mapping

SHORTEN_CHARS_MIN = 200
"""Minimum of ``--shorten``."""


def shorten_chars(given: str) -> int:
    """The number of characters ``given``; 0 if it is not a number, or not in the range that the daemon accepts."""
    chars = int(given) if given.isascii() and given.isdigit() and len(given) <= 15 else 0
    return chars if chars >= SHORTEN_CHARS_MIN else 0


def unusable_settings(environ: "Mapping[str, str]", shorten: str | None) -> list[str]:
    """Describe the settings that a hook ignores; ``shorten``: the value of ``--shorten``, None without the option."""
    found = []
    seconds = environ.get("CTXD_HOOK_SECONDS", "")
    if seconds and not seconds_of(seconds):
        found.append(f"CTXD_HOOK_SECONDS={seconds[:40]} is not a positive number of seconds")
    if shorten is not None and not shorten_chars(shorten):
        given = shorten[:40] or "without a value"
        found.append(f"--shorten {given} is not a number of at least {SHORTEN_CHARS_MIN} characters")
    return found
