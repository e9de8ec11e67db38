"""Instruction files as components: the files that a session's harness reads, such as CLAUDE.md and AGENTS.md.

Each file is one component, so that an update contains only the file that changed. Its text is shown between tags that
the text cannot close. A file that exists but cannot be read is unavailable, a file that is gone is removed, and a file
without text is ignored.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ctxd.epochs.component import KEY_CHARS_MAX, Component, FileVersion, Loaded, UnavailableComponent
from ctxd.epochs.component_files import (
    AgentFiles,
    AgentPath,
    FileText,
    directories_above,
    is_below,
    nearest_repository,
    visible,
)
from ctxd.epochs.instruction_places import INSTRUCTIONS, InstructionPlaces, Names, harness_of
from ctxd.epochs.tag_escaping import one_line, tagged
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import normalise
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.object_types import FilesystemSource

PREFIX: Final = "instructions/"
"""Prefix of the keys, before the path."""

FILES_MAX: Final = 100
"""Maximum instruction files of one session. Further ones are left out."""

IMPORT_HOPS_MAX: Final = 5
"""Maximum depth of imports, as in Claude Code."""

RULES_MAX: Final = 1_000
"""Maximum names in folders of rules that are examined together."""

FOLDERS_MAX: Final = 50
"""Maximum folders of rules, including nested ones."""

BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of all instruction files of one session. A file that would exceed it is not read."""

_IMPORT: Final = re.compile(r"(?:^|(?<=\s))@((?:[^\s\\]|\\ )+)")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_TICKS: Final = re.compile(r"(`+)")
_FRONT_MATTER: Final = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)


