"""A definite no has no effect (docs/protocol.md, section 6).

The table below crosses every kind of client request with every place where links break: all links of the coordinator,
or one of them, after each message of the request's exchange, noticed or not, with messages under way lost or not. Then
time-outs pass, the links are restored and anti-entropy runs. If the answer said that nothing was done, every node knows
the same as without the request, and the same is delivered.

A hold that stays is no effect in this sense: it runs out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import DiskFull, Effect, LinkDown, Received
from quorumq.core.requests import purge
from quorumq.core.requests.context import Context
from quorumq.core.requests.publish import PublishCoordinator
from quorumq.core.requests.purge import PurgeCoordinator
from quorumq.core.requests.replica_list import ReplicaListCoordinator
from quorumq.core.requests.settle import AckCoordinator, RejectCoordinator, SettleCoordinator, VoteCount
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.spanlists import overlap, subtract
from quorumq.core.values.types import Kind, NodeId, PartitionId, ProducerId, Span, Topic
from sim.knowledge import known_of
from tests.core.cluster import Cluster
from tests.core.steps import (
    DEATH,
    dead_entries,
    deleted,
    died,
    fetch,
    opened,
    outcomes,
    published,
    receipts,
    rewind,
)

ME = "a"
"""The coordinator whose links break."""

HEALED_S = 45.0
"""Seconds that a cluster lives after the request: open work is over then, and anti-entropy has run."""

NOT_A_NO = ("ok", "acked", "acked_after_expiry", "acked_unproven", Code.OUTCOME_UNKNOWN)

Scene = Callable[[Cluster], Any]
"""Brings a new cluster into the state that a request meets; returns the request."""


def scene(prepare: Callable[..., Any]) -> Callable[..., Scene]:
    """Return a function that makes scenes: it takes the arguments of ``prepare`` without the cluster."""
    return lambda *args: lambda cluster: prepare(cluster, *args)


# -------------------------------------------------------------------------------------- scenes


def missed(cluster: Cluster, node: NodeId, *kinds: type) -> None:
    """Make ``node`` miss messages of these kinds until `heal`, or another call."""
    cluster.drop = lambda sender, to, message: to == node and isinstance(message, kinds)


def stored(cluster: Cluster, topic: Topic, count: int, node: NodeId = "b") -> ProducerId:
    """Messages of another session."""
    producer_id = cluster.ask(node, m.OpenSession()).producer_id
    cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, 0, [b"m"] * count)), of=m.PublishReply)
    return producer_id


def delivered(cluster: Cluster, count: int = 3, hold_time: float = 20.0) -> tuple[m.ReceiptPart, ...]:
    published(cluster, count)
    return receipts(cluster.ask("b", fetch(hold_time=hold_time)))


def runs(cluster: Cluster) -> Topic:
    """A backlog of several runs of messages."""
    topic, _ = published(cluster, 2)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    for _ in range(2):
        stored(cluster, topic, 2)
    return topic


def closing(cluster: Cluster, *deaf: NodeId) -> tuple[Topic, ProducerId]:
    """A session that all replicas but the ``deaf`` have promised to close."""
    topic, producer_id = published(cluster, 1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.CloseRequest) and to in deaf
    through = next(node for node in cluster.names if node not in deaf)
    cluster.ask(through, m.CloseSession(producer_id, (PartitionId(topic.id, 0),)))
    cluster.hear_all()
    return topic, producer_id


def publish(cluster: Cluster) -> m.Publish:
    topic, producer_id = published(cluster, 1)
    return m.Publish(cluster.batch(topic, producer_id, 1, [b"new"]))


@scene
def publish_while_closing(cluster: Cluster, *deaf: NodeId) -> m.Publish:
    topic, producer_id = closing(cluster, *deaf)
    return m.Publish(cluster.batch(topic, producer_id, 1, [b"late"]))


def publish_of_a_closed_session(cluster: Cluster) -> m.Publish:
    topic, producer_id = closing(cluster)
    cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch()))))
    cluster.advance(30)
    assert cluster.nodes["a"].replicas[PartitionId(topic.id, 0)].batches.closed
    return m.Publish(cluster.batch(topic, producer_id, 1, [b"late"]))


@scene
def publish_of_other_bytes(cluster: Cluster, *where: NodeId) -> m.Publish:
    """Only these nodes know the message stored under the id."""
    topic, producer_id = opened(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to not in where
    cluster.submit(where[0], m.Publish(cluster.batch(topic, producer_id, 0, [b"one"])))
    cluster.hear_all()
    return m.Publish(cluster.batch(topic, producer_id, 0, [b"other"]))


@scene
def publish_on_full_disks(cluster: Cluster, *full: NodeId) -> m.Publish:
    request = publish(cluster)
    for node in full:
        cluster.feed(node, DiskFull(True))
    return request


def ack(cluster: Cluster) -> m.AckRequest:
    return m.AckRequest(delivered(cluster))


def ack_of_some(cluster: Cluster) -> m.AckRequest:
    """In several rounds: one step has no capacity for all."""
    topic = runs(cluster)
    stored(cluster, topic, 3)
    return m.AckRequest(receipts(cluster.ask("b", fetch())))


@scene
def after_its_hold(cluster: Cluster, make: Callable[[tuple[m.ReceiptPart, ...]], Any]) -> Any:
    got = delivered(cluster, hold_time=1.0)
    cluster.advance(2.0)
    return make(got)


@scene
def held_by_one(cluster: Cluster, make: Callable[[tuple[m.ReceiptPart, ...]], Any], node: NodeId) -> Any:
    """It was given back; ``node`` alone has not heard."""
    got = delivered(cluster)
    missed(cluster, node, m.Release)
    cluster.ask("b" if node != "b" else "c", m.ReleaseRequest(got))
    cluster.hear_all()
    return make(got)


@scene
def held_by_two(cluster: Cluster, make: Callable[[tuple[m.ReceiptPart, ...]], Any], node: NodeId) -> Any:
    """``node`` alone never heard of the hold."""
    published(cluster, 1)
    missed(cluster, node, m.Hold)
    got = receipts(cluster.ask("a" if node != "a" else "b", fetch(hold_time=20.0)))
    cluster.hear_all()
    assert got
    return make(got)


@scene
def after(
    cluster: Cluster,
    change: Callable[..., Any],
    make: Callable[[tuple[m.ReceiptPart, ...]], Any],
    *deaf: NodeId,
) -> Any:
    """Make the request for messages delivered before ``change``, a rewind or a deletion that ``deaf`` missed."""
    got = delivered(cluster)
    cluster.drop = lambda sender, to, message: to in deaf and isinstance(message, m.PutGroup)
    change(cluster, node="b")
    cluster.hear_all()
    return make(got)


def reject(got: tuple[m.ReceiptPart, ...]) -> m.RejectRequest:
    return m.RejectRequest(got, 3.0)


def bury(got: tuple[m.ReceiptPart, ...]) -> m.RejectRequest:
    return m.RejectRequest(got, death=DEATH)


def extend(got: tuple[m.ReceiptPart, ...]) -> m.ExtendRequest:
    return m.ExtendRequest(got, 15.0, 0.0)


@scene
def what_two_have_acked(cluster: Cluster, make: Callable[[tuple[m.ReceiptPart, ...]], Any]) -> Any:
    """By a delivery before, which c has not heard of."""
    before = delivered(cluster, 1, hold_time=1.0)
    cluster.advance(1.5)
    got = receipts(cluster.ask("b", fetch(hold_time=20.0)))
    assert got
    settle_without(cluster, "c", m.AckRequest(before))
    return make(got)


@scene
def what_two_have_purged(cluster: Cluster, make: Callable[[tuple[m.ReceiptPart, ...]], Any]) -> Any:
    got = delivered(cluster)
    settle_without(cluster, "c", m.PurgeRequest("jobs", 0, "g"))
    return make(got)


def settle_without(cluster: Cluster, node: NodeId, request: Any) -> None:
    """``node`` hears nothing of it."""
    cluster.drop = lambda sender, to, message: node in (sender, to) and sender != to
    cluster.ask("b" if node != "b" else "c", request)
    cluster.hear_all()


def ack_of_a_dead_letter(cluster: Cluster) -> m.AckRequest:
    died(cluster)
    return m.AckRequest(receipts(cluster.ask("b", fetch("g!dead"))))


def ack_of_a_redriven_one(cluster: Cluster) -> m.AckRequest:
    request = ack_of_a_dead_letter(cluster)
    settle_without(cluster, "c", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))
    return request


def purge_of_runs(cluster: Cluster) -> m.PurgeRequest:
    runs(cluster)
    return m.PurgeRequest("jobs", 0, "g")


def purge_of_named(cluster: Cluster) -> m.PurgeRequest:
    topic = runs(cluster)
    producer_ids = list(cluster.nodes["b"].replicas[PartitionId(topic.id, 0)].batches.present.runs)
    return m.PurgeRequest(
        "jobs", 0, "g", tuple(Span(producer_id, 0, 1) for producer_id in sorted(producer_ids))
    )


def purge_of_dead_letters(cluster: Cluster) -> m.PurgeRequest:
    died_in_runs(cluster)
    return m.PurgeRequest("jobs", 0, "g!dead")


def purge_beside_a_settled_one(cluster: Cluster) -> m.PurgeRequest:
    """One replica alone knows that it is acked: that is written, too."""
    got = delivered(cluster)
    settle_without(cluster, "c", m.AckRequest(got[:1]))
    return m.PurgeRequest("jobs", 0, "g")


def died_in_runs(cluster: Cluster) -> None:
    runs(cluster)
    assert outcomes(cluster.ask("b", m.RejectRequest(receipts(cluster.ask("b", fetch())), death=DEATH)))


def redrive(cluster: Cluster) -> m.RedriveRequest:
    died_in_runs(cluster)
    return m.RedriveRequest("jobs", 0, "g", dead_entries(cluster))


@scene
def redrive_of_what_is_dead_at(cluster: Cluster, *where: NodeId) -> m.RedriveRequest:
    """Its REJECT has reached these nodes alone."""
    got = delivered(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Reject) and to not in where
    cluster.submit(where[0], m.RejectRequest(got, death=DEATH))
    cluster.hear_all()
    page = cluster.ask(where[0], m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 100))
    return m.RedriveRequest("jobs", 0, "g", tuple((item.span, item.record) for item in page.items))


@scene
def redrive_after_a_rewind(cluster: Cluster, *deaf: NodeId) -> m.RedriveRequest:
    request = redrive(cluster)
    cluster.advance(1.0)
    cluster.drop = lambda sender, to, message: to in deaf and isinstance(message, m.PutGroup)
    rewind(cluster, node="b", start="time", from_ms=cluster.now.wall_ms + 1)
    cluster.hear_all()
    return request


def redrive_of_what_two_have_purged(cluster: Cluster) -> m.RedriveRequest:
    """A purged dead letter may be redriven."""
    request = redrive(cluster)
    settle_without(cluster, "c", m.PurgeRequest("jobs", 0, "g!dead"))
    return request


def redrive_of_what_two_have_redriven(cluster: Cluster) -> m.RedriveRequest:
    request = redrive(cluster)
    settle_without(cluster, "c", request)
    return request


def redrive_of_what_two_have_acked(cluster: Cluster) -> m.RedriveRequest:
    got = delivered(cluster, hold_time=1.0)
    cluster.advance(1.5)
    later = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("b", m.RejectRequest(later, death=DEATH))) == ["ok"]
    entries = dead_entries(cluster)
    settle_without(cluster, "c", m.AckRequest(got))
    return m.RedriveRequest("jobs", 0, "g", entries)


@scene
def on(cluster: Cluster, make: Callable[[Cluster, Topic], Any]) -> Any:
    """A request that meets some messages of a topic, and a group that has read."""
    topic, _ = published(cluster, 3)
    cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch(most=1)))))
    return make(cluster, topic)


def create_of_a_deleted_name(cluster: Cluster) -> m.CreateTopic:
    topic, _ = published(cluster, 1)
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and sender != to
    cluster.ask("b", m.DeleteTopic("jobs", topic.id))
    cluster.hear_all()
    return m.CreateTopic("jobs", 1, 2)


@scene
def fetch_where_another_makes_no_group(cluster: Cluster, start: str, rf: int, partitions: int) -> Any:
    """A FETCH of a new group, while node c alone knows that the topic makes none by itself."""
    cluster.topic(rf=rf, partitions=partitions)
    cluster.drop = lambda sender, to, message: to != "c" and isinstance(message, m.PutTopic)
    cluster.submit("c", m.AlterTopic("jobs", auto_create_groups=False))
    return fetch("new")._replace(start=start)


# --------------------------------------------------------------------------------------- table

ROWS: dict[str, Scene] = {
    "PUBLISH": publish,
    "PUBLISH while all close the session": publish_while_closing(),
    "PUBLISH while all but this node close it": publish_while_closing("a"),
    "PUBLISH while all but another node close it": publish_while_closing("c"),
    "PUBLISH while one node closes it": publish_while_closing("a", "b"),
    "PUBLISH of a closed session": publish_of_a_closed_session,
    "PUBLISH of other bytes than all have": publish_of_other_bytes("a", "b", "c"),
    "PUBLISH of other bytes than this node has": publish_of_other_bytes("a"),
    "PUBLISH of other bytes than another node has": publish_of_other_bytes("c"),
    "PUBLISH of other bytes than two others have": publish_of_other_bytes("b", "c"),
    "PUBLISH on full disks": publish_on_full_disks("a", "b", "c"),
    "PUBLISH on two full disks": publish_on_full_disks("a", "b"),
    "PUBLISH on one full disk": publish_on_full_disks("c"),
    "ACK": ack,
    "ACK of several runs": ack_of_some,
    "ACK after its hold": after_its_hold(m.AckRequest),
    "ACK after a rewind": after(rewind, m.AckRequest),
    "ACK after a rewind that this node missed": after(rewind, m.AckRequest, "a"),
    "ACK after a rewind that another node missed": after(rewind, m.AckRequest, "c"),
    "ACK after a deletion of the group": after(deleted, m.AckRequest),
    "ACK after a deletion of the group that another node missed": after(deleted, m.AckRequest, "c"),
    "ACK of a dead letter": ack_of_a_dead_letter,
    "ACK of a dead letter that two have redriven": ack_of_a_redriven_one,
    "REJECT": lambda cluster: reject(delivered(cluster)),
    "REJECT after its hold": after_its_hold(reject),
    "REJECT of what this node alone holds": held_by_one(reject, "a"),
    "REJECT of what another node alone holds": held_by_one(reject, "c"),
    "REJECT of what two hold": held_by_two(reject, "c"),
    "REJECT of what two have purged": what_two_have_purged(reject),
    "REJECT of what two have acked": what_two_have_acked(reject),
    "REJECT after a rewind that another node missed": after(rewind, reject, "c"),
    "dead letter": lambda cluster: bury(delivered(cluster)),
    "dead letter after its hold": after_its_hold(bury),
    "dead letter of what this node alone holds": held_by_one(bury, "a"),
    "dead letter of what another node alone holds": held_by_one(bury, "c"),
    "dead letter of what this node does not hold": held_by_two(bury, "a"),
    "dead letter of what two have purged": what_two_have_purged(bury),
    "dead letter of what two have acked": what_two_have_acked(bury),
    "dead letter after a rewind that this node missed": after(rewind, bury, "a"),
    "dead letter after a deletion of the group that another node missed": after(deleted, bury, "c"),
    "EXTEND": lambda cluster: extend(delivered(cluster)),
    "EXTEND after its hold": after_its_hold(extend),
    "EXTEND of what another node alone holds": held_by_one(extend, "c"),
    "LEAVE": lambda cluster: m.ReleaseRequest(delivered(cluster)),
    "OPEN": on(lambda cluster, topic: m.OpenSession()),
    "CLOSE": on(lambda cluster, topic: m.CloseSession(stored(cluster, topic, 1), (PartitionId(topic.id, 0),))),
    "FETCH": on(lambda cluster, topic: fetch()),
    "FETCH that waits": on(lambda cluster, topic: fetch(wait=1.0, least=5)),
    "FETCH of dead letters": lambda cluster: died(cluster) and fetch("g!dead"),
    "PURGE": purge_of_runs,
    "PURGE of named messages": purge_of_named,
    "PURGE of dead letters": purge_of_dead_letters,
    "PURGE where one node misses an ack": purge_beside_a_settled_one,
    "REDRIVE": redrive,
    "REDRIVE of what this node alone knows as dead": redrive_of_what_is_dead_at("a"),
    "REDRIVE of what another node alone knows as dead": redrive_of_what_is_dead_at("c"),
    "REDRIVE of what two others know as dead": redrive_of_what_is_dead_at("b", "c"),
    "REDRIVE after a rewind": redrive_after_a_rewind(),
    "REDRIVE after a rewind that this node missed": redrive_after_a_rewind("a"),
    "REDRIVE after a rewind that another node missed": redrive_after_a_rewind("c"),
    "REDRIVE of what two have purged": redrive_of_what_two_have_purged,
    "REDRIVE of what two have redriven": redrive_of_what_two_have_redriven,
    "REDRIVE of what two have acked": redrive_of_what_two_have_acked,
    "CREATE": lambda cluster: m.CreateTopic("jobs", 3, 2),
    "CREATE by publishing": lambda cluster: m.CreateTopic("jobs", 3, 1, implicit=True),
    "CREATE of what is there": on(lambda cluster, topic: m.CreateTopic("jobs", 3, 1)),
    "CREATE of what is there and differs": on(lambda cluster, topic: m.CreateTopic("jobs", 1, 1)),
    "CREATE of a deleted name": create_of_a_deleted_name,
    "ALTER": on(lambda cluster, topic: m.AlterTopic("jobs", max_deliveries=7)),
    "ALTER to more partitions": on(lambda cluster, topic: m.AlterTopic("jobs", partitions=3)),
    "ALTER to fewer partitions": on(lambda cluster, topic: m.AlterTopic("jobs", partitions=0)),
    "ALTER of nothing": on(lambda cluster, topic: m.AlterTopic("other", max_deliveries=7)),
    "DELETE": on(lambda cluster, topic: m.DeleteTopic("jobs", topic.id)),
    "DELETE of nothing": on(lambda cluster, topic: m.DeleteTopic("other", bytes(16))),
    "MOVE to a node that has the partition": on(
        lambda cluster, topic: m.MovePartition("jobs", 0, "a", "b")
    ),
    "MEMBERS": lambda cluster: m.ChangeMembers("add", "a", "a:7401"),
    "SURVIVORS": on(lambda cluster, topic: m.DeclareSurvivors(("a", "b", "c"))),
    "METADATA": on(lambda cluster, topic: m.Metadata(("jobs", "other"))),
    "STATUS": on(lambda cluster, topic: m.StatusRequest()),
    "LABELS": on(lambda cluster, topic: m.LabelsRequest("jobs", (m.LabelChange("team", "a"),))),
    "LABELS that are read": on(lambda cluster, topic: m.LabelsRequest("jobs", ())),
    "PAUSE": on(lambda cluster, topic: m.PauseGroup("jobs", "g", True)),
    "PAUSE of nothing": on(lambda cluster, topic: m.PauseGroup("jobs", "other", True)),
    "LIMIT": on(lambda cluster, topic: m.LimitGroup("jobs", "g", 5.0)),
    "LIMIT of nothing": on(lambda cluster, topic: m.LimitGroup("jobs", "other", 5.0)),
    "id of a name": on(lambda cluster, topic: m.FindName(PartitionId(topic.id, 0), 60, 7, 1)),
    "EXTEND to a claim": lambda cluster: m.ExtendRequest(delivered(cluster), 100.0, 0.0),
    "PEEK": on(lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (0, 0), 100)),
    "PEEK complete": on(lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (0, 0), 100, complete=True)),
    "SHOW": on(lambda cluster, topic: m.ShowRequest(PartitionId(topic.id, 0), Span(ProducerId("", 0, 0, 0), 0, 1))),
    "DESCRIBE": on(lambda cluster, topic: m.DescribeGroups((("jobs", "g"),))),
    "DESCRIBE of several": on(lambda cluster, topic: m.DescribeGroups((("jobs", "g"), ("other", "h")))),
    "PEEK that counts": on(lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (0, 0), 1, counted=True)),
    "PEEK that follows": on(lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (-1, 0), 9, follow=True)),
    # Requests that may write a group's register:
    "FETCH of a new group": on(lambda cluster, topic: fetch("new")),
    "FETCH of a new group from latest": on(lambda cluster, topic: fetch("new")._replace(start="latest")),
    "FETCH of a new group that another node refuses": fetch_where_another_makes_no_group("latest", 3, 1),
    "FETCH through another node": fetch_where_another_makes_no_group("earliest", 1, 6),
    "FETCH through another node from latest": fetch_where_another_makes_no_group("latest", 1, 6),
    "SETGROUP": on(lambda cluster, topic: m.SetGroup("jobs", "new")),
    "SETGROUP from latest": on(lambda cluster, topic: m.SetGroup("jobs", "new", "latest")),
    "SETGROUP of what is there": on(lambda cluster, topic: m.SetGroup("jobs", "g")),
    "SETGROUP to rewind": on(lambda cluster, topic: m.SetGroup("jobs", "g", "earliest", rewind=True)),
    "SETGROUP to rewind nothing": on(lambda cluster, topic: m.SetGroup("jobs", "new", "latest", rewind=True)),
    "DELETEGROUP": on(lambda cluster, topic: m.DeleteGroup("jobs", "g")),
    "DELETEGROUP of nothing": on(lambda cluster, topic: m.DeleteGroup("jobs", "new")),
}  # fmt: skip
"""Requests with the state of the cluster before them, by name."""


# ---------------------------------------------------------------------------------- the breaks


class Break(NamedTuple):
    """A break of the coordinator's links: the number of messages before it, and its kind.

    ``noticed``: the nodes learn of the break, else they wait for answers. ``lost``: messages under way do not arrive.
    """

    peers: tuple[NodeId, ...]
    after: int
    noticed: bool
    lost: bool


class Breaking:
    """Counts messages on some links of the coordinator, and breaks them as ``where`` says: a `Cluster.drop`."""

    def __init__(self, cluster: Cluster, where: Break) -> None:
        self.cluster = cluster
        self.where = where
        self.count = 0
        self.broken = False
        if where.after == 0:
            self.cut()

    def __call__(self, sender: NodeId, to: NodeId, message: object) -> bool:
        if ME not in (sender, to) or not {sender, to} & {*self.where.peers}:
            return False
        if self.broken:
            return True
        self.count += 1
        if self.count == self.where.after:
            # The message itself is on its way: it is not in the queue yet.
            self.cut()
            return self.where.lost
        return False

    def cut(self) -> None:
        self.broken = True
        cluster, (peers, _, noticed, lost) = self.cluster, self.where
        if lost:
            kept = [item for item in cluster.queue if not self.is_on_its_way(*item)]
            cluster.queue.clear()
            cluster.queue.extend(kept)
        if noticed:
            for peer in peers:
                cluster.queue.append((ME, LinkDown(peer)))
                cluster.queue.append((peer, LinkDown(ME)))

    def is_on_its_way(self, to: NodeId, event: object) -> bool:
        """Return True if this is a message over one of the links."""
        if not isinstance(event, Received):
            return False
        ends = {to, event.envelope.sender}
        return ME in ends and bool(ends & {*self.where.peers})


def heal(cluster: Cluster) -> None:
    cluster.hear_all()
    for peer in cluster.names[1:]:
        cluster.link(ME, peer)
        cluster.link(peer, ME)


def scene_of(name: str) -> tuple[Cluster, Any]:
    cluster = Cluster(hold_time_max=20.0)
    request = ROWS[name](cluster)
    cluster.hear_all()
    cluster.checks = False  # checks of a table of thousands would be most of the time
    return cluster, request


def answer(cluster: Cluster, request: Any) -> m.ClientReply:
    """Return the reply to the request."""
    key = cluster.submit(ME, request)
    for _ in range(60):
        if key in cluster.replies:
            break
        cluster.advance(0.5)
    return cluster.replies[key]


def refused(reply: m.ClientReply) -> list[Span | None]:
    """Return the messages of a definite no; None stands for all of the request."""
    if isinstance(reply, m.Failed):
        return [] if reply.code in NOT_A_NO else [None]
    if isinstance(reply, m.SettleReply):
        return [verdict.span for verdict in reply.verdicts if verdict.outcome not in NOT_A_NO]
    return []


def settled_at(cluster: Cluster, time: float) -> dict[NodeId, dict[str, Any]]:
    """Return each node's state after healing and waiting, and the messages delivered then."""
    heal(cluster)
    for node in cluster.names:
        cluster.feed(node, DiskFull(False))
    cluster.advance(time - cluster.time)
    return {node: known(cluster, node) for node in cluster.names} | {"all": delivered_in_the_end(cluster)}


