"""An installation takes only the jars it was made with, resumes where it was interrupted, and names a remedy."""

import http.server
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from ctxd.backends.xtdb.node.install import check_jars, install
from ctxd.backends.xtdb.node.launch import Launch, command, find_config
from ctxd.backends.xtdb.node.node_checks import look
from ctxd.backends.xtdb.node.node_layout import (
    CONFIGURATIONS,
    EXIT_MISSING,
    PROGRAM,
    Installation,
    NodeFailure,
    find_java,
    find_maven,
    listed_jars,
)
from tests.xtdb.running import installation, node


def program(folder, name, script):
    """A program of that name in ``folder``, which is then a ``PATH``."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def refusal(act, *arguments):
    with pytest.raises(NodeFailure) as caught:
        act(*arguments)
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def copy(tmp_path):
    """A whole installation of its own, made of links: nothing in it may be written to, only removed and replaced."""
    whole = installation()
    shutil.copytree(
        whole.directory, tmp_path / "copy", copy_function=os.link, ignore=shutil.ignore_patterns("data", ".*")
    )
    return Installation(tmp_path / "copy")


def ctxd(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "ctxd", "xtdb", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.requirement("XDB-7")
def test_without_java_the_error_names_the_package_to_install(tmp_path):
    failure = refusal(find_java, {"PATH": str(tmp_path)})
    assert failure.message == "there is no java on PATH"
    assert "apt-get install openjdk-17" in failure.remedy
    assert failure.exit_code == EXIT_MISSING
    assert f"JAVA_HOME={tmp_path}" in refusal(find_java, {"JAVA_HOME": str(tmp_path)}).message


@pytest.mark.requirement("XDB-7")
@pytest.mark.parametrize(
    ("version", "enough"), [("1.8.0_402", False), ("11.0.22", False), ("17.0.15", True), ("21", True), ("25-ea", True)]
)
def test_a_java_that_is_too_old_is_refused_by_its_version(tmp_path, version, enough):
    program(tmp_path, "java", f"echo 'openjdk version \"{version}\" 2024-01-16' >&2")
    if enough:
        assert find_java({"PATH": str(tmp_path)}).version == version
    else:
        assert f"is Java {version}; a node needs 17" in refusal(find_java, {"PATH": str(tmp_path)}).message


@pytest.mark.requirement("XDB-7")
def test_without_maven_the_error_names_the_package_to_install(tmp_path):
    failure = refusal(find_maven, {"PATH": str(tmp_path)})
    assert "apt-get install maven" in failure.remedy


@pytest.mark.requirement("XDB-7")
@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ("[ERROR] Could not transfer artifact: Unknown host repo.example", "check the network"),
        ("[ERROR] Could not transfer artifact: Connection refused", "check the network"),
        ("[ERROR] The build failed for another reason", "Run the command again"),
    ],
)
def test_a_maven_failure_is_reported_with_a_remedy(tmp_path, told, remedy):
    program(tmp_path / "bin", "java", "echo 'openjdk version \"17.0.1\"' >&2")
    program(tmp_path / "bin", "mvn", f"echo '{told}'; exit 1")
    failure = refusal(install, Installation(tmp_path / "home"), print, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert told in failure.message
    assert remedy in failure.remedy
    assert Installation(tmp_path / "home").record() is None


@pytest.mark.requirement("XDB-7")
def test_jars_that_are_not_as_listed_are_refused_and_not_installed(tmp_path):
    program(tmp_path / "bin", "java", "echo 'openjdk version \"17.0.1\"' >&2")
    script = 'for each in "$@"; do case $each in -DoutputDirectory=*) d=${each#*=};; esac; done; mkdir -p "$d"'
    program(tmp_path / "bin", "mvn", script + "".join(f"; echo forged > $d/{name}" for name in listed_jars()))
    failure = refusal(install, Installation(tmp_path / "home"), print, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert "the downloaded jars differ" in failure.message
    assert "HikariCP-5.1.0.jar has SHA-256" in failure.message
    assert not Installation(tmp_path / "home").jars.exists()


@pytest.mark.requirement("XDB-7")
def test_a_jar_that_was_changed_is_missing_or_is_too_many_is_found_by_name(copy):
    listed = listed_jars()
    assert check_jars(copy.jars, listed) == []
    first, second, *_ = sorted(listed)
    content = bytearray((copy.jars / first).read_bytes())
    content[len(content) // 2] ^= 1
    (copy.jars / first).unlink()
    (copy.jars / first).write_bytes(content)
    (copy.jars / second).unlink()
    (copy.jars / "other.jar").write_bytes(b"")
    wrong = check_jars(copy.jars, listed)
    assert wrong[:2] == [f"{second} is missing", "other.jar is not on the list"]
    assert wrong[2].startswith(f"{first} has SHA-256 ") and wrong[2].endswith(listed[first])


@pytest.mark.requirement("XDB-7")
def test_a_complete_installation_is_left_alone(copy):
    before = {path: path.stat().st_ino for path in copy.directory.rglob("*.jar")}
    assert install(copy, print, os.environ) is False
    assert {path: path.stat().st_ino for path in copy.directory.rglob("*.jar")} == before


@pytest.mark.requirement("XDB-7")
@pytest.mark.slow
def test_an_interrupted_installation_is_not_started_and_can_be_resumed(copy):
    copy.record_path.unlink()
    copy.archive.unlink()
    launch = Launch(find_config("memory"), copy.directory / "data", copy.directory / "s")
    failure = refusal(command, copy, launch, os.environ)
    assert failure.remedy == f"Run ctxd xtdb install --directory {copy.directory}"
    steps: list[str] = []
    assert install(copy, steps.append, os.environ) is True
    assert steps == ["starting it once, for the archive of classes"]
    assert install(copy, steps.append, os.environ) is False
    assert copy.archive.stat().st_size > 10_000_000


@pytest.mark.requirement("XDB-7")
def test_a_node_of_another_version_of_ctxd_is_not_started(copy):
    record = json.loads(copy.record_path.read_bytes())
    copy.record_path.unlink()
    copy.record_path.write_text(json.dumps(record | {"digest": "0" * 64}))
    launch = Launch(find_config("memory"), copy.directory / "data", copy.directory / "s")
    assert "another version of ctxd" in refusal(command, copy, launch, os.environ).message


def test_every_class_of_the_program_is_newer_than_any_source():
    with zipfile.ZipFile(installation().program) as packed:
        dates = {info.date_time[0] for info in packed.infolist()}
    assert dates == {2100}


def test_the_configurations_that_ship_are_those_that_are_named_and_call_nothing():
    assert sorted(path.stem for path in PROGRAM.glob("*.edn")) == sorted(CONFIGURATIONS)
    assert all(":fn-allow-list []" in find_config(name).read_text() for name in CONFIGURATIONS)
    assert ":sync? true" in find_config("rocksdb").read_text()


def test_nothing_that_ships_names_a_repository():
    texts = [path.read_text().replace("http://maven.apache.org/POM/4.0.0", "") for path in PROGRAM.rglob("*.*")]
    assert not [text for text in texts if re.search(r"://\w|<repositor", text)]


@pytest.mark.requirement("XDB-8")
def test_check_reports_the_installation_and_the_running_node(tmp_path):
    home = str(installation().directory)
    with node("rocksdb", tmp_path) as running:
        done = ctxd("check", "--json", "--url", running.url, "--directory", home)
        findings = {each["name"]: each["verdict"] for each in json.loads(done.stdout)}
        assert findings == dict.fromkeys(["java", "installation", "socket", "node", "ingester", "sync", "lag"], "ok")
        assert done.returncode == 0
        os.chmod(running.socket, 0o666)
        done = ctxd("check", "--url", running.url, "--directory", home)
        assert f"✗ socket                       {running.socket} is open to others" in done.stdout
        assert done.returncode == 1


@pytest.mark.requirement("XDB-8")
@pytest.mark.slow
def test_check_warns_of_a_node_that_loses_its_last_writes_with_the_machine():
    with node("memory") as running:
        done = ctxd("check", "--url", running.url, "--directory", str(installation().directory))
    assert "! sync                         the last writes are lost if the machine stops" in done.stdout


@pytest.mark.requirement("XDB-8")
def test_check_without_a_node_explains_how_to_start_one(tmp_path):
    done = ctxd("check", "--url", f"unix:{tmp_path}/none", "--directory", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert f"fix: run ctxd xtdb install --directory {tmp_path}/nowhere" in done.stdout
    assert "fix: start it with ctxd xtdb run" in done.stdout


@pytest.mark.requirement("XDB-8")
def test_doctor_runs_the_same_check(tmp_path):
    arguments = ["--json", "--url", f"unix:{tmp_path}/none", "--directory", str(tmp_path / "nowhere")]
    command = [sys.executable, "-m", "ctxd", "doctor", *arguments]
    doctor = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    check = ctxd("check", *arguments)
    assert (doctor.returncode, doctor.stdout) == (check.returncode, check.stdout)
    assert doctor.returncode == 1


@pytest.mark.requirement("XDB-8")
def test_a_remote_server_is_checked_without_the_local_installation(tmp_path):
    done = ctxd("check", "--json", "--url", "http://127.0.0.1:1", "--directory", str(tmp_path / "nowhere"))
    assert [(each["name"], each["verdict"]) for each in json.loads(done.stdout)] == [("node", "fail")]


@pytest.mark.requirement("XDB-8")
def test_check_reports_an_index_behind_the_log(tmp_path):
    answers = {
        "status": (200, b'["^ ","~:version","1.24.5","~:ingester-failed?",false]'),
        "sync": (500, b'["^ ","~:class","java.util.concurrent.TimeoutException"]'),
        "latest-submitted-tx": (200, b'["^ ","~:xtdb.api/tx-id",9]'),
        "latest-completed-tx": (200, b'["^ ","~:xtdb.api/tx-id",4]'),
    }

    class Behind(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers[self.path.split("?")[0].rpartition("/")[2]]
            self.send_response(status)
            self.send_header("Content-Type", "application/transit+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Behind) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            findings = look(Installation(tmp_path / "none"), f"http://127.0.0.1:{server.server_port}", os.environ)
        finally:
            server.shutdown()
            serving.join()
    told = {each.name: (each.verdict, each.found) for each in findings}
    assert told["lag"] == ("warn", "the log is at transaction 9, the index at 4")
    assert told["sync"] == ("warn", "the server does not report whether it flushes log and documents")
    assert told["ingester"][0] == "ok"


UNIT = Path(__file__).parents[2] / "systemd" / "xtdb.service"


def test_the_unit_starts_the_node_only_with_known_options():
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    assert line.startswith("ExecStart=/usr/local/bin/ctxd xtdb run ")
    known = ctxd("run", "--help").stdout
    assert all(option in known for option in re.findall(r"--[a-z-]+", line))


def test_the_unit_gives_the_node_no_more_rights_than_it_needs():
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    done = subprocess.run(
        [analyze, "security", "--offline=yes", "--threshold=15", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_run_becomes_the_node_in_directories_that_are_its_owners_only(tmp_path):
    home = installation().directory
    arguments = ["--config", "memory", "--socket", f"{tmp_path}/in/s", "--data", f"{tmp_path}/data", "--heap", "256m"]
    with subprocess.Popen(
        [sys.executable, "-m", "ctxd", "xtdb", "run", "--directory", str(home), *arguments],
        stdout=subprocess.PIPE,
        umask=0,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready unix:{tmp_path}/in/s\n".encode()
            for path, mode in (("in", 0o700), ("in/s", 0o600), ("data", 0o700), ("data/tmp", 0o700)):
                assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode, path
            process.terminate()
            assert process.wait(20) == 128 + 15
        finally:
            process.kill()
    assert not (tmp_path / "in/s").exists()


def test_run_reports_missing_or_conflicting_options():
    done = ctxd("run", "--config", "nothing")
    assert done.returncode == os.EX_CONFIG
    assert "; give one of memory, rocksdb, postgres, or a file of EDN" in done.stderr
    assert ctxd("run", "--socket", "/s", "--tcp", "127.0.0.1:1").returncode == os.EX_USAGE
