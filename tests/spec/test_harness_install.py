"""``ctx install`` and ``ctx uninstall`` of harnesses, in processes of their own, on the settings of a home."""

import hashlib
import json
import os
import re
import stat
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from shutil import which
from tempfile import gettempdir

import pytest

from tests import programs

SCRIPTS = Path(sysconfig.get_path("scripts"))
HOOK = str(SCRIPTS / "ctx-hook")
FILES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "pi": ".pi/agent/extensions/ctxd.ts",
    "opencode": ".config/opencode/plugin/ctxd.js",
}
SETTINGS = {
    "claude": [
        '{\n\t"model": "opus",\n\t"hooks": {"PostToolUse": [ {"matcher": "Bash", "hooks": [{"type":"command",\n'
        '"command":"mine"}]} ], "Stop": []},\n\t"unknown": [1,  2.50]\n}',
        '{"hooks": {}}',
        "{}",
        '{\r\n  "permissions": {"allow": ["Bash(ls)"]}\r\n}\r\n',
        "",
        " \n\t",
        '\ufeff{\n  "model": "opus"\n}\n',
        '{"hooks": {"Stop": [{"hooks": []}]}, "a": 1, "hooks": {"Stop": [1], "Stop": []}}',
    ],
    "codex": [
        '# mine\nmodel = "x" # why\n[[hooks.PostToolUse]]\nmatcher="a"\n[[hooks.PostToolUse.hooks]]\ntype="command"\n'
        'command="mine"\n[hooks.state."other"]\ntrusted_hash="h"\n[projects."/x"]\ntrust_level="trusted"',
        'model = "é"\n',
        "[hooks]\n# none\n\n\n",
        "",
        '\ufeffmodel = "x"\n',
        'model = "x"\r\n[tui]\r\nx = 1\r\n',
        'a = """\n[[hooks.Stop]]\n[hooks.state."x"]\n"""\n# the end',
    ],
}


def ctx(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), **environ}
    return programs.run("ctx", words, env=kept)


def written(home: Path, harness: str, text: str) -> Path:
    file = home / FILES[harness]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def runs(file: Path) -> list[str]:
    """The commands of the hooks of ``SessionStart`` and ``PostToolUse`` in a settings file."""
    text = file.read_text(encoding="utf-8-sig")
    hooks = (json.loads(text) if file.suffix == ".json" else tomllib.loads(text)).get("hooks", {})
    handlers = [
        each for event in ("SessionStart", "PostToolUse") for group in hooks.get(event, ()) for each in group["hooks"]
    ]
    return [" ".join([each["command"], *each.get("args", ())]) for each in handlers]


CASES = [(harness, text) for harness, texts in SETTINGS.items() for text in texts]


@pytest.mark.requirement("HOK-11")
@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize(("harness", "text"), CASES)
def test_hooks_are_merged_into_the_settings_and_removed_without_a_trace(
    tmp_path: Path, harness: str, text: str
) -> None:
    file = written(tmp_path, harness, text)
    file.chmod(0o640)
    dry = ctx(tmp_path, "install", harness, "--dry-run")
    assert dry.returncode == 0 and "ctx-hook" in dry.stdout and file.read_bytes() == text.encode()
    first = ctx(tmp_path, "install", harness)
    assert first.returncode == 0 and f"ctx import {harness}" in first.stderr
    mine = ["mine"] if '"mine"' in text else []
    assert runs(file) == [f"{HOOK} {harness}", *mine, f"{HOOK} {harness}"]
    kept = [line for line in text.splitlines() if not re.search("PostToolUse|hooks|mine|^.?$", line)]
    assert all(line.strip().rstrip(",]} ") in file.read_text() for line in kept)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    copies = [path for path in file.parent.iterdir() if path != file]
    assert [copy.read_bytes() for copy in copies] == [text.encode()]
    once = file.read_bytes()
    again = ctx(tmp_path, "install", harness)
    assert "unchanged" in again.stdout and again.stderr == "" and file.read_bytes() == once
    assert ctx(tmp_path, "uninstall", harness).returncode == 0
    assert file.read_bytes() == text.encode()
    assert list(file.parent.iterdir()) == [file]
    assert "unchanged" in ctx(tmp_path, "uninstall", harness).stdout


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("harness", FILES)
def test_a_file_that_was_made_is_removed(tmp_path: Path, harness: str) -> None:
    assert ctx(tmp_path, "install", harness).returncode == 0
    file = tmp_path / FILES[harness]
    assert HOOK in file.read_text()
    assert ctx(tmp_path, "uninstall", harness).returncode == 0
    assert not file.exists()


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize(
    ("harness", "text"),
    [
        ("claude", '{"hooks": {"Stop": [{"hooks": []}]}, "a": 1, "hooks": {}}'),
        ("claude", '{"a": 1, "hooks": {"Stop": [1], "Stop": [2]}}'),
        ("codex", 'model = "x"'),
        ("codex", "[tui]\nx = 1\n# the end"),
        ("codex", 'model = "x"\n\n'),
    ],
)
def test_without_its_backup_a_file_loses_only_the_added_hooks(tmp_path: Path, harness: str, text: str) -> None:
    file = written(tmp_path, harness, text)
    assert ctx(tmp_path, "install", harness).returncode == 0
    for path in file.parent.iterdir():
        if path != file:
            path.unlink()
    assert ctx(tmp_path, "uninstall", harness).returncode == 0
    kept = text.replace(', "hooks": {}}', "}") if harness == "claude" else text
    assert file.read_text() == kept


