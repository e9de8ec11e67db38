"""Parser of shell commands: text to a tree of words, redirections, commands, groups, loops and pipelines.

Never raises: text that is not shell becomes words. Linear in the length of the text.
"""

import re
from collections.abc import Iterator

import msgspec


class Word(msgspec.Struct, frozen=True):
    """One word after quote removal.

    ``text`` holds ``$name`` variables as ``\\0name\\0``, to be filled in with their values. ``opaque``: a
    part cannot be known (a command substitution, ``~``, ``${x%y}``). ``glob``: unquoted ``*``, ``?`` or ``[``.
    ``bare``: no quoting at all, so it can be a reserved word. ``inner``: the scripts of its substitutions.
    """

    text: str
    opaque: bool = False
    glob: bool = False
    bare: bool = True
    inner: tuple["Script", ...] = ()


class Redirect(msgspec.Struct, frozen=True):
    """``fd op target``; for a here-document ``target`` is its body and ``op`` is ``<<``."""

    fd: str
    op: str
    target: Word


class Simple(msgspec.Struct, frozen=True):
    """A simple command: leading ``NAME=value`` words, then words, with its redirections in order."""

    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


class CommandGroup(msgspec.Struct, frozen=True):
    """``( … )`` (``subshell``), ``{ … }``, or a body of ``if``/``while``, with the redirections behind it."""

    body: "Script"
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


class ForLoop(msgspec.Struct, frozen=True):
    """``for variable in words; do body; done``."""

    variable: str
    words: tuple[Word, ...]
    body: "Script"
    redirects: tuple[Redirect, ...] = ()


Stage = Simple | CommandGroup | ForLoop


class Pipeline(msgspec.Struct, frozen=True):
    """Stages joined by ``|``. ``after`` is the operator before it: ``&&``, ``||``, ``;`` or empty for the first."""

    stages: tuple[Stage, ...]
    after: str


class Script(msgspec.Struct, frozen=True):
    """A list of pipelines in order of writing."""

    pipelines: tuple[Pipeline, ...]


class HereDocument(Word, frozen=True):
    """A here-document's body. It stands behind the command, so its lines arrive after the word was made."""

    lines: list[str] = []


def heredoc(redirect: Redirect) -> list[str] | None:
    """The lines of a here-document's body; None if ``redirect`` is another kind."""
    return redirect.target.lines if isinstance(redirect.target, HereDocument) else None


BRACED_CHARS_MAX = 1024
"""Characters of a word whose braces are expanded; longer ones are data, not lists of files."""

BRACED_WORDS_MAX = 64
"""Words to which one word is expanded."""

