"""Pausing and resuming a group (docs/registers.md, PAUSE): no FETCH that begins after its OK gets messages."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.requests.waking import has_ready
from quorumq.core.values.errors import Code
from quorumq.core.values.types import NOT_PAUSED, Group, Pause, Stamp, merge_groups
from tests.core.cluster import Cluster
from tests.core.network import deaf_to_registers, wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    created,
    deleted,
    fetch,
    more,
    opened,
    outcomes,
    published,
    receipts,
    rewind,
    spans,
    with_messages,
    with_session,
)


def pause(cluster: Cluster, node: str = "a", *, paused: bool = True) -> Group:
    reply = cluster.ask(node, m.PauseGroup("jobs", "g", paused), of=m.GroupReply)
    assert reply.group.paused is paused
    return reply.group


def made(count: int = 10, **more: object) -> Cluster:
    cluster = Cluster(**more)  # type: ignore[arg-type]
    published(cluster, count)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    return cluster


def test_a_paused_group_gets_nothing_through_any_node_and_goes_on_when_resumed() -> None:
    cluster = made()
    pause(cluster, "a")
    assert [spans(cluster.ask(node, fetch())) for node in "abc"] == [[], [], []]
    assert spans(cluster.ask("a", fetch("other"))) == [(0, 10)], "another group does not notice"
    pause(cluster, "b", paused=False)
    assert spans(cluster.ask("c", fetch())) == [(0, 10)]


def test_a_waiting_fetch_goes_on_when_the_group_is_resumed_and_not_before() -> None:
    cluster, topic, producer_id = with_session(1)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    pause(cluster)
    key = cluster.submit("b", fetch(wait=0.9))
    more(cluster, topic, producer_id, 1)
    cluster.advance(0.2)
    assert key not in cluster.replies
    pause(cluster, "c", paused=False)
    assert spans(cluster.replies[key]) == [(0, 2)] or len(spans(cluster.replies[key])) == 2


def test_voters_refuse_and_tell_a_coordinator_that_does_not_know() -> None:
    cluster = made()
    assert len(spans(cluster.ask("c", fetch(most=1)))) == 1  # it asks for no register any more
    deaf_to_registers(cluster, "c")
    pause(cluster, "a")
    assert not any(group.paused for group in cluster.nodes["c"].catalogue.groups.values())
    cluster.hear_all()
    assert spans(cluster.ask("c", fetch(), 1.5)) == []
    assert all(group.paused for group in cluster.nodes["c"].catalogue.groups.values())


def test_messages_delivered_before_are_extended_and_settled() -> None:
    cluster = made()
    got = receipts(cluster.ask("a", fetch(most=3)))
    pause(cluster)
    assert outcomes(cluster.ask("b", m.ExtendRequest(got, 10.0, 0.0))) == ["ok"]
    assert outcomes(cluster.ask("c", m.AckRequest(got))) == ["acked"]


def test_nothing_expires_meanwhile_and_dead_letters_can_be_read() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster, ttl_s=5.0)
    more(cluster, topic, producer_id, 0, 4)
    got = receipts(cluster.ask("a", fetch(most=1)))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, death=DEATH))) == ["ok"]
    pause(cluster)
    cluster.advance(20)
    view = next(iter(cluster.nodes["a"].replicas.values())).views.groups["g"]
    assert len([1 for _, record in view.records.items() if record.death is not None]) == 1
    assert spans(cluster.ask("b", fetch("g!dead"))) == [(0, 1)]


def test_a_pause_survives_a_rewind_a_start_and_a_wipe_and_ends_with_its_group() -> None:
    cluster = made()
    pause(cluster)
    rewind(cluster, "b")
    for name in "ab":
        cluster.crash(name)
    wipe(cluster, "c", 100)
    assert [spans(cluster.ask(node, fetch())) for node in "abc"] == [[], [], []]
    cluster.ask("a", m.DeleteGroup("jobs", "g"))
    check_failed(cluster.ask("b", m.PauseGroup("jobs", "g", True)), Code.NOT_FOUND)
    cluster.ask("b", m.SetGroup("jobs", "g"))
    assert spans(cluster.ask("c", fetch())) == [(0, 10)]


def test_a_pause_is_stamped_above_a_confirmed_one_that_its_node_does_not_know() -> None:
    cluster = made()
    deaf_to_registers(cluster, "c")
    cluster.wall_off_ms = {"a": 20_000}
    pause(cluster, "a")
    pause(cluster, "a", paused=False)
    cluster.wall_off_ms = {}
    cluster.nodes["c"].state.clock.value = cluster.now.wall_ms << 16
    pause(cluster, "c")
    cluster.hear_all(10)
    assert all(group.paused for core in cluster.nodes.values() for group in core.catalogue.groups.values())


def test_too_few_nodes_make_it_unknown() -> None:
    cluster = made()
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.PutGroup | m.SyncTopics)
    check_failed(cluster.ask("a", m.PauseGroup("jobs", "g", True), 10), Code.OUTCOME_UNKNOWN)
    cluster.drop = lambda sender, to, message: sender != to
    check_failed(
        cluster.ask("a", m.PauseGroup("jobs", "g", True), 10), Code.TOO_FEW_REPLICAS, "nothing was changed"
    )
    assert isinstance(cluster.ask("a", m.PauseGroup("jobs", "nobody", True), 10), m.Failed)


def test_registers_merge_alike_in_any_order() -> None:
    paused = Group(b"t" * 16, "g", 1, pause=Pause(0, Stamp(5, "a"), True))
    newer = Group(b"t" * 16, "g", 2, made=Stamp(9, "b"))
    resumed = newer._replace(pause=Pause(0, Stamp(6, "c"), False))
    deleted = Group(b"t" * 16, "g", 3, buried=3, made=Stamp(10, "b"))
    merged = merge_groups(paused, newer)
    assert merged == merge_groups(newer, paused) == newer._replace(pause=paused.pause)
    assert merged.paused
    assert not merge_groups(merged, resumed).paused
    assert not merge_groups(merged, deleted).paused
    assert not merge_groups(merged, deleted)._replace(generation=4).paused
    assert NOT_PAUSED < paused.pause < Pause(3)


def test_a_fetch_of_a_paused_group_costs_no_frames() -> None:
    cluster = made()
    pause(cluster)
    sent: list[object] = []
    cluster.drop = lambda sender, to, message: bool(sender != to and sent.append(type(message).__name__))
    assert isinstance(cluster.ask("a", fetch()), m.FetchReply)
    assert "Hold" not in sent


def test_news_of_messages_wakes_no_one_while_the_group_is_paused() -> None:
    cluster = with_messages(1)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    pause(cluster)
    cluster.submit("b", fetch(wait=0.9))
    core = cluster.nodes["b"]
    (replica,) = core.replicas.values()
    assert replica.group("g").available.batches.size
    assert not has_ready(core.context, (replica.partition, "g"), cluster.now)


def test_a_coordinator_that_missed_a_rewind_hears_of_it_from_those_that_refuse() -> None:
    cluster = made()
    assert len(spans(cluster.ask("c", fetch(most=1)))) == 1
    deaf_to_registers(cluster, "c")
    generation = rewind(cluster, "a")
    cluster.hear_all()
    key = cluster.submit("c", fetch(wait=0.5))
    cluster.advance(0.5)
    assert [group.generation for group in cluster.nodes["c"].catalogue.groups.values()] == [generation]
    assert sum(stop - start for start, stop in spans(cluster.replies[key])) == 9


def test_a_pause_that_names_no_generation_is_of_the_present_one() -> None:
    cluster = made()
    deleted(cluster)
    created(cluster)
    assert pause(cluster).buried == 1
