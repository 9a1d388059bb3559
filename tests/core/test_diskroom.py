"""Requests and records at a full disk: every kind of record has its limit, and no request evades it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from quorumq.core import messages as m
from quorumq.core.messages import records as r
from quorumq.core.messages.diskroom import WRITTEN, Shortage, bare, is_written, why_full
from quorumq.core.messages.effects import DiskFull, MemoryFull
from quorumq.core.values.types import STAMP_ZERO, Death, Kind, Record, Span
from quorumq.storage.records import encode_record
from tests.core.cluster import Cluster
from tests.core.network import noted
from tests.core.steps import fetch, outcomes, published, receipts, with_messages

BIG = "é" * 8000
DEATH = Death(
    STAMP_ZERO, "rejected", "ValueError", BIG, BIG, "f" * 32, consumer=BIG, consumer_version=BIG, host=BIG
)
ROOMS = list(Shortage)


def test_every_kind_of_record_takes_a_side() -> None:
    kinds = set(get_args(r.JournalRecord))
    assert WRITTEN.keys() == kinds | {*Kind, "delay"}, "how long is a new kind written when the disk is full?"


def size_of(records: list[Any]) -> int:
    return sum(sum(map(len, encode_record(record, 0))) for record in records)


class World:
    """Three nodes with something of everything; then their disks are filled."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.topic, self.producer_id = published(self.cluster, 8)
        self.cluster.topic("old")
        held = receipts(self.ask(fetch(most=6)))[0].receipt
        self.parts = [
            m.ReceiptPart(held, (held.span._replace(start=at, stop=at + 1),)) for at in range(held.span.size)
        ]
        assert outcomes(self.ask(m.RejectRequest(self.parts[4:5], death=DEATH))) == ["ok"]
        self.dead = m.SpanRecord(
            Span(self.producer_id, 4, 5), Record(held.generation, 0, Kind.DEAD, DEATH._replace(redrives=0))
        )

    def ask(self, request: Any) -> Any:
        return self.cluster.ask("a", request)

    def fill(self, shortage: Shortage) -> None:
        self.before = {name: len(records) for name, records in self.cluster.journals.items()}
        for name in self.cluster.names:
            self.cluster.feed(name, DiskFull(shortage))

    def written(self) -> list[Any]:
        """Return the newly written records of the node that wrote most."""
        new = [self.cluster.journals[name][count:] for name, count in self.before.items()]
        return max(new, key=size_of)


def code(reply: Any) -> str:
    """Return the error's or the verdict's code, or "ok"."""
    if isinstance(reply, m.Failed):
        return reply.code
    return outcomes(reply)[0] if isinstance(reply, m.SettleReply) else "ok"


def settled(kind: type[Any], *more: Any, **fields: Any) -> Callable[[World], Any]:
    return lambda world: world.ask(kind(tuple(world.parts[:1]), *more, **fields))


ASKED: dict[str, tuple[Shortage, Callable[[World], Any]]] = {
    "publish": (
        Shortage.NONE,
        lambda it: it.ask(m.Publish(it.cluster.batch(it.topic, it.producer_id, 8, [b"x"]))),
    ),
    "a new topic": (Shortage.NONE, lambda it: it.ask(m.CreateTopic("new"))),
    "a new group": (Shortage.RESERVE, lambda it: it.ask(m.SetGroup("jobs", "new"))),
    "a group made by a fetch": (Shortage.RESERVE, lambda it: it.ask(fetch("fresh"))),
    "reject with a delay": (Shortage.NONE, settled(m.RejectRequest, 5.0)),
    "reject at once": (Shortage.NONE, settled(m.RejectRequest)),
    "a dead letter": (Shortage.RESERVE, settled(m.RejectRequest, 0.0, DEATH)),
    "redrive": (Shortage.RESERVE, lambda it: it.ask(m.RedriveRequest("jobs", 0, "g", (it.dead,)))),
    "alter": (Shortage.RESERVE, lambda it: it.ask(m.AlterTopic("jobs", ttl_s=7.0))),
    "rewind": (Shortage.RESERVE, lambda it: it.ask(m.SetGroup("jobs", "g", rewind=True))),
    "ack": (Shortage.LAST_RESERVE, settled(m.AckRequest)),
    "purge": (Shortage.LAST_RESERVE, lambda it: it.ask(m.PurgeRequest("jobs", 0, "g"))),
    "purge of dead letters": (Shortage.LAST_RESERVE, lambda it: it.ask(m.PurgeRequest("jobs", 0, "g!dead"))),
    "fetch": (Shortage.FULL, lambda it: it.ask(fetch(hold_time=0.2))),
    "extend": (Shortage.FULL, settled(m.ExtendRequest, 20.0, 0.0)),
    "give back": (Shortage.FULL, settled(m.ReleaseRequest)),
    "delete a group": (Shortage.FULL, lambda it: it.ask(m.DeleteGroup("jobs", "g"))),
    "delete a topic": (Shortage.FULL, lambda it: it.ask(m.DeleteTopic("jobs", it.topic.id))),
}
"""Each request that changes anything, and the last room in which it is done."""


@pytest.mark.parametrize("shortage", ROOMS)
@pytest.mark.parametrize("name", ASKED)
def test_each_request_has_its_limit_of_disk_space(name: str, shortage: Shortage) -> None:
    last, ask = ASKED[name]
    world = World()
    world.fill(shortage)
    reply = ask(world)
    assert (code(reply) == "storage-full") == (shortage > last), reply
    written = world.written()
    for record in written:
        assert is_written(type(record), shortage), record
    small = type(reply) is m.PublishReply or size_of(written) < 800
    assert small or not shortage, "what is written in a reserve costs what a tombstone costs"
    if code(reply) == "storage-full":
        assert not any(type(record) in (r.BatchStored, r.RecordsMerged, r.DelaysSet) for record in written)
        text = reply.detail if isinstance(reply, m.Failed) else reply.verdicts[0].detail
        assert "delete" in text
        assert "larger disk" in text
        world.fill(Shortage.NONE)
        assert code(ask(world)) not in ("storage-full", "outcome-unknown", "hold-lost"), "nothing was done"
    else:
        assert code(reply) in ("ok", "acked")


