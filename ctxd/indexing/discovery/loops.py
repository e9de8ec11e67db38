"""Loops over files that nobody but the shell can list: what their ``echo "== $f"`` says is the name of one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ctxd.indexing.discovery.emission import Form, by_line
from ctxd.indexing.discovery.invocation import Arg, fill
from ctxd.indexing.discovery.paths import Maybe, looks_like_file
from ctxd.indexing.discovery.syntax import Simple

_HERE = "\1"
_GLOB = "*?["


@dataclass(frozen=True, slots=True)
class Listed:
    """What is known of the names a loop's variable goes through: each begins and ends like one of ``ends``."""

    ends: tuple[tuple[str, str], ...]


ANY = Listed((("", ""),))
"""Names that another command printed."""


def listed(words: Iterable[Arg]) -> Listed:
    """The names that globs and substitutions among ``words`` expand to."""
    return Listed(tuple(dict.fromkeys(_ends(word) for word in words)))


def _ends(word: Arg) -> tuple[str, str]:
    if not word.known:
        return "", ""
    if not word.glob:
        return word.text, ""
    at = [position for position, character in enumerate(word.text) if character in _GLOB]
    behind = "" if word.text[at[-1]] == "[" else word.text[at[-1] + 1 :]
    return word.text[: at[0]], behind


def headed(simple: Simple, loops: Mapping[str, Listed], variables: Mapping[str, str], cwd: str | None) -> Form | None:
    """The form of an ``echo`` or ``printf`` that says which file of a loop it is at; None if this one does not."""
    names = [name for name in loops if any(f"\0{name}\0" in word.text for word in simple.words)]
    if len(names) != 1:
        return None
    words = [replace(word, text=word.text.replace(f"\0{names[0]}\0", _HERE)) for word in simple.words[1:]]
    args = [fill(word, variables) for word in words]
    if any(not arg.known for arg in args):
        return None
    texts = [arg.text for arg in args if arg.text not in ("-n", "-e", "-ne", "-en")]
    text = " ".join(texts)
    if simple.words[0].text == "printf":
        text = texts[0].replace("%s", texts[1]) if len(texts) == 2 and texts[0].count("%s") == 1 else ""
    line = next((part for part in text.replace("\\n", "\n").split("\n") if _HERE in part), "")
    if line.count(_HERE) != 1:
        return None
    before, _, behind = line.partition(_HERE)
    return by_line("echo", cwd, _Heading(before, behind, loops[names[0]]).line)


@dataclass(frozen=True, slots=True)
class _Heading:
    """Known text before and behind a name."""

    before: str
    behind: str
    names: Listed

    def line(self, line: str) -> str | None:
        if not line.startswith(self.before) or not line.endswith(self.behind):
            return None
        name = line[len(self.before) : len(line) - len(self.behind)]
        begins = [first for first, last in self.names.ends if name.startswith(first) and name.endswith(last)]
        if not name or not begins:
            return None
        framed = self.before.strip() or self.behind.strip() or max(begins)
        return name if framed and looks_like_file(name) else Maybe(name)
