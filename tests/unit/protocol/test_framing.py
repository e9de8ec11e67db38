import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd_protocol.jsonrpc import FrameDecoder, FrameTooLarge, WrongFraming

LINE = st.binary(max_size=20).map(lambda text: b"-" + text.replace(b"\n", b"").replace(b"\r", b""))
BLANK = st.sampled_from([b"", b" ", b"\t "])


def all_frames(pieces: list[bytes], limit: int = 1000) -> list[bytes]:
    decoder = FrameDecoder(limit)
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places}) + [len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(LINE | BLANK), st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1), st.lists(st.integers(0, 500)))
@pytest.mark.requirement("RPC-1")
def test_frames_are_the_same_wherever_the_bytes_are_split(lines, ends, places):
    data = b"".join(line + ends[number % len(ends)] for number, line in enumerate(lines))
    expected = [line.strip(b" \t") for line in lines if line.strip(b" \t")]
    assert all_frames(cut(data, places)) == expected


@given(st.lists(st.integers(0, 500)))
def test_a_too_long_line_is_refused_wherever_the_bytes_are_split_and_frames_before_it_are_kept(places):
    decoder = FrameDecoder(10)
    frames = []
    with pytest.raises(FrameTooLarge):
        for piece in [*cut(b"one\ntwo\n" + b"x" * 11 + b"\nthree\n", places), b""]:
            frames += decoder.feed(piece)
    assert frames == [b"one", b"two"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(("length", "fits"), [(9, True), (10, True), (11, False)])
@pytest.mark.parametrize("split", [True, False])
def test_the_limit_counts_the_line_without_its_end(length, fits, end, split):
    data = b"x" * length + end
    pieces = [data[i : i + 1] for i in range(len(data))] if split else [data]
    if fits:
        assert all_frames(pieces, limit=10) == [b"x" * length]
    else:
        with pytest.raises(FrameTooLarge):
            all_frames([*pieces, b""], limit=10)


def test_no_more_than_the_limit_is_held_of_an_unfinished_line():
    decoder = FrameDecoder(100)
    for _ in range(50):
        decoder.take(b"x" * 30)
        assert decoder.pending <= 100
    assert isinstance(decoder.fault, FrameTooLarge)


@pytest.mark.parametrize(
    "header", [b"Content-Length: 52\r\n\r\n{}", b"content-length:52\n", b"\r\nCONTENT-LENGTH: 1\r\n"]
)
def test_header_framing_is_detected_with_a_remedy(header):
    with pytest.raises(WrongFraming, match="Content-Length"):
        all_frames([header])
    assert "one JSON text per line" in WrongFraming.hint


def test_blank_lines_are_not_frames():
    assert all_frames([b"\n\r\n  \n\t\n1\n \n"]) == [b"1"]


def test_an_unfinished_line_is_not_a_frame():
    decoder = FrameDecoder(100)
    assert decoder.feed(b'{"a":1}') == []
    assert decoder.pending == 7
    assert decoder.feed(b"\n") == [b'{"a":1}']
    assert decoder.pending == 0
