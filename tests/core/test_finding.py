"""Created topics exist everywhere: an uninformed node asks before it answers not found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Gone, LinkDown
from quorumq.core.requests.finding import FIND_TIMEOUT_S, FindCoordinator
from quorumq.core.values.types import Topic
from tests.core.cluster import Cluster
from tests.core.network import noted
from tests.core.steps import fetch, opened, outcomes, receipts

REGISTERS = (m.PutTopic, m.PutGroup, m.SyncTopics)


def outdated(cluster: Cluster, *nodes: str) -> None:
    """These nodes learn of a topic or group only by asking."""
    cluster.drop = lambda sender, to, message: to in nodes and to != sender and isinstance(message, REGISTERS)


def known(cluster: Cluster, node: str) -> list[str]:
    return sorted(cluster.nodes[node].catalogue.names)


def is_told(reply: m.ClientReply, *, code: str = "not-found") -> bool:
    return isinstance(reply, m.Failed) and reply.code == code


def made() -> tuple[Cluster, Topic]:
    """Topic "jobs" was created and has a message; node c has heard of nothing."""
    cluster = Cluster(auto_create_topics=False)
    outdated(cluster, "c")
    topic, producer_id = opened(cluster)
    cluster.drop = lambda sender, to, message: to == "c" and sender != to
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"0"])), of=m.PublishReply)
    outdated(cluster, "c")
    assert known(cluster, "c") == []
    return cluster, topic


Ask = Callable[[Cluster, Topic], object]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda cluster, topic: m.Metadata(("jobs",)), m.MetadataReply),
        (lambda cluster, topic: fetch(), m.FetchReply),
        (lambda cluster, topic: m.SetGroup("jobs", "other"), m.GroupReply),
        (lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10), m.PeekReply),
        (lambda cluster, topic: m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, complete=True), m.PeekReply),
        (lambda cluster, topic: m.AlterTopic("jobs", partitions=2), None),
        (lambda cluster, topic: m.DeleteTopic("jobs", topic.id), None),
        (lambda cluster, topic: m.CreateTopic("jobs", implicit=True), None),
        (
            lambda cluster, topic: m.Publish(
                cluster.batch(topic, cluster.ask("c", m.OpenSession()).producer_id, 0, [b"x"])  # type: ignore[union-attr]
            ),
            m.PublishReply,
        ),
    ],
)
def test_a_created_topic_is_found_at_an_uninformed_node(make: Ask, kind: type | None) -> None:
    cluster, topic = made()
    reply = cluster.ask("c", make(cluster, topic))
    assert not isinstance(reply, m.Failed), reply
    assert kind is None or isinstance(reply, kind)
    assert known(cluster, "c") == ["jobs"]


@pytest.mark.parametrize("kind", [m.AckRequest, m.RejectRequest, m.ExtendRequest, m.ReleaseRequest])
def test_receipts_are_settled_through_a_node_that_does_not_know_their_topic(kind: type) -> None:
    cluster, _ = made()
    cluster.drop = lambda sender, to, message: to == "c" and sender != to
    got = receipts(cluster.ask("a", fetch()))
    outdated(cluster, "c")
    more: tuple[object, ...] = {m.RejectRequest: (0.0, None), m.ExtendRequest: (10.0, 0.0)}.get(kind, ())
    reply = cluster.ask("c", kind(got, *more))
    if kind is m.ReleaseRequest:
        cluster.hear_all()
        assert len(receipts(cluster.ask("b", fetch()))) == 1, "the hold was given back"
    else:
        assert outcomes(reply) in (["acked"], ["ok"])


def test_a_topic_with_a_name_that_was_deleted_is_found() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    outdated(cluster, "c")
    again = cluster.topic()
    assert again.id != topic.id
    assert cluster.ask("c", m.Metadata(("jobs",)), of=m.MetadataReply).topics == (again,)


def test_partitions_that_were_added_are_found() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    outdated(cluster, "c")
    grown = cluster.ask("a", m.AlterTopic("jobs", partitions=3)).topic  # type: ignore[union-attr]
    producer_id = cluster.ask("c", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert cluster.nodes["c"].topics[topic.id].partitions == 1
    cluster.ask("c", m.Publish(cluster.batch(grown, producer_id, 0, [b"x"], partition=2)), of=m.PublishReply)
    outdated(cluster, "b")
    cluster.ask("a", m.AlterTopic("jobs", partitions=4))
    assert isinstance(cluster.ask("b", fetch()._replace(partitions=(3,))), m.FetchReply)


@pytest.mark.parametrize(
    "request_",
    [
        fetch("g!dead"),
        m.PurgeRequest("jobs", 0, "g"),
        m.PurgeRequest("jobs", 0, "g!dead"),
        m.RedriveRequest("jobs", 0, "g", ()),
        m.SetGroup("jobs", "g", "earliest", 0, rewind=True),
    ],
)
@pytest.mark.parametrize("received", [True, False])
def test_a_group_that_was_created_is_there_too(request_: m.ClientRequest, received: bool) -> None:
    """``received``: node c knows of the topic, and of no group of it; or of neither."""
    cluster = Cluster()
    if received:
        cluster.topic()
    outdated(cluster, "c")
    if not received:
        cluster.topic()
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    assert not cluster.nodes["c"].catalogue.groups
    cluster.ask("c", request_, of=m.FetchReply | m.PurgeReply | m.GroupReply | m.SettleReply)


def test_a_name_that_no_one_has_is_not_found_and_the_next_request_asks_anew() -> None:
    """However soon after it was not found a topic is created, it is there."""
    cluster = Cluster()
    outdated(cluster, "c")
    assert is_told(cluster.ask("c", m.Metadata(("jobs",))))
    assert is_told(cluster.ask("c", fetch()))
    cluster.topic()
    assert isinstance(cluster.ask("c", m.Metadata(("jobs",))), m.MetadataReply)


def test_a_majority_is_enough_to_say_that_there_is_none_and_less_is_not() -> None:
    cluster = Cluster()
    cluster.kill("b")
    assert is_told(cluster.ask("c", m.Metadata(("jobs",))))
    cluster.kill("a")
    reply = cluster.ask("c", m.Metadata(("jobs",)))
    assert is_told(reply, code="too-few-replicas")
    assert "'jobs' is not known to node c" in reply.detail  # type: ignore[union-attr]


def test_not_found_of_five_nodes_takes_replies_of_three_others() -> None:
    cluster = Cluster(5)
    outdated(cluster, "c", "d")
    cluster.topic()
    cluster.feed("c", LinkDown("a"))
    silent = {"b", "e"}
    passes = cluster.drop
    cluster.drop = lambda sender, to, message: (
        passes(sender, to, message) or (sender in silent and isinstance(message, m.RegistersReply))
    )
    key = cluster.submit("c", m.Metadata(("jobs",)))
    assert key not in cluster.replies, "c and d do not know it, but b and e may"
    cluster.advance(FIND_TIMEOUT_S + 0.1)
    assert is_told(cluster.replies[key], code="too-few-replicas")
    silent.discard("e")
    assert isinstance(cluster.ask("c", m.Metadata(("jobs",))), m.MetadataReply)


def test_an_answer_of_a_node_that_cannot_trusted_is_none() -> None:
    """A node with an empty directory knows no topic, and that says nothing."""
    cluster = Cluster()
    outdated(cluster, "c")
    cluster.topic()
    cluster.kill("ab")
    cluster.journals["b"].clear()  # wiped
    cluster.start("b")
    assert not cluster.nodes["b"].state.trusted
    assert is_told(cluster.ask("c", m.Metadata(("jobs",)), FIND_TIMEOUT_S + 0.1), code="too-few-replicas")
    assert is_told(cluster.ask("b", m.Metadata(("jobs",))), code="not-stored")


def test_one_that_is_gone_is_not_answered_and_nothing_is_fetched_for_it() -> None:
    cluster, _ = made()
    cluster.drop = lambda sender, to, message: isinstance(message, m.RegistersReply) and sender != to
    key = cluster.submit("c", fetch())
    cluster.feed("c", Gone(key))
    cluster.advance(FIND_TIMEOUT_S + 0.1)
    assert key not in cluster.replies
    assert not cluster.nodes["c"].context.requests
    assert len(receipts(cluster.ask("a", fetch()))) == 1


def test_a_known_topic_is_not_asked_for() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    asked = noted(cluster, lambda sender, to, message: isinstance(message, m.RegistersRequest))
    producer_id = cluster.ask("c", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
    cluster.ask("c", m.AckRequest(receipts(cluster.ask("c", fetch()))))
    cluster.ask("b", m.Metadata(("jobs", "*")))
    cluster.ask("b", m.Metadata(()))
    cluster.ask("b", fetch()._replace(topics=("no*",)))
    assert not asked


def test_the_acks_of_a_topic_that_is_known_do_not_wait_for_one_that_no_one_can_be_asked_for() -> None:
    cluster = Cluster()
    here = cluster.topic("here", rf=1, partitions=9)
    mine = next(number for number, members in enumerate(here.replicas) if members == ("c",))
    outdated(cluster, "c")
    there = cluster.topic("there")
    got = []
    for topic, number, node in ((here, mine, "c"), (there, 0, "a")):
        producer_id = cluster.ask(node, m.OpenSession()).producer_id  # type: ignore[union-attr]
        cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], partition=number)))
        request = fetch()._replace(topics=(topic.name,), partitions=(number,))
        got += receipts(cluster.ask(node, request))
    cluster.start("c")  # anew, and cut off
    cluster.kill("ab")
    known(cluster, "c")
    assert outcomes(cluster.ask("c", m.AckRequest(tuple(got))))[0].startswith("acked")


def test_a_lookup_that_begins_again_may_name_a_topic_that_was_deleted_meanwhile() -> None:
    """The voters changed, and the deleted topic was packed: the answers say that there is none."""
    cluster, topic = made()
    core = cluster.nodes["a"]
    cluster.drop = lambda sender, to, message: isinstance(message, m.RegistersReply)
    key = cluster.submit("a", m.PurgeRequest("jobs", 0, "unknown"))
    finder = core.context.requests[key]
    assert isinstance(finder, FindCoordinator)
    assert [group.topic for group in finder.lookup.groups] == [topic.id]
    del core.catalogue.topics[topic.id]
    finder.on_voters_changed(core.context, cluster.now)
    assert finder.rounds
