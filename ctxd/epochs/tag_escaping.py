"""Foreign text and foreign names in updates and in the texts of components: they cannot leave their tags or their line.
Pure."""

import re


def one_line(name: str) -> str:
    """``name`` unchanged, or as a Python literal if it could break its line."""
    return name if name.isprintable() else repr(name)


def tagged(tag: str, text: str) -> str:
    """``text`` between the tags ``tag``. A ``<`` that could begin one of these becomes ``&lt;``; the rest is unchanged,
    as models copy it exactly for tools that edit."""
    # Possessive quantifiers, so that each blank is read once.
    inner = re.sub(rf"<(?=\s*+/?+\s*+{tag})", "&lt;", text, flags=re.IGNORECASE)
    return f"<{tag}>\n{inner}\n</{tag}>"
