"""Delayed messages, TTL and backoff; and that one wrong clock decides nothing (docs/protocol.md, section 2)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.attempts import NO_ATTEMPTS
from quorumq.core.values import limits
from quorumq.core.values.types import PartitionId
from tests.core.cluster import Cluster
from tests.core.network import noted
from tests.core.steps import check_failed, fetch, opened, outcomes, publish_first, receipts

YEAR_MS = 365 * 86_400_000
WRONG = {"ahead": YEAR_MS, "behind": -YEAR_MS}


def got(cluster: Cluster, node: str, hold_time: float = 1.0) -> int:
    return len(receipts(cluster.ask(node, fetch(hold_time=hold_time))))


def shown(cluster: Cluster, node: str) -> list[tuple[str, float]]:
    page = cluster.ask(node, m.PeekRequest("jobs", 0, "g", "all", (0, 0), 100), of=m.PeekReply)
    return [(item.state, round(item.remaining, 3)) for item in page.items]


def deaths(cluster: Cluster, node: str) -> list[str]:
    page = cluster.ask(node, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 100), of=m.PeekReply)
    return [item.record.death.reason for item in page.items if item.record.death is not None]


def uncertain(cluster: Cluster, node: str) -> int:
    """Return the number of batches for whose age this node asks."""
    return sum(len(replica.batches.uncertain) for replica in cluster.nodes[node].replicas.values())


def restart(cluster: Cluster, names: str, off_ms: int = 0) -> None:
    """kill -9 of these nodes, all at once; they start again with their time of day ``off_ms`` from where it was."""
    cluster.kill(names)
    for name in names:
        cluster.wall_off_ms[name] = cluster.wall_off_ms.get(name, 0) + off_ms
        cluster.start(name)


# -------------------------------------------------------------------------------- delays


def test_a_delayed_message_is_shown_and_comes_when_it_is_due() -> None:
    cluster = Cluster()
    publish_first(cluster, delay_ms=20_000)
    assert [got(cluster, node) for node in "abc"] == [0, 0, 0]
    assert [shown(cluster, node) for node in "abc"] == [[("delayed", 20.0)]] * 3
    cluster.advance(19.9)
    assert [got(cluster, node) for node in "abc"] == [0, 0, 0]
    cluster.advance(0.1)
    assert shown(cluster, "b") == [("ready", 0.0)]
    assert got(cluster, "b") == 1


def test_a_parked_fetch_is_woken_by_the_due_time() -> None:
    cluster = Cluster()
    publish_first(cluster, delay_ms=500)
    key = cluster.submit("c", fetch(wait=1.0))
    cluster.advance(0.49)
    assert key not in cluster.replies
    cluster.advance(0.02)
    assert len(receipts(cluster.replies[key])) == 1


def test_the_age_at_publish_counts_and_is_never_negative() -> None:
    cluster = Cluster()
    publish_first(cluster, delay_ms=20_000, age_ms=15_000)
    assert [shown(cluster, node) for node in "abc"] == [[("delayed", 5.0)]] * 3
    cluster = Cluster()
    publish_first(cluster, delay_ms=20_000, age_ms=-15_000)
    assert [shown(cluster, node) for node in "abc"] == [[("delayed", 20.0)]] * 3


def test_a_coordinator_adds_the_time_that_it_spent() -> None:
    """c has not heard of the topic and is asked again, later: the second STORE says how old the batch is then."""
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: to == "c"
    topic = cluster.topic()
    stores: list[int] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.Store) and to == "c":
            stores.append(message.age_ms)
            cluster.time += 0.5  # it was long under way
        return isinstance(message, m.StoreReply) and sender == "b"  # so that c is needed

    cluster.drop = drop
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.submit("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], delay_ms=9_000), 100))
    assert stores == [100, 600]


def test_anti_entropy_carries_the_age() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to == "c"
    publish_first(cluster, delay_ms=60_000)
    cluster.advance(7)
    cluster.hear_all(20)
    ((state, remaining),) = shown(cluster, "a")
    ((there, left_there),) = shown(cluster, "c")
    assert (state, there) == ("delayed", "delayed")
    assert (remaining, left_there) == pytest.approx((33.0, 33.0), abs=0.002), "ages travel in milliseconds"


@pytest.mark.parametrize("off_ms", [0, 1_000, -1_000, -YEAR_MS])
def test_delays_survive_kill_9_of_everything_and_never_grow(off_ms: int) -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, delay_ms=20_000)
    cluster.advance(4)
    cluster.kill("abc")
    cluster.time += 6
    for name in "abc":
        cluster.wall_off_ms[name] = off_ms
        cluster.start(name)
    remaining = 20 - max(0, 10 + off_ms / 1000)
    assert [shown(cluster, node) for node in "abc"] == [[("delayed", remaining)]] * 3
    cluster.advance(remaining - 0.1)
    assert [got(cluster, node) for node in "abc"] == [0, 0, 0]
    cluster.advance(0.2)
    assert got(cluster, "b") == 1


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("when", ["receipt", "restart", "both"])
def test_one_clock_a_year_off_decides_nothing(wrong: str, victim: str, when: str) -> None:
    """Through any coordinator it is delivered once it is due, and not before."""
    cluster = Cluster(hold_time_max=1.0)
    if when != "restart":
        cluster.wall_off_ms[victim] = WRONG[wrong]
        cluster.advance(1)  # stamps that far ahead need a reserve first
    publish_first(cluster, delay_ms=20_000)
    off_ms = {"receipt": -WRONG[wrong], "restart": WRONG[wrong], "both": 0}[when]
    restart(cluster, victim, off_ms)
    for _ in range(19):
        cluster.advance(1)
        assert [got(cluster, node, 1.0) for node in "abc"] == [0, 0, 0]
    cluster.advance(1.1)
    right = next(name for name in "cba" if name != victim)
    assert got(cluster, right) == 1


def test_a_replica_without_the_batch_does_not_vote_on_whether_it_is_due() -> None:
    """The batch is on a and b. a's clock runs ahead, and c does not know: together they are no majority."""
    cluster = Cluster(hold_time_max=1.0, sync_grace=1e6)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to == "c"
    publish_first(cluster, delay_ms=30_000)
    restart(cluster, "a", YEAR_MS)
    cluster.advance(2)
    assert shown(cluster, "a") == [("ready", 0.0)]
    assert shown(cluster, "c") == []
    assert got(cluster, "a") == 0
    cluster.kill("b")
    assert got(cluster, "a") == 0
    cluster.start("b", 29)
    assert got(cluster, "a") == 1


