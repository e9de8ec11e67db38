"""The client as a distribution of its own: its wheel installs, works and is typed with what it declares alone."""

import email.parser
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.client.running import Running

ROOT = Path(__file__).parents[2]
HARNESS = Path(__file__).with_name("example_harness.py")
DEPENDENCIES = ("anyio", "msgspec", "idna", "sniffio", "typing_extensions")
OURS = ("ctxd_protocol", "ctxd_client")
ADAPTERS = ("ctxd_client.adapters.agent_sdk", "ctxd_client.adapters.langgraph")
"""Modules that need the package which they adapt to."""
PROGRAM = (
    f"ADAPTERS = {ADAPTERS}"
    + """
import sys
before = set(sys.modules)
import importlib, pkgutil, ctxd_client, ctxd_protocol
for package in (ctxd_client, ctxd_protocol):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in ADAPTERS:
            importlib.import_module(module.name)
assert set(ctxd_client.__all__) == set(dir(ctxd_client))
for name in ctxd_client.__all__:
    getattr(ctxd_client, name)
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(top for top in tops if top not in sys.stdlib_module_names))
"""
)
WRONG = """
from ctxd_client import SyncSession

def misuse(s: SyncSession) -> int:
    s.pin(1)
    s.assemble(block=False)
    return s.view().session.agent
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT / "protocol"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("ctxd_sidecar_client-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with the wheel and its declared dependencies, and nothing else."""
    home = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    (site,) = home.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel]
    done = subprocess.run(install, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, site / origin.name)
    return str(home / "bin" / "python")


def run(python, program, *arguments):
    done = subprocess.run(
        [python, "-I", "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_wheel_holds_the_client_and_the_protocol_and_declares_two_dependencies(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        declared = email.parser.Parser().parsestr(archive.read(metadata).decode())
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(OURS)
    assert {"ctxd_client/py.typed", "ctxd_protocol/py.typed", "ctxd_protocol/openrpc.json"} <= set(names)
    needed, extra = set(), set()
    for requirement in declared.get_all("Requires-Dist"):
        (extra if "extra ==" in requirement else needed).add(re.match(r"[a-z0-9-]+", requirement)[0])
    assert needed == {"anyio", "msgspec"}
    assert extra == {"claude-agent-sdk", "langgraph-checkpoint"}
    assert declared["Name"] == "ctxd-sidecar-client"
    assert "Private :: Do Not Upload" in declared.get_all("Classifier")


@pytest.mark.requirement("CLT-3")
def test_every_module_of_the_client_imports_with_anyio_and_msgspec_alone(python):
    allowed = (*DEPENDENCIES, *OURS)
    assert set(run(python, PROGRAM)) <= {*allowed, *(f"_{name}" for name in allowed)}


def test_client_declares_exactly_the_needed_dependencies():
    needs = {requirement.split(";")[0].strip().split(">")[0] for requirement in importlib.metadata.requires("anyio")
    or ()
             if "extra" not in requirement}  # fmt: skip
    assert needs <= {*DEPENDENCIES, "exceptiongroup"}


def test_the_synchronous_client_needs_msgspec_and_the_standard_library_alone(python):
    program = (
        "import sys; from ctxd_client import connect_sync\n"
        "print(*sorted(n for n in sys.modules if n in ('anyio', 'asyncio', 'trio')))"
    )
    assert run(python, program) == []


@pytest.mark.requirement("CLT-3")
def test_the_installed_client_runs_a_harness_against_a_daemon(python, tmp_path):
    (tmp_path / "a.py").write_text("print('A')\n")
    program = (
        "import sys, anyio; sys.path.insert(0, sys.argv[1]); import example_harness as harness\n"
        "text = anyio.run(harness.run, *sys.argv[2:])\n"
        "assert 'fix the bug' in text, text\n"
        "view, version = harness.state(sys.argv[2])\n"
        "print(view.agent, view.turn_count, version.type)"
    )
    with Running(tmp_path) as daemon:
        assert run(python, program, HARNESS.parent, daemon.socket, tmp_path) == ["demo", "1", "toolcall"]


def mypy(python, folder, source):
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", folder / "cache"]
    command += ["--python-executable", python, source]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


def pyright(python, folder, source):
    if shutil.which("node") is None:
        pytest.skip("pyright needs node")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "include": [source.name]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", python, "--project", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


@pytest.mark.requirement("CLT-5")
@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_harness_is_type_checked_strictly_against_the_installed_client(python, tmp_path, check):
    source = tmp_path / "harness.py"
    shutil.copy(HARNESS, source)
    done = check(python, tmp_path, source)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.requirement("CLT-5")
@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_harness_that_misuses_the_client_fails_its_type_check(python, tmp_path, check):
    source = tmp_path / "wrong.py"
    source.write_text(WRONG)
    done = check(python, tmp_path, source)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {line for line in (5, 6, 7) if f"wrong.py:{line}:" in done.stdout} == {5, 6, 7}, done.stdout
