"""Checks of text that has the form of a secret: checksums, entropy, placeholders. Pure, over bytes.

A check gets a text that already has the form of its family. In doubt, it accepts the text as a secret if the form is
distinctive, and rejects it if the form is generic.
"""

import base64
import binascii
import json
import math
import zlib
from collections import Counter
from typing import Final

_BASE62: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CRC_DIGITS: Final = 6

_PLACEHOLDERS: Final = (
    b"example", b"placeholder", b"changeme", b"change_me", b"change-me", b"your_", b"your-", b"yourkey", b"yourtoken",
    b"yoursecret", b"insert", b"redacted", b"dummy", b"sample", b"xxxx", b"****", b"....", b"abcdef", b"123456789",
    b"deadbeef", b"foobar", b"lorem", b"notreal", b"not-a-real", b"todo", b"replace", b"<", b"${", b"{{", b"%(", b"$(",
)  # fmt: skip
"""Parts of the placeholders that people write in place of a secret."""

_WORDY: Final = (
    b"none", b"null", b"undefined", b"true", b"false", b"string", b"password", b"passwd", b"secret", b"token",
    b"apikey", b"api_key", b"test", b"user", b"admin", b"function", b"process.env", b"os.environ", b"getenv", b"config",
    b"self.", b"this.", b"args.", b"request", b"await", b"return", b"import",
)  # fmt: skip

KNOWN_EXAMPLES: Final = frozenset(
    {
        b"AKIAIOSFODNN7EXAMPLE", b"AKIAI44QH8DHBEXAMPLE", b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        b"je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY", b"SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
    }
)  # fmt: skip
"""Keys that manuals print. The last one is the signature of the token that every JWT tutorial shows."""


def entropy(value: bytes) -> float:
    """Shannon entropy of the bytes of ``value``, in bits per byte: 0 if it is empty or repeats one byte, 6 at most for
    base64."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values()) if size else 0.0


def is_placeholder(value: bytes) -> bool:
    """True if ``value`` is a placeholder, an example from a manual, a sequence, or a repetition."""
    lowered = value.lower()
    if value in KNOWN_EXAMPLES or any(part in lowered for part in _PLACEHOLDERS):
        return True
    return len(set(lowered)) <= min(6, max(2, len(lowered) // 8)) or _steps(lowered)


def _steps(value: bytes) -> bool:
    """True if most bytes follow the one before by the same step, as in ``abcdefgh`` and ``00000000``."""
    steps = Counter(second - first for first, second in zip(value, value[1:], strict=False))
    return bool(steps) and steps.most_common(1)[0][1] > len(value) * 0.6


def classes(value: bytes) -> int:
    """Number of character classes in ``value``: lower case, upper case, digits, and others."""
    lower = any(97 <= byte <= 122 for byte in value)
    upper = any(65 <= byte <= 90 for byte in value)
    digit = any(48 <= byte <= 57 for byte in value)
    return lower + upper + digit + any(not chr(byte).isalnum() for byte in value)


def has_crc(value: bytes) -> bool:
    """True if the last six characters are the CRC-32 of the rest after its prefix, in base 62 and padded with zeros, as
    in the tokens of GitHub and npm."""
    body = value[value.index(b"_") + 1 :]
    number, digits = zlib.crc32(body[:-_CRC_DIGITS]), bytearray()
    for _ in range(_CRC_DIGITS):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return bytes(reversed(digits)) == body[-_CRC_DIGITS:]


def is_jwt(value: bytes) -> bool:
    """True if the first part is the header of a signed token, and the signature is not that of the tutorial."""
    head, _, rest = value.partition(b".")
    try:
        header = json.loads(base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    signature = rest.rpartition(b".")[2]
    return isinstance(header, dict) and "alg" in header and signature not in KNOWN_EXAMPLES


def is_bech32(value: bytes) -> bool:
    """True if ``value`` has a valid Bech32 checksum, as age's keys do."""
    text = value.lower()
    place = text.rfind(b"1")
    alphabet = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    expanded = [byte >> 5 for byte in text[:place]] + [0] + [byte & 31 for byte in text[:place]]
    for byte in text[place + 1 :]:
        found = alphabet.find(byte)
        if found < 0:
            return False
        expanded.append(found)
    check = 1
    for number in expanded:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ number
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= generator if top >> bit & 1 else 0
    return check == 1


def is_bot_number(value: bytes) -> bool:
    """True if the first part of ``value`` is a number in base64, as in a Discord bot's token."""
    head = value.partition(b".")[0]
    try:
        return base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)).isdigit()
    except (ValueError, binascii.Error):
        return False


def is_random(value: bytes) -> bool:
    """True if ``value`` looks like a random token: two character classes at least, enough entropy, and no
    placeholder."""
    return classes(value) >= 2 and entropy(value) >= 3.0 and not is_placeholder(value)


