"""Cuts of contents that are too long for a window: outputs, messages and the arguments of tool calls. Pure."""

from typing import Any, Final

import msgspec

from ctxd.assembly.token_budget import TokenCounter

_VALUE_TOKENS_MIN: Final = 50
"""Fewest tokens that a cut argument keeps."""


def cut_arguments(arguments: str, tokens: int, count: TokenCounter, how: str) -> str:
    """The JSON object ``arguments`` with its longest values cut, each as by ``cut``, so that about ``tokens`` are left;
    unchanged if it is not longer. If it has too many values for that, all of it is cut as one text, the member
    ``input``."""
    if count(arguments) <= tokens:
        return arguments
    given: dict[str, Any] = msgspec.json.decode(arguments)
    texts = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in given.items()
    }
    # Count values as escaped strings: one that is not a string becomes one when it is cut.
    over = count(msgspec.json.encode(texts).decode()) - tokens
    sizes = {name: count(msgspec.json.encode(text).decode()) for name, text in texts.items()}
    total, length = 0.0, 0.0
    ordered = sorted(sizes.values(), reverse=True)
    for number, size in enumerate(ordered, 1):
        total += size
        length = (total - over) / number
        if number == len(ordered) or length >= ordered[number]:
            break
    if length < _VALUE_TOKENS_MIN:
        # Half of the tokens, as escaping its quotes makes the text longer.
        return msgspec.json.encode({"input": cut(arguments, tokens // 2, count, how)}).decode()
    for name, size in sizes.items():
        if size > length:
            given[name] = cut(texts[name], int(count(texts[name]) * length / size), count, how)
    return msgspec.json.encode(given).decode()


def cut(text: str, tokens: int, count: TokenCounter, how: str) -> str:
    """The beginning and the end of ``text``, ``tokens`` together, with a line between them: the number of tokens left
    out, and ``how`` to load them. ``text`` itself if it is not longer."""
    whole = count(text)
    if whole <= tokens:
        return text
    # Cut by bytes, as characters of some scripts have more tokens than others.
    data = text.encode()
    size = int(len(data) * tokens / whole)
    head = data[: size * 2 // 3].decode(errors="ignore")
    tail = data[len(data) - size // 3 :].decode(errors="ignore")
    return f"{head}\n[… {int(whole - tokens):,} tokens left out here; {how} …]\n{tail}"
