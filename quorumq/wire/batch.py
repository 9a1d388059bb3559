"""The batch, from the producer's records to the consumer's.

A batch is encoded once, by the producer, and the same bytes are stored, replicated and delivered. Its
header is CBOR; its body is the records back to back, each an independent CBOR array. The header has the
end of every record and its CRC-32C, so that any part of a batch is a slice of the body and can be
checked alone. Nodes look at headers only; all work per message is in `build_batch` and `records_of`, in
the client.

Promise: if a size, an order or an overlap in a header is wrong, `decode_header` refuses it, so that later
code need not check them. `records_of` never returns a record whose bytes are not the published ones
(docs/protocol.md, promise G5).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Union

from crc32c import crc32c

from quorumq.core.values import limits
from quorumq.core.values.errors import PeerError, TooLarge, utf8
from quorumq.core.values.types import Batch, BatchHeader, PartitionId, ProducerId, Span
from quorumq.wire import cbor
from quorumq.wire.cbor import BadValue, bad

BATCH_VERSION: Final = 1
TOPIC_ID_BYTES: Final = 16
SPANS_MAX: Final = 1024
"""Sections in one batch: a node joins at most that many producers' records into one."""
SEQ_MAX: Final = limits.NUMBERS_END - limits.BATCH_MESSAGES_MAX - 1
"""Highest number with which a batch of any size may begin."""
HEADERS_MAX: Final = 256
"""Headers of one message."""
HEADER_NAME_CHARS_MAX: Final = 256
NODE_CHARS_MAX: Final = 32
SHARED_MAX: Final = 4096
"""Most producer ids, and most partitions, that the caches below keep."""
DELAY_MS_MAX: Final = int(limits.DELAY_MAX_S * 1000)
TTL_MS_MAX: Final = int(limits.TOPIC_TIME_MAX_S * 1000)

HeaderValue = Union[bytes, str, int, float, bool, None]
"""Value of a message header. Integers have at most 64 bits."""


class Message(NamedTuple):
    """The parts of one message. The consumer gets them as the producer gave them, byte for byte."""

    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, HeaderValue] = {}  # never written to


class Corrupt(PeerError):
    """Bytes are not those that the producer wrote, or are no record. Fetch again: another replica may be good."""

    code = "corrupt"


# ------------------------------------------------------------------------------------ header


def encode_header(header: BatchHeader) -> bytes:
    """Return ``header`` as docs/wire-format.md, "Batch", lays it out. The producer does this once per batch."""
    times = [header.delay_ms, header.ttl_ms]  # left out from the end if they are 0
    while times and not times[-1]:
        times.pop()
    out = [
        cbor.array_head(8 + len(times)),
        cbor.uint(BATCH_VERSION),
        cbor.blob(header.partition.topic),
        cbor.uint(header.partition.number),
        encode_spans(header.spans),
        cbor.uint(header.published_ms),
        cbor.blob(header.offsets),
        cbor.blob(header.crcs),
        cbor.uint(header.crc),
        *map(cbor.uint, times),
    ]
    return b"".join(out)


def encode_spans(spans: Sequence[Span]) -> bytes:
    """Return sections as an array of [node, n, nonce, k, first, count]."""
    out = [cbor.array_head(len(spans))]
    for (node, n, nonce, k), start, stop in spans:
        out += (b"\x86", cbor.text(node), cbor.uint(n), cbor.uint(nonce), cbor.uint(k))
        out += (cbor.uint(start), cbor.uint(stop - start))
    return b"".join(out)


