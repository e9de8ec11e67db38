"""Index of skills as a component: name, description and path of each ``SKILL.md`` that a session's harness finds.

The model reads a skill's own file when a task calls for it. The front matter is read as a subset of YAML that cannot
take more than linear time or memory: keys at the beginning of a line, with a plain, quoted or block scalar. Anchors,
aliases, tags and flow collections are not interpreted.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from ctxd.epochs.component import Component, Loaded, UnavailableComponent
from ctxd.epochs.component_files import AgentFiles, FileText, directories_above, is_below, nearest_repository, visible
from ctxd.epochs.instruction_places import SKILLS, SkillPlaces, harness_of
from ctxd.epochs.tag_escaping import one_line, tagged
from ctxd.sessions.live_session import LiveSession, WriteRequest

KEY: Final = "skills"

SKILLS_MAX: Final = 200
"""Maximum skills in an index. Further ones are only counted."""

NAME_CHARS_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 1024
"""Maximum characters of a name and of a description, as in the standard for skills. Longer ones are cut."""

FRONT_MATTER_CHARS_MAX: Final = 16 * 1024
"""Maximum characters of a front matter. A longer one is ignored."""

TEXT_CHARS_MAX: Final = FRONT_MATTER_CHARS_MAX + 4096
"""Characters of a file that are read: front matter and first paragraph."""

_FIELD: Final = re.compile(r"([A-Za-z0-9_-]+)[ \t]*:(?:[ \t]+(.*)|[ \t]*)$")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "/": "/"}


class Skill(msgspec.Struct, frozen=True, array_like=True):
    """One skill. ``path``: its file, as the agent knows it."""

    name: str
    description: str
    path: str


class SkillIndex(msgspec.Struct, frozen=True, omit_defaults=True):
    """Skills by name. ``omitted``: number of further skills."""

    skills: tuple[Skill, ...]
    omitted: int = 0


class Skills(Component[SkillIndex]):
    """Component of the index, which was read before."""

    value_type = SkillIndex

    def __init__(self, loaded: Loaded[SkillIndex] | UnavailableComponent) -> None:
        super().__init__(KEY)
        self._loaded = loaded

    async def load(self) -> Loaded[SkillIndex] | UnavailableComponent:
        """See ``Component``."""
        return self._loaded

    def baseline(self, value: SkillIndex) -> str:
        """See ``Component``."""
        return (
            f"Skills are instructions for certain tasks. Read the file of a skill before such a task.\n{_shown(value)}"
        )

    def update(self, previous: SkillIndex, current: SkillIndex) -> str:
        """See ``Component``."""
        return f"The skills changed. They are now:\n{_shown(current)}"

    def removal(self, previous: SkillIndex) -> str | None:
        """See ``Component``."""
        return "There are no skills any more."


def _shown(value: SkillIndex) -> str:
    lines = [f"- {skill.name}: {skill.description} ({one_line(skill.path)})" for skill in value.skills]
    lines += [f"[{value.omitted:,} more skills are left out here]"] if value.omitted else []
    return tagged("skills", "\n".join(lines))


class SkillFiles:
    """Finds the skills of sessions, and reads them through ``files``."""

    def __init__(self, files: AgentFiles) -> None:
        self._files = files

    async def provide(self, live: LiveSession, call: WriteRequest) -> Iterable[Component[Any]]:
        """The index of ``live``, empty without a skill; see ``Provider``. Raises: CtxdError of the store. Cancel:
        safe."""
        harness = SKILLS[harness_of(live.settings.component_options.harness, live.settings.agent)]
        loaded = await self._loaded(live, call, harness)
        return [] if loaded is None else [Skills(loaded)]

    async def _loaded(
        self, live: LiveSession, call: WriteRequest, harness: SkillPlaces
    ) -> Loaded[SkillIndex] | UnavailableComponent | None:
        workdir, home = live.settings.workdir, await self._files.home(live)
        above = directories_above(workdir)
        marks = [f"{each.rstrip('/')}/.git" for each in above]
        own = [*harness.system, *(f"{home}/{name}" for name in harness.home if home is not None)]
        project = {each: [f"{each.rstrip('/')}/{name}" for name in harness.project] for each in above}
        paths = [*above, *marks, *own, *(path for some in project.values() for path in some)]
        found = visible(await self._files.look(live, [*paths, home] if home else paths), own)
        at = found.get(workdir)
        if at is not None and not at.is_directory:
            return UnavailableComponent(f"the working directory {workdir} is not there")
        root = nearest_repository(above, found) or workdir
        folders = [*own, *(path for each in above[above.index(root) :] for path in project[each])]
        listed = await self._files.list(
            {each: found[each] for each in folders if each in found and found[each].is_directory}
        )
        inner: list[str] = []
        for folder, names in listed.items():
            if isinstance(names, UnavailableComponent):
                return names
            inner += [f"{folder}/{name}/SKILL.md" for name in names if not name.startswith(".")]
        places = {path: place for path, place in (await self._files.look(live, inner)).items() if place.is_file}
        if not live.mounts.in_sandbox:
            # Anyone may have made the symlinks in a project, and the daemon may have more read permissions than its
            # user.
            everything = {**found, **places}
            for path in places:
                if not any(path.startswith(f"{each}/") for each in own) and not is_below(
                    everything, path, [root, home]
                ):
                    return UnavailableComponent(f"{path} leads out of the project and of the home directory")
        # The skills of the working directory come last, and matter most.
        kept = dict(list(places.items())[-SKILLS_MAX:])
        return _index(await self._files.read(live, call, kept), harness, len(places) - len(kept))


def _index(
    texts: dict[str, FileText | UnavailableComponent], harness: SkillPlaces, omitted: int
) -> Loaded[SkillIndex] | UnavailableComponent | None:
    """The index of the skills in ``texts``, by path; None without a skill."""
    found: dict[str, Skill] = {}
    sources = {}
    for path, text in texts.items():
        if isinstance(text, UnavailableComponent):
            return text
        skill = skill_in(text.text[:TEXT_CHARS_MAX], path, is_named_by_folder=harness.is_named_by_folder)
        if skill is not None and text.version is not None:
            found[skill.name], sources[skill.name] = skill, text.version
    if not found:
        return None
    names = sorted(found)
    return Loaded(SkillIndex(tuple(found[name] for name in names), omitted), tuple(sources[name] for name in names))


@lru_cache(maxsize=1024)
def skill_in(text: str, path: str, *, is_named_by_folder: bool) -> Skill | None:
    """The skill that ``text``, the file at ``path``, describes; None if it describes none, or one that the model must
    not use by itself. ``is_named_by_folder``: see ``SkillPlaces``. Cost: linear."""
    fields, body = front_matter(text)
    if fields.get("disable-model-invocation", "").lower() == "true":
        return None
    name, description = fields.get("name", ""), fields.get("description", "")
    if is_named_by_folder:
        name = name or path.split("/")[-2]
        description = description or _first_paragraph(body)
    name, description = _one_line(name, NAME_CHARS_MAX), _one_line(description, DESCRIPTION_CHARS_MAX)
    return Skill(name, description, path) if name and description else None


def _one_line(text: str, chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"


def _first_paragraph(body: str) -> str:
    lines: list[str] = []
    for line in body[:FRONT_MATTER_CHARS_MAX].splitlines():
        plain = line.strip()
        if plain and not plain.startswith("#"):
            lines.append(plain)
        elif lines:
            break
    return " ".join(lines)


def front_matter(text: str) -> tuple[dict[str, str], str]:
    """The fields at the head of ``text`` between two lines ``---``, and the text after them; no fields without such
    lines. A field in a form outside the subset is left out. Cost: linear."""
    text = text.removeprefix("\ufeff")
    lines = text[:FRONT_MATTER_CHARS_MAX].splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() == "---"), None)
    if end is None:
        return {}, text
    fields: dict[str, str] = {}
    at = 1
    while at < end:
        found = _FIELD.match(lines[at])
        at += 1
        first = at
        while at < end and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        if found is not None and (value := _scalar(found[2] or "", lines[first:at])) is not None:
            fields.setdefault(found[1], value)
    return fields, "\n".join([*lines[end + 1 :]]) + text[FRONT_MATTER_CHARS_MAX:]


def _scalar(head: str, rest: list[str]) -> str | None:
    """The scalar that begins with ``head`` and continues in the indented lines ``rest``; None for any other value."""
    head = head.strip()
    if head[:1] in ("|", ">"):
        lines = [line.strip() for line in rest]
        return ("\n" if head[0] == "|" else " ").join(lines).strip()
    whole = " ".join([head, *(line.strip() for line in rest)]).strip()
    if whole[:1] == '"':
        return _quoted(whole)
    if whole[:1] == "'":
        inner, closed = whole[1:-1], len(whole) > 1 and whole.endswith("'")
        return inner.replace("''", "'") if closed else None
    if whole[:1] in ("[", "{", "&", "*", "!", "%", "@", "`"):
        return None
    comment = re.search(r"(?:^|[ \t])#", whole)
    return whole if comment is None else whole[: comment.start()].rstrip()


def _quoted(whole: str) -> str | None:
    """The text between double quotes, None if the closing quote is missing."""
    made: list[str] = []
    at = 1
    while at < len(whole):
        if whole[at] == '"':
            return "".join(made)
        if whole[at] == "\\" and at + 1 < len(whole):
            at += 1
            made.append(_ESCAPES.get(whole[at], whole[at]))
        else:
            made.append(whole[at])
        at += 1
    return None
