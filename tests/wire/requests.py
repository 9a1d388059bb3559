"""One request of each kind, with the rights that permit it."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.types import Incarnation, Owner, PartitionId, ProducerId, Receipt, Span, Stamp
from quorumq.wire.batch import Message, encode_record, pack_spans
from quorumq.wire.rights import RIGHTS

ORDERS, MAIL = b"o" * 16, b"m" * 16


LOCATION = PartitionId(ORDERS, 0)


PRODUCER_ID = ProducerId("a", 1, 1, 1)


SPAN = Span(PRODUCER_ID, 0, 1)


def named(group: str) -> tuple[m.ReceiptPart, ...]:
    owner = Owner("a", Incarnation(1, 1), Stamp(1, "a"))
    return (m.ReceiptPart(Receipt(LOCATION, group, 0, 0, SPAN, owner), (SPAN,)),)


def fetch(group: str, *topics: str) -> m.Fetch:
    return m.Fetch(topics, group, 1, 1, 1, 0.0, 1.0, 0.0)


BATCH = pack_spans(LOCATION, (SPAN,), 0, [encode_record(Message(b"x"))])


REQUESTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "OpenSession": (m.OpenSession(), ("publish",)),
    "CloseSession": (m.CloseSession(PRODUCER_ID, (LOCATION,)), ("publish",)),
    "Publish": (m.Publish(BATCH), ("publish",)),
    "CreateTopic, implicit": (m.CreateTopic("orders", implicit=True), ("publish",)),
    "CreateTopic": (m.CreateTopic("orders"), ("admin",)),
    "AlterTopic": (m.AlterTopic("orders"), ("admin",)),
    "LabelsRequest, read": (m.LabelsRequest("orders"), RIGHTS),
    "LabelsRequest": (m.LabelsRequest("orders", (m.LabelChange("owner", "x"),)), ("admin",)),
    "ChangeMembers": (m.ChangeMembers("add", "d", "d:7401"), ()),
    "MovePartition": (m.MovePartition("orders", 0, "a", "b"), ("admin",)),
    "DeleteTopic": (m.DeleteTopic("orders", ORDERS), ("admin",)),
    "Metadata": (m.Metadata(), RIGHTS),
    "Fetch": (fetch("g", "orders"), ("consume",)),
    "Fetch, by id": (fetch("g", "orders")._replace(partitions=(0,), spans=(SPAN,)), ("consume",)),
    "Fetch, dead": (fetch("g", "orders.deadletters"), ("consume",)),
    "Fetch, group of dead": (fetch("g!dead", "orders"), ("consume",)),
    "AckRequest": (m.AckRequest(named("g")), ("consume",)),
    "AckRequest, dead": (m.AckRequest(named("g!dead")), ("consume",)),
    "RejectRequest": (m.RejectRequest(named("g")), ("consume",)),
    "ExtendRequest": (m.ExtendRequest(named("g"), 1.0, 0.0), ("consume",)),
    "ReleaseRequest": (m.ReleaseRequest(named("g")), ("consume",)),
    "SetGroup": (m.SetGroup("orders", "g"), ("consume",)),
    "SetGroup, rewind": (m.SetGroup("orders", "g", rewind=True), ("admin",)),
    "DeleteGroup": (m.DeleteGroup("orders", "g"), ("admin",)),
    "FindName": (m.FindName(LOCATION, 60, 0, 0), ("publish",)),
    "PauseGroup": (m.PauseGroup("orders", "g", True), ("admin",)),
    "LimitGroup": (m.LimitGroup("orders", "g", 5.0), ("admin",)),
    "PurgeRequest": (m.PurgeRequest("orders", 0, "g"), ("admin",)),
    "RedriveRequest": (m.RedriveRequest("orders", 0, "g", ()), ("admin",)),
    "PeekRequest": (m.PeekRequest("orders", 0, "g", "open", (0, 0), 1), ("consume", "admin")),
    "DescribeGroups": (m.DescribeGroups((("orders", "g"),)), ("consume", "admin")),
    "ShowRequest": (m.ShowRequest(LOCATION, SPAN), ("consume", "admin")),
}
