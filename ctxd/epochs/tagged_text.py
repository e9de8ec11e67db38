"""Foreign text and foreign names in the texts of components: they cannot leave their tags or their line. Pure.

Alone, as components of several kinds use it.
"""

import re


def one_line(name: str) -> str:
    """``name`` as it is, or as a literal if it could break its line."""
    return name if name.isprintable() else repr(name)


def tagged(tag: str, text: str) -> str:
    """``text`` between the tags ``tag``; what could be taken for one of these is escaped."""
    inner = re.sub(f"<(?=/?{tag})", "&lt;", text, flags=re.IGNORECASE)
    return f"<{tag}>\n{inner}\n</{tag}>"
