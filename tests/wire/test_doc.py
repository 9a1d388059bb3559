"""docs/wire-format.md matches the code: its tables and its test vectors, checked both ways."""

from __future__ import annotations

import re
import types
import typing
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values import types as core_types
from quorumq.core.values.types import Batch, Receipt, Span, Stamp
from quorumq.wire import batch as batches
from quorumq.wire import bounds, cbor, codec, frames
from quorumq.wire.batch import Message, build_batch, check_body, decode_header, records_of
from quorumq.wire.codec import Decoded, decode_message, encode_message
from quorumq.wire.receipts import open_receipt, read_receipt, signature
from quorumq.wire.values import SignedNamed
from tests.wire.strategies import as_received

DOC = Path(__file__).parents[2] / "docs" / "wire-format.md"
TEXT = DOC.read_text()

NESTED = [
    core_types.Incarnation, core_types.ProducerId, core_types.Span, core_types.PartitionId, core_types.Stamp,
    core_types.Owner, core_types.Receipt, core_types.Label, core_types.Topic, core_types.ReplicaSlot,
    core_types.Placement, core_types.Layout, m.LayoutMark, core_types.Member, core_types.ClusterLayout,
    core_types.Pause, core_types.Limit,
    core_types.Group, core_types.Record, core_types.Death, m.SpanRecord, m.NodeInfo, m.Verdict, m.Peeked,
    m.LabelChange, m.TopicSeen, m.StateCount, m.DescribedGroup,
]  # fmt: skip
"""Types inside of clients' messages, beside Batch, ReceiptPart and Slice, which have sections of their own."""


def hint_text(hint: Any) -> str:
    """A type hint as the tables write it."""
    plain = {int: "int", str: "text", bytes: "bytes", float: "float", bool: "bool"}.get(hint)
    if plain:
        return plain
    producer_id, args = typing.get_origin(hint), typing.get_args(hint)
    if producer_id in (typing.Union, types.UnionType):
        return f"{hint_text(args[0])} or null"
    if producer_id is tuple and args[-1] is Ellipsis:
        return f"[{hint_text(args[0])} …]"
    if producer_id is tuple:
        return f"[{', '.join(map(hint_text, args))}]"
    return "map" if producer_id is dict else str(hint.__name__)


def plain(default: object) -> object:
    """A default as the page shows it: stamps as arrays, members of an enumeration as numbers."""
    if isinstance(default, Stamp):
        return list(default)
    return int(default) if isinstance(default, IntEnum) else default


def fields_text(cls: Any) -> str:
    """The fields of a type as the tables write them."""
    hints = typing.get_type_hints(cls)
    shown = []
    for field in cls._fields:
        default = f" = {plain(cls._field_defaults[field])!r}" if field in cls._field_defaults else ""
        shown.append(f"{field} {hint_text(hints[field])}{default}")
    return ", ".join(shown)


def rows(title: str) -> list[str]:
    """The rows of the table under a heading, without its head."""
    section = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.S | re.M)
    assert section, f"docs/wire-format.md has no section {title!r}"
    return [line for line in section[1].splitlines() if line.startswith("| ")][1:]


def test_the_table_of_types_is_that_of_the_code() -> None:
    nodes = set(typing.get_args(m.PeerMessage))
    expected = [
        f"| {number} | {cls.__name__} | {fields_text(cls)} |"
        for number, cls in codec.TYPES.items()
        if cls not in nodes
    ]
    assert rows("Between clients and nodes") == expected


def test_the_nested_types_are_those_of_the_code() -> None:
    assert rows("Nested values") == [f"| {cls.__name__} | {fields_text(cls)} |" for cls in NESTED]


def test_the_limits_are_those_of_the_code() -> None:
    expected = {
        "frame, prefix included": limits.FRAME_BYTES_MAX,
        "frame header": limits.HEADER_BYTES_MAX,
        "that of a client's request": limits.CLIENT_HEADER_BYTES_MAX,
        "items of CBOR in one of more than 64 KiB, or in the header of a batch": limits.CLIENT_HEADER_ITEMS_MAX,
        "first frame of a connection": frames.HANDSHAKE_BYTES_MAX,
        "batch body": limits.BATCH_BYTES_MAX,
        "records in a batch": limits.BATCH_MESSAGES_MAX,
        "batches behind the first in a Store": limits.STORE_BATCHES_MAX,
        "sections in a batch": batches.SPANS_MAX,
        "record": limits.MESSAGE_BYTES_MAX,
        "headers of a message": batches.HEADERS_MAX,
        "characters of a header's name": batches.HEADER_NAME_CHARS_MAX,
        "texts of a dead letter": limits.DEATH_BYTES_MAX,
        "texts of a REJECT's dead letter for all its spans": limits.DEATHS_BYTES_MAX,
        "items of a list in a request": limits.SPANS_PER_REQUEST_MAX,
        "names in METADATA or FETCH": limits.NAMES_PER_REQUEST_MAX,
        "patterns among them": limits.PATTERNS_PER_REQUEST_MAX,
        "spans that a request settles": limits.SPANS_SETTLED_MAX,
        "messages that a FETCH names": limits.FETCH_NAMED_MAX,
        "layouts that HELLO names": limits.LAYOUT_MARKS_MAX,
        "items of a list elsewhere": bounds.ITEMS_MAX,
        "characters of a node id": bounds.NODE_CHARS_MAX,
        "characters of a name": bounds.NAME_CHARS_MAX,
        "characters of other text": bounds.TEXT_CHARS_MAX,
        "signed receipt": bounds.SIGNED_BYTES_MAX,
        "depth of CBOR": cbor.DEPTH_MAX,
        "maps in one value": cbor.MAPS_MAX,
        "partitions of a topic": limits.PARTITIONS_MAX,
        "partitions in CloseSession": limits.PARTITIONS_MAX,
        "topics of a cluster": limits.TOPICS_MAX,
        "deleted names of topics and groups": limits.DELETED_NAMES_MAX,
        "partitions of all topics": limits.PARTITIONS_IN_ALL_MAX,
        "groups of a topic": limits.GROUPS_PER_TOPIC_MAX,
        "groups of all topics": limits.GROUPS_MAX,
        "groups of all topics times their partitions": limits.GROUP_PARTITIONS_MAX,
        "sessions that have messages in a partition": limits.SESSIONS_PER_PARTITION_MAX,
        "sessions in a topic's partitions on one node (once for each partition)": limits.PRODUCER_IDS_PER_TOPIC_MAX,
        "names that a partition keeps": limits.NAMES_PER_PARTITION_MAX,
        "names that a topic keeps in each of its partitions": limits.NAMES_PER_TOPIC_MAX,
    }
    assert rows("Limits") == [f"| {name} | {value:,} |".replace(",", " ") for name, value in expected.items()]


