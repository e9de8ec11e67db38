"""Numbers, sizes, times, ids and remedies as text for people. Pure."""

import re
from datetime import UTC, datetime
from typing import Final

_LAST_MS: Final = 253_402_300_799_000


def count(number: int | None, noun: str = "") -> str:
    """Return an integer with thousands separators, followed by ``noun`` in singular or plural; empty for None.

    ``noun`` is one or several words that end in a regular noun in the singular.
    """
    if number is None:
        return ""
    if not noun:
        return f"{number:,}"
    if number != 1:
        plural = re.sub("[^aeiou]y$", lambda end: end[0][0] + "ie", noun)
        noun = plural + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{number:,} {noun}"


def moment(ms: int) -> str:
    """Milliseconds since 1970 as UTC to the millisecond; after the year 9999 the number itself."""
    if ms > _LAST_MS:
        return f"{ms} ms after 1970"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def age(ms: int, now_ms: int) -> str:
    """Return the age of ``ms`` in its largest unit."""
    seconds = max(0, now_ms - ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


def size(number: int) -> str:
    """Bytes in the largest unit, up to GiB, in which the number is at least 1."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes every number")


def short(id: str) -> str:
    """An id for a table: a long hexadecimal id is cut to its first 12 digits, which any command accepts."""
    return id[:12] if len(id) == 64 and not id.strip("0123456789abcdef") else id


def clause(sentence: str) -> str:
    """``sentence`` for use after a semicolon: without initial capital and full stop; acronyms keep their capitals."""
    text = sentence.removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
