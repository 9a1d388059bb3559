"""CBOR of a shape that its reader does not expect: types, lengths, depth, sizes, and ways to write a value."""

from __future__ import annotations

import functools
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import cbor2

from quorumq.core.values.errors import QuorumqError
from quorumq.core.values.limits import CLIENT_HEADER_BYTES_MAX, HEADER_BYTES_MAX, KIB, MIB
from quorumq.node.connections import CLIENT_REQUESTS
from quorumq.storage.records import CLASS_OF, FRAMING_MAX, decode_record, encode_record
from quorumq.wire import cbor
from quorumq.wire.batch import decode_header
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import TYPES, encode_message
from quorumq.wire.frames import PREFIX_BYTES, Frame
from quorumq.wire.receipts import read_receipt
from tests.fuzz.draw import Draw, rng_of
from tests.fuzz.reading import take
from tests.fuzz.run import Fuzzer
from tests.wire.strategies import BATCHES, read_part

EACH: Final = 4
MEASURED_EVERY: Final = 50
"""One case in this number has its memory measured, which makes it slow."""
MEMORY_MAX: Final = 20 * MIB
GROWTH_MAX: Final = 60
"""Bytes in memory for each byte read, beside `MEMORY_MAX`: `cbor.load` says how many, and `requests.oversize` reads a
request that was refused a second time."""
BIG_EVERY: Final = 1000


class Raw(NamedTuple):
    """Bytes that are written as they are."""

    encoded: bytes


class Sample(NamedTuple):
    reader: str
    fields: Any
    body: bytes


@functools.lru_cache(maxsize=2)
def corpus(seed: int) -> tuple[Sample, ...]:
    """Return the inputs of each reader."""
    draw = Draw(rng_of(seed, -2))
    made: list[Sample] = []
    for _, cls in sorted(TYPES.items()):
        for _ in range(EACH):
            client = cls in CLIENT_REQUESTS
            first, *bodies = encode_message(draw.of(cls), request=int(client), read=read_part)
            fields = cbor2.loads(bytes(first)[PREFIX_BYTES:])
            made.append(Sample("client" if client else "peer", fields, b"".join(map(bytes, bodies))))
    for number, cls in sorted(CLASS_OF.items()):
        if number > FRAMING_MAX:
            for _ in range(EACH):
                header, _ = encode_record(draw.of(cls), 0)
                made.append(Sample("record", cbor2.loads(header), b""))
    made += [Sample("batch", cbor2.loads(batch.raw), b"") for batch in BATCHES for _ in range(EACH)]
    return tuple(made)


# ----------------------------------------------------------------------------------- values of another shape


def strange(rng: random.Random, depth: int = 0) -> Any:
    """Any value, some of it nothing that quorumq writes."""
    way = rng.randrange(16 if depth < 4 else 12)
    if way < 3:
        return rng.choice((0, 1, -1, 23, 24, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 64)))
    if way < 5:
        return rng.choice((None, True, False, 0.0, -1.5, float("nan"), float("inf"), -float("inf"), 1e300))
    if way < 7:
        return "x" * rng.choice((0, 1, 16, 200, 256, 9000))
    if way < 9:
        return b"\0" * rng.choice((0, 1, 15, 16, 17, 32, 1025))
    if way < 12:
        return Raw(rng.choice(ODD))
    if way < 15:
        return [strange(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 4, 9)))]
    return {at: strange(rng, depth + 1) for at in range(rng.randrange(4))}


ODD: Final = (
    b"\xf7",  # undefined
    b"\xf8\xff",  # a simple value
    b"\xf9\x7e\x00",  # NaN in 16 bits
    b"\xfa\x7f\x80\x00\x00",  # infinity in 32 bits
    b"\xc0\x61x",  # tags: a date, a number of two billion digits, a regular expression, a shared value
    b"\xc2\x49\x01" + bytes(8),
    b"\xc4\x82\x1a\x77\x35\x94\x00\x01",
    b"\xd8\x23\x64(a+)",
    b"\xd8\x1c\x81\xd8\x1d\x00",
    b"\xdb" + b"\xff" * 8 + b"\x00",
    b"\x9f\x01\xff",  # an indefinite length
    b"\x5f\x41a\xff",
    b"\x7f\x61a\xff",
    b"\xbf\xff",
    b"\x61\xff",  # not UTF-8
    b"\x63\xed\xa0\x80",  # a lone surrogate
    b"\x1b" + bytes(8),  # 0, written long
    b"\x9b" + bytes(7) + b"\x01\x00",  # an array of one, written long
    b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff",  # far more items than bytes
    b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xa2\x01\x01\x01\x02",  # a key twice
    b"\xa1\x80\x01",  # an array as a key
    b"\x81" * 23 + b"\x80",  # about as deep as is read, deeper, much deeper
    b"\x81" * 25 + b"\x80",
    b"\x81" * 5000 + b"\x80",
    b"\xa1\x00" * 3000 + b"\x00",
)


