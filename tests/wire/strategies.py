"""Values of every message and record type, drawn by their type hints, and as a receiver must read them."""

from __future__ import annotations

import functools
import types
import typing
from enum import IntEnum
from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st

from quorumq.core import messages
from quorumq.core.messages import records
from quorumq.core.values.limits import NUMBERS_END, STAMPS_END, STARTS_MAX
from quorumq.core.values.types import (
    Batch,
    BatchHeader,
    ClusterLayout,
    Death,
    Decision,
    Incarnation,
    Kind,
    Limit,
    Member,
    Owner,
    PartitionId,
    ProducerId,
    Receipt,
    Record,
    Span,
    Stamp,
)
from quorumq.wire.batch import Message, build_batch, encode_header
from quorumq.wire.bounds import BYTES_EXACT, int_range
from quorumq.wire.receipts import signature
from quorumq.wire.values import SignedNamed, WireDelivery, WireSlice

SECRET = b"not a secret: 32 bytes for tests"
PARTITION = PartitionId(b"topic-id-16bytes", 3)
PRODUCER_ID = ProducerId("node-a", 2, 0x1122334455667788, 9)

MESSAGE_TYPES: list[type] = [
    cls
    for union in (messages.PeerMessage, messages.ClientRequest, messages.ClientReply)
    for cls in typing.get_args(union)
]
RECORD_TYPES: list[type] = list(typing.get_args(records.JournalRecord))


def _joined(one: Batch, two: Batch) -> Batch:
    """A batch of two sections, as a node makes it of two small publishes."""
    ends = [one.header.end_of(i) for i in range(one.header.size)]
    ends += [ends[-1] + two.header.end_of(i) for i in range(two.header.size)]
    body = bytes(one.body) + bytes(two.body)
    header = BatchHeader(
        one.header.partition,
        one.header.spans + two.header.spans,
        one.header.published_ms,
        b"".join(end.to_bytes(4, "little") for end in ends),
        one.header.crcs + two.header.crcs,
        crc32c(body),
    )
    return Batch(header, encode_header(header), body)


_ONE = build_batch(PARTITION, PRODUCER_ID, 0, 1_790_000_000_000, [Message(b"hello")])
_FEW = build_batch(
    PARTITION,
    PRODUCER_ID._replace(k=10),
    2**40,
    1_790_000_000_001,
    [
        Message(b"x" * n, b"key" if n % 2 else None, {"n": n, "odd": bool(n % 2)} if n % 3 else {})
        for n in range(7)
    ],
)
BATCHES: list[Batch] = [_ONE, _FEW, _joined(_FEW, _ONE)]


def read_part(part: messages.Slice) -> bytes:
    """The body bytes of a slice whose ``batch`` is an index into `BATCHES`."""
    batch = BATCHES[part.batch]
    return bytes(batch.body)[batch.header.end_of(part.first - 1) : batch.header.end_of(part.stop - 1)]


node_ids = st.text("abcz019-", min_size=0, max_size=32)
names = st.text(max_size=30)
texts = st.text(max_size=60)
u64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
numbers = st.integers(0, NUMBERS_END - 1) | st.integers(0, 300)
stamps = st.integers(0, STAMPS_END - 1) | st.integers(0, 300)
finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e299, max_value=1e299)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts | finite,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
incarnations = st.builds(Incarnation, st.integers(0, STARTS_MAX - 1), u64)
producer_ids = st.builds(ProducerId, node_ids, numbers, u64, numbers)
spans = st.builds(
    lambda producer_id, a, size: Span(producer_id, a, min(a + size, NUMBERS_END)),
    producer_ids,
    numbers,
    st.integers(1, 2**32),
)
partitions = st.builds(PartitionId, st.binary(min_size=16, max_size=16), st.integers(0, 1023))
receipts = st.builds(
    Receipt,
    partitions,
    names,
    numbers,
    numbers,
    spans,
    st.builds(Owner, node_ids, incarnations, st.builds(Stamp, stamps, node_ids)),
)


@st.composite
def slices(draw: st.DrawFn) -> messages.Slice:
    number = draw(st.integers(0, len(BATCHES) - 1))
    header = BATCHES[number].header
    first = draw(st.integers(0, header.size - 1))
    stop = draw(st.integers(first + 1, header.size))
    deliveries = [
        messages.Delivery(
            receipt,
            draw(st.integers(1, 9)),
            signature(receipt, secret=SECRET),
            draw(st.none() | of_type(Death)),
            draw(st.booleans()),
        )
        for receipt in draw(st.lists(receipts, max_size=stop - first))
    ]
    return messages.Slice(draw(names), header.partition, number, first, stop, header, tuple(deliveries))


@functools.cache
def by_hint(hint: Any, owner: str, field: str) -> st.SearchStrategy[Any]:
    """A strategy for one field."""
    if hint is int:
        low, end = int_range(owner, field)
        return st.integers(low, end - 1) | st.integers(max(low, 0), min(300, end - 1))
    if hint is str:
        return node_ids if field in ("node", "replicas", "before", "sources", "source", "to") else names
    if hint is bytes:
        exact = (owner, field) in BYTES_EXACT
        if (owner, field) == ("Instance", "topic"):
            return st.sampled_from((b"", b"topic-id-16bytes"))
        return st.binary(min_size=16 if exact else 0, max_size=16)
    if hint is float:
        return finite
    if hint is bool:
        return st.booleans()
    if hint is Batch:
        return st.sampled_from(BATCHES)
    if hint is Span:
        return spans
    if hint is messages.Slice:
        return slices()
    if hint is messages.ReceiptPart:
        signed = st.builds(lambda receipt: signature(receipt, secret=SECRET), receipts)
        return st.builds(SignedNamed, signed, st.lists(spans, max_size=3).map(tuple))
    producer_id, args = typing.get_origin(hint), typing.get_args(hint)
    if producer_id in (typing.Union, types.UnionType):
        return st.none() | by_hint(args[0], owner, field)
    if producer_id is tuple and args[-1] is Ellipsis:
        return st.lists(by_hint(args[0], owner, field), max_size=3).map(tuple)
    if producer_id is tuple:
        if field == "versions":
            return st.tuples(numbers, numbers).map(lambda pair: tuple(sorted(pair)))
        if field == "cursor":
            return st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * len(args))
        return st.tuples(*[by_hint(arg, owner, field) for arg in args])
    if producer_id is dict:
        return st.dictionaries(texts, plain, max_size=3)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(list(hint))
    return of_type(hint)


