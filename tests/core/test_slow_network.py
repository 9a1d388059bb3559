"""Deliveries with slow answers: fewer, never none (docs/protocol.md, FETCH, step 4, and G4)."""

from __future__ import annotations

import pytest

from quorumq.core.messages import AckRequest, FetchReply, Hold, HoldReply, Publish
from quorumq.core.values.limits import DEADLINE_SHARE
from tests.core.cluster import Cluster
from tests.core.steps import fetch, opened, receipts, with_messages, with_session

STEP_S = 0.05


class Trade:
    """Publishing goes on, and a consumer on each of some nodes fetches and acks.

    Args:
        cluster: with messages that take a while.
        total: messages, published one by one.
        hold_time: hold of the consumers, seconds.
        through: the nodes that they ask.
    """

    def __init__(self, cluster: Cluster, total: int, hold_time: float, through: str) -> None:
        self.delivered: dict[int, int] = {}  # how often, by number of the message
        self.hold_rounds: dict[tuple[str, int], None] = {}
        self.time_left: list[float] = []  # before the client's deadline, at each answer
        delay, cluster.delay = cluster.delay, 0.0
        topic, producer_id = opened(cluster)
        cluster.delay, cluster.drop = delay, self.count
        began, sent, open_fetches = cluster.time, 0, {}
        while len(self.delivered) < total and cluster.time < began + 120.0:
            while sent < total and cluster.time >= began + 0.1 * sent:
                node = cluster.names[sent % len(cluster.names)]
                cluster.submit(node, Publish(cluster.batch(topic, producer_id, sent, [b"x"])))
                sent += 1
            for node in through:
                if node not in open_fetches:
                    key = cluster.submit(node, fetch(most=10, wait=20.0, hold_time=hold_time))
                    open_fetches[node] = (key, cluster.time + DEADLINE_SHARE * hold_time)
            cluster.advance(STEP_S)
            for node, (key, deadline) in list(open_fetches.items()):
                if key in cluster.replies:
                    del open_fetches[node]
                    self.take(cluster, node, cluster.replies[key], deadline)

    def take(self, cluster: Cluster, node: str, reply: object, deadline: float) -> None:
        for item in receipts(reply) if isinstance(reply, FetchReply) else ():
            for seq in range(item.receipt.span.start, item.receipt.span.stop):
                self.delivered[seq] = self.delivered.get(seq, 0) + 1
            self.time_left.append(deadline - cluster.time)
            cluster.submit(node, AckRequest((item,)))

    def count(self, sender: str, to: str, message: object) -> bool:
        if isinstance(message, Hold):
            self.hold_rounds[(sender, message.round)] = None
        return False


@pytest.mark.parametrize(
    ("one_way", "hold_time"),
    [
        (0.275, 5.0),
        (1.0, 5.0),
        (0.2, 1.0),
        pytest.param(0.225, 5.0, marks=pytest.mark.soak),
        pytest.param(1.0, 30.0, marks=pytest.mark.soak),
    ],
)
def test_everything_is_delivered_where_answers_take_up_to_two_fifths_of_the_hold(
    one_way: float, hold_time: float
) -> None:
    cluster = Cluster(hold_time_max=30.0)
    cluster.delay = one_way
    trade = Trade(cluster, 100, hold_time, "abc")
    assert sorted(trade.delivered) == list(range(100))
    assert sum(trade.delivered.values()) == 100, "nothing is won, and lost again"
    assert len(trade.hold_rounds) <= 2 * 100, "rounds per message, though each was published alone"
    assert min(trade.time_left) >= 0.3 * hold_time


@pytest.mark.parametrize(("one_way", "hold_time"), [(0.275, 5.0), (0.5, 5.0), (0.18, 1.0)])
def test_nodes_that_have_no_replica_deliver_there_too(one_way: float, hold_time: float) -> None:
    """A sub-fetch takes a message there, a round, and a message back: its client has the rest of the hold."""
    cluster = Cluster(5, hold_time_max=30.0)
    replicas = cluster.topic().replicas[0]
    cluster.delay = one_way
    outsiders = "".join(name for name in cluster.names if name not in replicas)
    trade = Trade(cluster, 60, hold_time, outsiders)
    assert sorted(trade.delivered) == list(range(60))
    assert sum(trade.delivered.values()) == 60
    assert min(trade.time_left) > 0


@pytest.mark.parametrize("answers", [0, 30])
@pytest.mark.parametrize("outage", [False, True])
def test_a_conflict_beside_a_silent_replica_costs_no_more_than_a_second(answers: int, outage: bool) -> None:
    """b has the first message that a asks for, and c says nothing, so that only time ends the round."""
    cluster, _, producer_id = with_session(20)
    for _ in range(answers):
        cluster.ask("a", fetch(group="other", most=1, hold_time=30.0))
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and (sender, to) == ("b", "a")
    assert len(receipts(cluster.ask("b", fetch(most=10, hold_time=60.0)))) == 1
    if outage:  # a gets no answers: it learns to wait for longer
        cluster.drop = lambda sender, to, message: isinstance(message, HoldReply)
        for _ in range(5):
            cluster.submit("a", fetch(group="third", most=1, hold_time=30.0))
            cluster.advance(10.0)
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    began = cluster.time
    key = cluster.submit("a", fetch(most=10, hold_time=30.0, wait=20.0))
    while key not in cluster.replies:
        cluster.advance(STEP_S)
    assert [item.receipt.span for item in receipts(cluster.replies[key])] == [(producer_id, 10, 20)]
    assert cluster.time - began <= 1.2


def test_a_round_without_a_majority_doubles_the_next_ones_time_and_one_with_it_ends_that() -> None:
    cluster = with_messages(20)
    cluster.ask("a", fetch(group="g", most=1))
    cluster.drop = lambda sender, to, message: isinstance(message, HoldReply)
    took: list[float] = []

    def once() -> None:
        began, key = cluster.time, cluster.submit("a", fetch(most=1, hold_time=8.0))
        while key not in cluster.replies:
            cluster.advance(STEP_S)
        took.append(cluster.time - began)

    for _ in range(5):
        once()
    assert took == pytest.approx([0.8, 1.6, 3.2, 4.0, 4.0], abs=2 * STEP_S), "half of the hold is the most"
    cluster.hear_all(10.0)
    once()
    cluster.drop = lambda sender, to, message: isinstance(message, HoldReply)
    once()
    assert took[5:] == pytest.approx([0.0, 0.8], abs=2 * STEP_S)


def test_status_says_when_answers_are_slow_for_the_holds() -> None:
    cluster = Cluster(hold_time_max=5.0)
    assert not cluster.nodes["a"].status(cluster.now)["slow_answers"]
    cluster.delay = 0.4
    Trade(cluster, 60, 5.0, "abc")
    said = str(cluster.nodes["a"].status(cluster.now)["slow_answers"])
    assert "longer holds" in said
    assert "0.8" in said