@pytest.mark.requirement("HOK-12")
def test_changes_made_since_are_kept(tmp_path: Path) -> None:
    claude = written(tmp_path, "claude", '{\n  "model": "opus"\n}\n')
    codex = written(tmp_path, "codex", 'model = "x"\n')
    for harness in ("claude", "codex"):
        assert ctx(tmp_path, "install", harness).returncode == 0
    settings = json.loads(claude.read_text())
    settings["hooks"]["PostToolUse"][0]["hooks"].append({"type": "command", "command": "theirs"})
    settings["theme"] = "dark"
    claude.write_text(json.dumps(settings, indent=2))
    # codex writes what a person trusts between the tables of the same name.
    trusted = '[hooks.state."theirs"]\ntrusted_hash = "h"\n# a remark\n'
    state = "[hooks.state."
    before, _, behind = codex.read_text().partition(state)
    codex.write_text(before + trusted + state + behind + "# the end\n[tui]\nx = 1\n")
    for harness in ("claude", "codex"):
        assert ctx(tmp_path, "uninstall", harness).returncode == 0
    hooks = {"PostToolUse": [{"hooks": [{"type": "command", "command": "theirs"}]}]}
    assert json.loads(claude.read_text()) == {"model": "opus", "hooks": hooks, "theme": "dark"}
    assert codex.read_text() == 'model = "x"\n' + trusted + "# the end\n[tui]\nx = 1\n"


@pytest.mark.requirement("HOK-11")
def test_another_program_or_option_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for harness in ("claude", "codex"):
        file = written(tmp_path, harness, SETTINGS[harness][0])
        assert ctx(tmp_path, "install", harness).returncode == 0
        done = ctx(tmp_path, "install", harness, "--shorten", "5000", CTXD_SOCKET="/x y/s.sock")
        assert done.returncode == 0, done.stderr
        assert len(runs(file)) == 3 and all("--shorten 5000" in each for each in runs(file) if each != "mine")
        assert all("/x y/s.sock" in each for each in runs(file) if each != "mine")
        assert ctx(tmp_path, "uninstall", harness).returncode == 0
        assert file.read_text() == SETTINGS[harness][0]


@pytest.mark.requirement("HOK-11")
def test_hooks_for_a_temporary_socket_are_installed_with_a_note(tmp_path: Path) -> None:
    done = ctx(tmp_path, "install", "claude", "--socket", f"{gettempdir()}/ctxd-1/ctxd.sock")
    assert done.returncode == 0 and f"{gettempdir()}/ctxd-1/ctxd.sock, which is temporary" in done.stderr
    lasting = ctx(tmp_path, "install", "claude", "--socket", "/run/ctxd/ctxd.sock")
    assert lasting.returncode == 0 and "temporary" not in lasting.stderr


