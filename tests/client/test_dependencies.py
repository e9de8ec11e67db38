"""The client stands alone: copied into an empty folder with what it declares, it needs nothing else."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = ("anyio", "msgspec", "idna", "sniffio", "typing_extensions", "ctxd_protocol", "ctxd_client")
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import importlib, pkgutil, ctxd_client, ctxd_protocol
for package in (ctxd_client, ctxd_protocol):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name in ctxd_client.__all__:
    getattr(ctxd_client, name)
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(top for top in tops if top not in sys.stdlib_module_names))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with the client, the protocol and the client's declared dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    for name in ALLOWED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, folder / origin.name)
    return folder


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.requirement("CLT-3")
def test_every_module_of_the_client_imports_with_anyio_and_msgspec_alone(alone):
    assert set(run(PROGRAM, alone)) <= {*ALLOWED, *(f"_{name}" for name in ALLOWED)}


def test_the_client_declares_what_its_dependencies_need_and_no_more():
    needs = {requirement.split(";")[0].strip().split(">")[0] for requirement in importlib.metadata.requires("anyio")
    or ()
             if "extra" not in requirement}  # fmt: skip
    assert needs <= {*ALLOWED, "exceptiongroup"}


def test_the_synchronous_client_needs_msgspec_and_the_standard_library_alone(alone):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from ctxd_client import connect_sync\n"
        "print(*sorted(n for n in sys.modules if n in ('anyio', 'asyncio', 'trio')))"
    )
    assert run(program, alone) == []
