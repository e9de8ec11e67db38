"""Candidates for files, and the test whether a string may name one.

Owns the values `PathCandidate`, `PossiblePath` and `Discovery`, the resolution of a name against a directory, and the
guess whether a name looks like a file's. Does not access the file system: the caller checks whether a candidate exists.
Guarantee: a resolved path is absolute and normalised, and never `/`, a device or a directory spelled with a trailing
slash.
"""

import posixpath
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from ctxd_protocol.limits import PATHS_MAX

PATH_CHARS_MAX = 4096
"""Maximum characters of a path. Linux refuses longer ones; a longer string is other text with slashes."""

NAME_CHARS_MAX = 255
"""Maximum characters of a path component, for the same reason."""


Anchor = Literal["repository"]
"""A base of relative names that the text does not show: the top of a git work tree."""


class PossiblePath(str):
    """A name that may also be a directory's, or a plain word: has to be checked on disk."""

    __slots__ = ()


class PathCandidate(msgspec.Struct, frozen=True, gc=False):
    """A path that a command mentioned. ``path`` is absolute and normalised; ``command`` is the parser that found it.

    ``certain``: the text alone identifies it as a file. Otherwise the disk decides. ``anchor``: the name was resolved
    against ``base``, the directory that the command ran in, although the command prints it relative to a place that
    only the disk shows. ``base`` is empty without an anchor.
    """

    path: str
    command: str
    certain: bool = True
    anchor: Anchor | None = None
    base: str = ""


class Discovery(msgspec.Struct, frozen=True):
    """Result for one command: candidates in order of appearance, and the shell's directory afterwards."""

    paths: tuple[PathCandidate, ...]
    cwd: str


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNTIDY = re.compile(r"//|(?:^|/)\.\.?(?:/|$)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,15}:/")
_SUFFIX = re.compile(r"[^/]\.([A-Za-z][A-Za-z0-9_+-]{0,11})$")
_MANUAL = re.compile(r"[a-z][a-z_-]{1,40}\.[1-9]$")
_DOTFILE = re.compile(
    r"(?:^|/)\.[A-Za-z][A-Za-z0-9_-]*(?:rc|ignore|attributes|modules|config|env|profile|version|keep)$|^\.env$"
)
_BARE = frozenset(
    "makefile gnumakefile dockerfile containerfile justfile rakefile gemfile procfile vagrantfile brewfile jenkinsfile"
    " caddyfile tiltfile license licence copying notice readme changelog changes authors contributors codeowners owners"
    " version todo workspace build".split()
)
_KNOWN = frozenset(
    "py pyi pyx ipynb ts tsx js jsx mjs cjs mts cts vue svelte go mod sum work rs c h cc cpp cxx hpp"
    " hh m mm java kt kts scala"
    " groovy gradle rb erb php pl pm lua r jl swift dart ex exs erl hs ml clj cljs elm zig nim sh bash"
    " zsh fish ps1 bat cmd sql"
    " json jsonl json5 jsonc yaml yml toml ini cfg conf env lock xml html htm xhtml css scss sass less"
    " svg md mdx markdown rst txt"
    " adoc tex bib csv tsv parquet proto thrift graphql gql prisma tf tfvars hcl nix cmake mk make"
    " dockerfile diff patch log out"
    " err png jpg jpeg gif webp ico bmp pdf mp3 mp4 mov wav webm ogg flac ttf otf woff woff2 zip tar"
    " gz tgz bz2 xz zst 7z jar war"
    " whl deb rpm db sqlite sqlite3 db-wal db-shm pem crt cer key pub snap golden map min d wasm so"
    " dll dylib exe bin dat pkl npz"
    " npy pt onnx safetensors tmpl tpl j2 ejs hbs mustache template example sample bak orig rej tmp"
    " pid sock plist service desktop"
    " xlsx docx pptx mod sumdb http rest lst list rules mdc typed".split()
)


def resolve(cwd: str | None, name: str) -> str | None:
    """The absolute, normalised path of ``name`` relative to ``cwd``; None if it cannot be a regular file.

    ``cwd`` is None when the shell's directory is unknown: then only absolute names resolve.
    """
    if not name or len(name) > PATH_CHARS_MAX or name[-1] == "/" or _CONTROL.search(name):
        return None
    if name[0] != "/":
        if cwd is None or name[0] == "~":
            return None
        name = f"{cwd}/{name}" if cwd != "/" else f"/{name}"
    if name.endswith(("/.", "/..")):
        return None
    if _UNTIDY.search(name):
        name = posixpath.normpath(name)
        name = "/" + name.lstrip("/")
    if name == "/" or name.startswith(("/dev/", "/proc/self/")) or len(name) > PATH_CHARS_MAX:
        return None
    if len(name) > NAME_CHARS_MAX and any(len(part) > NAME_CHARS_MAX for part in name.split("/")):
        return None
    return str(name)  # Encoders do not support a `PossiblePath`.