def known(cluster: Cluster, node: NodeId) -> dict[str, Any]:
    """Registers and proposals, messages, records and closed sessions of a node, and delays of unsettled messages."""
    fields = known_of(cluster.nodes[node], ())
    left_out = ("directory", "starts", "trusted", "peers")
    kept: dict[str, Any] = {}
    for key, value in fields.items():
        if key in left_out or key.startswith("position of") or key.endswith("attempts"):
            continue
        if key == "decisions":  # a promise alone decides nothing
            value = {instance: decision for instance, decision in value.items() if decision.value is not None}
        if key.endswith("delays"):
            records = fields.get(key.replace("delays", "records"), [])
            settled = [span for span, record in records if record.kind != Kind.OPEN]
            value = [(part, delay) for span, delay in value for part in subtract(span, settled)]
        if value:
            kept[key] = value
    for partition, replica in cluster.nodes[node].replicas.items():
        batches = replica.batches
        kept[f"{partition}, bytes"] = [
            (span.producer_id, seq, batches.stored[slot.number].header.crc_of(seq + slot.shift))
            for span, slot in batches.index.items()
            for seq in range(span.start, span.stop)
        ]
    return kept


def delivered_in_the_end(cluster: Cluster) -> dict[str, Any]:
    """Return the messages that a consumer of each group gets, one by one, each with its n."""
    by_group: dict[str, Any] = {}
    for group in ("g", "g!dead", "after"):
        got: list[tuple[Span, int]] = []
        while True:
            reply = cluster.ask("b", fetch(group, wait=0.1), 1.0)
            items = receipts(reply) if isinstance(reply, m.FetchReply) else ()
            if not items:
                break
            for receipt, ((producer_id, start, stop),) in items:
                got += [(Span(producer_id, seq, seq + 1), receipt.n) for seq in range(start, stop)]
        by_group[group] = sorted(got)
    return by_group