_BRACES = re.compile(r"\{([^\s{},]*(?:,[^\s{},]*)+)\}")
_SPELLED = re.compile(r"(?:[^'\\]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_LAST_CHARACTER = 0x10FFFF


def unescape(text: str, at: int) -> tuple[str, int]:
    """The characters of ``$'…'``, and the position after it. ``at`` is the position after its opening quote."""
    found = _SPELLED.match(text, at)
    end = found.end() if found is not None else at
    return _ESCAPE.sub(_character, text[at:end]), min(end + 1, len(text))


def _character(escape: re.Match[str]) -> str:
    *codes, octal, other = escape.groups()
    if other is not None:
        return _NAMED.get(other, other)
    number = int(octal, 8) if octal else int(next(code for code in codes if code), 16)
    return chr(number) if 0 < number <= _LAST_CHARACTER and not 0xD800 <= number < 0xE000 else ""


def braced(word: Word) -> Iterator[Word]:
    """Expand ``a{b,c}d`` to ``abd`` and ``acd``; unchanged if there is nothing to expand, or too much."""
    pending, done = [word.text], 0
    if not word.bare or "{" not in word.text or "," not in word.text or len(word.text) > BRACED_CHARS_MAX:
        yield word
        return
    while pending and done < BRACED_WORDS_MAX:
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None or len(pending) > BRACED_WORDS_MAX:
            done += 1
            yield Word(text, word.opaque, word.glob, word.bare, word.inner)
            continue
        head, tail = text[: braces.start()], text[braces.end() :]
        pending.extend(head + part + tail for part in reversed(braces.group(1).split(",")))


DEPTH_MAX = 24
"""Maximum nesting of substitutions and groups; deeper ones are skipped as opaque. Bounds the stack."""


_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()#*?\[{}~]+")
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")
_IN_DOUBLE = re.compile(r"[^\"\\$`]+")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;|[;&|\n]")
_REDIRECT = re.compile(r"(\d{0,3}|&)(<<<|<<-?|<>|>>|>\||>&|<&|>|<)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_DEFAULT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}:?-[\w./@+-]{0,1024}$")
_OPENERS = frozenset(("if", "then", "else", "elif", "do", "!", "time"))
_CLOSERS = frozenset(("fi", "done", "esac", "}"))


class _Parts(msgspec.Struct):
    """A word under construction."""

    text: list[str] = []
    opaque: bool = False
    glob: bool = False
    quoted: bool = False
    inner: list[Script] = []


class _Draft(msgspec.Struct):
    """A command under construction."""

    words: list[Word] = []
    redirects: list[Redirect] = []
    group: Stage | None = None


def parse(command: str) -> Script:
    """The tree of ``command``. Never raises; text that no shell would accept parses as far as it makes sense."""
    return _Parser(command).script("", 0)


class _Parser:
    """One pass over the text; every method moves ``at`` forward or returns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = len(text)
        self.at = 0
        self.heredocs: list[tuple[str, bool, list[str]]] = []

    def script(self, closer: str, depth: int) -> Script:
        """A list up to ``closer`` (``)``, `` ` ``, or a reserved word such as ``done``), which is consumed, or to the
        end.
        """
        pipelines: list[Pipeline] = []
        after = ""
        while True:
            stages, ended = self._pipeline(closer, depth)
            if stages:
                pipelines.append(Pipeline(tuple(stages), after))
            if ended or self.at >= self.end:
                return Script(tuple(pipelines))
            operator = _OPERATOR.match(self.text, self.at)
            if operator is None:
                self.at += 1  # a stray `)` or similar, which no shell accepts: skip it
                continue
            self.at = operator.end()
            found = operator.group()
            after = found if found in ("&&", "||") else ";"
            if found == "\n":
                self._skip_heredocs()

    def _pipeline(self, closer: str, depth: int) -> tuple[list[Stage], bool]:
        """The stages up to an operator other than a pipe, and whether ``closer`` was found."""
        stages: list[Stage] = []
        while True:
            stage, ended = self._stage(closer, depth)
            if stage is not None:
                stages.append(stage)
            if ended:
                return stages, True
            if self.text.startswith("|", self.at) and not self.text.startswith("||", self.at):
                self.at += 2 if self.text.startswith("|&", self.at) else 1
                self._skip_newlines()
                continue
            return stages, False

    def _stage(self, closer: str, depth: int) -> tuple[Stage | None, bool]:
        """One command of a pipeline, and whether ``closer`` was found."""
        draft = _Draft()
        while True:
            self._skip_blanks()
            if self.at >= self.end:
                return self._finish(draft), False
            char = self.text[self.at]
            if closer and char == closer:
                self.at += 1
                return self._finish(draft), True
            if char in ";&|\n)" and not self.text.startswith("&>", self.at):
                return self._finish(draft), False
            if self._parse_piece(draft, char, closer, depth):
                return self._finish(draft), True

    def _parse_piece(self, draft: "_Draft", char: str, closer: str, depth: int) -> bool:
        """Add the next piece to a command. True if it was the reserved word ``closer``."""
        if char == "#":
            self._skip_comment()
            return False
        if char == "(":  # after a word it belongs to a function or an array, without file names
            self.at += 1
            if not draft.words:
                draft.group = CommandGroup(self._nested(")", depth), subshell=True)
            return False
        redirect = self._redirect(closer, depth)
        if redirect is not None:
            draft.redirects.append(redirect)
            return False
        word = self._word(closer, depth)
        if word is None:
            self.at += 1
            return False
        if word.bare and not draft.words and draft.group is None:
            handled, draft.group, ended = self._reserved(word.text, closer, depth)
            if handled or ended:
                return ended
        draft.words.extend(braced(word))
        return False

    def _reserved(self, text: str, closer: str, depth: int) -> tuple[bool, Stage | None, bool]:
        """Handle a reserved word at the start of a command: (consumed, group it made, closer met)."""
        if text == closer:
            return True, None, True
        if text in ("while", "until"):
            return True, CommandGroup(self._nested("done", depth), subshell=False), False
        if text in _OPENERS or text in _CLOSERS:
            return True, None, False
        if text == "{":
            return True, CommandGroup(self._nested("}", depth), subshell=False), False
        if text in ("for", "select"):
            return True, self._loop(depth), False
        if text == "case":
            self._skip_to_newline_or("in")
            return True, None, False
        return False, None, False

    def _loop(self, depth: int) -> Stage:
        variable, seen_in = "", False
        words: list[Word] = []
        while self.at < self.end:
            self._skip_blanks()
            if self.at >= self.end or self.text[self.at] in ";\n&|()":
                break
            word = self._word("", depth)
            if word is None:
                self.at += 1
            elif not variable:
                variable = word.text
            elif not seen_in and word.text == "in":
                seen_in = True
            else:
                words.extend(braced(word))
        body = self._nested("done", depth)
        return ForLoop(variable, tuple(words), body)

    def _nested(self, closer: str, depth: int) -> Script:
        if depth >= DEPTH_MAX:
            self.at = self.end
            return Script(())
        return self.script(closer, depth + 1)

    def _finish(self, draft: "_Draft") -> Stage | None:
        words, redirects, group = draft.words, draft.redirects, draft.group
        if isinstance(group, CommandGroup):
            return CommandGroup(group.body, group.subshell, tuple(redirects))
        if isinstance(group, ForLoop):
            return ForLoop(group.variable, group.words, group.body, tuple(redirects))
        assignments: list[tuple[str, Word]] = []
        rest = 0
        for word in words:
            name = _ASSIGN.match(word.text)
            if name is None:
                break
            value = Word(word.text[name.end() :], word.opaque, word.glob, word.bare, word.inner)
            assignments.append((name.group(1), value))
            rest += 1
        if not words and not redirects:
            return None
        return Simple(tuple(assignments), tuple(words[rest:]), tuple(redirects))

    def _redirect(self, closer: str, depth: int) -> Redirect | None:
        found = _REDIRECT.match(self.text, self.at)
        if found is None or self.text.startswith(("<(", ">("), found.end() - 1):
            return None
        self.at = found.end()
        fd, op = found.groups()
        self._skip_blanks()
        if op in (">&", "<&") and self.at < self.end and self.text[self.at] in "0123456789-":
            self._word(closer, depth)
            return Redirect(fd, op, Word(""))
        word = self._word(closer, depth)
        if word is None:
            return Redirect(fd, op, Word(""))
        if op in ("<<", "<<-"):
            body: list[str] = []
            self.heredocs.append((word.text, op == "<<-", body))
            return Redirect(fd, "<<", HereDocument("", lines=body))
        return Redirect(fd, ">" if op in (">&", ">|") else op, word)

    def _word(self, closer: str, depth: int) -> Word | None:
        parts = _Parts()
        start = self.at
        while self.at < self.end:
            run = _PLAIN.match(self.text, self.at)
            if run is not None:
                self.at = run.end()
                parts.text.append(run.group())
                continue
            if not self._special(parts, closer, depth, start):
                break
        if self.at == start:
            return None
        return Word("".join(parts.text), parts.opaque, parts.glob, not parts.quoted, tuple(parts.inner))

    def _special(self, parts: _Parts, closer: str, depth: int, start: int) -> bool:
        """One character that is not plain. False if it ends the word."""
        char = self.text[self.at]
        if char in "'\"\\":
            self._quoted(char, parts, depth)
        elif char == "$":
            self._dollar(parts, depth)
        elif char == "`":
            if closer == "`":
                return False
            self.at += 1
            parts.opaque = True
            parts.inner.append(self._nested("`", depth))
        elif char in "*?[":
            parts.glob = True
            parts.text.append(char)
            self.at += 1
        elif char in "<>" and self.text.startswith("(", self.at + 1) and self.at == start:
            self.at += 2
            parts.opaque = True
            parts.inner.append(self._nested(")", depth))
        elif char in "#{}" or (char == "~" and self.at > start):
            parts.text.append(char)
            self.at += 1
        elif char == "~":
            parts.opaque = True
            parts.text.append(char)
            self.at += 1
        else:
            return False
        return True

    def _quoted(self, char: str, parts: _Parts, depth: int) -> None:
        parts.quoted = True
        if char == "\\":
            if self.text.startswith("\n", self.at + 1):
                parts.quoted = False
            else:
                parts.text.append(self.text[self.at + 1 : self.at + 2])
            self.at = min(self.at + 2, self.end)
        elif char == "'":
            close = self.text.find("'", self.at + 1)
            close = self.end if close < 0 else close
            parts.text.append(self.text[self.at + 1 : close])
            self.at = min(close + 1, self.end)
        else:
            self.at += 1
            self._double(parts, depth)

    def _double(self, parts: _Parts, depth: int) -> None:
        while self.at < self.end:
            run = _IN_DOUBLE.match(self.text, self.at)
            if run is not None:
                parts.text.append(run.group())
                self.at = run.end()
                continue
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "$" and self.text.startswith(('"', "'"), self.at + 1):
                parts.text.append(char)  # `"^x$"`: within double quotes it does not start ANSI-C quotes
                self.at += 1
            elif char == "$":
                self._dollar(parts, depth)
            elif char == "`":
                self.at += 1
                parts.opaque = True
                parts.inner.append(self._nested("`", depth))
            else:
                following = self.text[self.at + 1 : self.at + 2]
                if following == "\n":
                    pass
                elif following in '"\\$`':
                    parts.text.append(following)
                else:
                    parts.text.append("\\" + following)
                self.at = min(self.at + 2, self.end)

    def _dollar(self, parts: _Parts, depth: int) -> None:
        text = self.text
        self.at += 1
        if text.startswith("((", self.at):
            parts.opaque = True
            close = text.find("))", self.at)
            self.at = self.end if close < 0 else close + 2
        elif text.startswith("(", self.at):
            self.at += 1
            parts.opaque = True
            parts.inner.append(self._nested(")", depth))
        elif text.startswith("{", self.at):
            close = text.find("}", self.at)
            close = self.end if close < 0 else close
            name = text[self.at + 1 : close]
            self.at = min(close + 1, self.end)
            if name.isidentifier() and name.isascii():
                parts.text.append(f"\0{name}\0")
            elif name.isascii() and _DEFAULT.match(name):
                parts.text.append(f"\0{name.replace(':-', '-', 1)}\0")
            else:
                parts.opaque = True
        elif text.startswith("'", self.at):
            parts.quoted = True
            characters, self.at = unescape(text, self.at + 1)
            parts.text.append(characters)
        elif text.startswith('"', self.at):
            self._quoted('"', parts, depth)
        else:
            name_match = _NAME.match(text, self.at)
            if name_match is None:
                parts.text.append("$")
            else:
                self.at = name_match.end()
                parts.text.append(f"\0{name_match.group()}\0")

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        if blank is not None:
            self.at = blank.end()

    def _skip_newlines(self) -> None:
        while True:
            self._skip_blanks()
            if not self.text.startswith("\n", self.at):
                return
            self.at += 1
            self._skip_heredocs()

    def _skip_comment(self) -> None:
        newline = self.text.find("\n", self.at)
        self.at = self.end if newline < 0 else newline

    def _skip_to_newline_or(self, reserved: str) -> None:
        found = re.compile(rf"\b{reserved}\b|\n").search(self.text, self.at)
        self.at = self.end if found is None else found.end()

    def _skip_heredocs(self) -> None:
        """After a newline: read the bodies of the here-documents that the line declared."""
        for delimiter, tabs, body in self.heredocs:
            while self.at < self.end:
                newline = self.text.find("\n", self.at)
                line = self.text[self.at : self.end if newline < 0 else newline]
                self.at = self.end if newline < 0 else newline + 1
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == delimiter:
                    break
                body.append(line)
        self.heredocs.clear()
