"""values.py: every type of the core to CBOR and back; docs/wire-format.md, "Values"."""

from __future__ import annotations

import cProfile
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core.messages import (
    AckRequest,
    Fetch,
    Granted,
    Heartbeat,
    Starts,
    StatusReply,
    StoreReply,
    Want,
    records,
)
from quorumq.core.values.limits import SPANS_PER_REQUEST_MAX
from quorumq.core.values.types import (
    OPEN_ZERO,
    Batch,
    BatchHeader,
    Death,
    Incarnation,
    Kind,
    Record,
    Span,
    Stamp,
    Topic,
)
from quorumq.wire import cbor
from quorumq.wire.bounds import CHECKS, ITEMS_MAX, NODE_CHARS_MAX
from quorumq.wire.cbor import BadValue
from quorumq.wire.values import Body, Lift, SignedNamed, decode_value, encode_value
from tests.wire.strategies import (
    BATCHES,
    MESSAGE_TYPES,
    PRODUCER_ID,
    RECORD_TYPES,
    as_received,
    of_type,
    positional,
)

SPAN = Span(PRODUCER_ID, 4, 9)


@given(st.integers(-(2**64), 2**64 - 1) | st.integers(-70000, 70000))
def test_integers_are_written_as_cbor2_writes_them(n: int) -> None:
    assert cbor.uint(n) == cbor2.dumps(n)


@given(st.text(max_size=300), st.binary(max_size=300), st.floats(), st.integers(0, 70000))
def test_other_atoms_are_written_as_cbor2_writes_them(s: str, b: bytes, x: float, n: int) -> None:
    assert cbor.text(s) == cbor2.dumps(s)
    assert cbor.blob(b) == cbor2.dumps(b)
    if x == x and abs(x) != float("inf"):
        assert cbor.real(x) == cbor2.dumps(x)
    assert cbor.array_head(n) == cbor2.dumps([0] * n)[: -n or None]


def test_the_starts_that_go_with_every_reply_are_encoded_once() -> None:
    reply = StoreReply(1, (), Starts(7, (Incarnation(1, 2),)))
    encoded = encode_value(reply)
    profiler = cProfile.Profile(builtins=False)
    profiler.enable()
    assert encode_value(reply) == encoded
    profiler.disable()
    assert "e_Starts" not in {getattr(entry.code, "co_name", "") for entry in profiler.getstats()}


