"""Costly work is served in bounded shares, one caller after another. Cheap work waits for none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Gone, Received, Request
from quorumq.core.requests import costs
from quorumq.core.values import limits
from quorumq.core.values.fairqueue import FairQueue
from quorumq.core.values.types import PartitionId, ProducerId, Span
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts, wait_for
from tests.core.work import QUIET, STEP_CALLS_MAX, answered, by_one_each, steps_of

# ------------------------------------------------------------------------------ the queue


def test_callers_have_turns_and_each_is_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for caller, works in ((1, "abcd"), (2, "x"), ("n", "pq")):
        for work in works:
            queue.put(caller, 1, work)
    served = []
    while queue.lines:
        served.append(queue.take().work)
        queue.check()
    assert "".join(served) == "axpbqcd"


def test_a_client_with_many_connections_has_no_more_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(50):
        for work in "ab":
            queue.put(("greedy", number), 1, f"{work}{number}")
    for work in "xyz":
        queue.put(("modest", 99), 1, work, work)
    queue.put("greedy", 1, "p")  # a node that is called as the client is
    assert [queue.take().work for _ in range(8)] == ["a0", "x", "p", "a1", "y", "a2", "z", "a3"]
    queue.check()
    assert [queue.take().work for _ in range(47)] == [f"a{number}" for number in range(4, 50)] + ["b0"]
    queue.put(("modest", 98), 1, "q", "q")
    queue.drop("q")
    assert list(queue.lines) == [("greedy",)]
    queue.check()


def test_work_with_a_key_is_queued_once_and_can_be_cancelled() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put(1, 5, "a", 7)
    queue.put(1, 5, "again", 7)
    queue.put(2, 5, "b", 8)
    queue.put(2, 5, "c")
    queue.drop(8)
    queue.drop(9)
    queue.check()
    assert [queue.take().work, queue.take().work] == ["a", "c"]
    queue.put(1, 5, "a", 7)
    queue.drop(7)
    assert not queue.lines


# ------------------------------------------------------------------------------ the costs

CHEAP = {m.Hello, m.OpenSession, m.Publish, m.DeclareSurvivors}
"""Begin little, or cost as much as they have bytes."""


def test_every_request_has_a_cost() -> None:
    assert {*costs.COSTS} | CHEAP == {*get_args(m.ClientRequest)}
    assert not {*costs.COSTS} & CHEAP


def wide(partitions: int = 200) -> Cluster:
    """A topic of ``partitions`` partitions that a group reads."""
    cluster = Cluster(checks=False, **QUIET)
    cluster.topic(partitions=partitions)
    assert isinstance(answered(cluster, "a", fetch()), m.FetchReply)
    return cluster


@pytest.mark.parametrize(
    ("request_", "cost"),
    [
        (fetch(), 200),
        (fetch()._replace(partitions=(3,)), 1),
        (fetch("g!dead")._replace(partitions=(3,)), 1),
        (fetch("fresh")._replace(partitions=(3,)), limits.COSTLY_PER_STEP),
        (fetch()._replace(topics=("jobs", "j*")), 203),
        (fetch()._replace(topics=("j*",), partitions=(1, 2)), 4),
        (fetch()._replace(topics=tuple("*" * n for n in range(1, 30))), limits.COSTLY_PER_STEP),
        (fetch()._replace(partitions=(3,), spans=(Span(ProducerId("a", 1, 1, 1), 0, 1),) * 3), 24),
        (fetch("none!dead"), limits.CHEAP + costs.UNKNOWN),
        (m.Metadata(), 2 + 200 + costs.GROUP),
        (m.Metadata(("jobs", "jobz")), 6 + 200 + costs.GROUP),
        (m.Metadata(("jobs",), groups=False), 1 + 200),
        (m.Metadata(tuple(map(str, range(100)))), limits.COSTLY_PER_STEP),
        (m.DescribeGroups((("jobs", "g"),)), 400),
        (m.DescribeGroups((("none", "g"),)), 0),
        (m.DescribeGroups((("jobs", "g"), ("jobs", "h"), ("none", "g"))), 800),
        (m.CloseSession(ProducerId("a", 1, 1, 1), (PartitionId(b"x" * 16, 0),) * 3), 24),
        (m.AckRequest(()), 0),
        (m.StatusRequest(), limits.COSTLY_PER_STEP),
        (m.PurgeRequest("jobs", 0, "g"), limits.COSTLY_PER_STEP),
    ],
)
def test_the_cost_of_a_request_is_known_before_it_is_examined(request_: Any, cost: int) -> None:
    catalogue = wide().nodes["a"].catalogue
    assert costs.COSTS[type(request_)](catalogue, request_) == cost


# ------------------------------------------------------------------------------ the core


def send(cluster: Cluster, requests: list[object], *, name: str = "a", caller: int = 1) -> list[int]:
    """Send requests in one step; return their keys."""
    keys = [*range(cluster.keys + 1, cluster.keys + 1 + len(requests))]
    cluster.keys += len(requests)
    events = [Request(key, request, caller) for key, request in zip(keys, requests, strict=True)]  # type: ignore[arg-type]
    cluster.drivers[name].feed(*events)
    cluster.run()
    return keys


def many_names() -> tuple[Cluster, object]:
    cluster = Cluster(checks=False, **QUIET)
    for number in range(150):
        cluster.topic(f"topic-{number}")
    return cluster, m.Metadata(tuple(f"tropic-{number}" for number in range(200)))


def holes() -> tuple[Cluster, object]:
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for number in range(600):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, number, [b"x"])))
    answered(cluster, "a", m.SetGroup("jobs", "g"))
    return cluster, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 256)


MADE: dict[str, Callable[[], tuple[Cluster, object]]] = {
    "fetch": lambda: (wide(), fetch()),
    "fetch and wait": lambda: (wide(), fetch(wait=0.5)),
    "describe": lambda: (wide(), m.DescribeGroups((("jobs", "g"),))),
    "status": lambda: (wide(), m.StatusRequest()),
    "patterns": lambda: (wide(), fetch()._replace(topics=("*", "**", "***"))),
    "names": many_names,
    "browse": holes,
}


@pytest.mark.parametrize("name", MADE)
def test_many_costly_requests_of_a_client_are_many_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, request = MADE[name]()

    def work() -> None:
        wait_for(cluster, send(cluster, [request] * 60))

    steps = steps_of(monkeypatch, work, builtins=False)
    assert sum(steps) > 1.5 * STEP_CALLS_MAX, "else they would fit into one step"
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]


@pytest.mark.parametrize("step", ["ack", "extend", "leave"])
def test_many_requests_of_many_receipts_are_many_steps(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, got = by_one_each(300)
    request = {
        "ack": m.AckRequest(got),
        "extend": m.ExtendRequest(got, 5.0, 0.0),
        "leave": m.ReleaseRequest(got),
    }[step]

    def work() -> None:
        wait_for(cluster, send(cluster, [request] * 20))
        cluster.advance(1.0)  # releases follow the answer

    steps = steps_of(monkeypatch, work, builtins=False)
    assert sum(steps) > 3 * STEP_CALLS_MAX
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]


def test_a_client_with_one_request_waits_for_one_of_the_other_client() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    many = send(cluster, [fetch()] * 30, caller=1)
    (one,) = send(cluster, [fetch()], caller=2)
    while one not in cluster.replies:
        cluster.advance(limits.COSTLY_PAUSE_S)
    assert sum(key in cluster.replies for key in many) <= 3
    assert sorted(key for key in many if key in cluster.replies) == many[: len(cluster.replies.keys() & many)]
    wait_for(cluster, many)


def test_metadata_of_many_groups_waits_for_its_turn_and_without_them_does_not() -> None:
    cluster = Cluster(checks=False, **QUIET)
    cluster.topic()
    for number in range(limits.COSTLY_PER_STEP // costs.GROUP):
        answered(cluster, "a", m.SetGroup("jobs", f"g{number}"))
    many = send(cluster, [m.Metadata(("jobs",))] * 30)
    few = send(cluster, [m.Metadata(("jobs",), groups=False)] * 30)
    assert [sum(key in cluster.replies for key in keys) for keys in (many, few)] == [1, 30]
    assert {len(cluster.replies[key].groups) for key in few} == {0}  # type: ignore[union-attr]
    wait_for(cluster, many)


def test_a_cheap_request_does_not_wait() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    many = send(cluster, [fetch()] * 30)
    before = sum(key in cluster.replies for key in many)
    topic, producer_id = cluster.nodes["a"].topic_named("jobs"), cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert topic is not None
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), of=m.PublishReply)
    got = receipts(cluster.ask("a", fetch()._replace(partitions=(0,))))
    assert isinstance(cluster.ask("a", m.AckRequest(got)), m.SettleReply)
    assert sum(key in cluster.replies for key in many) == before, "nor does it cost those that came a step"
    wait_for(cluster, many)


def test_a_busy_node_still_serves_costly_requests() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    many = send(cluster, [fetch()] * 10)
    steps = 0
    while not all(key in cluster.replies for key in many):
        cluster.time += limits.COSTLY_WAIT_S / 8  # every step has a request
        cluster.ask("a", m.OpenSession())
        steps += 1
        assert steps < 10 * 9
    assert steps > 10 * 7


def test_most_of_the_time_is_for_others() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    many = send(cluster, [fetch()] * 30)
    began = cluster.time
    wait_for(cluster, many, limits.COSTLY_PAUSE_S)
    assert cluster.time - began >= 29 * limits.COSTLY_PAUSE_S - 1e-9


class Slow(dict[int, Any]):
    """Answers that take long to carry out, as if they were encoded."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self.cluster = cluster
        self.seconds = seconds

    def __setitem__(self, key: int, reply: Any) -> None:
        super().__setitem__(key, reply)
        self.cluster.time += self.seconds