def is_unlikely_word(value: bytes) -> bool:
    """True if ``value``, assigned to a name such as ``api_key``, is not an identifier, path or expression.

    The form is generic, so all conditions must hold: a digit, two character classes, much entropy, and nothing typical
    of code or prose.
    """
    if is_placeholder(value) or entropy(value) < 3.0 or not any(48 <= byte <= 57 for byte in value):
        return False
    lowered = value.lower()
    if any(word in lowered for word in _WORDY) or value[:1] in b"/.$@#&*%-" or b"==" in value[:-2] or b"::" in value:
        return False
    if b"://" in value or b"/" in value and value.count(b"/") * 8 > len(value):
        return False
    return classes(value) >= 2 and _is_no_identifier(value)


def _is_no_identifier(value: bytes) -> bool:
    """True if ``value`` is more than words with a number or two, such as ``get_value_2`` and ``sha256-abc``."""
    parts = value.replace(b"-", b"_").replace(b".", b"_").replace(b"/", b"_").split(b"_")
    runs = _switches(value)
    return max(map(len, parts)) >= 12 or runs >= 6


def _switches(value: bytes) -> int:
    """Return the number of changes between letters and digits."""
    kinds = [48 <= byte <= 57 for byte in value if chr(byte).isalnum()]
    return sum(first != second for first, second in zip(kinds, kinds[1:], strict=False))


def is_password(value: bytes) -> bool:
    """True if ``value``, quoted and assigned to a password's name, may be a password: short ones have little
    entropy."""
    lowered = value.lower()
    if is_placeholder(value) or any(word in lowered for word in _WORDY) or value[:1] in b"/.$@%-":
        return False
    return classes(value) >= 3 and entropy(value) >= 2.7 and b"(" not in value and b"://" not in value


def is_url_password(value: bytes) -> bool:
    """True if ``value``, from before the ``@`` of a URL, is a password and not a variable or a word of a manual."""
    lowered = value.lower()
    if is_placeholder(value) or value[:1] in b"$%{[(:" or lowered in _URL_WORDS:
        return False
    return entropy(value) >= 2.0


_URL_WORDS: Final = frozenset(
    {
        b"password", b"passwd", b"pass", b"secret", b"token", b"pwd", b"postgres", b"root", b"admin", b"user", b"test",
        b"guest", b"mysecretpassword", b"mypassword", b"redis", b"mysql", b"mongo", b"rabbitmq", b"key", b"apikey",
        b"password123", b"pw", b"hunter2", b"username", b"docker", b"x-oauth-basic",
    }
)  # fmt: skip


def pem_end(data: bytes, start: int) -> int | None:
    """Return the end of the private key whose first line ended at ``start``: after its last line or, if it was
    truncated, after its last base64. None if there is no key: code and manuals contain the first line alone."""
    limit = min(len(data), start + _PEM_BYTES)
    # The body of a key never has five dashes.
    dashes = data.find(b"-----", start, limit)
    body_end = limit if dashes < 0 else dashes
    end, size = start, 0
    while end < body_end:
        line_end = _line_end(data, end, body_end)
        line = data[end:line_end].removesuffix(b"\\n").removesuffix(b"\\r").strip(_PEM_MARGIN)
        if line and b": " not in line:
            # The last line of a whole key may be short.
            if line.strip(_BASE64) or (len(line) < 16 and not (dashes >= 0 and size)):
                break
            size += len(line)
        end = line_end
    if size < 48 or _is_placeholder_key(data[start:end]):
        return None
    if end == dashes and data.startswith(b"-----END ", end):
        close = data.find(b"-----", end + 9, end + 80)
        return close + 5 if close >= 0 else end
    return end


def _is_placeholder_key(body: bytes) -> bool:
    """As ``is_placeholder``, for a key of many lines: in so much base64, any short word may occur by chance."""
    lowered = body.lower()
    return len(set(lowered)) <= 6 or any(len(part) >= 6 and part in lowered for part in _PLACEHOLDERS)


_PEM_BYTES: Final = 32 * 1024
_PEM_MARGIN: Final = b" \t\r\n\"'+,\\|#>*"
"""Characters around the lines of a key that is embedded in code, a log or a table."""
_BASE64: Final = _BASE62 + b"+/="


def _line_end(data: bytes, start: int, limit: int) -> int:
    """The offset after the next line feed, raw or escaped; ``limit`` without one."""
    plain, escaped = data.find(b"\n", start, limit), data.find(b"\\n", start, min(limit, start + 1000))
    ends = [place + width for place, width in ((plain, 1), (escaped, 2)) if place >= 0]
    return min(ends, default=limit)
