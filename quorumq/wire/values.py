"""Any of the core's NamedTuples, to CBOR and back, by its type hints.

Batches: a Batch encodes as ONE byte string, its encoded header (`Batch.raw`), and its body is *lifted*:
appended to `lift.bodies` (a `Lift()` that the caller gives), untouched, to be written behind the CBOR.
`decode_value` cuts bodies in the same order from `body` (a `Body`), checking length and CRC. If `body` is
None, the decoded Batch has `body == b""`, because the journal's index needs the header alone.

Rules, the same for wire and journal (docs/wire-format.md, "Values"): a field may be appended with a
default. If trailing fields are missing, they take their defaults, and unknown trailing fields are skipped,
in nested values too. Every field is checked for type and range. If one is wrong, that is a `BadValue`, and
`Corrupt` if it is the body of a batch, but never another exception.

How: for each type two functions are written as source text and compiled, once, when the type is first met. A HOLD goes
through a few dozen of these checks, and a loop over a table of them costs three times as much.
"""

from __future__ import annotations

import ast
import re
import threading
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import cbor2

from quorumq.core import messages
from quorumq.core.values.limits import NUMBERS_END, SPANS_PER_REQUEST_MAX, STAMPS_END
from quorumq.core.values.types import (
    Batch,
    BatchHeader,
    Death,
    Incarnation,
    Owner,
    PartitionId,
    ProducerId,
    Receipt,
    Span,
    Stamp,
)
from quorumq.wire import batch as batches
from quorumq.wire import cbor
from quorumq.wire.bodies import Body, Lift
from quorumq.wire.bounds import (
    BYTES_EXACT,
    CHECKS,
    NAME_CHARS_MAX,
    SIGNED_BYTES_MAX,
    bytes_max,
    chars_max,
    int_range,
    items_max,
)
from quorumq.wire.cbor import bad

T = TypeVar("T", bound=tuple[Any, ...])

# -------------------------------------------------------- values that are not their own fields on the wire


class SignedNamed(NamedTuple):
    """`ReceiptPart` as a client sends it and as it travels: the receipt in its signed bytes, not opened.

    If ``spans`` is empty, all of the receipt is meant.
    """

    signed: bytes
    spans: tuple[Span, ...] = ()


class WireDelivery(NamedTuple):
    """`Delivery` as a client gets it. ``receipt`` was read from ``signed`` without the secret.

    The fencing token is ``receipt.owner.ballot``. If the group is a dead-letter group, ``death`` has the cause.
    """

    signed: bytes
    attempt: int
    receipt: Receipt
    death: Death | None = None
    suspect: bool = False
    interruptions: int = 0


class WireSlice(NamedTuple):
    """`Slice` as a client gets it: some records of a stored batch and the deliveries that cover them.

    ``header`` is cut to these records: its sections and ``offsets`` begin with the first of them, and its
    ``crc`` is 0, as nothing but the records' own CRCs says anything about a part. ``body`` is a view of the
    frame.
    """

    topic: str
    header: BatchHeader
    deliveries: tuple[WireDelivery, ...]
    body: memoryview

    def messages(self) -> list[batches.Message]:
        """Return the messages in order, each checked against its CRC-32C; `Corrupt` if one is not as published."""
        return batches.records_of(self.header, 0, self.header.size, self.body)


def _encode_batch(value: Batch, lift: Lift | None) -> bytes:
    if lift is None:
        raise TypeError("a Batch is being encoded without a Lift to take its body")
    lift.bodies.append(value.body)
    return cbor.blob(value.raw)


def _decode_batch(data: object, body: Body | None) -> Batch:
    if type(data) is not bytes:
        bad("batch", data, "must be the batch header's bytes")
    header = batches.decode_header(data)
    if body is None:
        return Batch(header, data, b"")
    part = body.take(batches.body_size(header), "the batch")
    batches.check_body(header, part)
    return Batch(header, data, part)


def _encode_named(value: object, lift: Lift | None) -> bytes:
    if not isinstance(value, SignedNamed):
        raise TypeError("a receipt travels signed: make SignedNamed items (see `signed_items`)")
    spans = b"".join([_encode_span(span, None) for span in value.spans])
    return b"".join((b"\x82", cbor.blob(value.signed), cbor.array_head(len(value.spans)), spans))