def _uint(where: str, value: object, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        bad(where, value, f"must be an integer from 0 to {below - 1}")
    return value


# Batches of one session and one partition share these: else each that waits at a node would have its own.
_producer_id = functools.lru_cache(maxsize=SHARED_MAX)(ProducerId)
_partition = functools.lru_cache(maxsize=SHARED_MAX)(PartitionId)


_new_span: Final[Callable[[type[Span], tuple[ProducerId, int, int]], Span]] = tuple.__new__


def decode_spans(value: object, where: str = "batch.sections") -> tuple[Span, ...]:
    """Return sections out of decoded CBOR; BadValue if they are none, too many, empty, or overlap."""
    if type(value) is not tuple or not 1 <= len(value) <= SPANS_MAX:
        bad(where, value, f"must be an array of 1 to {SPANS_MAX} sections")
    spans: list[Span] = []
    for item in value:
        if type(item) is not tuple or len(item) < 6:
            bad(where, item, "a section is an array of node, n, nonce, k, first, count")
        node, n, nonce, k, first, count = item[:6]
        if not (
            type(node) is str
            and 1 <= len(node) <= NODE_CHARS_MAX
            and type(n) is type(nonce) is type(k) is type(first) is type(count) is int
            and 0 <= n < limits.NUMBERS_END
            and 0 <= nonce < limits.WORDS_END
            and 0 <= k < limits.NUMBERS_END
            and 0 < count <= limits.BATCH_MESSAGES_MAX
            and 0 <= first <= limits.NUMBERS_END - count
        ):  # say what is wrong
            if type(node) is not str or not 1 <= len(node) <= NODE_CHARS_MAX:
                bad(f"{where}.node", node, f"must be text of 1 to {NODE_CHARS_MAX} characters")
            _uint(f"{where}.n", n, limits.NUMBERS_END)
            _uint(f"{where}.nonce", nonce, limits.WORDS_END)
            _uint(f"{where}.k", k, limits.NUMBERS_END)
            _uint(f"{where}.count", count, limits.BATCH_MESSAGES_MAX + 1)
            _uint(f"{where}.first", first, limits.NUMBERS_END - count + 1)
            bad(f"{where}.count", count, "a section holds at least one record")
        spans.append(_new_span(Span, (_producer_id(node, n, nonce, k), first, first + count)))
    if len(spans) > 1:
        ordered = sorted(spans)
        for one, next_one in itertools.pairwise(ordered):
            if one.producer_id == next_one.producer_id and one.stop > next_one.start:
                bad(where, f"{one} and {next_one}", "sections must not overlap")
    return tuple(spans)


def cut_spans(whole: Sequence[Span], first: int, stop: int) -> tuple[Span, ...]:
    """Return the sections of records [first, stop) alone."""
    spans: list[Span] = []
    at = 0
    for producer_id, start, end in whole:
        low, high = max(first, at), min(stop, at + end - start)
        if low < high:
            spans.append(Span(producer_id, start + low - at, start + high - at))
        at += end - start
    return tuple(spans)


def _u32s(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data)


@functools.lru_cache(maxsize=16)
def _lanes(count: int, value: int) -> int:
    """Return ``count`` copies of ``value``, of 32 bits each, side by side in one integer."""
    return int.from_bytes(value.to_bytes(4, "little") * count, "little")


def _are_ends(offsets: bytes) -> bool:
    """Return True if record ends rise, by `MESSAGE_BYTES_MAX` at most, to `BATCH_BYTES_MAX` at most.

    Nodes check this for every batch, so it is one subtraction of all ends at a time: each lane of 32 bits has its end,
    with the highest bit set so that nothing is borrowed from the next lane, less the end before it, less one. The bit
    is left if the end has risen, and the bits above a message's size stay clear if it is not too large.
    """
    count = len(offsets) // 4
    high = _lanes(count, 1 << 31)
    ends = int.from_bytes(offsets, "little")
    if ends & high or ends >> 32 * (count - 1) > limits.BATCH_BYTES_MAX:
        return False
    before = ends << 32 & (1 << 32 * count) - 1
    sizes = (ends | high) - before - _lanes(count, 1)
    if sizes & high != high:
        return False
    return (
        sizes + _lanes(count, _SIZES_END - limits.MESSAGE_BYTES_MAX) & _lanes(count, 0xFFFFFFFF & -_SIZES_END)
        == high
    )


_SIZES_END: Final = 1 << (limits.MESSAGE_BYTES_MAX - 1).bit_length()
"""A power of two: if a size is too large, it reaches this when its distance to the maximum is added."""
assert limits.BATCH_BYTES_MAX < 1 << 31


def _check_offsets(offsets: object, crcs: object, count: int, where: str) -> tuple[bytes, bytes]:
    if type(offsets) is not bytes or len(offsets) != 4 * count:
        bad(f"{where}.offsets", offsets, f"must be bytes, 4 for each of the {count} records in its sections")
    if type(crcs) is not bytes or len(crcs) != 4 * count:
        bad(f"{where}.crcs", crcs, f"must be bytes, 4 for each of the {count} records in its sections")
    if not _are_ends(offsets):  # say what is wrong
        ends = _u32s(offsets)
        if ends[-1] > limits.BATCH_BYTES_MAX:
            bad(
                f"{where}.offsets",
                ends[-1],
                f"the body of a batch has at most {limits.BATCH_BYTES_MAX} bytes",
            )
        sizes = (ends[0], *map(operator.sub, ends[1:], ends))
        if min(sizes) <= 0:
            bad(
                f"{where}.offsets",
                min(sizes),
                "record ends must rise: no record is empty or before the last one",
            )
        bad(f"{where}.offsets", max(sizes), f"a message has at most {limits.MESSAGE_BYTES_MAX} bytes")
    return offsets, crcs


def decode_header(raw: bytes | memoryview) -> BatchHeader:
    """Return the header that ``raw`` encodes, fully checked.

    Unknown fields after the last are skipped, and stay in ``raw``.

    Raises:
        BadValue: it is not CBOR, or of another version, sections overlap or do not add up to the number
            of records, ends do not rise, or a size is over its limit. The text names the field.
    """
    if cbor.takes_long(raw):
        bad("batch", raw, "has far more items than 1,024 sections need")
    value = cbor.load(raw, "a batch header")
    if type(value) is not tuple or len(value) < 8:
        bad("batch", value, "must be an array of at least 8 fields")
    version, topic, number, spans_value, published_ms, offsets, crcs, crc = value[:8]
    if version != BATCH_VERSION or type(version) is not int:
        bad("batch.version", version, f"this side reads version {BATCH_VERSION}; upgrade it")
    partition = _partition(topic, number)
    check_partition(partition, "batch")
    spans = decode_spans(spans_value)
    if type(published_ms) is not int or not -(1 << 63) <= published_ms < 1 << 63:
        bad("batch.published_ms", published_ms, "must be an integer of 64 bits")
    count = spans[0].size if len(spans) == 1 else sum([span.size for span in spans])
    if count > limits.BATCH_MESSAGES_MAX:
        bad("batch.sections", count, f"a batch holds at most {limits.BATCH_MESSAGES_MAX} records")
    offsets, crcs = _check_offsets(offsets, crcs, count, "batch")
    _uint("batch.crc", crc, 1 << 32)
    delay_ms = _uint("batch.delay_ms", value[8], DELAY_MS_MAX + 1) if len(value) > 8 else 0
    ttl_ms = _uint("batch.ttl_ms", value[9], TTL_MS_MAX + 1) if len(value) > 9 else 0
    return BatchHeader(partition, spans, published_ms, offsets, crcs, crc, delay_ms, ttl_ms)


def part_header(
    partition: PartitionId,
    spans_value: object,
    published_ms: object,
    base: object,
    offsets: object,
    crcs: object,
) -> BatchHeader:
    """Return the header of a part of a batch, as a slice brings it, with record ends counted from the part's begin.

    Args:
        spans_value, published_ms, offsets, crcs: as in a batch header, of the part's records only.
        base: offset of the part in the batch's body.

    Returns:
        A header for `records_of`; its ``crc`` is 0, as no CRC covers exactly the part.

    Raises:
        BadValue: as `decode_header`.
    """
    spans = decode_spans(spans_value, "slice.sections")
    if type(published_ms) is not int or not -(1 << 63) <= published_ms < 1 << 63:
        bad("slice.published_ms", published_ms, "must be an integer of 64 bits")
    start = _uint("slice.base", base, limits.BATCH_BYTES_MAX)
    count = sum(span.size for span in spans)
    if count > limits.BATCH_MESSAGES_MAX:
        bad("slice.sections", count, f"a batch holds at most {limits.BATCH_MESSAGES_MAX} records")
    if start:
        if type(offsets) is not bytes or len(offsets) != 4 * count:
            bad("slice.offsets", offsets, f"must be bytes, 4 for each of the {count} records in its sections")
        ends = _u32s(offsets)
        if min(ends) <= start:
            bad("slice.offsets", min(ends), f"must be above the slice's base {start}")
        offsets = struct.pack(f"<{count}I", *[end - start for end in ends])
    ends_checked, crcs_checked = _check_offsets(offsets, crcs, count, "slice")
    return BatchHeader(partition, spans, published_ms, ends_checked, crcs_checked, 0)


def check_partition(partition: PartitionId, where: str) -> None:
    """Raise `BadValue` if the topic id has not 16 bytes, or the partition number is out of range."""
    if type(partition.topic) is not bytes or len(partition.topic) != TOPIC_ID_BYTES:
        bad(f"{where}.topic", partition.topic, f"a topic id has {TOPIC_ID_BYTES} bytes")
    _uint(f"{where}.partition", partition.number, limits.PARTITIONS_MAX)


def body_size(header: BatchHeader) -> int:
    return header.end_of(header.size - 1)


def check_body(header: BatchHeader, body: bytes | memoryview) -> None:
    """Raise `Corrupt` if ``body`` has another length or CRC-32C than ``header`` says."""
    size = body_size(header)
    if len(body) != size:
        raise Corrupt(f"batch {header.key()}: the body has {len(body)} bytes, its header says {size}")
    crc = crc32c(body)
    if crc != header.crc:
        raise Corrupt(
            f"batch {header.key()}: CRC-32C of the body is {crc:08x}, its header says {header.crc:08x}; "
            "the bytes were damaged on the way or on disk"
        )


# ------------------------------------------------------------------------------------ records


PLAIN: Final = b"\x83\xf6\xa0"
"""First bytes of a record without key and headers; its payload follows."""


def encode_record(message: Message) -> bytes:
    """Return one record: CBOR [key or null, headers, payload].

    Raises:
        TooLarge: over `MESSAGE_BYTES_MAX` encoded, or `PAYLOAD_BYTES_MAX`, or more headers than allowed.
        TypeError: a part has another type; the text names it.
        UsageError: the text of a header has a lone surrogate.
    """
    payload, key, headers = message
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}: encode it first, or give json=")
    head = PLAIN if key is None and not headers else _record_head(key, headers)
    record = b"".join((head, cbor.blob(payload)))
    if len(record) > limits.MESSAGE_BYTES_MAX or len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise _too_large(len(record), len(payload))
    return record