def test_a_pause_follows_from_how_long_the_share_before_it_took_with_all_that_this_led_to() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    took = 6 * limits.COSTLY_PAUSE_S
    cluster.replies = Slow(cluster, took)
    many = send(cluster, [m.DescribeGroups((("jobs", "g"),))] * 10)
    began, steps = cluster.time, 0
    while not all(key in cluster.replies for key in many):
        cluster.time = max(cluster.time, cluster.nodes["a"].next_deadline() or 0.0)
        cluster.drivers["a"].feed()
        steps += 1
    turn = took * (1 + limits.COSTLY_REST)
    assert 9 * turn - 1e-9 <= cluster.time - began <= 10 * turn, "and no longer"
    assert steps <= 9 * 4, "nor does it look again and again whether it is over"
    (one,) = send(cluster, [m.DescribeGroups((("jobs", "g"),))])
    assert one not in cluster.replies, "nor is there a share at once for who asks after each answer"
    cluster.time += took * limits.COSTLY_REST
    cluster.drivers["a"].feed()
    assert one in cluster.replies
    cluster.replies = Slow(cluster, 0.0)
    cluster.time += 1.0
    many = send(cluster, [m.DescribeGroups((("jobs", "g"),))] * 10)
    began = cluster.time
    wait_for(cluster, many, limits.COSTLY_PAUSE_S)
    assert cluster.time - began <= 12 * limits.COSTLY_PAUSE_S, "a long one counts once"


