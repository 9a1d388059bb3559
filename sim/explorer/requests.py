"""Requests of clients and operators, and the topic, the group and the message that they name."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.types import (
    STAMP_ZERO,
    Death,
    Kind,
    Now,
    PartitionId,
    ProducerId,
    Receipt,
    Record,
    Span,
    topic_id,
)
from quorumq.wire.batch import Message, build_batch
from sim.explorer.labels import labels_request
from sim.explorer.scenario import CLAIM_S, HOLD_S, TICK_S, WALL_MS, ExplorerError, Scenario

TOPIC = "t"
GROUP = "g"
DEAD_GROUP = GROUP + DEAD_SUFFIX
PRODUCER_ID = ProducerId("p", 1, 1, 1)
SPAN = Span(PRODUCER_ID, 0, 1)
BESIDE = Span(ProducerId("o", 1, 1, 1), 0, 1)
"""A message that is not there; a listing that begins with it has the one that is."""
CREATED = "u"
"""The topic that a scenario with ``operators`` is about."""
WINDOW_S = 60
"""Seconds that a name is kept for."""


def fetch(
    group: str,
    now: Now,
    idle: bool = True,
    hold_time: float = HOLD_S,
    max_wait: float = 0.0,
    named: tuple[Span, ...] = (),
) -> m.Fetch:
    """Return a FETCH of one message, any or a named one."""
    return m.Fetch(
        topics=(TOPIC,),
        group=group,
        max_messages=1,
        max_bytes=1 << 20,
        min_messages=1,
        max_wait=max_wait,
        hold_time=hold_time,
        sent_at=now.mono,
        idle=idle,
        partitions=(0,) if named else (),
        spans=named,
    )


CHANGES = {"add": "add", "drain": "drain", "drop": "remove", "voter": "move-voter"}
"""The request for each change of the members: an operation is one of these, or "move", and the names of nodes."""


def is_change(kind: str) -> bool:
    """Return True if an operation changes the members, or moves the partition of the topic."""
    return kind.split()[0] in (*CHANGES, "move")


def change_request(kind: str, topic: str) -> m.ClientRequest:
    """Return the request of such an operation: "add d", "drain d", "drop d", "voter c d" or "move c d"."""
    change, node, *others = kind.split()
    to = others[0] if others else ""
    if change == "move":
        return m.MovePartition(topic, 0, node, to)
    return m.ChangeMembers(CHANGES[change], node, f"{node}:1" if change == "add" else "", to=to)


def named(scenario: Scenario) -> tuple[Span, ...]:
    """Return the spans that FETCHes name."""
    return (BESIDE if scenario.beside else SPAN,) if scenario.by_id else ()


def creation(scenario: Scenario, index: int) -> m.CreateTopic:
    """Return a creation: each other one wants one replica only."""
    nodes = len(scenario.nodes) - len(scenario.joining + scenario.later)
    return m.CreateTopic(CREATED, 1 if index % 2 else nodes)


def operation(scenario: Scenario, index: int, topic: bytes, now: Now) -> m.ClientRequest:
    """Return the request of an operator of the scenario; ``topic`` is the topic to delete."""
    kind = scenario.operators[index][0]
    if is_change(kind):
        return change_request(kind, TOPIC if scenario.has_work else CREATED)
    match kind:
        case "alter":
            return m.AlterTopic(CREATED, partitions=2)
        case "delete":
            return m.DeleteTopic(CREATED, topic)
        case "forbid":
            return m.AlterTopic(CREATED, auto_create_groups=False)
        case "set" | "set latest":
            return m.SetGroup(CREATED, GROUP, "latest" if kind == "set latest" else "earliest")
        case "read" | "read latest":
            # It names a message that is not there: so it makes the group, and holds nothing.
            start = "latest" if kind == "read latest" else "earliest"
            return fetch(GROUP, now, named=(BESIDE,))._replace(topics=(CREATED,), start=start)
        case "again":
            return m.SetGroup(CREATED, GROUP, rewind=True)
        case "remove":
            return m.DeleteGroup(CREATED, GROUP)
        case "name":
            return m.FindName(PartitionId(topic, 0), WINDOW_S, 0, 0)
        case "label" | "labels":
            return labels_request(CREATED, index if kind == "label" else None)
        case "late create":  # as it was made at the beginning
            return creation(scenario, index)._replace(deletions=0)
    return creation(scenario, index)


def publish_named(topic: bytes, producer_id: ProducerId) -> m.Publish:
    """Return the PUBLISH of the message of the name, under this id."""
    return m.Publish(build_batch(PartitionId(topic, 0), producer_id, 0, WALL_MS, [Message(b"work")]))


def request(kind: str, receipt: Receipt | None, life: tuple[int, int], now: Now) -> m.ClientRequest:
    """Return the request with which a client settles a delivery, redrives what was listed dead at (generation, n) =
    ``life``, purges dead letters, the backlog ("clear") or what is not there ("beside"), rewinds, deletes the group
    and makes it again, or pauses and resumes it."""
    match kind:
        case "redrive":
            return m.RedriveRequest(TOPIC, 0, GROUP, (m.SpanRecord(SPAN, Record(*life, Kind.DEAD)),))
        case "purge":
            return m.PurgeRequest(TOPIC, 0, DEAD_GROUP)
        case "clear":
            return m.PurgeRequest(TOPIC, 0, GROUP)
        case "beside":
            return m.PurgeRequest(TOPIC, 0, GROUP, (BESIDE,))
        case "rewind":
            return m.SetGroup(TOPIC, GROUP, "earliest", 0, rewind=True)
        case "unmake":
            return m.DeleteGroup(TOPIC, GROUP)
        case "make":
            return m.SetGroup(TOPIC, GROUP)
        case "late make":  # as it was made at the beginning
            return m.SetGroup(TOPIC, GROUP, id=topic_id(TOPIC, 3, 0))
        case "skip":
            return m.SetGroup(TOPIC, GROUP, "time", WALL_MS + 1, rewind=True)
        case "pause" | "resume":
            return m.PauseGroup(TOPIC, GROUP, kind == "pause")
        case "late resume":  # as it was made at the beginning
            return m.PauseGroup(TOPIC, GROUP, False, seen=STAMP_ZERO)
    assert receipt is not None
    items = (m.ReceiptPart(receipt, (receipt.span,)),)
    match kind:
        case "ack":
            return m.AckRequest(items)
        case "now":
            return m.RejectRequest(items, 0.0)
        case "delay":
            return m.RejectRequest(items, TICK_S)
        case "interrupted":
            return m.RejectRequest(items, interrupted=True)
        case "dead":
            death = Death(receipt.owner.ballot, "rejected", fingerprint="f")
            return m.RejectRequest(items, 0.0, death)
        case "extend" | "claim":
            return m.ExtendRequest(items, CLAIM_S if kind == "claim" else HOLD_S, now.mono)
        case "leave":
            return m.ReleaseRequest(items)
    raise ExplorerError(f"a client cannot ask for {kind!r}")