def encode_records(
    payloads: Sequence[bytes], key: bytes | None = None, headers: Mapping[str, HeaderValue] | None = None
) -> list[bytes]:
    """Encode payloads of type bytes as records with one key and headers, without a Python call for each."""
    head = _record_head(key, headers)
    heads = {size: head + cbor.blob_head(size) for size in set(map(len, payloads))}
    largest = max(heads, default=0)
    encoded = len(heads.get(largest, b"")) + largest
    if largest > limits.PAYLOAD_BYTES_MAX or encoded > limits.MESSAGE_BYTES_MAX:
        raise _too_large(encoded, largest)
    return [heads[len(payload)] + payload for payload in payloads]


def _record_head(key: bytes | None, headers: Mapping[str, HeaderValue] | None) -> bytes:
    """Return the bytes of a record before the payload."""
    if key is not None and not isinstance(key, bytes | bytearray | memoryview):
        raise TypeError(f"a key is bytes or text, not {type(key).__name__}: encode it first")
    if headers and not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of names to values, not {type(headers).__name__}")
    if key is None and not headers:
        return PLAIN
    first = b"\x83\xf6" if key is None else b"\x83" + cbor.blob(key)
    return first + (_encode_headers(headers) if headers else b"\xa0")


def _too_large(size: int, payload: int) -> TooLarge:
    if payload > limits.PAYLOAD_BYTES_MAX:
        return TooLarge(f"a payload of {payload} bytes: at most {limits.PAYLOAD_BYTES_MAX} (1 MiB)")
    return TooLarge(
        f"a message of {size} bytes encoded: at most {limits.MESSAGE_BYTES_MAX} with key and headers"
    )