@pytest.mark.requirement("HOK-11")
def test_codex_trusts_the_hooks_by_their_hash(tmp_path: Path) -> None:
    """The hash is that of codex 0.169.0, which listed it for this command."""
    file = written(
        tmp_path, "codex", '[[hooks.SessionStart]]\n[[hooks.SessionStart.hooks]]\ntype="command"\ncommand="x"\n'
    )
    assert ctx(tmp_path, "install", "codex").returncode == 0
    states = tomllib.loads(file.read_text())["hooks"]["state"]
    definition = f'{{"async":false,"command":"{HOOK} codex","timeout":10,"type":"command"}}'
    listed = hashlib.sha256(f'{{"event_name":"session_start","hooks":[{definition}]}}'.encode()).hexdigest()
    assert states[f"{file}:session_start:1:0"] == {"trusted_hash": f"sha256:{listed}", "enabled": True}


@pytest.mark.requirement("HOK-11")
def test_text_appended_after_the_codex_hooks_stays_valid(tmp_path: Path) -> None:
    file = written(tmp_path, "codex", 'model = "x"')
    assert ctx(tmp_path, "install", "codex").returncode == 0
    with file.open("a") as opened:
        opened.write('[projects."/x"]\ntrust_level = "trusted"\n')
    assert ctx(tmp_path, "install", "codex").returncode == 0
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert file.read_text() == 'model = "x"\n[projects."/x"]\ntrust_level = "trusted"\n'


