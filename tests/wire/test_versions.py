"""Version 1 of the protocol, written down; and that today's software can speak nothing else where it has to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from quorumq.core import messages as m
from quorumq.core import types as core_types
from quorumq.core import versions as core_versions
from quorumq.core.limits import TOPIC_BACKOFF_S
from quorumq.core.topics import SETTINGS, merge_topics, stamps_of
from quorumq.core.types import STAMP_ZERO, Origin, PartitionId, Stamp, Topic
from quorumq.core.versions import NEWEST, VERSIONS, has
from quorumq.wire import cbor, codec, values, versions
from quorumq.wire.batch import Message, build_batch
from quorumq.wire.codec import UnknownMessage, decode_message, encode_message
from quorumq.wire.frames import FrameReader
from quorumq.wire.values import WireSlice, coders, decode_value, encode_value
from tests.wire import strategies

# What was spoken before there was a version 2. Never to be changed: nodes and clients out there speak it.
VERSION_1 = """
1 Hello versions cluster_id nodes hold_time_max node incarnation directory wall_ms stamp software
2 Welcome version cluster_id node incarnation directory wall_ms stamp seen_n seen_directories software
3 Failed code detail needed answered
10 Store round epoch batch
11 Stored round refused detail known
12 Hold round partition epoch group generation ballot hold_time wants freed parked
13 HoldReply round partition group abstained granted resolved not_due refused error known
14 Release freed
15 Released freed
16 Extend round partition epoch group owner spans hold_time
17 Extended round granted refused error known
18 Ack round partition epoch group generation entries
19 Tombed round exclusive higher error known
20 Reject round partition epoch group generation n owner spans delay letter
21 Rejected round applied refused resolved error known
22 Merge round partition epoch group entries
23 Merged round exact higher error known
24 PutTopic round topic
25 PutGroup round group
26 Put round refused detail topic group
27 PeekRequest round partition group which cursor limit
28 PeekReply round items cursor error
29 Heartbeat waiting quarantine_s disk_free
30 SyncOffer partition epoch digests buckets origins groups
31 SyncState partition epoch spans groups rest
32 SyncPull partition spans
33 SyncTopics topics groups
34 RemoteFetch round partitions request
35 RemoteFetched round code detail slices
36 RemoteGone round
64 OpenSession
65 SessionOpened origin
66 CreateTopic name rf partitions max_deliveries durability implicit
67 TopicCreated topic
68 Metadata topics
69 MetadataReply cluster_id node nodes topics groups message_bytes_max batch_bytes_max hold_time_max
70 Publish batch
71 Published replicas
72 Fetch topics group max_messages max_bytes min_messages min_bytes max_wait hold_time sent_at consumer partitions
73 Fetched sent_at hold_time slices
74 AckRequest items
75 RejectRequest items delay letter
76 ExtendRequest items hold_time sent_at
77 LeaveRequest items
78 RedriveRequest topic partition group entries
79 Verdicts verdicts sent_at
80 Left
81 PeekAsk topic partition group which cursor limit bodies
82 PeekPage partition items cursor slices
83 StatusAsk
84 StatusReply facts
"""

VERSION_1_VALUES = """
Incarnation n nonce
PartitionId topic number
Span origin start stop
Origin node n nonce k
Stamp time node
Want span n
Freed partition group owner spans
Owner node incarnation ballot
Granted span attempts exhausted expired
Resolved span record
Record generation n kind letter
Letter ballot reason error_class message stack fingerprint attempts published_ms \
first_delivered_ms last_delivered_ms died_ms consumer consumer_version host node redrives
NotDue span n ballot remaining
Refused span highest remaining
Acked span owner
Topic id name rf epoch replicas max_deliveries durability stamp deleted
Group topic name generation from_ms
Peeked span state record attempts remaining owner
Digest origin messages digest
GroupDigest group generation origins
GroupState group records attempts delays
NodeInfo node address up
Verdict item span outcome detail
Counted span n ended
"""
"""Of what messages are made; Batch, Named, Slice and Receipt have layouts of their own, which are the same."""


def frozen() -> dict[str, list[str]]:
    """The fields of each class of version 1, by name."""
    lines = [line.split()[1:] for line in VERSION_1.strip().splitlines()]
    lines += [line.split() for line in VERSION_1_VALUES.strip().splitlines()]
    return {name: fields for name, *fields in lines}


FROZEN = frozen()
IN_VERSION_1 = [cls for cls in strategies.MESSAGE_TYPES if cls.__name__ in FROZEN]
by_name = pytest.mark.parametrize("cls", IN_VERSION_1, ids=lambda cls: cls.__name__)


def read_header(data: bytes) -> tuple[Any, ...]:
    reader = FrameReader()
    reader.feed(data)
    (frame,) = list(reader)
    header = cbor.load(frame.header)
    assert isinstance(header, tuple)
    return header


def decoded(data: bytes, version: int = 1) -> Any:
    reader = FrameReader()
    reader.feed(data)
    (frame,) = list(reader)
    return decode_message(frame, version).message


def encoded(message: Any, version: int = 1) -> bytes:
    return b"".join(encode_message(message, version=version, read=strategies.read_part))


def in_version_1(value: Any) -> Any:
    """What version 1 has in the CBOR for ``value``, by the lists above."""
    name = type(value).__name__
    if isinstance(value, m.Reject | m.RejectRequest) and value.delay == TOPIC_BACKOFF_S:
        value = value._replace(delay=0.0)
    if isinstance(value, m.Slice):
        *head, deliveries = strategies.positional(value)
        return (*map(as_tuples, head), tuple(tuple(delivery[:2]) for delivery in deliveries))
    if name in FROZEN:
        return tuple(in_version_1(getattr(value, field)) for field in FROZEN[name])
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(in_version_1, value))
    return as_tuples(strategies.positional(value))


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def test_the_messages_of_version_1_have_their_types_and_fields() -> None:
    for line in VERSION_1.strip().splitlines():
        number, name, *fields = line.split()
        cls: Any = codec.TYPES[int(number)]
        assert cls.__name__ == name
        assert list(cls._fields[: len(fields)]) == fields
        assert has(1, cls)
        assert versions.FIELDS[1].get(name, len(cls._fields)) == len(fields), name
    for line in VERSION_1_VALUES.strip().splitlines():
        name, *fields = line.split()
        cls = getattr(m, name, None) or getattr(core_types, name)
        assert list(cls._fields[: len(fields)]) == fields
        assert versions.FIELDS[1].get(name, len(cls._fields)) == len(fields), name


def test_what_is_not_in_the_list_came_later() -> None:
    later = [cls for cls in strategies.MESSAGE_TYPES if cls.__name__ not in FROZEN]
    assert later, "version 2 has messages of its own"
    assert set(later) == set(core_versions.SINCE), "name new messages in core/versions.py, with their version"
    for cls in later:
        assert not has(1, cls)
    assert VERSIONS == (1, 2)


@by_name
def test_what_is_written_for_version_1_is_what_version_1_wrote(cls: type) -> None:
    @given(strategies.of_type(cls))
    def check(message: Any) -> None:
        if isinstance(message, m.StatusReply):
            return  # a map of anything: see test_codec.py
        number, _, _, *fields = read_header(encoded(message))
        assert number == codec.TYPE_OF[cls]
        assert tuple(fields) == in_version_1(message)

    check()


@by_name
def test_version_1_reads_of_a_newer_message_what_it_would_read_of_its_own(cls: type) -> None:
    @given(strategies.of_type(cls))
    def check(message: Any) -> None:
        if isinstance(message, m.Reject | m.RejectRequest):
            message = message._replace(delay=abs(message.delay))
        if isinstance(message, m.PeekReply):
            message = message._replace(slices=())  # bytes that a reader cannot explain: never sent to it
        newer, own = decoded(encoded(message, NEWEST)), decoded(encoded(message))
        assert without_letters(newer) == without_letters(own)

    check()


def without_letters(message: Any) -> Any:
    """Letters of dead letters are not read as a group where anybody speaks version 1."""
    if not getattr(message, "slices", ()) or not isinstance(message.slices[0], WireSlice):
        return message
    slices = tuple(
        part._replace(deliveries=tuple(item._replace(letter=None) for item in part.deliveries))
        for part in message.slices
    )
    return message._replace(slices=slices)


@pytest.mark.parametrize("cls", core_versions.SINCE, ids=lambda cls: cls.__name__)
def test_version_1_has_no_newer_messages(cls: type) -> None:
    @given(strategies.of_type(cls))
    def check(message: Any) -> None:
        data = encoded(message, NEWEST)
        with pytest.raises(UnknownMessage, match="which version 1 of the protocol does not have"):
            decoded(data)
        with pytest.raises(AssertionError, match=f"version 1 of the protocol has no {cls.__name__}"):
            encoded(message)

    check()


# ------------------------------------------------------------------- what missing fields mean


TOPIC = Topic(
    bytes(16), "orders", 3, 1, (("a", "b", "c"),), 5, "fsync", Stamp(9, "a"), retention_s=60.0, born=1
)


def by_version_1(topic: Topic) -> Topic:
    encode, decode = coders(Topic, 1)
    found: Topic = decode(cbor.load(encode(topic, None)), None)
    return found


def test_a_register_of_version_1_says_nothing_of_settings_that_it_does_not_have() -> None:
    old = Stamp(3, "a")
    set_later = TOPIC._replace(stamps=(old, old, TOPIC.stamp, old, old))
    echoed = by_version_1(set_later)
    assert echoed.retention_s == 0.0
    assert stamps_of(echoed) == (TOPIC.stamp,) * 2 + (STAMP_ZERO,) * (len(SETTINGS) - 2)
    unaware = TOPIC._replace(stamp=old, retention_s=0.0)  # a node that has not heard of the change yet
    for one, other, third in (
        (unaware, echoed, set_later),
        (echoed, unaware, set_later),
        (echoed, set_later, unaware),
    ):
        merged = merge_topics(merge_topics(one, other), third)
        assert merged.retention_s == 60.0, "an echo without the setting has not taken its place"
        assert merged.born == 1


def test_a_creation_in_version_1_names_nothing_but_the_rf() -> None:
    request = decoded(encoded(m.CreateTopic("orders", partitions=4)))
    assert request.unnamed == ("partitions", *SETTINGS)


def test_a_reject_without_a_delay_is_not_delayed_in_version_1() -> None:
    request = m.RejectRequest((), TOPIC_BACKOFF_S)
    assert decoded(encoded(request)).delay == 0.0
    assert decoded(encoded(request, NEWEST), NEWEST).delay == TOPIC_BACKOFF_S
    assert decoded(encoded(m.RejectRequest((), 2.5))).delay == 2.5


def test_values_of_the_journal_are_whole_whatever_is_spoken() -> None:
    assert decode_value(Topic, cbor.load(encode_value(TOPIC))) == TOPIC
    assert values.coders(Topic) == values.coders(Topic, NEWEST)


def test_a_request_that_loses_its_meaning_is_named() -> None:
    def of(**times: int) -> m.Publish:
        batch = build_batch(PartitionId(bytes(16), 0), Origin("a", 1, 1, 1), 0, 1, [Message(b"x")], **times)
        return m.Publish(batch, 77)

    fetch = m.Fetch(("t",), "g", 1, 1, 1, 0, 0.0, 1.0, 0.0)
    assert versions.lost(fetch, 1) == ""
    assert versions.lost(fetch._replace(start="latest"), 1) == "Fetch.start"
    assert versions.lost(fetch._replace(start="latest"), NEWEST) == ""
    assert versions.lost(m.CreateTopic("t", unnamed=("rf",)), 1) == ""
    assert versions.lost(m.CreateTopic("t", ttl_s=1.0), 1) == "CreateTopic.ttl_s"
    assert versions.lost(of(), 1) == "", "the age is left out"
    assert versions.lost(of(delay_ms=5), 1) == "a batch's delay_ms"
    assert versions.lost(of(ttl_ms=5), 1) == "a batch's ttl_ms"
    assert versions.lost(of(ttl_ms=5), NEWEST) == ""