def test_an_extend_writes_nothing_so_that_it_is_never_refused() -> None:
    world = World()
    world.fill(Shortage.FULL)
    for _ in range(3):
        assert code(settled(m.ExtendRequest, 20.0, 0.0)(world)) == "ok"
    assert world.written() == []


@pytest.mark.parametrize("shortage", ROOMS)
def test_holds_run_out_at_every_shortage_and_attempts_count_where_written(shortage: Shortage) -> None:
    world = World()
    world.fill(shortage)
    world.cluster.advance(11)
    assert any(type(record) is r.AttemptsCounted for record in world.written()) == (
        shortage <= Shortage.LAST_RESERVE
    )
    assert world.ask(fetch()).slices[0].deliveries[0].attempt == 2, "in memory they are counted"


@pytest.mark.parametrize("shortage", ROOMS)
def test_an_exhausted_message_dies_while_an_ack_can_be_written(shortage: Shortage) -> None:
    cluster = with_messages(1, max_deliveries=1)
    cluster.ask("a", fetch(hold_time=1.0))
    for name in cluster.names:
        cluster.feed(name, DiskFull(shortage))
    cluster.advance(30)
    dead = cluster.ask("a", fetch("g!dead"))
    assert bool(dead.slices) == (shortage <= Shortage.LAST_RESERVE)
    for name in cluster.names:
        cluster.feed(name, DiskFull(Shortage.NONE))
    cluster.advance(30)
    assert dead.slices or cluster.ask("b", fetch("g!dead")).slices, "once there is room"


def deaths(cluster: Cluster, name: str) -> list[Death]:
    replica = next(it for it in cluster.nodes[name].replicas.values() if it.topic.name == "jobs")
    return [record.death for _, record in replica.views.groups["g"].records.items() if record.death]


@pytest.mark.parametrize("full", [DiskFull(Shortage.RESERVE), MemoryFull("too much")])
def test_no_way_leads_a_long_dead_letter_to_a_full_node(full: Any) -> None:
    """Not its own vote, nor a peer's record: read repair, anti-entropy."""
    world = World()
    cluster = world.cluster
    cluster.feed("b", full)
    assert outcomes(world.ask(m.RejectRequest(tuple(world.parts[:1]), death=DEATH))) == ["ok"]
    cluster.drop = lambda sender, to, message: to == "b" and isinstance(message, m.Reject)
    assert outcomes(world.ask(m.RejectRequest(tuple(world.parts[1:2]), death=DEATH))) == ["ok"]
    cluster.hear_all(10)
    sizes = [death.text_bytes for death in deaths(cluster, "b")]
    assert len(sizes) == 2, "two have the same death"
    assert sorted(sizes)[0] < 600 < 40_000 < sorted(sizes)[1], "it had the one before"
    assert all(death.error_class == "ValueError" and death.fingerprint for death in deaths(cluster, "b"))
    assert min(death.text_bytes for death in deaths(cluster, "a")) > 40_000, "the others keep all of it"
    for name in "abc":
        cluster.feed(name, DiskFull(Shortage.NONE), MemoryFull(""))
    cluster.advance(10)
    assert min(death.text_bytes for death in deaths(cluster, "a")) > 40_000, "a cut one does not spread"
    sent = noted(cluster, lambda *message: True)
    cluster.advance(10)
    assert not any(isinstance(message, m.SyncState) and message.groups for message in sent), "they are equal"


def test_a_dead_letter_is_cut_to_its_bones() -> None:
    record = Record(
        3, 1, Kind.DEAD, DEATH._replace(error_class="E" * 9000, fingerprint="é" * 9000, interruptions=3)
    )
    cut = bare(record)
    assert cut.death is not None
    assert cut[:3] == record[:3]
    assert (cut.death.ballot, cut.death.reason, cut.death.interruptions) == (DEATH.ballot, "rejected", 3)
    assert cut.death.text_bytes <= 128 * 3 + 20
    assert bare(cut) == cut
    assert bare(Record(3, 1, Kind.ACKED)) == Record(3, 1, Kind.ACKED)


def test_a_full_memory_refuses_what_a_client_adds_at_will_and_nothing_else() -> None:
    for name, (last, ask) in ASKED.items():
        world = World()
        for node in world.cluster.names:
            world.cluster.feed(node, MemoryFull(f"node {node} takes too much memory"))
        refused = code(ask(world)) == "storage-full"
        assert refused == (last == Shortage.NONE or ("group" in name and "delete" not in name)), name


def test_two_full_nodes_of_three_make_a_settled_message_unknown_and_say_who_is_full() -> None:
    world = World()
    for name in "bc":
        world.cluster.feed(name, DiskFull(Shortage.FULL))
    (verdict,) = settled(m.AckRequest)(world).verdicts
    assert verdict.outcome == "outcome-unknown", "the third one has written it"
    assert "b, c have no room" in verdict.detail
    for name in "bc":
        world.cluster.feed(name, DiskFull(Shortage.NONE))
    assert code(settled(m.AckRequest)(world)) == "acked"


def test_each_capacity_says_what_to_do() -> None:
    assert why_full(Shortage.NONE, "n1") == ""
    for shortage in ROOMS[1:]:
        text = why_full(shortage, "n1")
        assert "n1" in text
        assert "larger disk" in text
