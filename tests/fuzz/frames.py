"""Valid frames of every message, and damaged ones."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from quorumq.core.values.limits import HEADER_BYTES_MAX
from quorumq.node.connections import CLIENT_REQUESTS
from quorumq.wire import cbor
from quorumq.wire.codec import TYPES, encode_message
from quorumq.wire.frames import MAGIC, PREFIX_BYTES
from tests.fuzz.draw import Draw, rng_of
from tests.fuzz.reading import ROLES, read
from tests.fuzz.run import Fuzzer
from tests.wire.strategies import read_part

EACH: Final = 12
"""Frames of each message that are damaged."""

_PREFIX: Final = struct.Struct(">4sII")
_NUMBERS: Final = tuple(
    cbor.uint(number)
    for end in (1 << 8, 1 << 16, 1 << 32, 1 << 58, 1 << 62, 1 << 63, 1 << 64)
    for number in (end - 1, -end)
)


class Parts(NamedTuple):
    """A frame without its prefix, and the positions of its header's items, until something moves them."""

    header: bytes
    body: bytes
    items: tuple[tuple[int, int], ...] = ()


def items_of(header: bytes) -> tuple[tuple[int, int], ...]:
    """Return begin and end of each integer, string and other simple item of well-formed CBOR."""
    items, at = [], 0
    while at < len(header):
        major, low = header[at] >> 5, header[at] & 31
        more = 1 << (low - 24) if low >= 24 else 0
        end = at + 1 + more
        if major in (2, 3):
            end += int.from_bytes(header[at + 1 : at + 1 + more], "big") if more else low
        if major not in (4, 5):
            items.append((at, end))
        at = end
    return tuple(items)


@functools.lru_cache(maxsize=2)
def corpus(seed: int) -> Mapping[str, tuple[Parts, ...]]:
    """Valid frames, `EACH` of every message, by who sends them."""
    draw = Draw(rng_of(seed, -1))
    made: dict[str, list[Parts]] = {role: [] for role in ROLES}
    for number, cls in sorted(TYPES.items()):
        client = cls in CLIENT_REQUESTS
        for _ in range(EACH):
            chunks = encode_message(
                draw.of(cls),
                request=draw.rng.choice((1, 1, 1 << 40)) if client else 0,
                stamp=0 if client else draw.rng.choice((0, 1 << 57)),
                read=read_part,
            )
            header = bytes(chunks[0])[PREFIX_BYTES:]
            parts = Parts(header, b"".join(map(bytes, chunks[1:])), items_of(header))
            made["stranger" if number < 10 else "client" if client else "peer"].append(parts)
    return {role: tuple(frames) for role, frames in made.items()}


def framed(parts: Parts) -> bytes:
    header, body, _ = parts
    return _PREFIX.pack(MAGIC, len(header), len(body)) + header + body


# ------------------------------------------------------------------------- in a header, lengths put right


def flip(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    whole, border = bytearray(parts.header + parts.body), len(parts.header)
    for _ in range(rng.choice((1, 1, 2, 8))):
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return Parts(bytes(whole[:border]), bytes(whole[border:]), parts.items)


def overwrite(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    header = bytearray(parts.header)
    at = rng.randrange(len(header))
    header[at : at + rng.randint(1, 9)] = rng.randbytes(rng.randint(1, 9))
    return Parts(bytes(header), parts.body)


def put_item(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    """An extreme number, or an item of another message, in place of one."""
    header = parts.header
    start, stop = rng.choice(parts.items or ((0, 1),))
    new = rng.choice(_NUMBERS)
    if other.items and rng.random() < 0.5:
        new = other.header[slice(*rng.choice(other.items))]
    return Parts(header[:start] + new + header[stop:], parts.body)


def cut_out(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    header, body, _ = parts
    at = rng.randrange(len(header))
    header = header[:at] + header[at + rng.randint(1, 40) :]
    return Parts(header or b"\x80", body[: rng.randint(0, len(body))] if rng.random() < 0.3 else body)


def repeat(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    header = parts.header
    at = rng.randrange(len(header))
    chunk = header[at : at + rng.randint(1, 40)]
    return Parts(header[:at] + chunk * rng.choice((2, 3, 50)) + header[at + len(chunk) :], parts.body)


def splice(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    """The beginning of one and the end of another."""
    header = (
        parts.header[: rng.randint(0, len(parts.header))] + other.header[rng.randint(0, len(other.header)) :]
    )
    return Parts(header or b"\x80", rng.choice((parts, other)).body)


def swap_kind(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    """The fields of one message under the TYPE of another."""
    header = parts.header
    start, stop = parts.items[0] if parts.items else (1, 2)
    return Parts(header[:start] + cbor.uint(rng.choice((*TYPES, 0, 255))) + header[stop:], parts.body)


def other_body(rng: random.Random, parts: Parts, other: Parts) -> Parts:
    return Parts(parts.header, other.body or rng.randbytes(rng.randrange(40)), parts.items)


INSIDE: Final = (
    flip, flip, overwrite, put_item, put_item, put_item, cut_out, repeat, splice, swap_kind, other_body,
)  # fmt: skip


# ------------------------------------------------------------------------- of the whole


def damage_prefix(rng: random.Random, data: bytes) -> bytes:
    prefix = bytearray(data[:PREFIX_BYTES])
    way = rng.randrange(3)
    if way == 0:
        prefix[rng.randrange(PREFIX_BYTES)] ^= 1 << rng.randrange(8)
    else:
        length = rng.choice((0, 1, len(data), HEADER_BYTES_MAX, HEADER_BYTES_MAX + 1, (1 << 32) - 1))
        prefix[4 * way : 4 * way + 4] = length.to_bytes(4, "big")
    return bytes(prefix) + data[PREFIX_BYTES:]


def move_border(rng: random.Random, data: bytes) -> bytes:
    """The same bytes, divided otherwise into header and body."""
    rest = len(data) - PREFIX_BYTES
    header = rng.randint(0, rest)
    return _PREFIX.pack(MAGIC, header, rest - header) + data[PREFIX_BYTES:]


def make(seed: int, n: int) -> tuple[bytes, str, int]:
    """Case ``n``: bytes, their sender, and the size of the chunks."""
    rng, frames = rng_of(seed, n), corpus(seed)
    role = rng.choice(ROLES)
    parts = rng.choice(frames[role if rng.random() < 0.9 else rng.choice(ROLES)])
    other = rng.choice(frames[rng.choice((role, rng.choice(ROLES)))])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        parts = rng.choice(INSIDE)(rng, parts, other)
    data = framed(parts)
    way = rng.random()
    if way < 0.04:
        data = damage_prefix(rng, data)
    elif way < 0.08:
        data = move_border(rng, data)
    elif way < 0.12:
        data = data[: rng.randrange(len(data))]
    elif way < 0.16:
        data += framed(other)
    elif way < 0.18:
        data += rng.randbytes(rng.randint(1, 30))
    return data, role, rng.choice((7, 1 << 16, 1 << 16, 1 << 16))


def case(seed: int, n: int) -> tuple[str]:
    return (read(*make(seed, n)),)


FRAMES: Final = Fuzzer("frames", "Damaged frames of every message, as a node reads them.", case, "frames")
