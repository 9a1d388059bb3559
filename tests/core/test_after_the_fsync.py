"""Messages that promise a durable change follow its fsync: they stand in the `then` of its Persist."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Done, Effect, Persist, Reply, Send
from quorumq.core.partition.closed import number_of
from quorumq.core.values.types import Death, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import close, drained, fetch, published, receipts, replica_of, store, with_session


class Watched(Cluster):
    """Notes which promises were made at once, and which ones behind what fsync."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        self.early: list[object] = []
        self.made: dict[str, int] = {}
        self.inside = False
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]

    def carry_out(self, name: str, effects: list[Effect]) -> None:
        if not self.inside:
            for effect in effects:
                later = effect.then if isinstance(effect, Persist) else ()
                if (promise := promised(effect)) is not None:
                    self.early.append(promise)
                for item in later:
                    if (promise := promised(item)) is not None:
                        kind = type(promise).__name__
                        self.made[kind] = self.made.get(kind, 0) + 1
                        assert isinstance(effect, Persist)
        outside, self.inside = not self.inside, True
        super().carry_out(name, effects)
        self.inside = not outside


def promised(effect: Effect | Done) -> object | None:
    """Return the message of an effect that promises, else None."""
    match effect:
        case Send(_, m.StoreReply(problems=()) | m.AckReply(error="") | m.CloseReply(error="") as message):
            return message
        case Send(_, m.MergeReply(error="") | m.PutReply(refused="") as message):
            return message
        case Send(_, m.ProposalReply() as message):
            return message
        case Send(_, m.RejectReply(error="", applied=applied) as message) if applied:
            return message
        case Reply(_, m.Welcome() as message):
            return message
    return None


def test_no_promise_is_made_before_it_is_durable() -> None:
    cluster = Watched(hold_time_max=10.0)
    topic, _ = published(cluster, 10)
    got = receipts(cluster.ask("b", fetch(most=4)))
    cluster.ask("c", m.AckRequest(got))
    death = Death(Stamp(1, "a"), "rejected", fingerprint="f")
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch(most=1))), 0.0, death))
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch(most=1))), 0.5))
    cluster.ask("b", m.PurgeRequest("jobs", 0, "g"))
    cluster.ask("b", m.SetGroup("jobs", "other", "latest"))
    cluster.ask("c", m.SetGroup("jobs", "g", "earliest", 0, True))
    cluster.ask("b", m.AlterTopic("jobs", partitions=2))
    for name in "abc":
        cluster.crash(name)
    cluster.advance(11.0)
    cluster.ask(
        "a", m.Publish(cluster.batch(topic, cluster.ask("a", m.OpenSession()).producer_id, 0, [b"x"]))
    )
    cluster.ask("c", m.DeleteTopic("jobs", topic.id))
    cluster.advance(30.0)
    assert cluster.early == []
    for kind in (
        m.StoreReply,
        m.AckReply,
        m.MergeReply,
        m.PutReply,
        m.RejectReply,
        m.ProposalReply,
        m.Welcome,
    ):
        assert cluster.made.get(kind.__name__, 0) > 0, (
            f"no {kind.__name__} was seen, so nothing was shown of it"
        )


def test_no_promise_to_close_is_made_before_it_is_durable() -> None:
    cluster = Watched()
    topic, producer_id = published(cluster)
    drained(cluster)
    close(cluster, topic, producer_id)
    cluster.advance(60.0)
    assert cluster.early == []
    assert cluster.made["CloseReply"] >= 3


def test_a_promise_to_close_is_kept_by_the_next_start() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.CloseReply)
    close(cluster, topic, producer_id)
    cluster.advance(1.0)
    assert replica_of(cluster, "b").closing.has_promised(producer_id)
    cluster.crash("b")
    assert replica_of(cluster, "b").closing.has_promised(producer_id)
    late = cluster.batch(topic, producer_id, 100, [b"late"])
    (refused,) = store(cluster, "a", "b", m.Store(7, topic.epoch_of(0), late))
    assert isinstance(refused, Send)
    assert isinstance(refused.message, m.StoreReply)
    assert [problem.error for problem in refused.message.problems] == ["session-closed"]


def test_a_promise_to_close_that_is_repeated_waits_for_the_first_ones_fsync() -> None:
    cluster, topic, producer_id = with_session()
    ask = m.CloseRequest(
        7, next(iter(cluster.nodes["b"].replicas)), topic.epoch_of(0), (number_of(producer_id),)
    )
    for records in (1, 0):
        (effect,) = replica_of(cluster, "b").on_close_ask("a", ask, cluster.now)
        assert isinstance(effect, Persist)
        assert len(effect.records) == records
        assert effect.then, "behind whatever stands before it"


@pytest.mark.parametrize("again", [False, True])
def test_an_incarnation_is_durable_before_its_welcome(again: bool) -> None:
    cluster = Cluster()
    core = cluster.nodes["a"]
    hello = cluster.nodes["b"].hello(cluster.now)
    hello = hello._replace(incarnation=hello.incarnation._replace(n=hello.incarnation.n + 1))
    core.state.links.clear()
    effects = [
        effect for key in (1, 2)[: 1 + again] for effect in core.router.on_request(key, hello, cluster.now)
    ]
    for effect in effects:
        assert isinstance(effect, Persist)
        ((_, welcome),) = effect.then  # type: ignore[misc]
        assert isinstance(welcome, m.Welcome)
    records = [record for effect in effects for record in effect.records]  # type: ignore[union-attr]
    assert [record.incarnation for record in records] == [hello.incarnation]