def _decode_named(data: object, body: Body | None) -> SignedNamed:
    if type(data) is not tuple or not data:
        bad("named", data, "must be an array of the signed receipt and spans")
    # Any bytes that stand for a receipt reach `open_items`: one that is none is the client's mistake, answered with
    # `BadReceipt`, and no reason to end a connection that others of its requests are on.
    signed = data[0]
    if type(signed) is not bytes:
        bad("receipt", signed, "must be bytes")
    spans = data[1] if len(data) > 1 else ()
    if type(spans) is not tuple or len(spans) > SPANS_PER_REQUEST_MAX:
        bad("named.spans", spans, f"must be an array of at most {SPANS_PER_REQUEST_MAX}")
    return SignedNamed(signed, tuple([_decode_span(span, None) for span in spans]))


def _signed(data: object) -> bytes:
    if type(data) is not bytes or not 1 <= len(data) <= SIGNED_BYTES_MAX:
        bad("receipt", data, f"must be 1 to {SIGNED_BYTES_MAX} bytes")
    return data


def _encode_slice(value: messages.Slice | WireSlice, lift: Lift | None) -> bytes:
    # Only what belongs to records [first, stop) is sent: a batch may hold thousands, a FETCH want one.
    if lift is None:
        raise TypeError("a Slice is being encoded without a Lift to take its bytes")
    header = value.header
    part: bytes | memoryview
    if isinstance(value, WireSlice):  # from another node, on its way to the client that asked us
        first, stop, part = 0, header.size, value.body
    elif lift.read is None:
        raise TypeError("a Slice is being encoded without a Lift that can read its bytes")
    else:
        first, stop, part = value.first, value.stop, lift.read(value)
    assert 0 <= first < stop <= header.size, (first, stop, header.size)
    base = header.end_of(first - 1)
    if len(part) != header.end_of(stop - 1) - base:
        raise batches.Corrupt(
            f"batch {header.key()}: read {len(part)} bytes for records {first} to {stop}, which take "
            f"{header.end_of(stop - 1) - base}"
        )
    lift.bodies.append(part)
    out = [
        b"\x88",
        cbor.text(value.topic),
        _encode_partition(header.partition, None),
        batches.encode_spans(batches.cut_spans(header.spans, first, stop)),
        cbor.uint(header.published_ms),
        cbor.uint(base),
        cbor.blob(header.offsets[4 * first : 4 * stop]),
        cbor.blob(header.crcs[4 * first : 4 * stop]),
        cbor.array_head(len(value.deliveries)),
    ]
    for delivery in value.deliveries:
        if not delivery.signed:
            raise TypeError("a Delivery is being encoded before its receipt was signed")
        out += (b"\x85", cbor.blob(delivery.signed), cbor.uint(delivery.attempt))
        out.append(cbor.NULL if delivery.death is None else encode_value(delivery.death))
        out += (cbor.TRUE if delivery.suspect else cbor.FALSE, cbor.uint(delivery.interruptions))
    return b"".join(out)


def _decode_slice(data: object, body: Body | None) -> WireSlice:
    if type(data) is not tuple or len(data) < 8:
        bad("slice", data, "must be an array of 8 fields")
    topic, partition_data, spans_data, published_ms, base, offsets, crcs, deliveries_data = data[:8]
    if type(topic) is not str or len(topic) > NAME_CHARS_MAX:
        bad("slice.topic", topic, f"must be text of at most {NAME_CHARS_MAX} characters")
    header = batches.part_header(
        _decode_partition(partition_data, None), spans_data, published_ms, base, offsets, crcs
    )
    if type(deliveries_data) is not tuple or len(deliveries_data) > header.size:
        bad("slice.deliveries", deliveries_data, "must be an array, with at most one for each record")
    deliveries: list[WireDelivery] = []
    for item in deliveries_data:
        if type(item) is not tuple or len(item) < 2:
            bad("slice.deliveries", item, "a delivery is an array of receipt and attempt")
        signed, attempt = _signed(item[0]), item[1]
        interruptions = item[4] if len(item) > 4 else 0
        for name, count in (("attempt", attempt), ("interruptions", interruptions)):
            if type(count) is not int or not 0 <= count < 1 << 63:
                bad(f"slice.{name}", count, "must be an integer from 0")
        death = decode_value(Death, item[2]) if len(item) > 2 and item[2] is not None else None
        suspect = item[3] if len(item) > 3 else False
        if type(suspect) is not bool:
            bad("slice.suspect", suspect, "must be true or false")
        deliveries.append(WireDelivery(signed, attempt, read_signed(signed), death, suspect, interruptions))
    part = memoryview(b"") if body is None else body.take(batches.body_size(header), "a slice")
    return WireSlice(topic, header, tuple(deliveries), part)