def test_a_replica_without_the_batch_votes_on_what_was_never_delayed() -> None:
    cluster = Cluster(sync_grace=1e6)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to == "c"
    publish_first(cluster)
    cluster.kill("b")
    assert got(cluster, "a") == 1


def test_a_batch_from_a_peer_does_not_copy_the_peers_clock() -> None:
    """c has the batch from a, whose clock is ahead. For both together it must not be due, nor over, before its time."""
    for ttl_ms in (0, 40_000):
        cluster = Cluster(hold_time_max=1.0)
        cluster.drop = lambda sender, to, message: "c" in (sender, to) and isinstance(message, m.Store)
        publish_first(cluster, delay_ms=30_000, ttl_ms=ttl_ms)
        born = cluster.time
        restart(cluster, "a", YEAR_MS)
        cluster.drop = lambda sender, to, message: {sender, to} == {"b", "c"}
        cluster.advance(12)
        remaining = 30 - (cluster.time - born)
        assert [state for state, _ in shown(cluster, "a")] == ["ready"]
        assert remaining < shown(cluster, "c")[0][1] < 30, "c counts from when it came"
        assert [got(cluster, node) for node in "ac"] == [0, 0]
        cluster.hear_all(10)
        assert shown(cluster, "c")[0][1] == pytest.approx(born + 30 - cluster.time, abs=0.002), "as b says"
        assert got(cluster, "a") == 0
        cluster.advance(born + 30 - cluster.time - 0.1)
        assert [got(cluster, node) for node in "abc"] == [0, 0, 0]
        cluster.advance(0.2)
        assert (got(cluster, "c"), deaths(cluster, "c")) == (1, [])


@pytest.mark.parametrize("wrong", [1, 2])
def test_two_wrong_clocks_of_five_decide_nothing_for_a_returning_node(wrong: int) -> None:
    cluster = Cluster(5, hold_time_max=1.0)
    cluster.drop = lambda sender, to, message: to == "e" and isinstance(message, m.Store)
    topic, producer_id = opened(cluster, rf=5)
    batch = cluster.batch(topic, producer_id, 0, [b"x"], delay_ms=60_000)
    assert isinstance(cluster.ask("a", m.Publish(batch)), m.PublishReply)
    born = cluster.time
    for node in "ab"[:wrong]:
        restart(cluster, node, YEAR_MS)
    cluster.hear_all(30)
    assert shown(cluster, "e")[0][1] == pytest.approx(born + 60 - cluster.time, abs=0.002)
    assert got(cluster, "a") == 0


