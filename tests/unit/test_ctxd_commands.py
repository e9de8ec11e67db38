"""What every command of ``ctxd`` shares: help with examples, completion, and how it fails to write."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest

from ctxd.__main__ import cli
from ctxd.config import SETTINGS
from ctxd_client import connect_sync
from tests.client.running import Running

ROOT = Path(__file__).resolve().parents[2]


def ctxd(*words, **environ):
    return subprocess.run(
        [sys.executable, "-c", "from ctxd.__main__ import main; main()", *words],
        capture_output=True, text=True, timeout=60, env=environ or None,
    )  # fmt: skip


def leaves(command):
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    return [leaf for name in command.list_commands(context) for leaf in leaves(command.get_command(context, name))]


def test_the_help_of_every_command_has_an_example():
    for command in leaves(cli):
        assert "ctxd " in (command.help or "").partition("Examples:")[2], command.name
    for command in (cli, *leaves(cli)):
        shown = command.get_help(click.Context(command, info_name=f"ctxd {command.name}"))
        assert max(map(len, shown.splitlines())) <= 80, command.name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_by_the_script_that_is_printed(shell):
    done = ctxd("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_CTXD_COMPLETE={shell}_complete" in done.stdout
    assert json.loads(ctxd("completion", shell, "--json").stdout)["script"] + "\n" == done.stdout
    word = "ver" if shell == "fish" else "1"
    offered = ctxd(COMP_WORDS="ctxd ver", COMP_CWORD=word, _CTXD_COMPLETE=f"{shell}_complete")
    assert "verify" in offered.stdout


def test_an_answer_that_cannot_be_written_ends_with_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ctxd", "completion", "zsh"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "ctxd: standard output cannot be written: No space left on device; write to a file system with free space\n"
    )


def test_a_refused_path_is_reported_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    none, some, file = tmp_path / "none", tmp_path, tmp_path / "file"
    for words, code, told in (
        (("verify", "--state-dir", none), 10, f"there is no state in {none}; name another: --state-dir PATH"),
        (("run", "--state-dir", ""), 64, "Invalid value for '--state-dir': an empty path; see ctxd run --help"),
        (("backup", ""), 64, "Invalid value for 'DIRECTORY': an empty path; see ctxd backup --help"),
        (("run", "--config", "/dev/null"), 78, "/dev/null: not a regular file; name one with --config"),
        (("restore", some), 64, "Missing option '--state-dir'; see ctxd restore --help"),
        (("restore", some, "--state-dir", none), 10, "has no manifest.json; name a backup's directory"),
        (("xtdb", "run", "--directory", none), 69, f"{none}; run ctxd xtdb install --directory {none}"),
        (("run", "--ephemeral", "--socket", file), 73, f"{file} exists and is not a socket; choose another path"),
        (("run", "--state-dir", file, "--socket", none), 73, "File exists; choose another path"),
    ):
        done = ctxd(*map(str, words))
        assert (done.returncode, done.stdout) == (code, ""), words
        assert done.stderr.startswith("ctxd: ")
        assert done.stderr.endswith(f"{told}\n")


def test_a_state_a_socket_and_a_node_that_are_not_to_be_had_name_the_flag_for_another(tmp_path):
    with Running(tmp_path, keep_state=True) as running:
        with connect_sync(running.socket) as client:
            pid = client.daemon_status().pid
        done = ctxd("run", "--ephemeral", "--socket", running.socket)
        assert done.returncode == 69
        assert done.stderr.endswith(f"(pid {pid}); stop it first, or choose another socket: --socket PATH\n")
        done = ctxd("run", "--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "s.sock"))
        assert done.returncode == 75
        assert done.stderr.endswith(f"process {pid}; stop it first, or choose another directory: --state-dir PATH\n")
        done = ctxd("verify", "--store", "--state-dir", str(tmp_path / "state"), "--store-url", f"unix:{tmp_path}/none")
        assert done.returncode == 69
        assert done.stderr.endswith("; start it with ctxd xtdb run, or name another with --store-url\n")


def system_python():
    """The Python of the operating system, if it can load the packages of this environment; it is often older."""
    program = "/usr/bin/python3"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = subprocess.run([program, "--version"], capture_output=True, text=True) if os.path.exists(program) else None
    if found is None or not found.stdout.startswith(f"Python {version}."):
        pytest.skip(f"needs Python {version} at {program}")
    return program


def test_a_start_error_is_one_line_with_its_exit_code_on_the_operating_systems_python(tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = subprocess.run(
        [system_python(), "-m", "ctxd", "run", "--state-dir", file, "--socket", tmp_path / "socket"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), f"{ROOT}/protocol", sysconfig.get_path("purelib")]),
        },
    )
    assert (done.returncode, done.stderr.count("\n")) == (73, 1), done.stderr


def test_an_ephemeral_daemon_listens_in_a_directory_of_its_own_and_prints_the_line_that_names_it(tmp_path):
    service = tmp_path / "runtime" / "ctxd" / "ctxd.sock"
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "TMPDIR": str(tmp_path)}
    environ["CTXD_SOCKET"] = str(service)
    environ["PATH"] = "/usr/bin:/bin"
    command = [sys.executable, "-u", "-m", "ctxd", "run", "--ephemeral"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        variable, socket = shlex.split(line, comments=True)[1].split("=")
        with connect_sync(socket, wait_s=30) as client:
            assert client.daemon_status().socket == socket
        tried = line.partition("try: ")[2].strip()
        done = subprocess.run(["/bin/sh", "-c", tried], env={**environ, "CTXD_SOCKET": socket}, check=False)
        assert done.returncode == 0, tried
        daemon.terminate()
    assert (daemon.returncode, variable) == (0, "CTXD_SOCKET")
    assert not service.exists()
    assert list(tmp_path.glob("ctxd-*")) == []


def test_a_relative_state_directory_is_meant_from_the_current_directory(tmp_path):
    with Running(tmp_path, keep_state=True):
        pass
    done = subprocess.run(
        [sys.executable, "-m", "ctxd", "verify", "--state-dir", "state"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), f"{ROOT}/protocol"])},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sample_configuration_explains_every_setting_and_is_valid(tmp_path):
    sample = ctxd("config", "--sample").stdout
    assert json.loads(ctxd("config", "--sample", "--json").stdout)["sample"] == sample
    file = tmp_path / "ctxd.toml"
    uncommented = re.sub(r"^# (?=[a-z_]+ = )", "", sample, flags=re.M)
    derived = re.compile(r'^(?:[a-z_]+ = "…".*|[a-z_]+ = "")$', re.M)
    file.write_text(derived.sub("", uncommented))
    environ = os.environ | {"CTXD_CACHE_DIR": ""}
    shown = json.loads(ctxd("config", "--json", "--config", str(file), **environ).stdout)["items"]
    assert {each["key"] for each in shown} == {setting.key for setting in SETTINGS}
    assert {each["origin"].partition(" ")[0] for each in shown} == {"file", "default"}
    for setting in SETTINGS:
        assert setting.variable in sample, setting.key


@pytest.mark.requirement("XDB-8")
def test_doctor_finds_nothing_wrong_where_no_node_is_used(tmp_path):
    config = tmp_path / "ctxd.toml"
    config.write_text('store = "sqlite"\n')
    done = ctxd("doctor", "--json", **{**os.environ, "CTXD_CONFIG": str(config)})
    assert (done.returncode, [each["verdict"] for each in json.loads(done.stdout)]) == (0, ["ok"])


def test_the_report_of_a_verification_has_no_members_of_its_progress(tmp_path):
    with Running(tmp_path, keep_state=True):
        pass
    report = json.loads(ctxd("verify", "--state-dir", str(tmp_path / "state"), "--json").stdout)
    assert {"rows", "problems", "worst"} < set(report)
    assert not {"phase", "done"} & set(report)


@pytest.mark.requirement("PRJ-9")
@pytest.mark.parametrize("place", ["flag", "environment"])
def test_the_store_is_chosen_by_flag_and_by_environment(tmp_path, place):
    url = f"unix:{tmp_path}/no-node.sock"
    words = ["--store", "xtdb", "--store-url", url] if place == "flag" else []
    environ = {} if place == "flag" else {"CTXD_STORE_BACKEND": "xtdb", "CTXD_STORE_URL": url}
    socket = str(tmp_path / "ctxd.sock")
    command = [sys.executable, "-m", "ctxd", "run", "--state-dir", tmp_path / "state", "--socket", socket]
    with subprocess.Popen(
        [*command, *words], env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            with connect_sync(socket, wait_s=30) as client:
                store = client.daemon_status().store
        finally:
            daemon.terminate()
    assert store.backend == "xtdb"
    assert store.projection is not None and store.projection.url == url


@pytest.mark.parametrize(
    "words", ["config", "verify", "backup {tmp}/b", "run", "migrate", "migrate --to xtdb", "requeue", "doctor"]
)
def test_a_wrong_setting_ends_a_command_with_78_and_one_line(tmp_path, words):
    ran = ctxd(*words.format(tmp=tmp_path).split(), CTXD_LOG_LEVEL="loud", HOME=str(tmp_path))
    assert (ran.returncode, ran.stdout) == (78, "")
    assert ran.stderr.strip() == "ctxd: CTXD_LOG_LEVEL: log.level = 'loud' is not one of debug, info, warning, error"
