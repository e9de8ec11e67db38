"""Ids: that none of different origin meet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.errors import CtxdError
from ctxd.objects.generated_ids import (
    RESERVED_PREFIXES,
    assemblies_prefix,
    assembly_id,
    file_id,
    is_hash,
    is_reserved,
    number_of,
    segment_id,
    segments_prefix,
)
from ctxd_protocol.object_types import FilesystemSource

ONE = "a" * 64


def test_the_same_path_on_two_filesystems_is_two_files() -> None:
    assert file_id(FilesystemSource("one", "/a")) != file_id(FilesystemSource("two", "/a"))


def test_the_same_source_is_the_same_file() -> None:
    assert file_id(FilesystemSource("one", "/a")) == file_id(FilesystemSource("one", "/a"))


def test_a_file_with_a_non_utf8_name_has_no_id() -> None:
    with pytest.raises(CtxdError) as caught:
        file_id(FilesystemSource("one", b"/caf\xe9".decode("utf-8", "surrogateescape")))
    assert caught.value.code == "invalid_path"


@given(st.one_of(st.sampled_from(RESERVED_PREFIXES).flatmap(lambda p: st.text().map(lambda t: p + t)), st.just(ONE)))
@settings(deadline=None)
def test_no_harness_id_can_pose_as_an_id_of_ctxds_own(harness_id: str) -> None:
    assert is_reserved(harness_id)


@pytest.mark.parametrize("plain", ["chat", "chats:1", "a" * 63, "a" * 65, "A" * 64, "xchat:1", ONE + "\n"])
def test_an_id_merely_resembling_a_reserved_one_is_not_reserved(plain: str) -> None:
    assert not is_reserved(plain)


def test_a_file_id_has_the_form_of_a_hash() -> None:
    assert is_hash(file_id(FilesystemSource("one", "/a")))
    assert not any(map(is_hash, ("call_1", "toolcall:s1:" + ONE, ONE[:-1], ONE.upper(), ONE[:-1] + "\n")))


@pytest.mark.parametrize(("id_of", "prefix_of"), [(segment_id, segments_prefix), (assembly_id, assemblies_prefix)])
@given(numbers=st.lists(st.integers(0, 9_999_999_999), min_size=1))
@settings(deadline=None)
def test_numbered_ids_sort_as_their_numbers_do(id_of, prefix_of, numbers: list[int]) -> None:
    ids = [id_of("s1", number) for number in numbers]
    assert [number_of(id) for id in sorted(ids)] == sorted(numbers)
    assert all(id.startswith(prefix_of("s1")) and is_reserved(id) for id in ids)
    assert not any(id.startswith(prefix_of("s")) for id in ids)