def directory(cwd: str | None, name: str) -> str | None:
    """The absolute, normalised directory ``name`` relative to ``cwd``, or None if that is unknown."""
    if not name or len(name) > PATH_CHARS_MAX or _CONTROL.search(name) or name[0] == "~":
        return None
    if name[0] != "/":
        if cwd is None:
            return None
        name = f"{cwd}/{name}"
    path = "/" + posixpath.normpath(name).lstrip("/")
    return path if len(path) <= PATH_CHARS_MAX else None


def looks_like_file(name: str) -> bool:
    """True if a name alone suggests a file: it has a suffix, is a dot file, or is well known."""
    if not name or name[-1] == "/" or _URL.match(name):
        return False
    tail = name.rpartition("/")[2]
    if "." in tail:
        return bool(_SUFFIX.search(tail) or _DOTFILE.search(tail) or _MANUAL.match(tail))
    return _is_bare(tail)


def has_file_suffix(name: str) -> bool:
    """Like `looks_like_file`, but only with suffixes that are common for files: for words of unknown commands."""
    if not name or name[-1] == "/" or _URL.match(name) or "=" in name or "@" in name.rpartition("/")[2]:
        return False
    tail = name.rpartition("/")[2]
    suffix = _SUFFIX.search(tail)
    if suffix:
        return suffix.group(1).lower() in _KNOWN
    return "/" in name and bool(_DOTFILE.search(tail) or _is_bare(tail))


def _is_bare(tail: str) -> bool:
    """True for ``README`` or ``Makefile``, which are capitalised; ``build`` and ``version`` are words."""
    return tail.lower() in _BARE and (tail[0].isupper() or tail.endswith("file"))


def guessed(name: str) -> str:
    """``name`` if it looks like a file's, else as a `PossiblePath`."""
    return name if looks_like_file(name) else PossiblePath(name)


class Findings:
    """Collects distinct candidates in order, up to the number that one call may index."""

    __slots__ = ("_certain", "_denied", "_paths")

    def __init__(self) -> None:
        self._paths: dict[str, PathCandidate] = {}
        self._certain = 0
        self._denied: set[str] = set()

    def add(self, command: str, cwd: str | None, names: Iterable[str], anchor: Anchor | None = None) -> None:
        """Add names from ``command``, relative to ``cwd``. Names that cannot be files are dropped."""
        last, last_certain = None, False
        if self._certain >= PATHS_MAX:
            return
        for name in names:
            certain = type(name) is not PossiblePath
            if name == last and certain <= last_certain:
                continue
            last, last_certain = name, certain
            path = resolve(cwd, name)
            if path is not None:
                anchored = anchor if cwd is not None and name[0] != "/" else None
                self._add_candidate(PathCandidate(path, command, certain, anchored, cwd or "" if anchored else ""))
                if self._certain >= PATHS_MAX:
                    return

    def _add_candidate(self, new: PathCandidate) -> None:
        """Add ``new``, or merge it into the candidate of its path. Uncertain candidates have a limit of their own."""
        known = self._paths.get(new.path)
        if known is None:
            if new.certain or len(self._paths) - self._certain < PATHS_MAX:
                self._paths[new.path] = new
                self._certain += new.certain
            return
        if new.certain > known.certain or (new.anchor and not known.anchor):
            self._certain += new.certain > known.certain
            anchored = new if new.anchor else known
            first = new if new.certain > known.certain else known
            self._paths[new.path] = PathCandidate(
                new.path, first.command, first.certain, anchored.anchor, anchored.base
            )

    def deny(self, cwd: str | None, names: Iterable[str]) -> None:
        """Drop names that the output reports as missing or as directories."""
        for name in names:
            path = directory(cwd, name)
            if path is not None:
                self._denied.add(path)

    def candidates(self) -> tuple[PathCandidate, ...]:
        """All candidates that were not denied; if there are too many, the certain ones and the first of the others."""
        kept = [candidate for path, candidate in self._paths.items() if path not in self._denied]
        room = PATHS_MAX - sum(candidate.certain for candidate in kept)
        if len(kept) <= PATHS_MAX:
            return tuple(kept)
        chosen: list[PathCandidate] = []
        for candidate in kept:
            room -= not candidate.certain
            if candidate.certain or room >= 0:
                chosen.append(candidate)
        return tuple(chosen)
