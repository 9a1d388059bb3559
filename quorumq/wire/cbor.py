"""The subset of CBOR (RFC 8949) that quorumq speaks, read strictly and written fast.

Everything structured on the wire and in the journal is CBOR: integers of 64 bits, byte and text strings,
definite-length arrays, maps (only where docs/wire-format.md says so), booleans, null and 64-bit floats.
No tags, no indefinite lengths, no other simple values. Tags are refused because a decoder acts on them:
a few bytes can ask for a compiled regular expression or a decimal of two billion digits.

Reading is cbor2's, with everything outside the subset switched off. Writing is done here: the shape of
every value is known from its type, so values.py only ever needs these few primitives, and that is several
times as fast as walking an object graph. The bytes are those that cbor2 writes (a test compares them):
shortest integer and length heads, floats always 64 bits.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NoReturn

import cbor2

from quorumq.core.values.limits import CLIENT_HEADER_ITEMS_MAX

STATUS_DEPTH_MAX: Final = 12
"""Most levels of the data in a status, whose keys the protocol does not know."""

DEPTH_MAX: Final = 24
"""Containers inside containers, in anything that is read. The deepest message needs half of that."""

MAPS_MAX: Final = 1 << 13
"""Maps in anything that is read. They cost most, an empty one a microsecond and 136 bytes in memory, and only a status
has more than a few."""

READ_AT_ONCE: Final = 64 * 1024
"""If data has no more bytes, it is read in some 8 ms with any content."""

_SHOWN_MAX: Final = 60


class BadValue(ValueError):
    """Bytes or fields that do not fit their type. The text names them.

    This package raises it. If a message has them, codec.py turns it into `PeerError`. If the header of a record
    has them, the journal takes the record for damaged. Never raised for a value that this package encoded.
    """


def shown(value: object) -> str:
    """Return ``value`` for an error text, cut to one short line. Large values are never formatted in full."""
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(value[:16]).hex()
        return f"{len(value)} bytes {head}{'…' if len(value) > 16 else ''}"
    if isinstance(value, str):
        return repr(value[:_SHOWN_MAX]) + ("…" if len(value) > _SHOWN_MAX else "")
    if isinstance(value, tuple | list | dict) or hasattr(value, "items"):
        return f"{'a map' if hasattr(value, 'items') else 'an array'} of {len(value)}"  # type: ignore[arg-type]
    if isinstance(value, int) and abs(value) >> 64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


def bad(where: str, value: object, rule: str) -> NoReturn:
    """Raise `BadValue` naming the field, the value (cut) and the rule it broke."""
    raise BadValue(f"{where} is {shown(value)}: {rule}")


# ------------------------------------------------------------------------------------ reading


def _no_tags(value: object, immutable: bool) -> NoReturn:
    raise BadValue("a CBOR tag; there are none in quorumq's formats")


# cbor2 acts by itself on the tags it knows, unless each gets a decoder from here.
_TAGS: Final = dict.fromkeys(
    [*range(64), 100, 101, 256, 257, 258, 259, 260, 261, 1004, 43000, 55799], _no_tags
)


def _count_maps() -> Callable[[Any, bool], Any]:
    """Return a hook that gets every map. If there are too many, it raises `BadValue`."""
    remaining = iter(range(MAPS_MAX))

    def count(value: Any, immutable: bool) -> Any:
        if next(remaining, None) is None:
            raise BadValue(f"more than {MAPS_MAX} maps")
        return value

    return count


def load(data: bytes | bytearray | memoryview, name: str = "CBOR") -> Any:
    """Return the one CBOR value that ``data`` holds, arrays as tuples.

    Args:
        data: exactly one encoded value. Reading it allocates at most about 30 times its size, and 1 MiB for maps, so
            callers limit the size first.
        name: expected content of the bytes, for the error.

    Raises:
        BadValue: not CBOR, outside the subset, nested deeper than `DEPTH_MAX`, of more than `MAPS_MAX` maps, or
            followed by more bytes.
    """
    source = io.BytesIO(data)
    try:
        value = cbor2.load(
            source,
            semantic_decoders=_TAGS,
            tag_hook=_no_tags,
            object_hook=_count_maps() if len(data) > MAPS_MAX else None,
            max_depth=DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            immutable=True,
        )
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        # cbor2's own texts say what is wrong at the bottom of the chain.
        cause: BaseException = exc
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise BadValue(f"{name} cannot be read ({shown(bytes(data[:16]))}): {str(cause)[:200]}") from None
    if source.tell() != len(data):
        raise BadValue(f"{name} ends after {source.tell()} of {len(data)} bytes")
    return value


def takes_long(data: bytes | bytearray | memoryview) -> bool:
    """Return True if ``data`` takes long to read: it has more than `CLIENT_HEADER_ITEMS_MAX` items, and each may
    become an object. Containers and their items count alike; the content of a string does not count.

    It goes from head to head and makes nothing. If a length is not definite, it returns False: `load` names the fault.
    """
    at, stop, count = 0, len(data), 0
    if stop <= READ_AT_ONCE:
        return False
    while at < stop:
        head = data[at]
        at += 1
        length = head & 31
        if length >= 24:
            if length > 27:
                return False
            size = 1 << (length - 24)
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if 0x40 <= head < 0x80:  # a string, which follows
            at += length
        count += 1
        if count > CLIENT_HEADER_ITEMS_MAX:
            return True
    return False


# ------------------------------------------------------------------------------------ writing

SMALL: Final = tuple(bytes((n,)) if n < 24 else bytes((24, n)) for n in range(256))
"""The integers from 0 to 255, encoded."""
U16: Final = struct.Struct(">BH").pack
U32: Final = struct.Struct(">BI").pack
WORD: Final = struct.Struct(">BQ").pack
"""`U16(25, n)`, `U32(26, n)`, `WORD(27, n)`: an integer that takes two, four, eight bytes."""
F64: Final = struct.Struct(">Bd").pack
"""`F64(0xFB, x)`: a float."""

NULL: Final = b"\xf6"
TRUE: Final = b"\xf5"
FALSE: Final = b"\xf4"
EMPTY_ARRAY: Final = b"\x80"


def uint(n: int) -> bytes:
    """Return an integer of at most 64 bits, negative ones too; BadValue if it does not fit."""
    if 0 <= n < 256:
        return SMALL[n]
    if n < 0:
        encoded = uint(-1 - n)
        return bytes((encoded[0] | 0x20,)) + encoded[1:]
    return _long_head(0, n)


def _long_head(major: int, n: int) -> bytes:
    if n < 1 << 16:
        return U16(major | 25, n)
    if n < 1 << 32:
        return U32(major | 26, n)
    if n < 1 << 64:
        return WORD(major | 27, n)
    raise BadValue(f"{shown(n)}: integers have at most 64 bits")


_TEXT: Final = tuple(bytes((0x60 | n,)) for n in range(24))
ARRAY: Final = tuple(bytes((0x80 | n,)) for n in range(24))
"""The heads of arrays of less than 24 items."""
BLOB: Final = tuple(bytes((0x40 | n,)) if n < 24 else bytes((0x58, n)) for n in range(256))
"""The heads of byte strings of less than 256 bytes."""


def _head(major: int, n: int) -> bytes:
    """Return the head of a string, array or map of ``n`` bytes or items."""
    if n < 24:
        return bytes((major | n,))
    if n < 256:
        return bytes((major | 24, n))
    return _long_head(major, n)


def text(s: str) -> bytes:
    """Return a text string, encoded. If it has a lone surrogate, raise UnicodeEncodeError."""
    encoded = s.encode()
    n = len(encoded)
    return (_TEXT[n] if n < 24 else _head(0x60, n)) + encoded


NAME_CHARS_MAX: Final = 64
name: Final = lru_cache(4096)(text)
"""`text` of at most `NAME_CHARS_MAX` characters, from a cache: names of nodes, topics and groups repeat."""


def blob(b: bytes | memoryview) -> bytes:
    """Return a byte string, encoded. If it is a view of memory, these are the bytes of its items, in order."""
    if type(b) is memoryview and not (b.c_contiguous and b.nbytes == len(b)):
        b = b.tobytes()
    n = len(b)
    return (BLOB[n] if n < 256 else _head(0x40, n)) + b


def blob_head(n: int) -> bytes:
    return _head(0x40, n)


def array_head(n: int) -> bytes:
    return ARRAY[n] if n < 24 else _head(0x80, n)


def map_head(n: int) -> bytes:
    return _head(0xA0, n)


def boolean(v: bool) -> bytes:
    return TRUE if v else FALSE


def real(x: float) -> bytes:
    """Return a number as a 64-bit float, even if it is an int in Python."""
    return F64(0xFB, x)


def plain(where: str, value: object, depth: int = 0) -> Any:
    """Return plain CBOR data as dicts and lists. If a key is no text, or the levels are too many, raise `BadValue`."""
    if depth > STATUS_DEPTH_MAX:
        bad(where, value, f"nested deeper than {STATUS_DEPTH_MAX}")
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value
    if type(value) is tuple:
        return [plain(where, item, depth + 1) for item in value]
    if hasattr(value, "items"):
        result = {}
        for key, item in value.items():
            if type(key) is not str:
                bad(where, key, "keys are text")
            result[key] = plain(where, item, depth + 1)
        return result
    return bad(where, value, "must be plain data")


def plain_map(where: str, value: object) -> Any:
    """Return the `plain` form of a map."""
    if not hasattr(value, "items"):
        bad(where, value, "must be a map")
    return plain(where, value)
