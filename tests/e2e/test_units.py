"""The unit files, judged by systemd itself: whole, understood, and as closed as they say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"
EXPOSURE_MAX = 0.8
EXPOSURE_WITH_TCP_MAX = 1.5


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        if os.environ.get("CTXD_REQUIRE_SYSTEMD") == "1":
            pytest.fail("systemd-analyze is missing: apt-get install systemd")
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    return found


def installed(folder: Path, *names: str, drop_ins: tuple[str, ...] = ()) -> list[Path]:
    """The units ``names`` as they would be installed, but for the place of the executable."""
    folder.mkdir(exist_ok=True)
    made = [folder / Path(name).name for name in names]
    for name, path in zip(names, made, strict=True):
        text = (UNITS / name).read_text()
        path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    for name in drop_ins:
        place = folder / "ctxd.service.d"
        place.mkdir(exist_ok=True)
        shutil.copy(UNITS / name, place)
    return made


def exposure(analyze: str, unit: Path, most: float) -> subprocess.CompletedProcess[str]:
    command = [analyze, "security", "--offline=true", "--no-pager", f"--threshold={int(most * 10)}", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.requirement("RPC-11")
@pytest.mark.parametrize("unit", ["ctxd.service", "user/ctxd.service"])
def test_a_leak_of_memory_ends_the_daemon_and_not_its_host(unit: str) -> None:
    assert "\nMemoryMax=4G\n" in (UNITS / unit).read_text()


@pytest.mark.requirement("SVC-6")
@pytest.mark.parametrize("drop_ins", [(), ("ctxd-http-node.conf",)], ids=["alone", "with a node over TCP"])
def test_the_units_pass_verification(analyze: str, tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    units = installed(tmp_path / "u", "ctxd.socket", "ctxd.service", "xtdb.service", drop_ins=drop_ins)
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.requirement("SVC-6")
def test_the_user_units_pass_verification(analyze: str, tmp_path: Path) -> None:
    units = installed(tmp_path / "u", "user/ctxd.socket", "user/ctxd.service")
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([analyze, "verify", "--user", *units], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.requirement("SVC-6")
def test_the_units_exposure_is_within_its_limit(analyze: str, tmp_path: Path) -> None:
    (alone,) = installed(tmp_path / "alone", "ctxd.service")
    done = exposure(analyze, alone, EXPOSURE_MAX)
    assert done.returncode == 0, done.stdout


@pytest.mark.requirement("SVC-6")
@pytest.mark.parametrize("drop_ins", [(), ("ctxd-http-node.conf",)], ids=["over a socket", "over TCP"])
def test_the_exposure_of_service_and_node_is_within_their_limits(
    analyze: str, tmp_path: Path, drop_ins: tuple[str, ...]
) -> None:
    for unit in installed(tmp_path / "both", "ctxd.service", "xtdb.service", drop_ins=drop_ins):
        done = exposure(analyze, unit, EXPOSURE_WITH_TCP_MAX)
        assert done.returncode == 0, done.stdout


@pytest.mark.requirement("SVC-6")
def test_systemd_parses_the_sysusers_and_tmpfiles_declarations(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("ctxd:x:990:990::/:/bin/false\n")
    (tmp_path / "etc/group").write_text("ctxd:x:990:\n")
    for program, name in (("systemd-sysusers", "ctxd.sysusers.conf"), ("systemd-tmpfiles", "ctxd.tmpfiles.conf")):
        found = shutil.which(program)
        if found is None:
            if os.environ.get("CTXD_REQUIRE_SYSTEMD") == "1":
                pytest.fail(f"{program} is missing: apt-get install systemd")
            pytest.skip(f"needs {program}: apt-get install systemd")
        extra = ["--dry-run"] if program == "systemd-sysusers" else ["--clean"]
        done = subprocess.run(
            [found, *extra, f"--root={tmp_path}", str(UNITS / name)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
