"""Places where each harness looks for instruction files and skills. Pure.

From the harnesses' documentation: code.claude.com/docs/en/memory and /skills,
developers.openai.com/codex/guides/agents-md and /codex/skills, pi's README and docs/skills.md, opencode.ai/docs/rules
and /docs/skills.
"""

import re
from typing import Final, Literal

import msgspec

from ctxd_protocol.session_types import Harness

Names = tuple[str, ...]
"""Alternative names below a directory: the first that exists is used. A name that ends with ``/`` is a folder of rules,
all of whose Markdown files are used."""


class InstructionPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction files of one harness, in the order in which the model reads them.

    ``system``: files of the host; ``home``: below the home directory, the first of each group that is not empty;
    ``project``: in each directory from the outermost to the working directory. ``reach``: ``repository`` for the
    directories from the repository's root on, outside of one the working directory alone; ``root`` for all directories
    above the working directory except the root. ``is_one_name``: only the first of the names in ``project`` that exists
    in any of the directories is used. ``bytes_max``: of all project files together, None for no limit. ``has_imports``:
    a line may import other files by ``@path``.
    """

    system: Names = ()
    home: tuple[Names, ...]
    project: tuple[Names, ...]
    reach: Literal["repository", "root"]
    is_one_name: bool = False
    bytes_max: int | None = None
    has_imports: bool = False


INSTRUCTIONS: Final[dict[Harness, InstructionPlaces]] = {
    "claude-code": InstructionPlaces(
        system=("/etc/claude-code/CLAUDE.md",),
        home=((".claude/CLAUDE.md",), (".claude/rules/",)),
        project=(("CLAUDE.md",), (".claude/CLAUDE.md",), (".claude/rules/",), ("CLAUDE.local.md",)),
        reach="root",
        has_imports=True,
    ),
    "codex": InstructionPlaces(
        home=((".codex/AGENTS.override.md", ".codex/AGENTS.md"),),
        project=(("AGENTS.override.md", "AGENTS.md"),),
        reach="repository",
        bytes_max=32 * 1024,
    ),
    "pi": InstructionPlaces(
        home=((".pi/agent/AGENTS.md", ".pi/agent/CLAUDE.md"),),
        project=(("AGENTS.md", "CLAUDE.md"),),
        reach="root",
    ),
    "opencode": InstructionPlaces(
        home=((".config/opencode/AGENTS.md", ".claude/CLAUDE.md"),),
        project=(("AGENTS.md", "CLAUDE.md", "CONTEXT.md"),),
        reach="repository",
        is_one_name=True,
    ),
}


class SkillPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Folders of skills of one harness: each skill is a folder in them with a file ``SKILL.md``. A skill hides those of
    the same name in earlier places.

    ``project``: in each directory from the repository's root to the working directory. ``is_named_by_folder``: a skill
    without a name gets that of its folder, and one without a description its first paragraph; other harnesses leave
    such a skill out.
    """

    system: Names = ()
    home: Names
    project: Names
    is_named_by_folder: bool = False


SKILLS: Final[dict[Harness, SkillPlaces]] = {
    "claude-code": SkillPlaces(home=(".claude/skills",), project=(".claude/skills",), is_named_by_folder=True),
    "codex": SkillPlaces(
        system=("/etc/codex/skills",), home=(".codex/skills", ".agents/skills"), project=(".agents/skills",)
    ),
    "pi": SkillPlaces(home=(".pi/agent/skills", ".agents/skills"), project=(".pi/skills", ".agents/skills")),
    "opencode": SkillPlaces(
        home=(".config/opencode/skills", ".claude/skills", ".agents/skills"),
        project=(".opencode/skills", ".claude/skills", ".agents/skills"),
    ),
}


def harness_of(given: Harness | None, agent: str) -> Harness:
    """The harness of a session: ``given``; else the harness that is the first word of the agent's name; else codex,
    whose files follow the AGENTS.md convention."""
    if given is not None:
        return given
    word = re.split("[^a-z]", agent.lower(), maxsplit=1)[0]
    return "claude-code" if word == "claude" else next((name for name in INSTRUCTIONS if name == word), "codex")