SIGNED_HEAD_BYTES: Final = 18
"""A signed receipt begins with its format (1), its key number and a digest of 16 bytes (receipts.py)."""
SIGNED_FORMAT: Final = 1


def read_signed(signed: bytes) -> Receipt:
    """Read a signed receipt without the secret, unverified. `BadValue` if it is none."""
    if len(signed) <= SIGNED_HEAD_BYTES or signed[0] != SIGNED_FORMAT:
        bad(
            "receipt",
            signed,
            f"must begin with format {SIGNED_FORMAT} and be longer than {SIGNED_HEAD_BYTES} bytes",
        )
    return decode_value(Receipt, cbor.load(signed[SIGNED_HEAD_BYTES:], "a receipt"))


_SPECIAL: Final[Mapping[type, tuple[Callable[..., bytes], Callable[..., Any]]]] = {
    Batch: (_encode_batch, _decode_batch),
    messages.ReceiptPart: (_encode_named, _decode_named),
    messages.Slice: (_encode_slice, _decode_slice),
}

# ------------------------------------------------------------------------------------ the writer of functions

Encoder = Callable[[Any, "Lift | None"], bytes]
LedEncoder = Callable[[Any, "Lift | None", int, int], bytes]
Decoder = Callable[[Any, "Body | None"], Any]


def _fit(where: str, data: object, size: int, defaults: tuple[object, ...]) -> tuple[object, ...]:
    """Return ``data`` with ``size`` fields: cut if it has more, filled up with encoded defaults if fewer."""
    if type(data) is not tuple:
        bad(where, data, f"must be an array of {size} fields")
    missing = size - len(data)
    if missing <= 0:
        return data[:size]
    if missing > len(defaults):
        bad(where, data, f"must be an array of at least {size - len(defaults)} fields")
    return data + defaults[len(defaults) - missing :]


def _encode_map(value: Mapping[str, object], lift: Lift | None) -> bytes:
    return cbor2.dumps(value)


INLINE: Final = (Span, ProducerId, PartitionId, Incarnation, Stamp, Owner)
"""Types that are in nearly every message: their code to read and write is inlined instead of called."""


