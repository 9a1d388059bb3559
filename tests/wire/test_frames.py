"""frames.py: frames out of any chunking of the stream, and nothing else; docs/wire-format.md, "Frame"."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values.errors import PeerError, TooLarge
from quorumq.core.values.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, MAGIC, FrameReader, encode_frame

frames = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=60)), max_size=5)


@given(frames, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_frames_come_out_however_the_stream_is_cut(sent: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(b"".join(encode_frame(header, [body])) for header, body in sent)
    reader = FrameReader()
    got: list[tuple[bytes, bytes]] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        turn += 1
        reader.feed(stream[at : at + size])
        at += size
        got += [(bytes(frame.header), bytes(frame.body)) for frame in reader]
    reader.close()
    assert (got, reader.pending_bytes) == (sent, 0)


def test_several_bodies_lie_back_to_back() -> None:
    chunks = encode_frame(b"\x80", [b"one", memoryview(b"two")])
    assert b"".join(chunks) == MAGIC + struct.pack(">II", 1, 6) + b"\x80onetwo"


def test_a_frame_within_one_chunk_is_not_copied() -> None:
    chunk = b"".join(encode_frame(b"\x80", [b"body"]))
    reader = FrameReader()
    reader.feed(chunk)
    frame = reader.next_frame()
    assert frame is not None
    assert frame.body.obj is chunk
    assert frame.body.readonly


def test_frames_must_be_taken_before_more_is_fed() -> None:
    reader = FrameReader()
    chunk = b"".join(encode_frame(b"\x80"))
    reader.feed(chunk)
    with pytest.raises(RuntimeError, match="take the frames"):
        reader.feed(chunk)
    assert len(list(reader)) == 1
    reader.feed(chunk)
    assert len(list(reader)) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n", "474554202f.*HTTP"),
        (b"G", "47.*not quorumq"),
        (b"\x16\x03\x01\x02\x00", "1603.*TLS"),
        (b"SSH-2.0-x", "SSH"),
        (b"\xabQQ\x02aaaabbbb", "another format of quorumq"),
        (b"\x00" * 40, "0000.*check host and port"),
        (MAGIC + struct.pack(">II", 0, 0), "header of 0 bytes"),
        (MAGIC + struct.pack(">II", HEADER_BYTES_MAX + 1, 0), "header of 4194305 bytes"),
        (MAGIC + struct.pack(">II", 1, FRAME_BYTES_MAX), r"1 \+ 16777216 bytes: at most 16777216"),
        (MAGIC + b"\xff" * 8, "header of 4294967295"),
    ],
)
def test_bytes_that_are_no_frame_are_refused_for_good(data: bytes, says: str) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(PeerError, match=says):
        reader.next_frame()
    assert reader.pending_bytes == 0, "nothing of it is kept"
    with pytest.raises(PeerError, match=says):
        reader.next_frame()
    reader.close()


def test_a_stranger_gets_small_frames_only() -> None:
    big = b"".join(encode_frame(b"\x80" * HANDSHAKE_BYTES_MAX))
    reader = FrameReader(HANDSHAKE_BYTES_MAX)
    reader.feed(big)
    with pytest.raises(PeerError, match="before HELLO was accepted"):
        reader.next_frame()
    reader = FrameReader(HANDSHAKE_BYTES_MAX)
    reader.open_up()
    reader.feed(big)
    assert len(list(reader)) == 1


@pytest.mark.parametrize("kept", [1, 11, 12, 13, 17])
def test_a_stream_that_ends_inside_a_frame_says_so(kept: int) -> None:
    reader = FrameReader()
    reader.feed(b"".join(encode_frame(b"\x80\x80", [b"body"]))[:kept])
    assert list(reader) == []
    with pytest.raises(PeerError, match="ended inside a frame"):
        reader.close()


def test_a_prefix_alone_makes_no_one_fill_memory() -> None:
    """Sizes are refused before anything is allocated, and a buffer grows with the received bytes."""
    tracemalloc.start()
    try:
        for prefix in (MAGIC + b"\xff" * 8, MAGIC + struct.pack(">II", 1, 1 << 31)):
            reader = FrameReader()
            reader.feed(prefix)
            with pytest.raises(PeerError):
                reader.next_frame()
        announced = [FrameReader() for _ in range(100)]
        for reader in announced:
            reader.feed(MAGIC + struct.pack(">II", 1, FRAME_BYTES_MAX - 13))
            assert reader.next_frame() is None
            assert (reader.pending_bytes, reader.expected_bytes) == (12, FRAME_BYTES_MAX)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        body = bytes(8 << 20)
        stream = b"".join(encode_frame(b"\x80", [body]))
        reader = FrameReader()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for at in range(0, len(stream), 1 << 16):
            reader.feed(stream[at : at + (1 << 16)])
            for frame in reader:
                assert len(frame.body) == len(body)
        assert tracemalloc.get_traced_memory()[1] - before < len(body) * 5 // 4
    finally:
        tracemalloc.stop()


def test_a_frame_over_a_limit_is_not_sent() -> None:
    with pytest.raises(TooLarge, match="a poem has a header of 4194305 bytes"):
        encode_frame(b"x" * (HEADER_BYTES_MAX + 1), name="a poem")
    half = bytes(FRAME_BYTES_MAX // 2)
    with pytest.raises(TooLarge, match="a frame has at most"):
        encode_frame(b"\x80", [half, half])