def _encode_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    if len(headers) > HEADERS_MAX:
        raise TooLarge(f"a message with {len(headers)} headers: at most {HEADERS_MAX}")
    out = [cbor.map_head(len(headers))]
    for name, value in headers.items():
        fault = _header_fault(name, value)
        if fault:
            raise TypeError(fault)
        out.append(cbor.text(name))
        out.append(_HEADER_WRITERS[type(value)](value))
    return b"".join(out)


_HEADER_WRITERS: Final[Mapping[type, Callable[..., bytes]]] = {
    bytes: cbor.blob,
    str: cbor.text,
    int: cbor.uint,
    float: cbor.real,
    bool: cbor.boolean,
    type(None): lambda _: cbor.NULL,
}


def _header_fault(name: object, value: object) -> str:
    """Return the reason if this is no header of a message, else ""."""
    if type(name) is not str or not 1 <= len(name) <= HEADER_NAME_CHARS_MAX:
        return f"header name {cbor.shown(name)}: must be text of 1 to {HEADER_NAME_CHARS_MAX} characters"
    if type(value) not in _HEADER_WRITERS:
        return f"header {name!r} is {cbor.shown(value)}: must be bytes, text, a number, a boolean or null"
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return f"header {name!r} is {cbor.shown(value)}: integers have at most 64 bits"
    if type(value) is float and not math.isfinite(value):
        return f"header {name!r} is {value}: numbers are finite"
    for text in (name, value):
        if type(text) is str and not text.isascii():
            utf8(text, f"header {name!r} has")
    return ""


