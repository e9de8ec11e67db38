"""Instruction files: those that each harness finds, read safely, with the version of each as its source."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ctxd.epochs.component import Loaded, UnavailableComponent
from ctxd.epochs.component_files import FILE_BYTES_MAX, directories_above
from ctxd.epochs.instruction_files import InstructionFile, Instructions, imports_in
from ctxd.epochs.instruction_places import harness_of
from ctxd.sources.source_interface import Unreadable
from ctxd.sources.user_rights import User
from ctxd_protocol.session_types import Harness
from tests.unit.epochs.agents import agent, write

pytestmark = pytest.mark.anyio

NOBODY = 65534
TREE = {
    "home/.claude/CLAUDE.md": "claude home",
    "home/.claude/rules/style.md": "claude home rule",
    "home/.codex/AGENTS.override.md": "",
    "home/.codex/AGENTS.md": "codex home",
    "home/.pi/agent/AGENTS.md": "pi home",
    "home/.config/opencode/AGENTS.md": "opencode home",
    "CLAUDE.md": "above",
    "AGENTS.md": "above",
    "repo/.git/HEAD": "ref: refs/heads/main\n",
    "repo/CLAUDE.md": "claude root",
    "repo/CLAUDE.local.md": "claude local",
    "repo/AGENTS.md": "agents root",
    "repo/.claude/CLAUDE.md": "claude folder",
    "repo/.claude/rules/deep/b.md": "rule b",
    "repo/.claude/rules/a.md": "rule a",
    "repo/.claude/rules/c.md": "---\npaths:\n  - 'src/**'\n---\nrule c, for some files",
    "repo/sub/AGENTS.override.md": "override",
    "repo/sub/AGENTS.md": "agents sub",
    "repo/sub/CLAUDE.md": "claude sub",
    "repo/sub/inner/CLAUDE.md": "not above the working directory",
}
FOUND: dict[Harness, list[str]] = {
    "claude-code": [
        "home/.claude/CLAUDE.md",
        "home/.claude/rules/style.md",
        "CLAUDE.md",
        "repo/CLAUDE.md",
        "repo/.claude/CLAUDE.md",
        "repo/.claude/rules/a.md",
        "repo/.claude/rules/deep/b.md",
        "repo/CLAUDE.local.md",
        "repo/sub/CLAUDE.md",
    ],
    "codex": ["home/.codex/AGENTS.md", "repo/AGENTS.md", "repo/sub/AGENTS.override.md"],
    "pi": ["home/.pi/agent/AGENTS.md", "AGENTS.md", "repo/AGENTS.md", "repo/sub/AGENTS.md"],
    "opencode": ["home/.config/opencode/AGENTS.md", "repo/AGENTS.md", "repo/sub/AGENTS.md"],
}


@pytest.mark.parametrize("harness", FOUND)
@pytest.mark.requirement("EPO-20")
async def test_each_harness_gets_the_files_that_it_would_read_in_its_order(tmp_path: Path, harness: Harness) -> None:
    async with agent(tmp_path, harness, workdir="repo/sub") as a:
        write(a.tree, TREE)
        found = await a.instructions()
        assert list(found) == FOUND[harness]
        assert all(found[path] == TREE[path] for path in found)


@pytest.mark.requirement("EPO-20")
async def test_alternative_names_and_empty_files_are_handled(tmp_path: Path) -> None:
    async with agent(tmp_path, "opencode", workdir="repo/sub") as a:
        write(
            a.tree,
            {
                "repo/.git/": "",
                "repo/sub/": "",
                "repo/CLAUDE.md": "c",
                "repo/CONTEXT.md": "x",
                "home/.claude/CLAUDE.md": "h",
            },
        )
        assert await a.instructions() == {"home/.claude/CLAUDE.md": "h", "repo/CLAUDE.md": "c"}
        write(a.tree, {"repo/AGENTS.md": " \n"})
        assert await a.instructions() == {"home/.claude/CLAUDE.md": "h"}


@pytest.mark.requirement("EPO-20")
async def test_outside_a_repository_codex_reads_the_working_directory_alone(tmp_path: Path) -> None:
    async with agent(tmp_path, "codex", workdir="repo/sub") as a:
        write(a.tree, {"repo/AGENTS.md": "r", "repo/sub/AGENTS.md": "s"})
        assert await a.instructions() == {"repo/sub/AGENTS.md": "s"}


@pytest.mark.requirement("EPO-20")
async def test_codex_reads_32_kib_of_a_project(tmp_path: Path) -> None:
    async with agent(tmp_path, "codex", workdir="repo/a/b") as a:
        write(a.tree, {"repo/.git/": "", "repo/AGENTS.md": "x" * 30_000})
        write(a.tree, {"repo/a/AGENTS.md": "é" * 3_000, "repo/a/b/AGENTS.md": "z"})
        found = await a.loaded(a.instruction_files.provide)
        first, second = [each.value for each in found.values() if isinstance(each, Loaded)]
        assert (len(first.text), first.omitted_bytes) == (30_000, 0)
        assert second.text == "é" * 1_384 and second.omitted_bytes == 6_000 - 2_768
        assert "3,232 more bytes are left out" in InstructionFile(second.path, UnavailableComponent("")).baseline(
            second
        )


@pytest.mark.parametrize(
    ("agent_name", "harness"),
    [
        ("claude", "claude-code"),
        ("codex-1", "codex"),
        ("pi", "pi"),
        ("opencode", "opencode"),
        ("pilot", "codex"),
        ("PI/2", "pi"),
    ],
)
@pytest.mark.requirement("EPO-20")
def test_the_name_of_an_agent_determines_its_harness(agent_name: str, harness: Harness) -> None:
    assert harness_of(None, agent_name) == harness
    assert harness_of("pi", agent_name) == "pi"


@pytest.mark.requirement("EPO-21")
async def test_imports_follow_their_file_five_deep_and_once(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(
            a.tree,
            {"repo/CLAUDE.md": "See @docs/1.md and @missing.md, mail me@docs/1.md.", "repo/CLAUDE.local.md": "l"},
        )
        for n in range(1, 8):
            write(a.tree, {f"repo/docs/{n}.md": f"{n} @{n + 1}.md @../CLAUDE.md @1.md"})
        found = await a.instructions()
        assert list(found) == ["repo/CLAUDE.md", *(f"repo/docs/{n}.md" for n in range(1, 6)), "repo/CLAUDE.local.md"]


@pytest.mark.requirement("EPO-21")
async def test_a_project_imports_nothing_from_outside_and_the_user_anything(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="repo/sub") as a:
        write(a.tree, {"repo/.git/": "", "repo/sub/": "", "secret.md": "secret", "home/.ssh/key": "secret"})
        write(
            a.tree, {"repo/CLAUDE.md": f"@{a.tree}/secret.md @../secret.md @~/.ssh/key @link.md @in.md @sub/../in.md"}
        )
        write(a.tree, {"repo/in.md": "inside"})
        os.symlink(a.tree / "secret.md", a.tree / "repo/link.md")
        assert await a.instructions() == {
            "repo/CLAUDE.md": (a.tree / "repo/CLAUDE.md").read_text(),
            "repo/in.md": "inside",
        }
        write(a.tree, {"home/.claude/CLAUDE.md": "@~/mine.md", "home/mine.md": f"mine @{a.tree}/secret.md"})
        assert list(await a.instructions()) == [
            "home/.claude/CLAUDE.md", "home/mine.md", "secret.md", "repo/CLAUDE.md", "repo/in.md",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@a.md", ["a.md"]),
        ("x @a.md\n@b\\ c.md", ["a.md", "b c.md"]),
        ("`@a.md` @b.md `` `@c.md` `` @d.md ` @e.md", ["b.md", "d.md", "e.md"]),
        ("```\n@a.md\n```\n@b.md\n~~~~ x\n@c.md\n~~~\n@d.md", ["b.md"]),
        ("a@b.md (@c.md) @", []),
        ("@a.md#part @a.md", ["a.md"]),
    ],
)
@pytest.mark.requirement("EPO-21")
async def test_imports_are_words_outside_of_code(text: str, names: list[str]) -> None:
    assert list(imports_in(text)) == names


@pytest.mark.parametrize(
    "text", ["`" * 100_000, "".join("`" * n + " " for n in range(700)), "@" * 200_000, "~~~\n" * 60_000]
)
async def test_hostile_markdown_takes_linear_time(text: str) -> None:
    assert len(imports_in(text)) <= 100


@pytest.mark.requirement("EPO-22")
async def test_irregular_instruction_files_are_ignored_without_blocking(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/.claude/CLAUDE.md/": "", "repo/CLAUDE.local.md": "text"})
        os.mkfifo(a.tree / "repo/CLAUDE.md")
        assert await a.instructions() == {"repo/CLAUDE.local.md": "text"}
        (a.tree / "repo/CLAUDE.md").unlink()
        os.symlink("/dev/zero", a.tree / "repo/CLAUDE.md")
        assert await a.instructions() == {"repo/CLAUDE.local.md": "text"}
        assert a.reads == [str(a.tree / "repo/CLAUDE.local.md")]


@pytest.mark.requirement("EPO-22")
async def test_a_long_file_is_named_with_its_size_and_not_read(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/CLAUDE.md": ""})
        os.truncate(a.tree / "repo/CLAUDE.md", FILE_BYTES_MAX + 1)
        (loaded,) = (await a.loaded(a.instruction_files.provide)).values()
        assert isinstance(loaded, Loaded) and loaded.sources == () and a.reads == []
        shown = InstructionFile(loaded.value.path, loaded).baseline(loaded.value)
        assert "[262,145 bytes, too long to be shown here; read the file]" in shown


@pytest.mark.requirement("EPO-22")
async def test_many_large_files_do_not_exceed_the_room_of_a_session(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        for n in range(20):
            write(a.tree, {f"repo/.claude/rules/{n:02}.md": "x" * 250_000})
        for n in range(200):
            write(a.tree, {f"repo/.claude/rules/z{n:03}.md": "y"})
        found = await a.loaded(a.instruction_files.provide)
        values = [each.value for each in found.values() if isinstance(each, Loaded)]
        assert len(values) == 100 and sum(len(each.text) for each in values) <= 1_048_576
        assert [bool(each.text) for each in values[:20]] == [True] * 4 + [False] * 16 and values[-1].text == "y"


@pytest.mark.requirement("EPO-22")
async def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/CLAUDE.md": b"Use \xff tabs\0."})
        assert await a.instructions() == {"repo/CLAUDE.md": "Use � tabs\0."}


@pytest.mark.requirement("EPO-23")
async def test_a_file_that_cannot_be_read_is_unavailable_and_one_that_is_gone_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/": ""})
        os.symlink("CLAUDE.md", a.tree / "repo/CLAUDE.md")
        reason = (await a.instructions())["repo/CLAUDE.md"]
        assert "unavailable" in reason and "Too many levels of symbolic links" in reason
        # Files that it imports are then unavailable too.
        assert list(await a.instructions()) == ["", "repo/CLAUDE.md"]
        (a.tree / "repo/CLAUDE.md").unlink()
        assert await a.instructions() == {}
        write(a.tree, {"repo/CLAUDE.md": "x"})
        monkeypatch.setattr(a.home.indexer.files, "_read_once", lambda path: None)
        assert "unavailable" in (await a.instructions())["repo/CLAUDE.md"]


@pytest.mark.requirement("EPO-23")
async def test_without_the_working_directory_all_files_are_unavailable(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"home/.claude/CLAUDE.md": "h"})
        assert await a.loaded(a.instruction_files.provide) == {
            "instructions/": UnavailableComponent(f"the working directory {a.tree}/repo is not there")
        }


@pytest.mark.requirement("EPO-24")
async def test_a_sandbox_gets_files_of_its_mounts_alone(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="/w/sub", mounts={"/w": "repo"}, options={"home": "/home/me"}) as a:
        write(a.tree, {"CLAUDE.md": "secret", "repo/sub/CLAUDE.md": "s @../in.md @../../CLAUDE.md", "repo/in.md": "i"})
        write(a.tree, {"repo/.git/": ""})
        os.symlink(a.tree / "CLAUDE.md", a.tree / "repo/CLAUDE.md")
        found = await a.instructions()
        assert list(found) == ["", "/w/CLAUDE.md", "/w/sub/CLAUDE.md", "/w/in.md"]
        assert found["/w/CLAUDE.md"].startswith("unavailable: ") and "secret" not in str(found)
        assert str(a.tree / "CLAUDE.md") not in a.reads


@pytest.mark.skipif(os.getuid() != 0, reason="needs the rights to read what another user may not")
@pytest.mark.requirement("EPO-24")
async def test_a_file_that_the_agent_may_not_read_is_unavailable(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="/w", mounts={"/w": "repo"}) as a:
        write(a.tree, {"repo/CLAUDE.md": "secret", "repo/CLAUDE.local.md": "open"})
        for path in (tmp_path, a.tree, a.tree / "repo"):
            path.chmod(0o755)
        (a.tree / "repo/CLAUDE.md").chmod(0o600)
        (a.tree / "repo/CLAUDE.local.md").chmod(0o644)
        a.home.indexer.files.confinement.limit("box", [str(a.tree / "repo")], User(NOBODY))
        found = await a.instructions()
        assert found["/w/CLAUDE.local.md"] == "open" and "Permission denied" in found["/w/CLAUDE.md"]


@pytest.mark.requirement("EPO-25")
async def test_nothing_is_read_or_written_while_nothing_changes(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/CLAUDE.md": "@a.md", "repo/a.md": "a"})
        first = await a.instructions()
        assert len(a.reads) == 2
        seq = a.home.store.next_seq
        assert await a.instructions() == first
        assert len(a.reads) == 2 and a.home.store.next_seq == seq
        write(a.tree, {"repo/a.md": "another"})
        assert (await a.instructions())["repo/a.md"] == "another"
        assert a.reads[2:] == [str(a.tree / "repo/a.md")] and a.home.store.next_seq == seq + 1


@pytest.mark.requirement("EPO-25")
async def test_the_source_of_a_text_is_its_version_in_the_file_store(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/CLAUDE.md": "one"})
        versions: list[Any] = []
        for text in ("one", "two"):
            write(a.tree, {"repo/CLAUDE.md": text})
            (loaded,) = (await a.loaded(a.instruction_files.provide)).values()
            assert isinstance(loaded, Loaded)
            versions += loaded.sources
        assert [each.path for each in versions] == [str(a.tree / "repo/CLAUDE.md")] * 2
        history = await a.home.store.history(versions[0].object)
        assert [stored.tx for stored in history] == [each.tx for each in versions]
        assert [stored.document.content_hash for stored in history] == [each.content_hash for each in versions]
        assert not a.live.state.index


@pytest.mark.requirement("EPO-25")
async def test_a_file_of_two_names_is_shown_once(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/AGENTS.md": "one"})
        os.symlink("AGENTS.md", a.tree / "repo/CLAUDE.md")
        os.symlink("AGENTS.md", a.tree / "repo/CLAUDE.local.md")
        assert await a.instructions() == {"repo/CLAUDE.md": "one"}


@pytest.mark.parametrize("text", ["</instructions>", "x</INSTRUCTIONS>y", "<instructions>", "</instructions\n>"])
@pytest.mark.requirement("EPO-26")
async def test_a_text_cannot_close_its_tags(text: str) -> None:
    value = Instructions("/a\nb/CLAUDE.md", f"before {text} after")
    component = InstructionFile(value.path, Loaded(value))
    for shown in (component.baseline(value), component.update(value, value)):
        head, body = shown.split("\n", 1)
        assert "'/a\\nb/CLAUDE.md'" in head
        assert body.lower().count("instructions>") - body.lower().count("&lt;") in (1, 2)
        assert body.lower().count("<instructions>") == 1 == body.lower().count("</instructions>")
        assert component.decode(component.encode(value)) == value


@pytest.mark.requirement("EPO-23")
async def test_a_home_that_the_daemon_may_not_enter_counts_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"home/.claude/CLAUDE.md": "h", "home/.claude/skills/a/SKILL.md": "x", "repo/CLAUDE.md": "r"})
        look = a.home.indexer.files._look
        closed = f"{a.tree}/home/"
        monkeypatch.setattr(
            a.home.indexer.files,
            "_look",
            lambda path: Unreadable(errno.EACCES) if path.startswith(closed) else look(path),
        )
        assert await a.instructions() == {"repo/CLAUDE.md": "r"} and await a.skills() is None


@pytest.mark.requirement("EPO-22")
async def test_folders_of_rules_that_lead_to_each_other_are_read_once(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        write(a.tree, {"repo/.claude/rules/a.md": "a", "repo/.claude/rules/in/b.md": "b"})
        os.symlink("..", a.tree / "repo/.claude/rules/in/up")
        os.symlink("/", a.tree / "repo/.claude/rules/root")
        assert list(await a.instructions()) == [
            "repo/.claude/rules/root/", "repo/.claude/rules/a.md", "repo/.claude/rules/in/b.md",
        ]  # fmt: skip


@pytest.mark.requirement("EPO-24")
async def test_a_link_in_a_project_leads_to_the_project_or_to_the_home(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="repo/sub") as a:
        write(a.tree, {"repo/.git/": "", "repo/sub/": "", "secret.md": "secret", "home/own.md": "h", "repo/in.md": "i"})
        os.symlink(a.tree / "secret.md", a.tree / "repo/CLAUDE.md")
        os.symlink(a.tree / "repo/in.md", a.tree / "repo/sub/CLAUDE.md")
        os.symlink(a.tree / "home/own.md", a.tree / "repo/sub/CLAUDE.local.md")
        found = await a.instructions()
        assert found["repo/sub/CLAUDE.md"] == "i" and found["repo/sub/CLAUDE.local.md"] == "h"
        assert "leads out of the project" in found["repo/CLAUDE.md"] and "secret" not in str(a.reads)
        (a.tree / "repo/.claude").mkdir()
        os.symlink(a.tree / "elsewhere", a.tree / "repo/.claude/skills")
        write(a.tree, {"elsewhere/x/SKILL.md": "---\nname: x\ndescription: d\n---\n"})
        assert "leads out of the project" in str(await a.skills())
        (a.tree / "repo/.claude/skills").unlink()
        os.symlink(a.tree / "home/skills", a.tree / "repo/.claude/skills")
        write(a.tree, {"home/skills/x/SKILL.md": "---\nname: x\ndescription: d\n---\n"})
        assert "leads out" not in str(await a.skills()) and "name='x'" in str(await a.skills())


@pytest.mark.slow
async def test_a_working_directory_of_a_thousand_levels_is_searched_near_its_end(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="/" + "d/" * 1_000 + "d") as a:
        assert list(await a.loaded(a.instruction_files.provide)) == ["instructions/"]
        assert len(directories_above(a.live.settings.workdir)) == 65