def test_a_node_uncertain_of_an_age_counts_on_and_does_not_spread_it() -> None:
    """c has the batch from a, then b, which lost it, too: only a knows its age, and one clock decides nothing."""
    cluster = Cluster(hold_time_max=1.0)
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and isinstance(message, m.Store)
    publish_first(cluster, delay_ms=60_000)
    cluster.advance(15)
    cluster.drop = lambda sender, to, message: {sender, to} == {"b", "c"}
    cluster.advance(10)
    due = cluster.time + shown(cluster, "c")[0][1]
    restart(cluster, "c")
    assert cluster.time + shown(cluster, "c")[0][1] == pytest.approx(due, abs=0.002)
    cluster.kill("b")
    cluster.journals["b"] = [item for item in cluster.journals["b"] if not isinstance(item, BatchStored)]
    cluster.drop = lambda sender, to, message: {sender, to} == {"a", "b"} and isinstance(message, m.Store)
    cluster.start("b", 15)
    cluster.hear_all(5)
    assert {node: uncertain(cluster, node) for node in "abc"} == {"a": 0, "b": 1, "c": 1}
    assert cluster.time + shown(cluster, "c")[0][1] == pytest.approx(due, abs=0.002)
    cluster.advance(60)
    assert got(cluster, "b") == 1
    assert not any(uncertain(cluster, node) for node in "abc"), "it is due everywhere: nobody asks any more"


def test_a_wrong_not_due_holds_back_no_redelivery() -> None:
    """For c it is not due again. a and b deliver, and deliver again at once after a REJECT."""
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, delay_ms=60_000)
    cluster.advance(61)
    restart(cluster, "c", -YEAR_MS)
    cluster.advance(2)
    assert shown(cluster, "c")[0][0] == "delayed"
    for node in "abab":
        (mine,) = receipts(cluster.ask(node, fetch(hold_time=1.0)))
        assert outcomes(cluster.ask(node, m.RejectRequest((mine,), 0.0))) == ["ok"]


def test_a_node_whose_clock_alone_says_due_does_not_ask_all_the_time() -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, delay_ms=60_000)
    restart(cluster, "a", YEAR_MS)
    cluster.advance(2)
    answers = noted(cluster, lambda sender, to, message: isinstance(message, m.HoldReply))
    for _ in range(100):
        cluster.advance(0.1)
        assert got(cluster, "a", 1.0) == 0
    assert len(answers) <= 6, "two replicas, three rounds in 10 s"


def test_a_message_is_asked_for_again_when_the_first_of_the_other_clocks_says_due() -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, delay_ms=20_000)
    restart(cluster, "a", YEAR_MS)
    cluster.advance(2.0)
    restart(cluster, "c", -3_000)
    cluster.advance(17.0)
    assert [shown(cluster, node) for node in "bc"] == [[("delayed", 1.0)], [("delayed", 3.0)]]
    asked = cluster.time
    while not got(cluster, "a"):
        cluster.advance(0.1)
    assert cluster.time - asked == pytest.approx(1.0, abs=0.11)


# ----------------------------------------------------------------------------------- TTL


@pytest.mark.parametrize(("ttl_ms", "ttl_s"), [(5_000, 0.0), (0, 5.0), (5_000, 1.0), (5_000, 99.0)])
def test_a_message_not_acked_in_time_becomes_a_dead_letter(ttl_ms: int, ttl_s: float) -> None:
    cluster = Cluster()
    publish_first(cluster, ttl_ms=ttl_ms, ttl_s=ttl_s)
    cluster.advance(4.9)
    (mine,) = receipts(cluster.ask("a", fetch(hold_time=10.0)))
    cluster.advance(5)
    assert deaths(cluster, "b") == [], "a delivery that is inside its hold is left alone"
    cluster.ask("a", m.RejectRequest((mine,), 0.0))
    assert got(cluster, "b") == 0
    assert [deaths(cluster, node) for node in "abc"] == [["expired"]] * 3


def test_an_ack_in_time_prevents_its_expiry() -> None:
    cluster = Cluster()
    publish_first(cluster, ttl_ms=5_000)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.advance(20)
    assert got(cluster, "b") == 0
    assert deaths(cluster, "b") == []