class _Maker:
    """Writes the encoder and the decoder of each type, once. See "How" at the top of this file."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.encoders: dict[Any, Encoder] = {}
        self.decoders: dict[Any, Decoder] = {}
        self.scope: dict[str, Any] = {
            "uint": cbor.uint, "text": cbor.text, "blob": cbor.blob, "array_head": cbor.array_head,
            "boolean": cbor.boolean, "real": cbor.real, "bad": bad, "fit": _fit, "new": tuple.__new__,
            "small": cbor.SMALL, "u16": cbor.U16, "u32": cbor.U32, "word": cbor.WORD, "float64": cbor.F64,
            "arrays": cbor.ARRAY, "blobs": cbor.BLOB, "name": cbor.name,
            "join": b"".join, "encode_map": _encode_map, "check_map": cbor.plain_map,
        }  # fmt: skip

    def of(self, cls: type) -> tuple[Encoder, Decoder]:
        """Return encoder and decoder of a NamedTuple class."""
        with self.lock:
            if cls not in self.encoders:
                special = _SPECIAL.get(cls)
                if special is not None:
                    self.encoders[cls], self.decoders[cls] = special
                else:
                    self._make(cls)
            return self.encoders[cls], self.decoders[cls]

    def _name(self, function: object) -> str:
        """Return a name in the scope of the generated functions for ``function``."""
        name = f"f{len(self.scope)}"
        self.scope[name] = function
        return name

    def _compile(self, name: str, lines: list[str], label: str) -> Any:
        source = "\n".join(lines)
        exec(compile(source, f"<quorumq {label}>", "exec"), self.scope)
        return self.scope[name]

    def _make(self, cls: type) -> None:
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        name = cls.__name__
        chunks = [repr(cbor.array_head(len(fields))), *self._fields(cls, "x")]
        lines = [f"def e_{name}(x, lift):", f"    return {joined(chunks)}"]
        encoder = self._compile(f"e_{name}", lines, f"encoder of {name}")

        lines = [
            f"def d_{name}(x, body):",
            *("    " + line for line in self._taking(cls, "x")),
            "    return x",
        ]
        decoder = self._compile(f"d_{name}", lines, f"decoder of {name}")
        self.encoders[cls], self.decoders[cls] = encoder, decoder  # both: a failure shows at every call

    def led(self, cls: type, number: int) -> LedEncoder:
        """Return an encoder of [number, request, stamp, *fields]."""
        with self.lock:
            head = cbor.array_head(3 + len(cls._fields)) + cbor.uint(number)  # type: ignore[attr-defined]
            lead = [self._int("request", 0, 1 << 32), self._int("stamp", 0, STAMPS_END)]
            name = f"m_{cls.__name__}"
            chunks = [repr(head), *lead, *self._fields(cls, "x")]
            lines = [f"def {name}(x, lift, request, stamp):", f"    return {joined(chunks)}"]
            return cast("LedEncoder", self._compile(name, lines, f"encoder of {cls.__name__}"))

    def _fields(self, cls: type, var: str) -> list[str]:
        """Expressions for the CBOR of the fields of ``var``, which is a ``cls``."""
        hints = hints_of(cls)
        return [
            chunk
            for at, field in enumerate(cls._fields)  # type: ignore[attr-defined]
            for chunk in self._chunks(hints[field], f"{var}[{at}]", cls.__name__, field)
        ]

    def _taking(self, cls: type, var: str) -> list[str]:
        """Statements that make a ``cls`` of ``var``."""
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        hints, name = hints_of(cls), cls.__name__
        defaults: dict[str, object] = cls._field_defaults  # type: ignore[attr-defined]
        got = {field: f"{var}__{field}" for field in fields}
        values = tuple(
            self._as_it_comes(hints[field], defaults[field], name, field)
            for field in fields
            if field in defaults
        )
        fit = f"fit({name!r}, {var}, {len(fields)}, {self._name(values)})"
        lines = [f"if type({var}) is not tuple or len({var}) != {len(fields)}: {var} = {fit}"]
        if fields:
            lines.append(f"{', '.join(got.values())}, = {var}")
        for field in fields:
            lines += self._decoding(hints[field], got[field], name, field)
        if name in CHECKS:
            test, field, rule = CHECKS[name]
            test = re.sub(r"\bv_(\w+)", lambda match: got[match[1]], test)
            lines.append(f"if not ({test}): bad({f'{name}.{field}'!r}, {got[field]}, {rule!r})")
        return [*lines, f"{var} = new({self._name(cls)}, ({''.join(of + ', ' for of in got.values())}))"]

    def _as_it_comes(self, hint: Any, value: object, owner: str, field: str) -> object:
        """Return the input of a decoder for a field with this value."""
        if value is None:
            return None
        source = joined(self._chunks(hint, "x", owner, field))
        encode = self._compile(
            "e", ["def e(x, lift):", f"    return {source}"], f"default of {owner}.{field}"
        )
        return cbor.load(encode(value, None))

    def _int(self, var: str, low: int, high: int) -> str:
        """Return an expression for the CBOR of the integer ``var``, without a call; first the most common form."""
        small = f"small[{var}] if 0 <= {var} < 256 else"
        long = f"word(27, {var}) if {1 << 32} <= {var} < {1 << 64} else"
        middle = (
            f"u16(25, {var}) if 256 <= {var} < {1 << 16} else u32(26, {var}) if 0 <= {var} < {1 << 32} else"
        )
        if high >= STAMPS_END and high != NUMBERS_END:
            return f"({long} {small} {middle} uint({var}))"
        return f"({small} {middle} {long} uint({var}))"

    def _chunks(self, hint: Any, var: str, owner: str, field: str) -> list[str]:
        """Expressions for the CBOR of ``var``, which follow each other."""
        if hint in INLINE:
            return [repr(bytes((0x80 | len(hint._fields),))), *self._fields(hint, var)]
        return [self._encoding(hint, var, owner, field)]

    def _encoding(self, hint: Any, var: str, owner: str, field: str) -> str:
        """Return an expression for the CBOR of ``var``."""
        if hint is int:
            return self._int(var, *int_range(owner, field))
        if hint is str:
            return f"(name if len({var}) <= {cbor.NAME_CHARS_MAX} else text)({var})"
        if hint is bytes:
            return f"(blobs[len({var})] + {var} if len({var}) < 256 else blob({var}))"
        if hint is float:
            return f"float64(0xFB, {var})"
        if hint is bool:
            return f"({cbor.TRUE!r} if {var} else {cbor.FALSE!r})"
        producer_id, args = typing.get_origin(hint), typing.get_args(hint)
        if producer_id in (typing.Union, types.UnionType):
            (inner,) = [arg for arg in args if arg is not type(None)]
            return f"({cbor.NULL!r} if {var} is None else {self._encoding(inner, var, owner, field)})"
        if producer_id is tuple and args[-1] is Ellipsis:
            inner = joined(self._chunks(args[0], "i", owner, field))
            head = f"(arrays[len({var})] if len({var}) < 24 else array_head(len({var})))"
            return f"({head} + join([{inner} for i in {var}]) if {var} else {cbor.EMPTY_ARRAY!r})"
        if producer_id is tuple:
            parts = [self._encoding(arg, f"{var}[{index}]", owner, field) for index, arg in enumerate(args)]
            return f"join(({cbor.array_head(len(args))!r}, {', '.join(parts)}))"
        if producer_id is dict:
            return f"encode_map({var}, lift)"
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            return f"uint(int({var}))"
        assert hasattr(hint, "_fields"), f"{owner}.{field}: no encoding for {hint}"
        encode = self.of(hint)[0]
        if hint is messages.Starts:  # the same ones go with every reply of a replica
            return f"{self._name(lru_cache(maxsize=64)(lambda value: encode(value, None)))}({var})"
        return f"{self._name(encode)}({var}, lift)"

    def _decoding(self, hint: Any, var: str, owner: str, field: str) -> list[str]:
        """Statements that check ``var`` and turn it into its value."""
        where = repr(f"{owner}.{field}")

        def refuse(test: str, rule: str) -> list[str]:
            return [f"if {test}: bad({where}, {var}, {rule!r})"]

        if hint is int:
            low, high = int_range(owner, field)
            rule = f"must be an integer from {low} to {high - 1}"
            return refuse(f"type({var}) is not int or not {low} <= {var} < {high}", rule)
        if hint is str:
            chars = chars_max(owner, field)
            rule = f"must be text of at most {chars} characters"
            return refuse(f"type({var}) is not str or len({var}) > {chars}", rule)
        if hint is bytes:
            size = BYTES_EXACT.get((owner, field))
            if size is not None:
                return refuse(f"type({var}) is not bytes or len({var}) != {size}", f"must be {size} bytes")
            most = bytes_max(owner, field)
            return refuse(f"type({var}) is not bytes or len({var}) > {most}", f"must be at most {most} bytes")
        if hint is bool:
            return refuse(f"{var} is not True and {var} is not False", "must be a boolean")
        if hint is float:
            # Integers are taken for times in seconds; infinity and NaN compare in ways that break arithmetic.
            limit = 1e300
            return [
                f"if type({var}) is int and -{1 << 64} < {var} < {1 << 64}: {var} = float({var})",
                *refuse(
                    f"type({var}) is not float or not -{limit} < {var} < {limit}", "must be a finite number"
                ),
            ]
        producer_id, args = typing.get_origin(hint), typing.get_args(hint)
        if producer_id in (typing.Union, types.UnionType):
            (inner,) = [arg for arg in args if arg is not type(None)]
            return [f"if {var} is not None:", *("    " + s for s in self._decoding(inner, var, owner, field))]
        if producer_id is tuple and args[-1] is Ellipsis:
            limit = items_max(owner, field)
            lines = refuse(
                f"type({var}) is not tuple or len({var}) > {limit}", f"must be an array of at most {limit}"
            )
            if args[0] in INLINE:
                return [
                    *lines,
                    f"if {var}:",
                    f"    all_{var}, {var} = {var}, []",
                    f"    for one_{var} in all_{var}:",
                    *("        " + line for line in self._taking(args[0], f"one_{var}")),
                    f"        {var}.append(one_{var})",
                    f"    {var} = tuple({var})",
                ]
            item = self._item(args[0], owner, field)
            return [
                *lines,
                f"if len({var}) == 1: {var} = ({item}({var}[0], body),)",
                f"elif {var}: {var} = tuple([{item}(i, body) for i in {var}])",
            ]
        if producer_id is tuple:
            lines = refuse(
                f"type({var}) is not tuple or len({var}) < {len(args)}", f"must be an array of {len(args)}"
            )
            parts = [f"{self._item(arg, owner, field)}({var}[{at}], body)" for at, arg in enumerate(args)]
            return [*lines, f"{var} = ({', '.join(parts)},)"]
        if producer_id is dict:
            return [f"{var} = check_map({where}, {var})"]
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            members = self._name({int(member): member for member in hint})
            rule = f"must be one of {', '.join(f'{int(member)} {member.name}' for member in hint)}"
            return [
                *refuse(f"type({var}) is not int or {var} not in {members}", rule),
                f"{var} = {members}[{var}]",
            ]
        assert hasattr(hint, "_fields"), f"{owner}.{field}: no decoding for {hint}"
        if hint in INLINE:
            return self._taking(hint, var)
        return [f"{var} = {self._name(self.of(hint)[1])}({var}, body)"]

    def _item(self, hint: Any, owner: str, field: str) -> str:
        """Return the name of a function that decodes one item of a list."""
        if hasattr(hint, "_fields"):
            return self._name(self.of(hint)[1])
        name = f"i{len(self.scope)}"
        lines = [f"def {name}(x, body):"]
        lines += ["    " + line for line in self._decoding(hint, "x", owner, field)]
        lines.append("    return x")
        return self._name(self._compile(name, lines, f"decoder of an item of {owner}.{field}"))


def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a NamedTuple class."""
    return typing.get_type_hints(cls, vars(__import__(cls.__module__, fromlist=["_"])))