@pytest.mark.parametrize("n", [2**64, -(2**64) - 1, 2**200])
def test_integers_of_more_than_64_bits_are_not_written(n: int) -> None:
    with pytest.raises(BadValue, match="64 bits"):
        cbor.uint(n)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("c101", "tag"),
        ("d82363616263", "tag"),  # a regular expression
        ("c4821a7fffffff01", "tag"),  # a decimal of two billion digits
        ("c24105", "tag"),
        ("d9d9f701", "tag"),
        ("d9ffff01", "tag"),
        ("d81c81d81d00", "tag"),  # shared references
        ("9f01ff", "indefinite"),
        ("81" * 40 + "01", "depth"),
        ("9b7fffffffffffffff", "premature"),
        ("5b7fffffffffffffff", "premature"),
        ("", "premature"),
        ("62fffe", "utf-8"),
        ("a201010102", "uplicate"),
        ("0102", "1 of 2"),
        ("ff", "break"),
    ],
)
def test_values_outside_the_subset_are_refused(data: str, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        cbor.load(bytes.fromhex(data))


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda cls: cls.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_journal_records_survive_the_round_trip(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_type(cls))
    lift = Lift()
    encoded = encode_value(value, (7, 1 << 40), lift)
    assert encoded == cbor2.dumps([7, 1 << 40, *positional(value)])
    loaded = cbor.load(encoded)
    assert decode_value(cls, loaded[2:], Body(b"".join(lift.bodies))) == as_received(value)


def test_a_batch_is_lifted_and_comes_back_without_body_where_none_is_given() -> None:
    stored = records.BatchStored(5, BATCHES[1], 77)
    lift = Lift()
    encoded = encode_value(stored, lift=lift)
    assert lift.bodies == [BATCHES[1].body]
    back = decode_value(records.BatchStored, cbor.load(encoded))
    assert (back.batch.header, back.batch.raw, back.batch.body) == (BATCHES[1].header, BATCHES[1].raw, b"")
    with pytest.raises(TypeError, match="Lift"):
        encode_value(stored)


def test_missing_trailing_fields_take_their_default_and_no_others() -> None:
    assert decode_value(Record, (0, 0, 0)) == OPEN_ZERO
    assert decode_value(Death, ((5, "a"), "rejected")) == Death(Stamp(5, "a"), "rejected")
    with pytest.raises(BadValue, match="Record is an array of 2: must be an array of at least 3 fields"):
        decode_value(Record, (0, 0))


def tupled(data: object) -> object:
    """The arrays in it as tuples, in order."""
    return tuple(map(tupled, data)) if isinstance(data, list) else data


def cuts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return pairs of ``value`` cut after each field that may be left out, at any depth, and the value it is read as.

    Types whose form on the wire is not that of their fields are left as they are.
    """
    if not hasattr(value, "_fields") or type(value) in (Batch, BatchHeader, StatusReply):
        return
    fields = positional(value)
    names = list(value._field_defaults)
    for left_out in range(1, len(names) + 1):
        yield (
            tupled(fields[:-left_out]),
            value._replace(**{name: value._field_defaults[name] for name in names[-left_out:]}),
        )
    for at, part in enumerate(value):
        for short, meant in cuts(part):
            yield (
                (*tupled(fields[:at]), short, *tupled(fields[at + 1 :])),
                value._replace(**{value._fields[at]: meant}),
            )


@pytest.mark.parametrize("cls", [*RECORD_TYPES, *MESSAGE_TYPES], ids=lambda cls: cls.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_whatever_is_left_out_at_the_end_of_any_type_has_its_default(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_type(cls))
    for short, meant in cuts(value):
        problem = ""
        try:
            assert decode_value(cls, short) == decode_value(cls, tupled(positional(meant)))
        except BadValue as error:
            problem = str(error)
        assert "array of" not in problem, "what is left out may contradict what is there, and then says how"


@pytest.mark.parametrize(
    ("cls", "data", "says"),
    [
        (Span, (tuple(PRODUCER_ID), 4, 4), "Span.stop is 4: a span is never empty"),
        (Span, (tuple(PRODUCER_ID), -1, 4), "Span.start is -1"),
        (
            Span,
            (tuple(PRODUCER_ID), 0, 2**62 + 1),
            "Span.stop is 4611686018427387905: must be an integer from 1 to",
        ),
        (Span, (tuple(PRODUCER_ID), True, 4), "Span.start is True"),
        (Span, (tuple(PRODUCER_ID), 1.0, 4), "Span.start is 1.0"),
        (Span, "text", "Span is 'text': must be an array of 3"),
        (Span, (("x" * (NODE_CHARS_MAX + 1), 1, 1, 1), 0, 4), "ProducerId.node is 'xxx"),
        (Span, (("x", 1, 2**64, 1), 0, 4), "ProducerId.nonce is an integer of 65 bits"),
        (Record, (0, 0, 5), "Record.kind is 5: must be one of 0 OPEN, 1 SKIPPED"),
        (Record, (0, 0, False), "Record.kind is False"),
        (Record, (0, 0, 2, ()), "Death is an array of 0"),
        (Granted, (positional(SPAN), 1, 1, False), "Granted.exhausted is 1: must be a boolean"),
        (Heartbeat, ((), float("nan")), "Heartbeat.quarantine_s is nan"),
        (Heartbeat, ((), float("inf")), "Heartbeat.quarantine_s is inf"),
        (Heartbeat, ((), 1.0, 2), "Heartbeat.full is 2"),
        (Heartbeat, ((((b"x" * 15, 1), "g"),),), "PartitionId.topic is 15 bytes"),
        (Heartbeat, (((1,),),), "Heartbeat.waiting is an array of 1: must be an array of 2"),
        (Fetch, (("t" * 300,), "g", 1, 1, 1, 1, 0, 0, 0), "Fetch.topics is 'ttt"),
        (AckRequest, (((b"", ()),) * (SPANS_PER_REQUEST_MAX + 1),), "at most 10000"),
        (Topic, (b"x" * 16, "n", 3, ((),) * 1025, 5, (0, "")), "Topic.replicas is an array of 1025"),
        (StatusReply, ((),), "StatusReply.fields is an array of 0: must be a map"),
        (StatusReply, ({1: 2},), "keys are text"),
        (StatusReply, ({"a": 2**65},), "an integer of 66 bits"),
    ],
)
def test_an_invalid_value_is_named(cls: type, data: object, says: str) -> None:
    with pytest.raises(BadValue, match=re.escape(says)):
        decode_value(cls, tuple(data) if isinstance(data, list) else _tuples(data))


def _tuples(data: object) -> object:
    return tuple(map(_tuples, data)) if isinstance(data, tuple | list) else data


def test_a_list_between_nodes_may_be_longer_than_what_clients_ask() -> None:
    """One span asked for may be answered in parts: refusing the answer would cut the link again and again."""
    assert ITEMS_MAX > SPANS_PER_REQUEST_MAX
    record = decode_value(
        records.RecordsMerged, ((b"x" * 16, 0), "g", ((_tuples(positional(SPAN)), (0, 0, 4)),) * 20_000)
    )
    assert len(record.entries) == 20_000
    assert record.entries[-1].record.kind is Kind.ACKED


def test_an_integer_is_taken_for_a_number_of_seconds() -> None:
    value = decode_value(Heartbeat, ((), 3))
    assert value.quarantine_s == 3.0
    assert isinstance(value.quarantine_s, float)


def test_every_field_of_every_type_has_a_rule() -> None:
    """Making the coders of a type fails on a hint that they have no rule for; this meets all of them."""
    for cls in (*RECORD_TYPES, Want, SignedNamed):
        assert typing.get_type_hints(cls) is not None
        with pytest.raises(BadValue):
            decode_value(cls, 17)


class Unready(NamedTuple):
    size: int


def test_a_coder_that_cannot_be_made_fails_alike_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a field that was renamed fails with its name, not with the type's in every later call."""
    monkeypatch.setitem(cast("dict[str, tuple[str, str, str]]", CHECKS), "Unready", ("v_total", "total", ""))
    for _ in range(2):
        with pytest.raises(KeyError, match="total"):
            encode_value(Unready(1))


NESTED_ITEM = b"\x81\x81\x81\x00"


@pytest.mark.parametrize(("size", "long"), [(cbor.READ_AT_ONCE, False), (cbor.READ_AT_ONCE * 4, True)])
def test_many_small_items_take_long_to_read_and_are_told_from_few_large_ones(size: int, long: bool) -> None:
    many = b"\x9a" + (size // 4).to_bytes(4, "big") + NESTED_ITEM * (size // 4 - 2)
    assert cbor.takes_long(many) is long
    assert not cbor.takes_long(b"\x82" + cbor.blob(many) + cbor.text("x" * size)), (
        "what is in a string is none"
    )
    assert not cbor.takes_long(b"\x9f" + many), "not read at all"