def test_a_redriven_message_neither_waits_nor_expires() -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, delay_ms=1_000, ttl_ms=3_000)
    cluster.advance(4)
    assert got(cluster, "a") == 0
    page = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 9))
    entries = tuple(m.SpanRecord(item.span, item.record) for item in page.items)  # type: ignore[union-attr]
    assert outcomes(cluster.ask("b", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    restart(cluster, "b", -YEAR_MS)  # for b it is not due again
    cluster.kill("a", 2)
    assert got(cluster, "c") == 1


def test_expiry_waits_for_the_due_time() -> None:
    cluster = Cluster()
    publish_first(cluster, delay_ms=9_000, ttl_ms=3_000)
    cluster.advance(5)
    assert got(cluster, "a") == 0
    assert deaths(cluster, "a") == []
    cluster.advance(5)
    assert got(cluster, "a") == 0
    assert deaths(cluster, "a") == ["expired"]


@pytest.mark.parametrize("node", "abc")
def test_one_clock_does_not_expire_a_message(node: str) -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, ttl_ms=60_000)
    restart(cluster, node, YEAR_MS)
    cluster.advance(2)
    got(cluster, node)  # the others abstain until their stamps reach that far
    cluster.advance(0.1)
    assert got(cluster, node) == 1
    assert deaths(cluster, node) == []


@pytest.mark.parametrize("node", "abc")
def test_one_clock_does_not_keep_a_message_from_expiring(node: str) -> None:
    """The other two say so: an OK of the wrong one and one of a right one are not enough to deliver."""
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, ttl_ms=60_000)
    cluster.advance(58)
    restart(cluster, node, -YEAR_MS)
    cluster.advance(3)
    assert got(cluster, node) == 0
    assert deaths(cluster, node) == ["expired"]


def test_the_flag_of_a_minority_delivers_when_too_few_answer() -> None:
    cluster = Cluster(hold_time_max=1.0)
    publish_first(cluster, ttl_ms=60_000)
    cluster.advance(58)
    restart(cluster, "a", -YEAR_MS)
    cluster.advance(3)
    cluster.kill("c")
    assert got(cluster, "a") == 1


# ------------------------------------------------------------------------------- backoff


def test_a_reject_without_a_delay_takes_the_topics_backoff() -> None:
    cluster = Cluster()
    cluster.topic(backoff=(1.0, 5.0), max_deliveries=50)
    topic = cluster.nodes["a"].topic_named("jobs")
    assert topic is not None
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 3)))
    for wait in (1.0, 5.0, 5.0):
        mine = receipts(cluster.ask("b", fetch()))
        for _ in range(2):  # a retry changes nothing
            assert outcomes(cluster.ask("c", m.RejectRequest(mine, limits.TOPIC_BACKOFF_S))) == ["ok"]
        cluster.advance(wait - 0.1)
        assert [got(cluster, node) for node in "abc"] == [0, 0, 0]
        cluster.advance(0.2)
    mine = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("c", m.RejectRequest(mine, 0.0))) == ["ok"]
    assert got(cluster, "a") == 1, "a delay of 0 that was asked for is at once"


def test_without_a_list_it_is_at_once() -> None:
    cluster = Cluster()
    publish_first(cluster)
    mine = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("c", m.RejectRequest(mine, limits.TOPIC_BACKOFF_S))) == ["ok"]
    assert got(cluster, "a") == 1


@pytest.mark.parametrize("delay", [-0.5, -2.0, float("nan"), limits.DELAY_MAX_S + 1])
def test_a_delay_out_of_bounds_is_refused_by_name(delay: float) -> None:
    cluster = Cluster()
    check_failed(cluster.ask("a", m.RejectRequest((), delay)), "usage", str(delay))


def test_each_replica_decides_the_backoff_by_its_own_count() -> None:
    """b's count is behind: its step is the shorter one, and stays, though a peer has another at the same ballot."""
    cluster = Cluster(hold_time_max=1.0)
    cluster.topic(backoff=(1.0, 5.0), max_deliveries=50)
    topic = cluster.nodes["a"].topic_named("jobs")
    assert topic is not None
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
    got(cluster, "a", 1.0)
    cluster.advance(1.1)  # that attempt ended at all three
    mine = receipts(cluster.ask("a", fetch(hold_time=1.0)))
    for name in "abc":
        view = cluster.nodes[name].replicas[PartitionId(topic.id, 0)].views.groups["g"]
        ((span, lease),) = view.leases.items()
        assert lease.attempts is not None
        assert lease.held is not None
        if name == "b":
            view.leases.set(span, lease._replace(attempts=None, held=lease.held._replace(before=NO_ATTEMPTS)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests)
    cluster.ask("a", m.RejectRequest(mine, limits.TOPIC_BACKOFF_S))
    assert {name: shown(cluster, name) for name in "abc"} == {
        "a": [("delayed", 5.0)],
        "b": [("delayed", 1.0)],
        "c": [("delayed", 5.0)],
    }