@functools.cache
def of_type(cls: Any) -> st.SearchStrategy[Any]:
    """A strategy for a NamedTuple class."""
    hints = typing.get_type_hints(cls)
    made = st.builds(cls, *[by_hint(hints[field], cls.__name__, field) for field in cls._fields])
    if cls is Decision:  # a topic or a group, or neither
        made = made.map(
            lambda it: it._replace(
                group=None if it.topic is not None else it.group,
                layout=None if it.topic is not None or it.group is not None else it.layout,
                cluster=None if it.topic or it.group or it.layout else it.cluster,
            )
        )
    if cls is Limit:  # both or neither
        made = made.map(lambda it: it._replace(per_second=min(abs(it.per_second), 1e6) if it.burst else 0.0))
        made = made.map(lambda it: it._replace(burst=it.burst if it.per_second else 0))
    if cls is messages.Accept:  # one of them
        made = made.filter(lambda it: [it.topic, it.group, it.layout, it.cluster].count(None) == 3)
    if cls is ClusterLayout:  # one member at least, the first is a voter, and voters never become fewer
        made = made.map(lambda it: it._replace(members=it.members or (Member("a"),), voters=1))
        made = made.map(lambda it: it._replace(slots=it.slots[: len(it.members)]))
        made = made.map(lambda it: it._replace(before=it.before[: len(it.slots)]))
    if cls is messages.SyncDigests:  # as many sums as the places have parts
        made = made.map(
            lambda it: it._replace(sums=(it.sums + bytes(16))[:16] * (16 * len(it.locations) or 1))
        )
    if cls is messages.SyncRegisters:
        made = made.map(lambda it: it._replace(sums=(it.sums + bytes(16))[:16] * (256 if it.sums else 1)))
    if "key_number" in cls._fields:
        made = made.map(lambda it: it._replace(key_number=it.key_number[:8]))
    if "total" in cls._fields:
        made = made.map(lambda it: it._replace(total=it.total[:16]))
    if "packed" in cls._fields:
        made = made.map(lambda it: it._replace(packed=it.packed[: len(it.packed) // 52 * 52]))
    return made.map(sound) if cls is Record else made


def sound(record: Record) -> Record:
    """Make a record as every record is: ACKED at n = 0, and a dead letter only if it is DEAD."""
    death = record.death if record.kind == Kind.DEAD else None
    return record._replace(n=0 if record.kind == Kind.ACKED else record.n, death=death)


def positional(value: Any, extra: tuple[Any, ...] = ()) -> Any:
    """Return the CBOR content that docs/wire-format.md gives for ``value``, with ``extra`` fields appended everywhere.

    Written down a second time, without type hints, so that the coder is compared with something else.
    """
    if isinstance(value, Batch):
        return value.raw
    if isinstance(value, messages.Slice):
        cut = as_received(value)
        base = value.header.end_of(value.first - 1)
        spans = [[*span.producer_id, span.start, span.stop - span.start, *extra] for span in cut.header.spans]
        return [
            value.topic,
            positional(value.partition, extra),
            spans,
            cut.header.published_ms,
            base,
            value.header.offsets[4 * value.first : 4 * value.stop],
            cut.header.crcs,
            [
                [item.signed, item.attempt, positional(item.death, extra), *item[4:], *extra]
                for item in value.deliveries
            ],
            *extra,
        ]
    if isinstance(value, tuple):
        items = [positional(item, extra) for item in value]
        return [*items, *extra] if hasattr(value, "_fields") else items
    return int(value) if isinstance(value, IntEnum) else value


def as_received(value: Any) -> Any:
    """Return ``value`` as received: the same, but slices are cut out of their batches."""
    if isinstance(value, messages.Slice):
        ids = [(span.producer_id, seq) for span in value.header.spans for seq in range(span.start, span.stop)]
        spans: list[Span] = []
        for producer_id, seq in ids[value.first : value.stop]:
            if spans and spans[-1].producer_id == producer_id and spans[-1].stop == seq:
                spans[-1] = spans[-1]._replace(stop=seq + 1)
            else:
                spans.append(Span(producer_id, seq, seq + 1))
        base = value.header.end_of(value.first - 1)
        ends = [value.header.end_of(index) - base for index in range(value.first, value.stop)]
        header = value.header._replace(
            spans=tuple(spans),
            offsets=b"".join(end.to_bytes(4, "little") for end in ends),
            crcs=b"".join(
                value.header.crc_of(i).to_bytes(4, "little") for i in range(value.first, value.stop)
            ),
            crc=0,
        )
        deliveries = tuple(
            WireDelivery(item.signed, item.attempt, item.receipt, *item[3:]) for item in value.deliveries
        )
        return WireSlice(value.topic, header, deliveries, memoryview(read_part(value)))
    if isinstance(value, Batch):
        return value
    if isinstance(value, tuple):
        items = [as_received(item) for item in value]
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return value