def joined(chunks: Iterable[str]) -> str:
    """Return an expression that joins the chunks; literals side by side are one, and one alone needs no join."""
    merged: list[str] = []
    for chunk in chunks:
        if merged and chunk.startswith("b'") and merged[-1].startswith("b'"):
            merged[-1] = repr(ast.literal_eval(merged[-1]) + ast.literal_eval(chunk))
        else:
            merged.append(chunk)
    if len(merged) == 1:
        return merged[0]
    return f"join(({', '.join(merged)},))"


_MAKER: Final = _Maker()
_encode_span: Final = _MAKER.of(Span)[0]
_decode_span: Final = _MAKER.of(Span)[1]
_encode_partition: Final = _MAKER.of(PartitionId)[0]
_decode_partition: Final = _MAKER.of(PartitionId)[1]
_MAKER.of(ProducerId)


class Encoders(dict[type, LedEncoder]):
    """Encoders of messages by their class, for [TYPE, request, stamp, *fields]; each compiled when it is first used."""

    def __init__(self, numbers: Mapping[type, int]) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, cls: type) -> LedEncoder:
        encoder = self[cls] = _MAKER.led(cls, self._numbers[cls])
        return encoder


class Decoders(dict[Any, Decoder | None]):
    """Decoders by TYPE, each compiled when it is first asked for: a client needs a dozen of some hundred.

    Args:
        types: the class of each TYPE. If a key is none of them, its decoder is None.
    """

    def __init__(self, types: Mapping[int, type]) -> None:
        super().__init__()
        self._types = types

    def __missing__(self, number: Any) -> Decoder | None:
        cls = self._types.get(number)
        if cls is None:
            return None
        decoder = self[number] = _MAKER.of(cls)[1]
        return decoder