def cut_to(spans_: list[Span | None], state: dict[NodeId, dict[str, Any]]) -> Any:
    """Return the part of the states that is about these messages: others may have been settled."""
    if None in spans_:
        return state
    kept: dict[str, dict[str, Any]] = {}
    for node, fields in state.items():
        for key, value in fields.items():
            if key.endswith(("records", "delays")) or node == "all":
                parts = [item for item in value if any(overlap(item[0], span) for span in spans_ if span)]
                if parts:
                    kept.setdefault(node, {})[key] = parts
    return kept


def breaks_of(messages: dict[tuple[NodeId, ...], int]) -> Iterator[Break]:
    for peers, count in messages.items():
        for after in range(count + 1):
            for lost in (True, False):
                yield Break(peers, after, noticed=False, lost=lost)
                if len(peers) > 1:
                    yield Break(peers, after, noticed=True, lost=lost)


def broken_answers(
    scene: Cluster, request: Any, chosen: slice
) -> Iterator[tuple[Break, Cluster, m.ClientReply]]:
    """Some of the breaks of a row, with their outcomes."""
    messages: dict[tuple[NodeId, ...], int] = {}
    for peers in (("b", "c"), ("b",), ("c",)):
        cluster = copy.deepcopy(scene)
        whole = cluster.drop = Breaking(cluster, Break(peers, -1, noticed=False, lost=False))
        answer(cluster, request)
        messages[peers] = whole.count
    for where in [*breaks_of(messages)][chosen]:
        cluster = copy.deepcopy(scene)
        cluster.drop = Breaking(cluster, where)
        yield where, cluster, answer(cluster, request)