def test_a_queued_request_can_be_cancelled() -> None:
    cluster = wide(limits.PARTITIONS_MAX)
    many = send(cluster, [fetch()] * 5)
    waiting = [key for key in many if key not in cluster.replies]
    cluster.feed("a", *(Gone(key) for key in waiting))
    cluster.advance(0.1)
    assert not any(key in cluster.replies for key in waiting)
    core = cluster.nodes["a"]
    assert not core.context.costly.lines
    assert not core.context.requests


def test_a_started_request_finishes_without_its_client() -> None:
    cluster, got = by_one_each(300)
    keys = send(cluster, [m.AckRequest(got)] * 2)
    cluster.feed("a", *(Gone(key) for key in keys))
    cluster.advance(1.0)
    core = cluster.nodes["a"]
    assert not core.context.requests
    assert not core.context.costly.lines
    cluster.advance(10.0)
    assert receipts(cluster.ask("b", fetch())) == ()


def test_a_client_that_releases_much_delays_only_itself() -> None:
    cluster, got = by_one_each(500)
    costly, under_way = cluster.nodes["a"].context.costly, 4
    keys: list[int] = []
    most = 0
    for _ in range(200):
        keys = [key for key in keys if key not in cluster.replies]
        keys += send(cluster, [m.ReleaseRequest(got)] * (under_way - len(keys)), caller=7)
        cluster.advance(limits.COSTLY_PAUSE_S)
        assert list(costly.lines) == [7]
        most = max(most, len(costly.lines[7][7]))
    assert most <= under_way * -(-len(got) // limits.RUNS_PER_STEP)


def test_a_fetch_of_a_peer_has_its_turn_and_can_be_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = wide(600)
    a, b = cluster.nodes["a"], cluster.nodes["b"]
    said: list[object] = []
    monkeypatch.setattr(cluster, "send", lambda sender, to, message: said.append(message))

    def say(*messages: object) -> None:
        known = ("b", b.state.incarnation, "a", a.state.incarnation, b.state.clock.value)
        cluster.drivers["a"].feed(*(Received(m.Envelope(*known, message)) for message in messages))  # type: ignore[arg-type]

    asked = [m.RemoteFetch(1000 + number, tuple(a.replicas), fetch(wait=1.0)) for number in range(12)]
    say(*asked, asked[-1])
    assert len(a.context.sub_fetches) == 2
    assert a.context.costly.lines
    say(*(m.RemoteGone(message.round) for message in asked[:6]))
    assert not a.context.sub_fetches
    cluster.advance(0.1)
    assert sorted(a.context.sub_fetches) == [("b", message.round) for message in asked[6:]]
    cluster.advance(1.1)
    answers = [message for message in said if isinstance(message, m.RemoteFetchReply)]
    assert sorted(answer.round for answer in answers) == [message.round for message in asked[6:]]
    assert not a.context.requests


def test_a_fetch_of_a_peer_for_many_named_messages_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = wide(1)
    a, b = cluster.nodes["a"], cluster.nodes["b"]
    said: list[object] = []
    monkeypatch.setattr(cluster, "send", lambda sender, to, message: said.append(message))
    spans = tuple(Span(ProducerId("a", 1, 1, 1), 2 * number, 2 * number + 1) for number in range(200))
    asked = [
        m.RemoteFetch(1000 + number, tuple(a.replicas), fetch()._replace(spans=spans)) for number in range(3)
    ]
    known = ("b", b.state.incarnation, "a", a.state.incarnation, b.state.clock.value)
    cluster.drivers["a"].feed(*(Received(m.Envelope(*known, message)) for message in asked))  # type: ignore[arg-type]
    assert sum(isinstance(message, m.RemoteFetchReply) for message in said) == 1
    assert a.context.costly.lines
    cluster.advance(1.0)
    assert sum(isinstance(message, m.RemoteFetchReply) for message in said) == 3


def test_a_publish_reaches_clients_with_many_waiting_requests() -> None:
    cluster = wide(64)
    keys = send(cluster, [fetch(wait=1.0, most=1)] * 40)
    cluster.advance(0.2)
    topic, producer_id = cluster.nodes["a"].topic_named("jobs"), cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert topic is not None
    batches = [cluster.batch(topic, producer_id, number, [b"x"], number) for number in range(40)]
    send(cluster, [m.Publish(batch) for batch in batches], name="b")
    wait_for(cluster, keys)
    spans = [item.receipt.span for key in keys for item in receipts(cluster.replies[key])]
    assert sorted(spans) == [Span(producer_id, number, number + 1) for number in range(40)]