def encode_value(value: tuple[Any, ...], lead: Sequence[int] = (), lift: Lift | None = None) -> bytes:
    """Return the CBOR array [*lead, *fields of value].

    Args:
        lead: integers in front of the fields.
        lift: taker of the bodies of batches; needed if the value has any (TypeError without).

    Raises:
        BadValue: an integer of more than 64 bits. Lengths and ranges are the reader's to check.
    """
    encoded = _MAKER.of(type(value))[0](value, lift)
    if not lead:
        return encoded
    assert encoded[0] < 0x98, f"{type(value).__name__}: the head of its array takes two bytes"
    size = len(lead) + (encoded[0] & 0x1F)
    return b"".join((cbor.array_head(size), *map(cbor.uint, lead), memoryview(encoded)[1:]))


def decode_value(cls: type[T], data: object, body: Body | None = None) -> T:
    """Return the ``cls`` that ``data``, a tuple out of `cbor.load`, holds field by field.

    Args:
        cls: the NamedTuple to make. `ReceiptPart` is decoded as `SignedNamed`, `Slice` as `WireSlice`.
        data: the fields, without any lead.
        body: source of the bodies of batches and slices; None leaves them empty.

    Raises:
        BadValue: a field has another type or is out of range; the text names it.
        Corrupt: the body of a batch is not the one its header was written for.
    """
    value: T = _MAKER.of(cls)[1](data, body)
    return value