def build_batch(
    partition: PartitionId,
    producer_id: ProducerId,
    first_seq: int,
    published_ms: int,
    messages: Sequence[Message],
    *,
    delay_ms: int = 0,
    ttl_ms: int = 0,
) -> Batch:
    """Encode ``messages`` into one batch of one section; a retry sends the result again, unchanged.

    Args:
        producer_id: the producer's session; numbers ``first_seq``, ``first_seq + 1`` … are used up by it.
        first_seq: the number of the first message within (producer id, partition).
        published_ms: the producer's time of day, milliseconds since 1970.
        messages: one or more.
        delay_ms: milliseconds until they may be delivered; at most `DELAY_MS_MAX`.
        ttl_ms: milliseconds until they expire; at most `TTL_MS_MAX`. If it is 0, the topic decides.

    Raises:
        TooLarge: a message, their number or their sum is over its limit; nothing was used up.
        TypeError: a part of a message is not of its type.
    """
    records = [encode_record(message) for message in messages]
    section = Span(producer_id, first_seq, first_seq + len(records))
    return pack_spans(partition, (section,), published_ms, records, delay_ms=delay_ms, ttl_ms=ttl_ms)


def pack_spans(
    partition: PartitionId,
    spans: tuple[Span, ...],
    published_ms: int,
    records: Sequence[bytes],
    *,
    delay_ms: int = 0,
    ttl_ms: int = 0,
) -> Batch:
    """Build a batch of records that `encode_record` made. Why: a producer encodes early, to count bytes.

    Args:
        spans: 1 to `SPANS_MAX`; none overlap; they number the records in this order.
        records: as many as the sections name.
    """
    count = len(records)
    if not 1 <= count <= limits.BATCH_MESSAGES_MAX:
        raise TooLarge(f"a batch of {count} messages: 1 to {limits.BATCH_MESSAGES_MAX}")
    ends = list(itertools.accumulate(map(len, records)))
    if ends[-1] > limits.BATCH_BYTES_MAX:
        raise TooLarge(f"a batch of {ends[-1]} bytes: at most {limits.BATCH_BYTES_MAX}; send it as several")
    assert 0 <= delay_ms <= DELAY_MS_MAX
    assert 0 <= ttl_ms <= TTL_MS_MAX
    body = b"".join(records)
    header = BatchHeader(
        partition=partition,
        spans=spans,
        published_ms=published_ms,
        offsets=struct.pack(f"<{count}I", *ends),
        crcs=struct.pack(f"<{count}I", *map(crc32c, records)),
        crc=crc32c(body),
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
    )
    return Batch(header, encode_header(header), body)


