"""Ids: that none of different origin meet, and what an abbreviation means."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.errors import CtxdError
from ctxd.objects.identity import RESERVED_PREFIXES, file_id, is_reserved, resolve, toolcall_id
from ctxd_protocol.objects import FilesystemSource

ONE = "a" * 64
TWO = "a" * 32 + "b" * 32


def test_the_same_path_on_two_filesystems_is_two_files() -> None:
    assert file_id(FilesystemSource("one", "/a")) != file_id(FilesystemSource("two", "/a"))


def test_the_same_source_is_the_same_file() -> None:
    assert file_id(FilesystemSource("one", "/a")) == file_id(FilesystemSource("one", "/a"))


def test_a_file_whose_name_is_no_utf8_has_no_id() -> None:
    with pytest.raises(CtxdError) as caught:
        file_id(FilesystemSource("one", b"/caf\xe9".decode("utf-8", "surrogateescape")))
    assert caught.value.code == "invalid_path"


def test_a_tool_call_keeps_its_harness_id() -> None:
    assert toolcall_id("s1", "call_cD2X|fc_0882 a", taken=False) == "call_cD2X|fc_0882 a"


def test_a_tool_call_whose_id_is_another_sessions_is_aliased() -> None:
    assert toolcall_id("s1", "call_1", taken=True) == "toolcall:s1:call_1"


@given(st.one_of(st.sampled_from(RESERVED_PREFIXES).flatmap(lambda p: st.text().map(lambda t: p + t)), st.just(ONE)))
@settings(deadline=None)
def test_no_harness_id_can_pose_as_an_id_of_ctxds_own(harness_id: str) -> None:
    assert is_reserved(harness_id)
    assert toolcall_id("s1", harness_id, taken=False) == f"toolcall:s1:{harness_id}"


@pytest.mark.parametrize("plain", ["chat", "chats:1", "a" * 63, "a" * 65, "A" * 64, "xchat:1", ONE + "\n"])
def test_what_only_resembles_a_reserved_id_is_not_one(plain: str) -> None:
    assert not is_reserved(plain)


def test_a_unique_start_of_eight_characters_is_enough() -> None:
    assert resolve("a" * 33, [ONE, TWO, "c" * 64]) == ONE
    assert resolve("c" * 8, [ONE, TWO, "c" * 64]) == "c" * 64


def test_a_shared_start_is_ambiguous() -> None:
    with pytest.raises(CtxdError) as caught:
        resolve("a" * 10, [ONE, TWO])
    assert caught.value.code == "ambiguous_id"


def test_fewer_than_eight_characters_name_nothing_but_a_whole_id() -> None:
    assert resolve("call_1", ["call_1", "call_12"]) == "call_1"
    with pytest.raises(CtxdError) as caught:
        resolve("c" * 7, ["c" * 64])
    assert caught.value.code == "object_not_found"


def test_a_whole_id_wins_over_longer_ones_that_begin_with_it() -> None:
    assert resolve("call_1234", ["call_12345", "call_1234"]) == "call_1234"


def test_an_unknown_id_is_not_found() -> None:
    with pytest.raises(CtxdError) as caught:
        resolve("d" * 64, [ONE])
    assert caught.value.code == "object_not_found"
