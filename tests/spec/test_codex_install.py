"""``ctx install`` and ``ctx uninstall`` of codex where a person has changed the hooks since: codex knows a hook, and
the trust in it, by its place alone."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.spec.test_harness_install import HOOK, ctx, written

PLAIN = 'model = "x"\n'
THEIRS = '[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "theirs"\n'
GROUP = f"[[hooks.Stop]]\n{THEIRS}"
HANDLER = {"type": "command", "command": "theirs"}
STOP = re.compile(r"\[\[hooks\.Stop\]\]\n\[\[hooks\.Stop\.hooks\]\]\ntype = .*\ncommand = .*\ntimeout = .*\n")


def connected(home: Path, text: str = PLAIN) -> Path:
    file = written(home, "codex", text)
    assert ctx(home, "install", "codex").returncode == 0
    return file


def settings(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_bytes().decode())


def trusted(file: Path, place: str, digest: str = "theirs") -> str:
    """The entry by which codex trusts the hook of ``Stop`` at ``place``."""
    return f'[hooks.state."{file}:stop:{place}"]\ntrusted_hash = "sha256:{digest}"\n'


def state(home: Path) -> dict[str, str]:
    return json.loads(ctx(home, "install", "status", "--json").stdout)["items"][1]


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("matcher", [None, "^Bash$"])
def test_a_handler_that_a_person_added_to_our_group_keeps_its_group(tmp_path: Path, matcher: str | None) -> None:
    mine = f'[[hooks.Stop]]\nmatcher = "{matcher}"\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "mine"\n'
    file = connected(tmp_path, mine if matcher else PLAIN)
    before = settings(file)["hooks"]["Stop"][:-1]
    edited(file, "[[hooks.Interrupt]]", f"{THEIRS}[[hooks.Interrupt]]")
    at = len(before)
    file.write_text(file.read_text() + trusted(file, f"{at}:1"))
    assert state(tmp_path)["state"] == "connected"
    assert ctx(tmp_path, "install", "codex", "--shorten", "5000").returncode == 0
    ours, theirs = settings(file)["hooks"]["Stop"][-1]["hooks"]
    assert "--shorten 5000" in ours["command"] and theirs == HANDLER
    assert f"{file}:stop:{at}:1" in settings(file)["hooks"]["state"]
    done = ctx(tmp_path, "uninstall", "codex")
    assert done.returncode == 0, done.stderr
    hooks = settings(file)["hooks"]
    assert hooks == {
        "Stop": [*before, {"hooks": [HANDLER]}],
        "state": {f"{file}:stop:{at}:0": {"trusted_hash": "sha256:theirs"}},
    }


@pytest.mark.requirement("HOK-12")
def test_a_group_to_which_a_person_gave_a_matcher_stays_without_our_handler(tmp_path: Path) -> None:
    file = connected(tmp_path)
    edited(file, "[[hooks.Stop]]\n", '[[hooks.Stop]]\nmatcher = "x"\n')
    assert state(tmp_path)["state"] == "outdated"
    assert ctx(tmp_path, "install", "codex").returncode == 0
    assert state(tmp_path)["state"] == "connected"
    groups = settings(file)["hooks"]["Stop"]
    assert groups[0] == {"matcher": "x"} and HOOK in groups[1]["hooks"][0]["command"]
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert settings(file) == {"model": "x", "hooks": {"Stop": [{"matcher": "x"}]}}


@pytest.mark.requirement("HOK-12")
def test_the_trust_in_a_hook_behind_ours_moves_with_it(tmp_path: Path) -> None:
    file = connected(tmp_path)
    file.write_text(file.read_text() + GROUP + trusted(file, "1:0") + "enabled = false\n")
    done = ctx(tmp_path, "install", "codex", "--shorten", "5000")
    assert done.returncode == 0, done.stderr
    ours, theirs = settings(file)["hooks"]["Stop"]
    assert "--shorten 5000" in ours["hooks"][0]["command"] and theirs == {"hooks": [HANDLER]}
    entry = {"trusted_hash": "sha256:theirs", "enabled": False}
    assert settings(file)["hooks"]["state"][f"{file}:stop:1:0"] == entry
    assert state(tmp_path)["state"] == "connected"
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    hooks = {"Stop": [{"hooks": [HANDLER]}], "state": {f"{file}:stop:0:0": entry}}
    assert settings(file) == {"model": "x", "hooks": hooks}


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize(
    "form", ['[hooks.state]\n"{}" = {{trusted_hash = "h"}}\n', "[hooks.state]\n'{}'.trusted_hash = \"h\"\n"]
)
def test_the_trust_in_a_hook_is_known_in_every_form_of_toml(tmp_path: Path, form: str) -> None:
    file = connected(tmp_path)
    file.write_text(file.read_text() + GROUP + form.format(f"{file}:stop:1:0"))
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert settings(file)["hooks"]["state"] == {f"{file}:stop:0:0": {"trusted_hash": "h"}}


@pytest.mark.requirement("HOK-12")
def test_no_trust_in_ours_is_left_on_a_hook_that_was_put_before_it(tmp_path: Path) -> None:
    file = connected(tmp_path)
    edited(file, "[[hooks.Stop]]", f"{GROUP}[[hooks.Stop]]")
    assert state(tmp_path)["state"] == "outdated"
    ours = settings(file)["hooks"]["state"][f"{file}:stop:0:0"]["trusted_hash"]
    assert ctx(tmp_path, "install", "codex").returncode == 0
    states = settings(file)["hooks"]["state"]
    assert f"{file}:stop:0:0" not in states and states[f"{file}:stop:1:0"]["trusted_hash"] == ours
    assert state(tmp_path)["state"] == "connected"
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert file.read_text() == PLAIN + GROUP


@pytest.mark.requirement("HOK-12")
def test_entries_of_trust_that_were_left_behind_are_replaced(tmp_path: Path) -> None:
    file = connected(tmp_path)
    file.write_text(STOP.sub("", file.read_text()))
    assert ctx(tmp_path, "install", "codex").returncode == 0
    assert state(tmp_path)["state"] == "connected"
    file.write_text(file.read_text() + trusted(file, "0:1", "gone") + GROUP + THEIRS + trusted(file, "1:1"))
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert settings(file)["hooks"]["state"] == {f"{file}:stop:0:1": {"trusted_hash": "sha256:theirs"}}


@pytest.mark.requirement("HOK-12")
def test_user_lines_between_installed_lines_are_kept(tmp_path: Path) -> None:
    file = connected(tmp_path)
    text = STOP.sub(lambda found: found[0].replace("\ncommand", "\n# mine [[x]]\ncommand"), file.read_text())
    file.write_text(text + 'a = """\n[[hooks.Stop]]\n"""\nb = [\n[1], # ]\n]\nc = nan\nd = "\\"#"\n')
    assert ctx(tmp_path, "uninstall", "codex").returncode == 1  # The lines at the end belong to our last table.
    file.write_text(text + '[tui]\na = """\n[[hooks.Stop]]\n"""\nb = [\n[1], # ]\n]\nc = nan\nd = "\\"#"\n')
    done = ctx(tmp_path, "uninstall", "codex")
    assert done.returncode == 0, done.stderr
    assert file.read_text() == (
        PLAIN + '# mine [[x]]\n[tui]\na = """\n[[hooks.Stop]]\n"""\nb = [\n[1], # ]\n]\nc = nan\nd = "\\"#"\n'
    )


@pytest.mark.requirement("HOK-12")
def test_hooks_of_a_form_that_cannot_be_removed_alone_are_left_with_a_remedy(tmp_path: Path) -> None:
    file = connected(tmp_path)
    ours = f'{{type = "command", command = "{HOOK} codex", timeout = 10}}'
    inline = "[[hooks.Stop]]\nhooks = [{}]\n"
    whole = file.read_text()
    file.write_text(STOP.sub(lambda _: inline.format(ours), whole))
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0 and file.read_text() == PLAIN
    file.write_text(STOP.sub(lambda _: inline.format(f'{ours}, {{type = "command", command = "theirs"}}'), whole))
    text = file.read_text()
    assert state(tmp_path)["state"] == "connected"
    for words in (("uninstall", "codex"), ("install", "codex", "--shorten", "5000")):
        done = ctx(tmp_path, *words)
        assert done.returncode == 1 and file.read_text() == text
        assert str(file) in done.stderr and "by hand" in done.stderr and "nothing was changed" in done.stderr
    edited(file, f"{HOOK} codex", "/gone/ctx-hook codex")
    found = state(tmp_path)
    assert found["state"] == "outdated" and "by hand" in found["found"]


@pytest.mark.requirement("HOK-12")
def test_a_file_with_changed_line_endings_loses_the_mark_too(tmp_path: Path) -> None:
    file = connected(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert ctx(tmp_path, "install", "codex", "--shorten", "5000").returncode == 0
    assert ctx(tmp_path, "uninstall", "codex").returncode == 0
    assert file.read_bytes() == b'model = "x"\r\n'


@pytest.mark.requirement("HOK-13")
def test_hooks_that_codex_has_disabled_are_reported_and_enabled_again(tmp_path: Path) -> None:
    file = connected(tmp_path)
    whole = file.read_text()
    file.write_text(whole.replace("enabled = true", "enabled = false"))
    found = state(tmp_path)
    assert found["state"] == "disabled" and "enabled = false" in found["found"]
    assert found["fix"] == "run ctx install codex"
    shown = ctx(tmp_path, "install", "status")
    assert "enabled = false" in shown.stderr and "run ctx install codex" in shown.stderr
    checks = {each["name"]: each for each in json.loads(ctx(tmp_path, "doctor", "--json").stdout)["items"]}
    check = checks["hooks of codex"]
    assert check["verdict"] == "warn" and "enabled = false" in check["found"]
    assert check["fix"] == "run ctx install codex"
    edited(file, "enabled = false", "enabled = true")
    assert state(tmp_path)["state"] == "disabled"
    assert ctx(tmp_path, "install", "codex").returncode == 0
    assert file.read_text() == whole and state(tmp_path)["state"] == "connected"


@pytest.mark.requirement("HOK-13")
def test_an_installation_names_a_setting_that_disables_all_hooks(tmp_path: Path) -> None:
    file = written(tmp_path, "codex", "[features]\nhooks = false\n")
    done = ctx(tmp_path, "install", "codex")
    assert done.returncode == 0 and str(file) in done.stderr and state(tmp_path)["fix"] in done.stderr
    edited(file, "hooks = false", "hooks = true")
    assert state(tmp_path)["state"] == "connected"
    assert str(file) not in ctx(tmp_path, "install", "codex").stderr


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("text", ["model = \n", f"model = {'9' * 5000}\n"])
@pytest.mark.parametrize("words", [("install", "codex"), ("uninstall", "codex"), ("install", "status")])
def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = written(tmp_path, "codex", text)
    done = ctx(tmp_path, *words)
    assert "Traceback" not in done.stderr
    if words[-1] == "status":
        assert re.search(rf"codex +(\S+) +{re.escape(str(file))}", done.stdout)
    else:
        assert f"{file}: it is not valid TOML" in done.stderr and done.stderr.count("\n") == 1
    assert file.read_text() == text


@pytest.mark.requirement("HOK-12")
def test_trust_that_is_left_of_a_removed_handler_is_replaced_where_ours_takes_its_place(tmp_path: Path) -> None:
    file = written(tmp_path, "codex", PLAIN)
    file.write_text(PLAIN + trusted(file, "0:0", "gone") + trusted(file, "7:0", "other"))
    done = ctx(tmp_path, "install", "codex")
    assert done.returncode == 0, done.stderr
    assert state(tmp_path)["state"] == "connected"
    states = settings(file)["hooks"]["state"]
    assert states[f"{file}:stop:0:0"]["trusted_hash"] != "sha256:gone"
    assert states[f"{file}:stop:7:0"] == {"trusted_hash": "sha256:other"}, "no handler of ours is there"
