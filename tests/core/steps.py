"""Requests that most tests of the core make, and readers of their replies."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.values.types import Death, Group, PartitionId, ProducerId, Span, Stamp, Topic
from tests.core.cluster import Cluster


def fetch(
    group: str = "g",
    most: int = 100,
    hold_time: float = 10.0,
    wait: float = 0.0,
    least: int = 1,
    idle: bool = True,
    had_lot: bool = False,
) -> m.Fetch:
    """Return a FETCH of the topic `jobs`."""
    return m.Fetch(("jobs",), group, most, 1 << 20, least, wait, hold_time, 0.0, idle=idle, had_lot=had_lot)


def opened(cluster: Cluster, *named: str, node: str = "a", **settings: object) -> tuple[Topic, ProducerId]:
    """Create a topic, `jobs` unless it is named, and open a session through ``node``."""
    return cluster.topic(*named, **settings), cluster.ask(node, m.OpenSession()).producer_id


def published(
    cluster: Cluster, count: int = 10, rf: int = 3, max_deliveries: int = 5
) -> tuple[Topic, ProducerId]:
    """Create the topic `jobs` and publish ``count`` messages in one batch."""
    topic, producer_id = opened(cluster, rf=rf, max_deliveries=max_deliveries)
    batch = cluster.batch(topic, producer_id, 0, [b"%d" % i for i in range(count)])
    cluster.ask("a", m.Publish(batch), of=m.PublishReply)
    return topic, producer_id


def with_session(
    count: int = 10, rf: int = 3, max_deliveries: int = 5, **settings: Any
) -> tuple[Cluster, Topic, ProducerId]:
    """Return a cluster with the topic `jobs`, and ``count`` messages of one session."""
    cluster = Cluster(**settings)
    return cluster, *published(cluster, count, rf, max_deliveries)


def with_messages(count: int = 10, **settings: Any) -> Cluster:
    """Return the cluster of `with_session`."""
    return with_session(count, **settings)[0]


def receipts(reply: object) -> tuple[m.ReceiptPart, ...]:
    """Return the receipts of a FETCH that succeeded, each for all of its messages."""
    assert isinstance(reply, m.FetchReply), reply
    return tuple(
        m.ReceiptPart(delivery.receipt, (delivery.receipt.span,))
        for part in reply.slices
        for delivery in part.deliveries
    )


def outcomes(reply: object) -> list[str]:
    """Return the outcome of each receipt that a request settled."""
    assert isinstance(reply, m.SettleReply), reply
    return [verdict.outcome for verdict in reply.verdicts]


def check_failed(reply: object, code: str | None, words: str = "") -> None:
    """Check the error of a request: its code, unless that is None, and words of its text."""
    assert isinstance(reply, m.Failed), reply
    assert code is None or reply.code == code, reply
    assert words in reply.detail, reply


DEATH = Death(Stamp(0, ""), "rejected", error_class="ValueError", message="no")


def spans(reply: object) -> list[tuple[int, int]]:
    """Return the first and the end number of each delivery."""
    return [(item.receipt.span.start, item.receipt.span.stop) for item in receipts(reply)]


def rewind(cluster: Cluster, node: str = "b", start: str = "earliest", from_ms: int = 0) -> int:
    """Rewind the group `g`. Returns its new generation."""
    reply = cluster.ask(node, m.SetGroup("jobs", "g", start, from_ms, rewind=True), of=m.GroupReply)
    return reply.group.generation


def more(cluster: Cluster, topic: Topic, producer_id: ProducerId, first: int, count: int = 1) -> None:
    """Publish ``count`` messages from number ``first`` on."""
    cluster.ask(
        "a",
        m.Publish(cluster.batch(topic, producer_id, first, [b"%d" % i for i in range(first, first + count)])),
    )


def peek(
    cluster: Cluster, which: str = "all", group: str = "g", node: str = "a"
) -> list[tuple[int, int, str]]:
    """Return the first number, end number and state of each run of messages."""
    reply = cluster.ask(node, m.PeekRequest("jobs", 0, group, which, (0, 0), 1000, complete=True))
    assert isinstance(reply, m.PeekReply), reply
    return [(item.span.start, item.span.stop, item.state) for item in reply.items]


def died(cluster: Cluster, most: int = 3) -> tuple[Topic, ProducerId]:
    """Publish 10 messages, and make dead letters of the first ``most``."""
    topic, producer_id = published(cluster)
    got = receipts(cluster.ask("b", fetch(most=most)))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, death=DEATH))) == ["ok"]
    return topic, producer_id


def dead_entries(cluster: Cluster, node: str = "a") -> tuple[m.SpanRecord, ...]:
    """Return the dead letters of the group `g` that ``node`` lists."""
    page = cluster.ask(node, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 100), of=m.PeekReply)
    return tuple(m.SpanRecord(item.span, item.record) for item in page.items)


def deleted(cluster: Cluster, node: str = "b", group: str = "g") -> Group:
    """Delete a group. Returns its register."""
    reply = cluster.ask(node, m.DeleteGroup("jobs", group), of=m.GroupReply)
    assert reply.group.deleted
    return reply.group


def created(cluster: Cluster, node: str = "c", start: str = "earliest") -> Group:
    """Create the group `g`. Returns its register."""
    reply = cluster.ask(node, m.SetGroup("jobs", "g", start), of=m.GroupReply)
    return reply.group


def asked(cluster: Cluster, node: str, wait: float = 1.0, **more: float) -> list[Span]:
    """Fetch through ``node`` for ``wait`` seconds. Returns no span if the node refuses."""
    key = cluster.submit(node, fetch(wait=wait, **more))  # type: ignore[arg-type]
    cluster.advance(wait + 0.1)
    reply = cluster.replies[key]
    return [item.receipt.span for item in receipts(reply)] if isinstance(reply, m.FetchReply) else []


def root_of(replica: Replica) -> bytes:
    """Return the sum of all digests of a replica."""
    assert replica.sync.renew()
    return replica.sync.trees().root()


def replica_of(cluster: Cluster, node: str) -> Replica:
    """Return the only replica of a node."""
    (replica,) = cluster.nodes[node].replicas.values()
    return replica


def store(cluster: Cluster, sender: str, to: str, message: m.Store) -> list[Effect]:
    """Deliver a STORE. Returns the effects of the receiver."""
    incarnation = cluster.nodes[sender].state.incarnation
    return cluster.nodes[to].vote_router.on_request(sender, incarnation, message, cluster.now)


def drained(cluster: Cluster, group: str = "g", node: str = "b") -> None:
    """Fetch and ack until a FETCH returns no message."""
    while got := receipts(cluster.ask(node, fetch(group))):
        assert set(outcomes(cluster.ask(node, m.AckRequest(got)))) == {"acked"}


def closed(cluster: Cluster) -> list[int]:
    """Return the number of messages in closed sessions, by node."""
    return [replica_of(cluster, node).batches.closed.numbers.messages for node in cluster.nodes]


def close(cluster: Cluster, topic: Topic, producer_id: ProducerId, node: str = "b") -> None:
    """Close a session in partition 0."""
    cluster.ask(node, m.CloseSession(producer_id, (PartitionId(topic.id, 0),)), of=m.NotedReply)


def seqs(reply: object) -> list[int]:
    """Return the numbers of the messages in a reply."""
    return [seq for item in receipts(reply) for seq in range(item.receipt.span.start, item.receipt.span.stop)]


def publish(cluster: Cluster, topic: Topic, producer_id: ProducerId, first: int, count: int) -> None:
    """Publish ``count`` messages of one byte from number ``first`` on."""
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, [b"x"] * count)))


def many(cluster: Cluster, topic: Topic, batches: int, each: int) -> ProducerId:
    """Publish ``batches`` batches of ``each`` messages in a new session."""
    producer_id = cluster.ask("a", m.OpenSession()).producer_id
    for at in range(batches):
        publish(cluster, topic, producer_id, at * each, each)
    return producer_id


def wait_for(cluster: Cluster, keys: list[int], seconds: float = 0.01) -> None:
    """Advance the time until all requests have a reply."""
    for _ in range(10_000):
        if all(key in cluster.replies for key in keys):
            return
        cluster.advance(seconds)
    raise AssertionError(f"{sum(key not in cluster.replies for key in keys)} have no answer")


def publish_first(
    cluster: Cluster, *, delay_ms: int = 0, ttl_ms: int = 0, age_ms: int = 0, ttl_s: float = 0.0
) -> None:
    """Publish message 0 of the first session of the topic `jobs`."""
    topic = cluster.topic(ttl_s=ttl_s, max_deliveries=50)
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    batch = cluster.batch(topic, producer_id, 0, [b"x"], delay_ms=delay_ms, ttl_ms=ttl_ms)
    assert isinstance(cluster.ask("a", m.Publish(batch, age_ms)), m.PublishReply)


def present(cluster: Cluster, node: str) -> int:
    """Return the number of messages that a node has."""
    return sum(replica.batches.present.messages for replica in cluster.nodes[node].replicas.values())
