"""Foreign text and foreign names in updates and in the texts of components: they cannot leave their tags or their line.
Pure.

Alone, as components of several kinds and requests use it.
"""

import re


def one_line(name: str) -> str:
    """``name`` as it is, or as a literal if it could break its line."""
    return name if name.isprintable() else repr(name)


def tagged(tag: str, text: str) -> str:
    """``text`` between the tags ``tag``. A ``<`` that could begin one of these becomes ``&lt;``; all else stays as it
    is, since models copy it exactly for tools that edit."""
    # Possessive, so that each blank is read once.
    inner = re.sub(rf"<(?=\s*+/?+\s*+{tag})", "&lt;", text, flags=re.IGNORECASE)
    return f"<{tag}>\n{inner}\n</{tag}>"