class Instructions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Text of the instruction file at ``path``, as the agent knows it. ``omitted_bytes``: bytes left out at its end;
    all of them for a file that is too long."""

    path: str
    text: str
    omitted_bytes: int = 0


class InstructionFile(Component[Instructions]):
    """Component of one instruction file, which was read with the others."""

    value_type = Instructions

    def __init__(self, path: str, loaded: Loaded[Instructions] | UnavailableComponent) -> None:
        super().__init__(_key(path))
        self._loaded = loaded

    async def load(self) -> Loaded[Instructions] | UnavailableComponent:
        """See ``Component``."""
        return self._loaded

    def baseline(self, value: Instructions) -> str:
        """See ``Component``."""
        return f"Instructions from {one_line(value.path)}:\n{_shown(value)}"

    def update(self, previous: Instructions, current: Instructions) -> str:
        """See ``Component``."""
        return f"The instructions in {one_line(current.path)} changed. They are now:\n{_shown(current)}"

    def removal(self, previous: Instructions) -> str | None:
        """See ``Component``."""
        return f"The instructions from {one_line(previous.path)} no longer apply."


def _key(path: str) -> str:
    key = f"{PREFIX}{path}"
    return key if len(key) <= KEY_CHARS_MAX else f"{PREFIX}{hashlib.sha256(path.encode()).hexdigest()}"


def _shown(value: Instructions) -> str:
    if value.omitted_bytes and not value.text:
        return f"[{value.omitted_bytes:,} bytes, too long to be shown here; read the file]"
    rest = f"\n[{value.omitted_bytes:,} more bytes are left out here; read the file]" if value.omitted_bytes else ""
    return f"{tagged('instructions', value.text)}{rest}"


class InstructionFiles:
    """Finds the instruction files of sessions, and reads them through ``files``."""

    def __init__(self, files: AgentFiles) -> None:
        self._files = files

    async def provide(self, live: LiveSession, call: WriteRequest) -> Iterable[Component[Any]]:
        """The components of ``live``; see ``Provider``. Raises: CtxdError of the store. Cancel: safe."""
        places = INSTRUCTIONS[harness_of(live.settings.component_options.harness, live.settings.agent)]
        return await _InstructionSearch(self._files, live, call, places, await self._files.home(live)).run()


class _InstructionSearch:
    """One search for the instruction files of a session."""

    def __init__(
        self, files: AgentFiles, live: LiveSession, call: WriteRequest, places: InstructionPlaces, home: str | None
    ) -> None:
        self._files = files
        self._live = live
        self._call = call
        self._places = places
        self._home = home
        self._workdir = live.settings.workdir
        self._found: dict[str, AgentPath] = {}
        self._failed: dict[str, UnavailableComponent] = {}
        self._texts: dict[str, FileText | UnavailableComponent] = {}
        self._above: Sequence[str] = ()
        self._bytes = 0
        self._project_root = self._workdir

    async def run(self) -> list[Component[Any]]:
        """The components, in the order in which the model reads them."""
        places, above = self._places, directories_above(self._workdir)
        names = [name for group in places.project for name in group]
        paths = [*above, *places.system, *(f"{each.rstrip('/')}/.git" for each in above)]
        paths += [_below(each, name) for each in above for name in names]
        own: list[str] = []
        if self._home is not None:
            paths.append(self._home)
            own = [_below(self._home, name) for group in places.home for name in group]
        self._found = visible(await self._files.look(self._live, [*paths, *own]), [*places.system, *own])
        if self._is_away():
            return [InstructionFile("", UnavailableComponent(f"the working directory {self._workdir} is not there"))]
        repository = nearest_repository(above, self._found)
        self._project_root = repository or self._workdir
        if places.reach == "repository":
            above = above[above.index(self._project_root) :]
        self._above = above
        home = await self._of_home()
        project = await self._of_project(above)
        self._texts |= {path: _out(path) for path in project if not self._is_allowed(path)}
        await self._read([*places.system, *home, *project])
        ordered = [path for path in (*places.system, *home, *project) if self._applies(path)]
        if places.has_imports:
            ordered = await self._with_imports(ordered, own={*places.system, *home})
        return self._components(ordered, set(project))

    def _is_away(self) -> bool:
        """True if the daemon can see the place of the working directory, and there is no directory."""
        found = self._found.get(self._workdir)
        return found is not None and not found.is_directory

    # --- paths ---

    async def _of_home(self) -> list[str]:
        found: list[str] = []
        for group in self._places.home if self._home is not None else ():
            found += await self._of_group([_below(self._home or "", name) for name in group], is_filled=True)
        return found

    async def _of_project(self, above: Sequence[str]) -> list[str]:
        groups = self._places.project
        if self._places.is_one_name:
            (names,) = groups
            used = next((name for name in names if any(self._is_file(_below(each, name)) for each in above)), names[0])
            groups = ((used,),)
        found: list[str] = []
        for directory in above:
            for group in groups:
                found += await self._of_group([_below(directory, name) for name in group], is_filled=False)
        return found

    async def _of_group(self, paths: Names | list[str], *, is_filled: bool) -> list[str]:
        """The first of ``paths`` that is a file, not empty if ``is_filled``; for a folder of rules, all of its
        files."""
        for path in paths:
            if path.endswith("/"):
                return await self._rules(path)
            if self._is_file(path) and not (is_filled and self._found[path].size_bytes == 0):
                return [path]
        return []

    def _is_file(self, path: str) -> bool:
        return path in self._found and self._found[path].is_file

    async def _rules(self, folder: str) -> list[str]:
        """The Markdown files in ``folder`` and its subfolders, sorted."""
        found: list[str] = []
        folders = {folder: self._found[folder]} if folder in self._found and self._found[folder].is_directory else {}
        seen: set[FilesystemSource] = set()
        while folders and len(seen) < FOLDERS_MAX:
            seen |= {place.source for place in folders.values()}
            listed = await self._files.list(folders)
            inner: list[str] = []
            for directory, names in listed.items():
                if isinstance(names, UnavailableComponent):
                    self._failed[directory.rstrip("/")] = names
                else:
                    inner += [_below(directory, name) for name in names if not name.startswith(".")]
            inner = inner[:RULES_MAX]
            places = await self._files.look(self._live, inner)
            self._found |= places
            found += [path for path in inner if path.endswith(".md") and self._is_file(path)]
            # Skip folders already seen: a symlink may lead back to one.
            folders = {path: place for path, place in places.items() if place.is_directory and place.source not in seen}
            for path in [path for path in folders if not self._is_allowed(path)]:
                self._failed[path] = _out(path)
                del folders[path]
        return sorted(found)

    def _is_allowed(self, path: str) -> bool:
        """True for a path that leads to the user's home, to the project, or, above the project, to its own directory.

        Anyone may have made the symlinks in a project, and the daemon may have more read permissions than its user. In
        a sandbox the mounts decide.
        """
        inside = [each for each in self._above if path.startswith(f"{each.rstrip('/')}/")]
        if self._live.mounts.in_sandbox or not inside:
            return True
        root = self._project_root if self._is_inside(path) else inside[-1]
        return is_below(self._found, path, [root, self._home])

    # --- texts ---

    async def _read(self, paths: Iterable[str]) -> None:
        """Read those of ``paths`` that are files and were not read yet, within the limits of a session."""
        due: dict[str, AgentPath] = {}
        for path in dict.fromkeys(paths):
            if self._is_file(path) and path not in self._texts and len(self._texts) + len(due) < FILES_MAX:
                size = self._found[path].size_bytes
                if self._bytes + size > BYTES_MAX:
                    self._texts[path] = FileText("", size)
                else:
                    self._bytes += size
                    due[path] = self._found[path]
        self._texts |= await self._files.read(self._live, self._call, due)

    def _applies(self, path: str) -> bool:
        """False for a rule that is limited to certain files: the harness adds it when the agent touches one of them."""
        text = self._texts.get(path)
        if not isinstance(text, FileText):
            return text is not None
        if not any(name.endswith("/") and f"/{name}" in path for group in self._places.project for name in group):
            return True
        front = _FRONT_MATTER.match(text.text)
        return front is None or re.search(r"^paths[ \t]*:", front[1], re.MULTILINE) is None

    async def _with_imports(self, paths: Sequence[str], own: set[str]) -> list[str]:
        """``paths``, each followed by the files that it imports. ``own``: files of the user or of the host, which may
        import any file; those of a project may import only files of the project, as anyone may have written them."""
        after: dict[str, list[str]] = {}
        front = list(paths)
        for _ in range(IMPORT_HOPS_MAX):
            named: dict[str, list[str]] = {}
            for path in front:
                text = self._texts.get(path)
                if isinstance(text, FileText) and path not in after:
                    named[path] = [
                        each for each in self._imports(path, text.text) if path in own or self._is_inside(each)
                    ]
                    own |= set(named[path]) if path in own else set()
            wanted = list(dict.fromkeys(each for some in named.values() for each in some))[:RULES_MAX]
            places = await self._files.look(self._live, [path for path in wanted if path not in self._found])
            self._found |= places
            due = [path for path in wanted if path in own or is_below(self._found, path, [self._project_root])]
            await self._read(due)
            after |= {path: [each for each in some if each in due] for path, some in named.items()}
            front = [path for path in due if path not in after]
            if not front:
                break
        ordered: dict[str, None] = {}
        left = list(reversed(paths))
        while left:
            path = left.pop()
            if path not in ordered:
                ordered[path] = None
                left += reversed(after.get(path, []))
        return list(ordered)

    def _imports(self, path: str, text: str) -> list[str]:
        """The paths that ``text`` of the file at ``path`` imports."""
        found: list[str] = []
        for named in imports_in(text):
            if named.startswith("~/") and self._home is not None:
                named = f"{self._home}/{named[2:]}"
            elif named.startswith("~"):
                continue
            try:
                found.append(normalise(named, path.rpartition("/")[0] or "/"))
            except CtxdError:
                continue
        return found

    def _is_inside(self, path: str) -> bool:
        return path.startswith(f"{self._project_root.rstrip('/')}/")

    # --- components ---

    def _components(self, paths: Iterable[str], project: set[str]) -> list[Component[Any]]:
        left = self._places.bytes_max
        made: list[Component[Any]] = [InstructionFile(f"{path}/", reason) for path, reason in self._failed.items()]
        failed = next((each for each in self._texts.values() if isinstance(each, UnavailableComponent)), None)
        if failed is not None and self._places.has_imports:
            # The imports of that file are unknown.
            made.append(InstructionFile("", failed))
        known = set()
        for path in paths:
            text = self._texts.get(path)
            # Show a file only once, even if it has two names, by a symlink or as a file of the home.
            if text is None or (source := self._found[path].source) in known:
                continue
            known.add(source)
            if isinstance(text, UnavailableComponent):
                made.append(InstructionFile(path, text))
                continue
            if left is not None and path in project:
                text, left = _cut(text, left)
            if text is not None and (text.text.strip() or text.omitted_bytes):
                sources: tuple[FileVersion, ...] = () if text.version is None else (text.version,)
                value = Instructions(path, text.text, text.omitted_bytes)
                made.append(InstructionFile(path, Loaded(value, sources)))
        return made


def _out(path: str) -> UnavailableComponent:
    return UnavailableComponent(f"{path} leads out of the project and of the home directory")


def _cut(text: FileText, left: int) -> tuple[FileText | None, int]:
    """``text`` limited to ``left`` bytes, None if nothing of it fits, and the bytes left after it."""
    data = text.text.encode()
    if len(data) <= left:
        return text, left - len(data)
    if left == 0:
        return None, 0
    shown = data[:left].decode(errors="ignore")
    return msgspec.structs.replace(text, text=shown, omitted_bytes=len(data) - len(shown.encode())), 0


def _below(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


@lru_cache(maxsize=128)
def imports_in(text: str) -> tuple[str, ...]:
    """The names that ``text``, Markdown, imports by ``@name`` outside of code, ``FILES_MAX`` at most. Cost: linear."""
    found: dict[str, None] = {}
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence:
            if mark is not None and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif mark is not None:
            fence = mark[1]
        elif "@" in line:
            for name in _IMPORT.findall(_without_code(line)):
                if len(found) == FILES_MAX:
                    return tuple(found)
                found[name.replace("\\ ", " ").partition("#")[0]] = None
    return tuple(found)


def _without_code(line: str) -> str:
    """``line`` without code spans, which are delimited by equally long runs of backticks."""
    parts = _TICKS.split(line)
    # The runs of backticks are at odd places; the last one of each length cannot open a span.
    last = {parts[at]: at for at in range(1, len(parts), 2)}
    kept, opened = [], ""
    for at, part in enumerate(parts):
        if at % 2 == 0:
            kept += [] if opened else [part]
        elif opened:
            opened = "" if part == opened else opened
        elif last[part] > at:
            opened = part
    return " ".join(kept)