def effects_of(name: str, chosen: slice = slice(None)) -> Iterator[str]:
    """Yield one text for each break after which a definite no had an effect."""
    scene, request = scene_of(name)
    time = scene.time + HEALED_S
    before = state_of(scene)
    ends: dict[str, Any] = {}  # the end of each state: several breaks may lead to one
    for where, cluster, reply in broken_answers(scene, request, chosen):
        no = refused(reply)
        state = state_of(cluster)
        if not no or state == before:
            continue
        for reached, from_here in ((before, scene), (state, cluster)):
            if reached not in ends:
                ends[reached] = settled_at(copy.deepcopy(from_here), time)
        actual, expected = cut_to(no, ends[state]), cut_to(no, ends[before])
        for node in (*cluster.names, "all"):
            for key in {**actual.get(node, {}), **expected.get(node, {})}:
                is_now, was = actual.get(node, {}).get(key), expected.get(node, {}).get(key)
                if is_now != was:
                    yield f"{name}, {where}: {reply}, but {node} has of {key} {is_now}, and {was} without it"


def state_of(cluster: Cluster) -> str:
    """Equal if two clusters will behave the same, but for holds and for state that is durable nowhere."""
    return repr([known(cluster, node) for node in cluster.names])


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few messages are several pages, and several steps."""
    monkeypatch.setattr(purge, "REPLICA_LIST_LIMIT", 1)
    monkeypatch.setattr(limits, "RUNS_PER_STEP", 3)


@pytest.mark.parametrize(("number", "name"), [*enumerate(ROWS)])
@pytest.mark.usefixtures("small_steps")
def test_a_definite_no_has_no_effect(number: int, name: str) -> None:
    """Every ninth break, from another one on in each row; `make soak` has all."""
    effect = next(effects_of(name, slice(number % 9, None, 9)), None)
    assert effect is None, effect


@pytest.mark.soak
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("small_steps")
def test_a_definite_no_has_no_effect_wherever_links_break(name: str) -> None:
    effect = next(effects_of(name), None)
    assert effect is None, effect


def refuse_for_one(
    self: PublishCoordinator, context: Context, round_: Round, stored: int, valid: int, *, timed_out: bool
) -> list[Effect]:
    """A PUBLISH that fails as soon as one replica refuses it."""
    for code, detail in self.problems.values():
        return self.fail(context, code, detail)
    return decide(self, context, round_, stored, valid, timed_out=timed_out)


decide = PublishCoordinator.decide


def agree_with_one(self: SettleCoordinator, votes: VoteCount) -> str:
    """The verdict is the error that a replica gave."""
    return next(iter(votes.errors.values()), Code.OUTCOME_UNKNOWN)


def test_every_kind_of_request_is_in_the_table() -> None:
    asked = {type(scene_of(name)[1]) for name in ROWS}
    assert asked == {*get_args(m.ClientRequest)} - {m.Hello}, "HELLO is answered by the node that hears it"


@pytest.mark.parametrize(
    ("name", "where", "method", "mistake"),
    [
        ("PURGE", PurgeCoordinator, "give_up", ReplicaListCoordinator.give_up),
        ("REJECT of what another node alone holds", RejectCoordinator, "refusals", ()),
        ("dead letter of what this node alone holds", RejectCoordinator, "refusals", ()),
        ("PUBLISH on two full disks", PublishCoordinator, "decide", refuse_for_one),
        ("PUBLISH while all but another node close it", PublishCoordinator, "decide", refuse_for_one),
        ("ACK after a rewind that another node missed", AckCoordinator, "unknown", agree_with_one),
    ],
)
def test_the_table_finds_a_no_that_is_not_so(
    name: str, where: type, method: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "REPLICA_LIST_LIMIT", 1)
    monkeypatch.setattr(where, method, mistake)
    assert next(effects_of(name), None) is not None