# ------------------------------------------------------------------------------------ test vectors


def vectors() -> dict[str, dict[str, str]]:
    """The fenced blocks ``vector NAME``: lines ``key: value``, long values go on in indented lines."""
    entries_of: dict[str, dict[str, str]] = {}
    for name, block in re.findall(r"^```vector (\S+)\n(.*?)^```$", TEXT, re.S | re.M):
        entries: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line.startswith(" "):
                entries[key] += "\n" + line
            else:
                key, _, entries[key] = line.partition(":")
        assert name not in entries_of, f"two vectors {name}"
        entries_of[name] = {key: value.strip() for key, value in entries.items()}
    return entries_of


VECTORS = vectors()
SCOPE: dict[str, Any] = {
    **{name: getattr(m, name) for name in dir(m) if not name.startswith("_")},
    **{name: getattr(core_types, name) for name in dir(core_types) if not name.startswith("_")},
    "Message": Message,
    "build_batch": build_batch,
    "SignedNamed": SignedNamed,
    "unhex": lambda text: bytes.fromhex(text),
}


def unhex(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


def value_of(name: str) -> Any:
    """The value of a vector; it may name the vectors before it, as BATCH, RECEIPT, SIGNED."""
    scope = dict(SCOPE)
    if name not in ("BATCH", "RECEIPT"):
        scope["BATCH"] = value_of("BATCH")
        scope["RECEIPT"] = value_of("RECEIPT")
        scope["SIGNED"] = unhex(VECTORS["RECEIPT"]["signed"])
    return eval(VECTORS[name]["value"].replace("\n", " "), scope)


def hex_lines(data: bytes) -> str:
    """Break hex into lines as the document does."""
    text = data.hex()
    return "".join(f"\n  {text[at : at + 96]}" for at in range(0, len(text), 96))


def read_batch(part: m.Slice) -> bytes:
    batch: Batch = value_of("BATCH")
    return bytes(batch.body)[batch.header.end_of(part.first - 1) : batch.header.end_of(part.stop - 1)]


def test_the_document_has_vectors() -> None:
    assert {"BATCH", "RECEIPT", "HELLO", "PUBLISH", "FETCHED", "ACK", "FAILED", "HOLD"} <= set(VECTORS)


def test_the_batch_vector() -> None:
    given, batch = VECTORS["BATCH"], value_of("BATCH")
    assert batch.raw == unhex(given["header"]), hex_lines(batch.raw)
    assert batch.body == unhex(given["body"]), hex_lines(batch.body)
    header = decode_header(unhex(given["header"]))
    check_body(header, unhex(given["body"]))
    assert [message.payload for message in records_of(header, 0, header.size, unhex(given["body"]))] == [
        b"first", b"second", b"third",
    ]  # fmt: skip


def test_the_receipt_vector() -> None:
    given, receipt = VECTORS["RECEIPT"], value_of("RECEIPT")
    assert isinstance(receipt, Receipt)
    secret, signed = unhex(given["secret"]), unhex(given["signed"])
    made = signature(receipt, secret=secret, key=int(given["key"]))
    assert made == signed, hex_lines(made)
    assert open_receipt(signed, keys={int(given["key"]): secret}) == receipt == read_receipt(signed)


@pytest.mark.parametrize("name", [name for name in VECTORS if "frame" in VECTORS[name]])
def test_the_frame_vectors(name: str) -> None:
    given, message = VECTORS[name], value_of(name)
    request, stamp, data = int(given["request"]), int(given["stamp"]), unhex(given["frame"])
    made = b"".join(encode_message(message, request=request, stamp=stamp, read=read_batch))
    assert made == data, hex_lines(made)
    reader = frames.FrameReader()
    reader.feed(data)
    (frame,) = list(reader)
    reader.close()
    decoded = decode_message(frame)
    if name == "FETCHED":
        (part,) = typing.cast("Any", decoded.message).slices
        batch: Batch = value_of("BATCH")
        assert [message.payload for message in part.messages()] == [b"second", b"third"]
        (delivery,) = part.deliveries
        assert (delivery.receipt, delivery.attempt) == (value_of("RECEIPT"), 2)
        assert part.header.spans == (Span(batch.header.spans[0].producer_id, 101, 103),)
    else:
        assert decoded == Decoded(as_received(message), request, stamp)