def records_of(header: BatchHeader, first: int, stop: int, part: bytes | memoryview) -> list[Message]:
    """Return records [first, stop) of a batch, each checked against its CRC-32C.

    Args:
        header: the batch's. If it is a delivered slice, its `WireSlice.header`, with ``first`` 0.
        first, stop: indexes of records; ``part`` is the body from the end of record ``first - 1`` to the end
            of record ``stop - 1``.

    Raises:
        Corrupt: a record is damaged or cannot be read. The text names it; nothing is returned.
    """
    ends = _u32s(header.offsets[4 * first : 4 * stop])
    crcs = _u32s(header.crcs[4 * first : 4 * stop])
    base = header.end_of(first - 1)
    if not 0 <= first < stop <= header.size or len(part) != ends[-1] - base:
        raise Corrupt(
            f"batch {header.key()}: {len(part)} bytes for records {first} to {stop} of {header.size}, which "
            "take another number of bytes"
        )
    whole = part if isinstance(part, bytes) else bytes(part)
    edges = (base, *ends)
    if base:
        edges = tuple(end - base for end in edges)
    # The usual records, without key and headers, are cut and checked with no Python call for each.
    heads, head_crcs = zip(*map(_plain_head, map(operator.sub, edges[1:], edges)), strict=True)
    if all(map(whole.startswith, heads, edges)):
        starts = map(operator.add, edges, map(len, heads))
        payloads = tuple(map(whole.__getitem__, map(slice, starts, edges[1:])))
        if tuple(map(crc32c, payloads, head_crcs)) == crcs:
            parts = zip(payloads, itertools.repeat(None), itertools.repeat(NO_HEADERS))
            return list(map(_new_tuple, itertools.repeat(Message), parts))
    records = enumerate(zip(edges, edges[1:], crcs, strict=False), first)
    return [_decode_record(whole[start:end], crc, header, index) for index, (start, end, crc) in records]


def readable_records(
    header: BatchHeader, first: int, stop: int, part: bytes | memoryview
) -> list[Message | Corrupt]:
    """Return records as `records_of` does. If one is damaged or cannot be read, the error takes its place."""
    try:
        return [*records_of(header, first, stop, part)]
    except Corrupt as error:
        if stop - first == 1:
            return [error.with_traceback(None)]
    base = header.end_of(first - 1)
    edges = [header.end_of(index) - base for index in range(first - 1, stop)]
    records: list[Message | Corrupt] = []
    for index, (start, end) in enumerate(itertools.pairwise(edges), first):
        records += readable_records(header, index, index + 1, part[start:end])
    return records


NO_HEADERS: Final[Mapping[str, HeaderValue]] = {}  # never written to
_new_tuple: Final[Callable[[type[Message], tuple[object, ...]], Message]] = tuple.__new__


@lru_cache(4096)
def _plain_head(size: int) -> tuple[bytes, int]:
    """Return the bytes before the payload in a record of ``size`` bytes without key and headers, and their CRC-32C."""
    for head_bytes in (1, 2, 3, 5):
        payload_bytes = size - len(PLAIN) - head_bytes
        if payload_bytes >= 0 and len(head := cbor.blob_head(payload_bytes)) == head_bytes:
            return PLAIN + head, crc32c(PLAIN + head)
    return b"\xff", 0  # there is none: nothing begins like this


def name_of(header: BatchHeader, index: int) -> str:
    """Return the name of the message in record ``index``, for people."""
    for producer_id, start, stop in header.spans:
        if index < stop - start:
            return f"message {header.partition} {producer_id}[{start + index}]"
        index -= stop - start
    return f"record {index} past the end of {header.key()}"


def _decode_record(record: bytes, crc: int, header: BatchHeader, index: int) -> Message:
    head, head_crc = _plain_head(len(record))
    if record.startswith(head) and crc32c(payload := record[len(head) :], head_crc) == crc:
        return Message(payload, None, NO_HEADERS)
    if crc32c(record) != crc:
        raise Corrupt(
            f"{name_of(header, index)}: CRC-32C of the record is {crc32c(record):08x}, the batch says "
            f"{crc:08x}; the bytes were damaged on the way or on disk"
        )
    try:
        value = cbor.load(record, "a record")
        if type(value) is not tuple or len(value) < 3:
            bad("record", value, "must be an array of key, headers, payload")
        key, headers, payload = value[:3]
        if key is not None and type(key) is not bytes:
            bad("record.key", key, "must be bytes or null")
        if type(payload) is not bytes:
            bad("record.payload", payload, "must be bytes")
        if not hasattr(headers, "items") or len(headers) > HEADERS_MAX:
            bad("record.headers", headers, f"must be a map of at most {HEADERS_MAX}")
        for name, item in headers.items():
            fault = _header_fault(name, item)
            if fault:
                raise BadValue(fault)
    except BadValue as exc:
        # The CRC was right: its producer wrote this. It is not damage, but no client can read it either.
        raise Corrupt(
            f"{name_of(header, index)} was published with a record that cannot be read: {exc}"
        ) from None
    return Message(payload, key, dict(headers))
