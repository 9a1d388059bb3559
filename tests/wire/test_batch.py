"""batch.py: batches are faithful, bounded and checked (docs/protocol.md, promise G5)."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumq.core.values.errors import TooLarge
from quorumq.core.values.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    MESSAGE_BYTES_MAX,
    NUMBERS_END,
    PAYLOAD_BYTES_MAX,
)
from quorumq.core.values.types import Batch, Span
from quorumq.wire.batch import (
    DELAY_MS_MAX,
    TTL_MS_MAX,
    Corrupt,
    HeaderValue,
    Message,
    body_size,
    build_batch,
    check_body,
    decode_header,
    encode_header,
    encode_record,
    encode_records,
    name_of,
    pack_spans,
    part_header,
    records_of,
)
from quorumq.wire.cbor import BadValue
from tests.wire.strategies import BATCHES, PARTITION, PRODUCER_ID

header_values = (
    st.binary(max_size=30) | st.text(max_size=30) | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
messages = st.builds(
    Message,
    st.binary(max_size=300) | st.integers(65_530, 65_540).map(lambda n: b"z" * n),
    st.none() | st.binary(max_size=20),
    st.dictionaries(st.text(min_size=1, max_size=20), header_values, max_size=4),
)


@given(st.lists(messages, min_size=1, max_size=6), st.integers(0, NUMBERS_END - 6), st.data())
def test_published_messages_are_read_unchanged(
    sent: list[Message], first_seq: int, data: st.DataObject
) -> None:
    batch = build_batch(PARTITION, PRODUCER_ID, first_seq, 1_790_000_000_000, sent)
    header = decode_header(batch.raw)
    assert header == batch.header
    assert header.spans == (Span(PRODUCER_ID, first_seq, first_seq + len(sent)),)
    check_body(header, batch.body)
    assert records_of(header, 0, header.size, batch.body) == sent
    first = data.draw(st.integers(0, len(sent) - 1))
    stop = data.draw(st.integers(first + 1, len(sent)))
    part = memoryview(batch.body)[header.end_of(first - 1) : header.end_of(stop - 1)]
    assert records_of(header, first, stop, part) == sent[first:stop]


@given(st.lists(messages, min_size=1, max_size=3))
def test_records_are_plain_cbor(sent: list[Message]) -> None:
    for message in sent:
        expected = [message.key, dict(message.headers), message.payload]
        assert encode_record(message) == cbor2.dumps(expected)


def test_a_retry_has_the_same_bytes() -> None:
    sent = [Message(b"a", b"k", {"x": 1}), Message(b"b")]
    one = build_batch(PARTITION, PRODUCER_ID, 5, 7, sent)
    assert build_batch(PARTITION, PRODUCER_ID, 5, 7, sent) == one
    section = Span(PRODUCER_ID, 5, 5 + len(sent))
    assert pack_spans(PARTITION, (section,), 7, list(map(encode_record, sent))) == one


def packed(records: Sequence[bytes]) -> Batch:
    return pack_spans(PARTITION, (Span(PRODUCER_ID, 0, len(records)),), 0, records)


@given(st.data())
def test_a_flipped_bit_is_found_and_named(data: st.DataObject) -> None:
    batch = BATCHES[1]
    at = data.draw(st.integers(0, len(batch.body) - 1))
    damaged = bytearray(batch.body)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupt, match="CRC-32C of the body"):
        check_body(batch.header, bytes(damaged))
    index = next(index for index in range(batch.header.size) if batch.header.end_of(index) > at)
    with pytest.raises(Corrupt, match=f"{2**40 + index}.*CRC-32C of the record"):
        records_of(batch.header, 0, batch.header.size, bytes(damaged))


def test_a_body_of_another_length_is_refused() -> None:
    batch = BATCHES[1]
    for body in (bytes(batch.body)[:-1], bytes(batch.body) + b"x", b""):
        with pytest.raises(
            Corrupt, match=f"the body has {len(body)} bytes, its header says {body_size(batch.header)}"
        ):
            check_body(batch.header, body)
        with pytest.raises(Corrupt, match=f"{len(body)} bytes for records 0 to 7 of 7"):
            records_of(batch.header, 0, 7, body)


def test_a_message_is_named_by_its_section() -> None:
    joined = BATCHES[2].header
    assert name_of(joined, 6).endswith(f"{PRODUCER_ID._replace(k=10)}[{2**40 + 6}]")
    assert name_of(joined, 7).endswith(f"{PRODUCER_ID}[0]")


GOOD = [
    1,
    PARTITION.topic,
    3,
    [[*PRODUCER_ID, 0, 2]],
    5,
    struct.pack("<2I", 10, 30),
    struct.pack("<2I", 1, 2),
    3,
]


def test_the_header_is_the_documented_array() -> None:
    header = decode_header(cbor2.dumps(GOOD))
    assert encode_header(header) == cbor2.dumps(GOOD)
    assert [header.end_of(index) for index in (-1, 0, 1)] == [0, 10, 30]
    assert header.crc_of(1) == 2
    newer = [*GOOD, 0, 0, "unknown", {"fields": 1}]
    newer[3] = [[*PRODUCER_ID, 0, 2, "more"]]
    assert decode_header(cbor2.dumps(newer)) == header


@pytest.mark.parametrize(("delay", "ttl", "more"), [(0, 0, []), (7, 0, [7]), (0, 9, [0, 9]), (7, 9, [7, 9])])
def test_times_are_after_the_rest_and_omitted_where_they_are_0(delay: int, ttl: int, more: list[int]) -> None:
    header = decode_header(cbor2.dumps([*GOOD, *more]))
    assert (header.delay_ms, header.ttl_ms) == (delay, ttl)
    assert encode_header(header) == cbor2.dumps([*GOOD, *more])
    batch = build_batch(PARTITION, PRODUCER_ID, 0, 5, [Message(b"x")], delay_ms=delay, ttl_ms=ttl)
    assert decode_header(batch.raw) == batch.header
    assert (batch.header.delay_ms, batch.header.ttl_ms) == (delay, ttl)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([-1], "delay_ms is -1: must be an integer from 0 to 31622400000"),
        ([DELAY_MS_MAX + 1], "delay_ms is 31622400001"),
        ([0.5], "delay_ms is 0.5"),
        ([0, TTL_MS_MAX + 1], "ttl_ms is 316224000001"),
        ([0, None], "ttl_ms is None"),
    ],
)
def test_times_out_of_range_are_refused_by_name(times: list[object], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        decode_header(cbor2.dumps([*GOOD, *times]))


@pytest.mark.parametrize(
    ("index", "value", "says"),
    [
        (0, 2, "version is 2: this side reads version 1; upgrade"),
        (1, b"short", "topic is 5 bytes"),
        (2, 1024, "partition is 1024"),
        (2, -1, "partition is -1"),
        (3, [], "sections is an array of 0"),
        (3, [[*PRODUCER_ID, 0, 1]], "offsets is 8 bytes"),
        (3, [[*PRODUCER_ID, 0, 0], [*PRODUCER_ID, 5, 2]], "count is 0"),
        (3, [[*PRODUCER_ID, 0, 1], [*PRODUCER_ID, 0, 1]], "must not overlap"),
        (3, [[*PRODUCER_ID, 7, 1], [*PRODUCER_ID, 0, 8]], "must not overlap"),
        (3, [[*PRODUCER_ID, 2**63 - 1, 2]], "first is 9223372036854775807"),
        (3, [[*PRODUCER_ID, 0, 65_536], [*PRODUCER_ID, 65_536, 1]], "at most 65536 records"),
        (3, [["", *PRODUCER_ID[1:], 0, 2]], "node is ''"),
        (3, [[*PRODUCER_ID, 0]], "a section is an array"),
        (4, "now", "published_ms is 'now'"),
        (5, struct.pack("<2I", 30, 10), "ends must rise"),
        (5, struct.pack("<2I", 0, 10), "ends must rise"),
        (5, struct.pack("<2I", 10, 10), "ends must rise"),
        (5, struct.pack("<2I", 10, 11 + MESSAGE_BYTES_MAX), "a message has at most"),
        (5, struct.pack("<2I", 1, BATCH_BYTES_MAX + 1), "the body of a batch has at most"),
        (5, b"", "offsets is 0 bytes"),
        (6, b"1234567", "crcs is 7 bytes"),
        (7, 2**32, "crc is 4294967296"),
        (7, None, "crc is None"),
    ],
)
def test_a_header_with_anything_off_is_refused_by_name(index: int, value: object, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        decode_header(cbor2.dumps([*GOOD[:index], value, *GOOD[index + 1 :]]))
    if index:
        with pytest.raises(BadValue, match="must be an array of at least 8"):
            decode_header(cbor2.dumps(GOOD[:index]))


near = st.integers(0, 40) | st.integers(-2, 2).map(MESSAGE_BYTES_MAX.__add__) | st.integers(0, 2**32 - 1)


@given(st.lists(near, min_size=1, max_size=9))
@example([MESSAGE_BYTES_MAX] * 3)
@example([MESSAGE_BYTES_MAX] * 3 + [MESSAGE_BYTES_MAX + 1])
@example([10, 2**32 - 5])
@example([1, 2**31 - 1])
@example([BATCH_BYTES_MAX, 2**32 - 1, 2])
def test_ends_are_taken_where_each_rises_by_no_more_than_a_message(sizes: list[int]) -> None:
    """They are checked all at a time; here one by one."""
    ends = [end % 2**32 for end in itertools.accumulate(sizes)]
    good = (
        all(1 <= end - before <= MESSAGE_BYTES_MAX for before, end in itertools.pairwise([0, *ends]))
        and ends[-1] <= BATCH_BYTES_MAX
    )
    header = [*GOOD]
    header[3] = [[*PRODUCER_ID, 0, len(ends)]]
    header[5], header[6] = struct.pack(f"<{len(ends)}I", *ends), bytes(4 * len(ends))
    if good:
        assert decode_header(cbor2.dumps(header)).offsets == header[5]
    else:
        with pytest.raises(BadValue, match="offsets is"):
            decode_header(cbor2.dumps(header))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_a_bad_value(data: bytes) -> None:
    with pytest.raises(BadValue):
        decode_header(data)


def test_a_part_counts_from_its_own_begin() -> None:
    spans = ((*PRODUCER_ID, 7, 2),)
    part = part_header(PARTITION, spans, 5, 10, struct.pack("<2I", 13, 30), bytes(8))
    assert [part.end_of(index) for index in range(2)] == [3, 20]
    with pytest.raises(BadValue, match="must be above the slice's base 10"):
        part_header(PARTITION, spans, 5, 10, struct.pack("<2I", 10, 30), bytes(8))
    with pytest.raises(BadValue, match="must be above the slice's base 10"):
        part_header(PARTITION, spans, 5, 10, struct.pack("<2I", 13, 3), bytes(8))
    with pytest.raises(BadValue, match="base is -1"):
        part_header(PARTITION, spans, 5, -1, struct.pack("<2I", 13, 30), bytes(8))


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([255, 256, 65_535, 65_536]).map(bytes),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.binary(max_size=20),
    st.dictionaries(st.text(min_size=1, max_size=20), header_values, max_size=2),
)
def test_records_that_share_key_and_headers_are_those_that_are_made_one_by_one(
    payloads: list[bytes], key: bytes | None, headers: dict[str, HeaderValue]
) -> None:
    sent = [Message(payload, key, headers) for payload in payloads]
    records = encode_records(payloads, key, headers)
    assert records == [encode_record(message) for message in sent]
    batch = packed(records)
    assert records_of(batch.header, 0, batch.header.size, batch.body) == sent


def test_a_payload_with_a_longer_head_than_it_needs_is_read() -> None:
    """Other clients may write CBOR that way; its size does not show the begin of the payload."""
    records = [b"\x83\xf6\xa0\x58\x03abc", b"\x83\xf6\xa0\x59\x00\x03abc", encode_record(Message(b"abc"))]
    batch = packed(records)
    assert records_of(batch.header, 0, 3, batch.body) == [Message(b"abc")] * 3


@pytest.mark.parametrize(
    "record",
    [b"\xff", b"\x80", cbor2.dumps([1, {}, b""]), cbor2.dumps([None, [], b""]), cbor2.dumps([None, {}, "text"]),
     cbor2.dumps([None, {"a": [1]}, b""]), cbor2.dumps([None, {1: 1}, b""]), b"\x83\xf6\xa0\x44abc"],
)  # fmt: skip
def test_a_record_that_its_producer_wrote_wrong_is_told_from_damage(record: bytes) -> None:
    batch = packed([record])
    with pytest.raises(Corrupt, match="was published with a record that cannot be read"):
        records_of(batch.header, 0, 1, batch.body)


def test_limits_are_told_before_anything_is_used_up() -> None:
    with pytest.raises(TooLarge, match="1 to 65536"):
        packed([])
    with pytest.raises(TooLarge, match="1 to 65536"):
        packed([b"\x83\xf6\xa0\x40"] * (BATCH_MESSAGES_MAX + 1))
    with pytest.raises(TooLarge, match="at most 1048576"):
        encode_record(Message(bytes(PAYLOAD_BYTES_MAX + 1)))
    with pytest.raises(TooLarge, match="with key and headers"):
        encode_record(Message(bytes(PAYLOAD_BYTES_MAX), bytes(64 << 10)))
    whole = encode_record(Message(bytes(PAYLOAD_BYTES_MAX), bytes((64 << 10) - 10)))
    assert len(whole) == MESSAGE_BYTES_MAX
    batch = packed([whole] * 3)
    assert decode_header(batch.raw) == batch.header, "a node takes what a client sends"
    with pytest.raises(TooLarge, match="send it as several"):
        packed([bytes(MESSAGE_BYTES_MAX)] * 5)
    with pytest.raises(TooLarge, match="257 headers"):
        encode_record(Message(b"", headers={str(n): n for n in range(257)}))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("text"), "a payload is bytes, not str"),  # type: ignore[arg-type]
        (Message(b"", headers={"": 1}), "header name ''"),
        (Message(b"", headers={"a": [1]}), "header 'a' is an array of 1"),  # type: ignore[dict-item]
        (Message(b"", headers={"a": 2**64}), "64 bits"),
        (Message(b"", headers={"a": float("inf")}), "header 'a' is inf: numbers are finite"),
    ],
)
def test_parts_of_another_type_are_refused(message: Message, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        encode_record(message)
