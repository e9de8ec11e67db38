"""The rows of the method table, and the files that are generated from them."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ERRORS
from ctxd_protocol.methods import GRANTS, METHODS
from ctxd_protocol.openrpc import document

ROOT = Path(__file__).parents[3]
GENERATOR = ROOT / "protocol" / "generate.py"


@pytest.mark.requirement("RPC-6")
def test_the_generated_files_are_up_to_date():
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_each_generated_file_names_its_generator_in_its_first_line():
    program = (
        f"import sys; sys.path.insert(0, {str(GENERATOR.parent)!r}); import generate; print(*generate.generated())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, GENERATOR.parent], capture_output=True, text=True, timeout=60, check=True
    )
    paths = [ROOT / path for path in done.stdout.split()]
    assert len(paths) >= 5
    for path in paths:
        first = next(line for line in path.read_text().splitlines() if line != "{")
        assert "generate" in first, path


@pytest.mark.parametrize("row", METHODS.values(), ids=METHODS.keys())
def test_the_example_of_a_row_fits_its_parameters(row):
    msgspec.convert(row.example, row.params)


@pytest.mark.parametrize("row", METHODS.values(), ids=METHODS.keys())
def test_a_row_describes_its_method(row):
    assert row.summary.endswith(".") and len(row.summary) <= 80
    assert set(row.all_errors) <= ERRORS.keys()
    assert len(set(row.all_errors)) == len(row.all_errors)
    assert bool(row.handle) <= ("session" in row.params.__struct_fields__)
    assert "op_id" not in row.params.__struct_fields__ or row.writes


def test_every_grant_gives_methods_and_every_session_method_is_in_one():
    granted = [name for names in GRANTS.values() for name in names]
    assert all(GRANTS.values())
    assert sorted(granted) == sorted(row.name for row in METHODS.values() if row.capability == "session")


def test_the_type_of_error_codes_lists_the_table():
    assert get_args(ErrorCode) == tuple(ERRORS)


def test_the_document_gives_each_method_its_description_errors_and_example():
    by_name = {method["name"]: method for method in document()["methods"]}
    for row in METHODS.values():
        described = by_name[row.name]
        assert [ref["$ref"].rpartition("/")[2] for ref in described["errors"]] == list(row.all_errors)
        (example,) = described["examples"]
        assert {param["name"]: param["value"] for param in example["params"]} == row.example
        msgspec.convert(example["result"]["value"], row.result)
    assert "prefix" in by_name["session.pin"]["description"]