def big(rng: random.Random) -> Any:
    """A value of some hundred KiB."""
    size = rng.choice((64 * KIB, 512 * KIB, CLIENT_HEADER_BYTES_MAX - KIB))
    item = rng.choice(
        (b"\x80", b"\xa0", b"\x00", b"\x60", b"\x81\x80", b"\x3b" + b"\xff" * 8, b"\x82\x00\x00")
    )
    count = size // len(item)
    way = rng.randrange(3)
    if way == 0:
        return Raw(b"\x9a" + count.to_bytes(4, "big") + item * count)
    if way == 1:
        pairs = size // 6
        return Raw(
            b"\xba"
            + pairs.to_bytes(4, "big")
            + b"".join(b"\x1a" + at.to_bytes(4, "big") + b"\x00" for at in range(pairs))
        )
    return rng.choice(("x" * size, b"x" * size, "é" * (size // 2)))


def encode(value: Any) -> bytes:
    """CBOR with the bytes of each `Raw` in it."""
    if isinstance(value, Raw):
        return value.encoded
    if isinstance(value, list | tuple):
        return cbor.array_head(len(value)) + b"".join(map(encode, value))
    if isinstance(value, dict):
        pairs = (encode(key) + encode(item) for key, item in value.items())
        return cbor.map_head(len(value)) + b"".join(pairs)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xFB, value)
    return bytes(cbor2.dumps(value))


def locations(value: Any, seen: list[tuple[list[Any], int]]) -> list[tuple[list[Any], int]]:
    """Return the position of each item of nested lists."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            seen.append((value, at))
            locations(item, seen)
    return seen


def thaw(value: Any) -> Any:
    """A copy in which every array is a list."""
    return [thaw(item) for item in value] if isinstance(value, list | tuple) else value


def bend(rng: random.Random, fields: list[Any], fill: Callable[[], Any]) -> None:
    """Change one place."""
    there = locations(fields, [])
    if not there:
        fields.append(fill())
        return
    at, index = rng.choice(there)
    way = rng.randrange(8)
    if way < 3:
        at[index] = fill()
    elif way == 3:
        del at[index]
    elif way == 4:
        at[index:index] = [at[index]] * (rng.choice((1, 2, 300)) if len(encode(at[index])) < 100 else 1)
    elif way == 5:
        at[index] = [at[index]]
    elif way == 6:
        other, location = rng.choice(there)
        at[index] = thaw(other[location]) if location < len(other) else None
    elif isinstance(at[index], bytes) and at[index][:1] > b"\x80":  # a batch's header
        try:
            inner = thaw(cbor2.loads(at[index]))
        except (cbor2.CBORDecodeError, ValueError, RecursionError):
            return
        if isinstance(inner, list):
            bend(rng, inner, fill)
            at[index] = encode(inner)
    else:
        at.append(fill())


def make(seed: int, n: int) -> tuple[str, bytes, bytes]:
    """Case ``n``: who reads it, the encoded value, and the body behind it."""
    rng = rng_of(seed, n)
    sample = rng.choice(corpus(seed))
    way = rng.random()
    if way < 0.03:
        return rng.choice(("receipt", "peer", "client")), encode(strange(rng)), b""
    fields = thaw(sample.fields)
    if n % BIG_EVERY == BIG_EVERY - 1:
        there = locations(fields, [])
        at, index = rng.choice(there or [([fields], 0)])
        at[index] = big(rng)
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            bend(rng, fields, functools.partial(strange, rng))
    return sample.reader, encode(fields)[:HEADER_BYTES_MAX], sample.body


# ----------------------------------------------------------------------------------- readers


def read_record(encoded: bytes, *, only: bool) -> str:
    """Read a record with a right checksum as segment.py and replay.py do; unless ``only`` that, write it again."""
    fields = cbor.load(encoded)
    if type(fields) is not tuple or len(fields) < 2 or [*map(type, fields[:2])] != [int, int]:
        return "no record"
    record: Any = decode_record(fields)
    if only:
        return "record"
    again, _ = encode_record(record, 0)
    assert decode_record(cbor.load(again)) == record, "what was read can be written"
    return "record"


def read(reader: str, encoded: bytes, body: bytes, *, only: bool = False) -> str:
    try:
        if reader == "record":
            return read_record(encoded, only=only)
        if reader == "batch":
            decode_header(encoded)
            return "batch"
        if reader == "receipt":
            read_receipt(b"\x01" + bytes(40) + encoded)
            return "receipt"
        return take(Frame(memoryview(encoded), memoryview(body)), reader)
    except (BadValue, QuorumqError):
        return "refused by name"


def case(seed: int, n: int) -> tuple[str]:
    reader, encoded, body = make(seed, n)
    if n % MEASURED_EVERY != MEASURED_EVERY - 1:
        return (read(reader, encoded, body),)
    tracemalloc.start()
    try:
        outcome = read(reader, encoded, body, only=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = len(encoded) + len(body)
    assert peak <= MEMORY_MAX + GROWTH_MAX * size, f"{size} bytes took {peak} bytes of memory"
    return (outcome,)


SHAPES: Final = Fuzzer(
    "shapes", "CBOR of the wrong shape, depth and size, to all that reads CBOR.", case, "values"
)