@pytest.mark.requirement("HOK-11")
@pytest.mark.parametrize(
    ("harness", "text"),
    [
        ("claude", '{"hooks": {},}'),
        ("claude", "// a remark\n{}"),
        ("claude", "[]"),
        ("claude", '{"hooks": []}'),
        ("claude", '{"hooks": {"Stop": {}}}'),
        pytest.param("claude", '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", id="claude-deep"),
        pytest.param("claude", '{"hooks": {"Stop": ' + "[" * 50_000 + "]" * 50_000 + "}}", id="claude-deep-hooks"),
        pytest.param("claude", "[" * 50_000, id="claude-torn"),
        ("codex", "model = "),
        pytest.param("codex", "a = " + "[" * 50_000 + "]" * 50_000, id="codex-deep"),
        ("codex", "hooks = 1\n"),
        ("codex", "[hooks]\nStop = []\n"),
        ("codex", "hooks = {}\n"),
        ("pi", "// mine\n"),
        ("opencode", "export default {}\n"),
    ],
)
def test_a_file_to_which_nothing_can_be_added_is_left_alone(tmp_path: Path, harness: str, text: str) -> None:
    file = written(tmp_path, harness, text)
    done = ctx(tmp_path, "install", harness)
    assert done.returncode == 1 and str(file) in done.stderr and "nothing was changed" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 2
    assert ctx(tmp_path, "install", "status").returncode in (0, 1)
    assert file.read_text() == text and list(file.parent.iterdir()) == [file]


@pytest.mark.requirement("HOK-11")
def test_a_link_is_followed_and_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.json"
    kept.write_text("{}")
    link = tmp_path / FILES["claude"]
    link.parent.mkdir()
    link.symlink_to(kept)
    assert ctx(tmp_path, "install", "claude").returncode == 0
    assert link.is_symlink() and HOOK in kept.read_text()
    assert ctx(tmp_path, "uninstall", "claude").returncode == 0
    assert link.is_symlink() and kept.read_text() == "{}"
    kept.chmod(0o444)
    done = ctx(tmp_path, "install", "claude")
    assert done.returncode == 1 and "read-only" in done.stderr and kept.read_text() == "{}"


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("text", ['{"a": 1, "hooks": {"Stop": []}}', '{"a": 1, "hooks": {}}', '{"a": 1}'])
def test_empty_entries_of_a_person_stay(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, "claude", text)
    assert ctx(tmp_path, "install", "claude").returncode == 0
    file.write_text(file.read_text().replace('"a": 1', '"a": 2'))
    assert ctx(tmp_path, "install", "claude", "--shorten", "5000").returncode == 0
    assert ctx(tmp_path, "uninstall", "claude").returncode == 0
    assert json.loads(file.read_text()) == {**json.loads(text), "a": 2}


def owned(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@pytest.mark.requirement("HOK-11")
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files to others")
def test_the_file_of_another_user_stays_theirs(tmp_path: Path) -> None:
    file = written(tmp_path, "claude", "{}")
    file.chmod(0o640)
    os.chown(file, 4321, 4322)
    assert ctx(tmp_path, "install", "claude").returncode == 0
    assert {owned(each) for each in file.parent.iterdir()} == {(4321, 4322, 0o640)}
    assert ctx(tmp_path, "uninstall", "claude").returncode == 0
    assert file.read_text() == "{}" and owned(file) == (4321, 4322, 0o640)


@pytest.mark.requirement("HOK-11")
@pytest.mark.skipif(os.geteuid() != 0 or which("setpriv") is None, reason="root alone has capabilities to give up")
def test_a_file_whose_owner_cannot_be_kept_is_left_alone(tmp_path: Path) -> None:
    file = written(tmp_path, "claude", "{}")
    os.chown(file, 4321, 4322)
    # Without this capability, as in some containers, root may replace the file, but not give it away.
    limited = ["setpriv", "--bounding-set=-chown", str(SCRIPTS / "ctx"), "install", "claude"]
    done = subprocess.run(limited, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and str(file) in done.stderr and "owner" in done.stderr, done.stderr
    assert file.read_text() == "{}" and list(file.parent.iterdir()) == [file]


@pytest.mark.requirement("HOK-11")
@pytest.mark.parametrize("words", [("install", "codex"), ("install", "status"), ("doctor",)], ids=" ".join)
def test_a_home_of_codex_that_is_a_loop_of_links_is_reported_in_one_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = ctx(tmp_path, *words, CODEX_HOME=str(tmp_path / "loop"))
    assert "Traceback" not in done.stderr and "Too many levels of symbolic links" in done.stderr + done.stdout


@pytest.mark.requirement("HOK-11")
def test_a_pipe_in_the_place_of_the_settings_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / FILES["claude"]
    file.parent.mkdir()
    os.mkfifo(file)
    done = ctx(tmp_path, "install", "claude")
    assert done.returncode == 1 and "is not a regular file" in done.stderr
    assert json.loads(ctx(tmp_path, "install", "status", "--json").stdout)["items"][0]["state"] == "broken"


@pytest.mark.requirement("HOK-13")
def test_settings_that_switch_all_hooks_off_are_reported(tmp_path: Path) -> None:
    written(tmp_path, "claude", '{"disableAllHooks": true}')
    written(tmp_path, "codex", "[features]\nhooks = false\n")
    for harness in ("claude", "codex"):
        assert ctx(tmp_path, "install", harness).returncode == 0
    found = json.loads(ctx(tmp_path, "install", "status", "--json").stdout)["items"]
    assert [each["state"] for each in found][:2] == ["disabled", "disabled"]
    checks = {each["name"]: each for each in json.loads(ctx(tmp_path, "doctor", "--json").stdout)["items"]}
    for harness, setting in (("claude", "disableAllHooks"), ("codex", "features.hooks")):
        assert checks[f"hooks of {harness}"]["verdict"] == "warn"
        assert setting in checks[f"hooks of {harness}"]["found"]


@pytest.mark.requirement("HOK-13")
def test_status_and_doctor_report_each_harness(tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        found = json.loads(ctx(tmp_path, "install", "status", "--json").stdout)["items"]
        return {each["harness"]: each["state"] for each in found}

    def verdicts() -> dict[str, str]:
        found = json.loads(ctx(tmp_path, "doctor", "--json").stdout)["items"]
        marked = {each["name"]: each["verdict"] for each in found}
        return {harness: marked[f"hooks of {harness}"] for harness in FILES}

    assert set(states().values()) == {"not connected"} and set(verdicts().values()) == {"ok"}
    for harness in FILES:
        assert ctx(tmp_path, "install", harness).returncode == 0
    assert set(states().values()) == {"connected"} and set(verdicts().values()) == {"ok"}
    codex = tmp_path / FILES["codex"]
    codex.write_text(codex.read_text().replace('trusted_hash = "sha256:', 'trusted_hash = "sha256:0'))
    pi = tmp_path / FILES["pi"]
    pi.write_text(pi.read_text().replace(HOOK, "/gone/ctx-hook"))
    opencode = tmp_path / FILES["opencode"]
    opencode.write_bytes(opencode.read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / FILES["claude"]).write_text("{")
    assert states() == {"claude": "broken", "codex": "outdated", "pi": "outdated", "opencode": "outdated"}
    assert verdicts() == {"claude": "fail", "codex": "warn", "pi": "warn", "opencode": "warn"}
    for harness in ("codex", "pi", "opencode"):
        assert ctx(tmp_path, "install", harness).returncode == 0
    assert states()["codex"] == states()["pi"] == states()["opencode"] == "connected"
