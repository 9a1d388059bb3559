"""Deleting a group: no late message makes it again, and made again it has nothing of before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.records import RecordsMerged
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import merging
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Death, Kind, Record, Stamp
from tests.core.cluster import Cluster
from tests.core.network import held_back, noted, wipe
from tests.core.steps import (
    check_failed,
    created,
    deleted,
    fetch,
    more,
    outcomes,
    published,
    receipts,
    spans,
    with_messages,
    with_session,
)

DEATH = Death(Stamp(0, ""), "rejected", error_class="ValueError", message="no")


def is_not_found(reply: object, text: str = "deleted") -> bool:
    return isinstance(reply, m.Failed) and reply.code == Code.NOT_FOUND and text in reply.detail


def batches(cluster: Cluster) -> list[int]:
    return [len(replica.batches.stored) for replica in replicas(cluster)]


def replicas(cluster: Cluster) -> list[Replica]:
    return [replica for core in cluster.nodes.values() for replica in core.replicas.values()]


def views(cluster: Cluster) -> list[set[str]]:
    """The groups that are read, at each node."""
    return [
        {name for replica in core.replicas.values() for name in replica.views.groups}
        for core in cluster.nodes.values()
    ]


def deaf(*nodes: str) -> Callable[[str, str, object], bool]:
    """These nodes hear of no group's register."""
    kinds = m.PutGroup | m.SyncTopics | m.Prepare | m.Accept
    return lambda sender, to, message: to in nodes and isinstance(message, kinds)


def recorded(core: NodeCore) -> list[tuple[int, Kind]]:
    """The generations and kinds of the records that the one replica of a node has of the group."""
    (replica,) = core.replicas.values()
    records = [record for _, record in replica.views.groups["g"].records.items()]
    return [*dict.fromkeys((record.generation, record.kind) for record in records)]


def cut_off(node: str) -> Callable[[str, str, object], bool]:
    return lambda sender, to, message: node in (sender, to) and sender != to


# ---------------------------------------------------------------------------------------- the name


def test_a_running_workers_next_fetch_does_not_make_the_group_again() -> None:
    cluster = with_messages()
    assert spans(cluster.ask("a", fetch(most=2))) == [(0, 2)]
    deleted(cluster)
    for node in "abc":
        assert is_not_found(cluster.ask(node, fetch())), "and it says that the group was deleted"
    assert views(cluster) == [set(), set(), set()]


def test_nor_does_a_node_that_does_not_know_the_deletion() -> None:
    cluster = with_messages()
    cluster.ask("c", fetch(most=1))
    cluster.drop = deaf("c")
    deleted(cluster)
    assert (topic := cluster.nodes["c"].topic_named("jobs")) is not None
    assert cluster.nodes["c"].catalogue.reads(topic.id, "g")
    key = cluster.submit("c", fetch())
    cluster.advance(0.1)
    cluster.hear_all(2)
    assert receipts(cluster.replies[key]) == ()
    assert is_not_found(cluster.ask("c", fetch())), "a and b refused its HOLD, and said why"


def test_a_parked_fetch_hears_of_the_deletion_at_once() -> None:
    cluster = Cluster(4)
    published(cluster)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    keys = [
        cluster.submit(node, fetch(wait=1.0)) for node in "abcd"
    ]  # one of them has no replica: its sub-fetch parks
    assert not set(keys) & set(cluster.replies)
    deleted(cluster)
    assert all(is_not_found(cluster.replies[key]) for key in keys)


def test_a_fetch_that_made_the_group_is_not_refused_for_certain_when_it_is_deleted() -> None:
    """It had an effect: a client that asked for "latest" meanwhile got the group that it made."""
    cluster = Cluster()
    cluster.topic()
    maker, reader = (cluster.submit(node, fetch(wait=1.0)) for node in "ab")
    deleted(cluster)
    reply = cluster.replies[maker]
    assert isinstance(reply, m.Failed)
    assert reply.code == Code.OUTCOME_UNKNOWN
    assert is_not_found(cluster.replies[reader])
    assert is_not_found(cluster.ask("a", fetch()))


def test_a_fetch_of_many_topics_goes_on_with_the_others() -> None:
    cluster = with_messages()
    other = cluster.topic("other")
    pattern = fetch(wait=1.0)._replace(topics=("*",))
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.ask("b", m.SetGroup("other", "g"))
    deleted(cluster)
    key = cluster.submit("a", pattern)
    more(cluster, other, cluster.ask("a", m.OpenSession()).producer_id, 0)
    assert [item.receipt.partition.topic for item in receipts(cluster.replies[key])] == [other.id]
    assert is_not_found(cluster.ask("a", pattern._replace(topics=("other", "jobs"))))


def test_deleted_twice_it_is_deleted_and_an_unknown_one_is_not_found() -> None:
    cluster = with_messages()
    created(cluster)
    first = deleted(cluster)
    assert deleted(cluster, "a").generation == first.generation + 1
    assert is_not_found(cluster.ask("a", m.DeleteGroup("jobs", "mian")), "no group 'mian'")
    assert is_not_found(cluster.ask("a", m.DeleteGroup("job", "g")), "no topic 'job'")


def test_only_creation_makes_it_again() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch(most=1, hold_time=1.0))
    before = deleted(cluster)
    assert cluster.ask("a", m.Metadata(("jobs",)), of=m.MetadataReply).groups == ()
    assert is_not_found(cluster.ask("a", m.SetGroup("jobs", "g", rewind=True)))
    assert created(cluster).generation > before.generation, "above all before"
    cluster.advance(1)
    assert spans(cluster.ask("b", fetch())) == [(0, 10)], "no attempt of before is known"


def test_a_creation_through_one_node_is_found_by_one_that_knows_of_the_deletion_alone() -> None:
    cluster = with_messages()
    created(cluster)
    deleted(cluster)
    cluster.drop = deaf("c")
    created(cluster, "a")
    assert spans(cluster.ask("c", fetch())) == [(0, 10)]


def test_a_creation_that_missed_a_deletion_and_a_creation_names_the_group_of_today() -> None:
    """The answer names the generation that deliveries are of from now on, and not one that was deleted before."""
    cluster = with_messages()
    created(cluster)
    cluster.drop = cut_off("c")
    deleted(cluster, "a")
    again = created(cluster, "a")
    cluster.hear_all()
    assert cluster.ask("c", m.SetGroup("jobs", "g"), of=m.GroupReply).group.generation == again.generation


def test_a_replica_that_refuses_as_it_missed_the_creation_is_told_at_once() -> None:
    cluster, topic, _ = with_session()
    created(cluster)
    deleted(cluster)
    cluster.drop = deaf("c")
    again = created(cluster, "a")
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert spans(cluster.ask("a", fetch())) == [(0, 10)]
    assert cluster.nodes["c"].catalogue.groups[(topic.id, "g")] == again


def test_it_stays_for_good_through_restarts_resync_and_new_partitions() -> None:
    cluster, topic, _ = with_session()
    created(cluster)
    cluster.ask("c", fetch(most=1))
    cluster.kill("c")
    gone = deleted(cluster)
    cluster.start("c", 2)
    assert cluster.nodes["c"].catalogue.groups[(topic.id, "g")] == gone, "anti-entropy"
    cluster.crash("c")
    assert cluster.nodes["c"].catalogue.groups[(topic.id, "g")] == gone, "the journal"
    cluster.journals["c"] = list(cluster.nodes["c"].snapshot(cluster.now))
    cluster.crash("c")
    assert cluster.nodes["c"].catalogue.groups[(topic.id, "g")] == gone, "a snapshot"
    wipe(cluster, "c", 5)
    assert cluster.nodes["c"].catalogue.groups[(topic.id, "g")] == gone, "a resync"
    assert isinstance(cluster.ask("a", m.AlterTopic("jobs", partitions=3)), m.TopicReply)
    assert is_not_found(cluster.ask("c", fetch()))
    cluster.advance(70)
    assert views(cluster) == [set(), set(), set()]


def test_the_deletion_is_carried_to_new_partitions() -> None:
    """Two of five nodes know about it, and all but one of the new partition's nodes are others."""
    cluster = Cluster(5)
    published(cluster)
    created(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    deleted(cluster)
    assert isinstance(cluster.ask("a", m.AlterTopic("jobs", partitions=4)), m.TopicReply)
    for core in cluster.nodes.values():
        assert all(register.deleted for register in core.catalogue.groups.values())


def test_a_rewind_that_overlaps_a_deletion_does_not_bring_the_group_back() -> None:
    """It is promised the next change, then the group is deleted, then it proposes."""
    cluster, topic, _ = with_session()
    created(cluster)
    late = held_back(
        cluster, lambda sender, to, message: isinstance(message, m.Accept) and sender == "a" and to != "a"
    )
    key = cluster.submit("a", m.SetGroup("jobs", "g", rewind=True))
    cluster.hear_all()
    deleted(cluster)
    for sender, to, message in late:
        cluster.send(sender, to, message)
    cluster.run()
    cluster.advance(6)
    assert isinstance(cluster.replies[key], m.Failed)
    assert all(core.catalogue.is_group_deleted(topic.id, "g") for core in cluster.nodes.values())


def test_a_node_without_a_replica_that_does_not_know_is_told_by_its_legs() -> None:
    cluster = Cluster(4)
    topic, _ = published(cluster)
    created(cluster)
    (other,) = [node for node in cluster.names if node not in topic.replicas[0]]
    cluster.drop = deaf(other)
    deleted(cluster, topic.replicas[0][0])
    assert is_not_found(cluster.ask(other, fetch(wait=0.5), 0.1))


def test_state_of_its_readers_is_deleted_with_the_group() -> None:
    cluster = with_messages()
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    for node in "abc":
        cluster.submit(node, fetch(wait=1.0))
    cluster.advance(0.6)
    assert any(core.state.parked for core in cluster.nodes.values())
    deleted(cluster)
    for core in cluster.nodes.values():
        assert not core.state.parked
        assert not core.state.active
        assert not core.catalogue.registered_groups, "made again, its register has to be at a majority again"


# ------------------------------------------------------------------------------- late messages


def test_a_purge_that_is_under_way_hears_of_the_deletion() -> None:
    cluster = with_messages()
    created(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ReplicaListReply)
    key = cluster.submit("a", m.PurgeRequest("jobs", 0, "g"))
    deleted(cluster)
    assert is_not_found(cluster.replies[key])


def test_a_late_request_makes_no_view_and_gets_not_found() -> None:
    cluster = with_messages()
    got = receipts(cluster.ask("a", fetch(most=3)))
    deleted(cluster)
    for node in "abc":
        assert outcomes(cluster.ask(node, m.AckRequest(got))) == [Code.NOT_FOUND]
        assert outcomes(cluster.ask(node, m.ExtendRequest(got, 5.0, 0.0))) == [Code.NOT_FOUND]
        assert outcomes(cluster.ask(node, m.RejectRequest(got, 1.0, None))) == [Code.NOT_FOUND]
        assert outcomes(cluster.ask(node, m.RejectRequest(got, 0.0, DEATH))) == [Code.NOT_FOUND]
        assert is_not_found(cluster.ask(node, m.PurgeRequest("jobs", 0, "g")))
        assert is_not_found(cluster.ask(node, m.PurgeRequest("jobs", 0, "g!dead")))
        assert is_not_found(cluster.ask(node, m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10)))
        assert is_not_found(cluster.ask(node, fetch("g!dead")))
    assert views(cluster) == [set(), set(), set()]


@pytest.mark.parametrize("kind", [m.Hold, m.Ack, m.Reject, m.Merge, m.SyncState])
def test_nor_does_any_message_of_a_node_that_does_not_know(kind: type) -> None:
    """c goes on as if the group were there. Once it knows, no effect of its requests is left."""
    cluster = with_messages()
    got = receipts(cluster.ask("c", fetch(most=3, hold_time=50.0)))
    cluster.ask("c", m.AckRequest((got[0]._replace(spans=(got[0].receipt.span._replace(stop=1),)),)))
    cluster.drop = deaf("c")
    deleted(cluster)
    seen = noted(cluster, lambda sender, to, message: sender == "c" and isinstance(message, kind), deaf("c"))
    if kind is m.Hold:
        cluster.submit("c", fetch())
    elif kind is m.Ack:
        cluster.submit("c", m.AckRequest(got))
    elif kind is m.Reject:
        cluster.submit("c", m.RejectRequest(got, 0.0, DEATH))
    elif kind is m.Merge:
        deaths = m.SpanRecord(got[0].receipt.span, Record(0, 0, Kind.DEAD, DEATH))
        cluster.submit("c", m.RedriveRequest("jobs", 0, "g", (deaths,)))
    cluster.advance(20)
    assert seen, f"no {kind.__name__} was sent"
    assert views(cluster)[:2] == [set(), set()]
    cluster.hear_all(20)
    assert views(cluster) == [set(), set(), set()]


def test_a_node_that_knows_of_no_register_takes_a_late_ack_until_it_hears() -> None:
    """A node that knows the deletion refuses. One that does not votes, and drops all when it learns."""
    cluster, topic, _ = with_session()
    cluster.drop = deaf("c")
    got = receipts(cluster.ask("a", fetch(most=3)))
    deleted(cluster, "a")
    assert (topic.id, "g") not in cluster.nodes["c"].catalogue.groups
    assert outcomes(cluster.ask("c", m.AckRequest(got))) == [Code.NOT_FOUND]
    assert views(cluster)[:2] == [set(), set()]
    cluster.hear_all(20)
    assert views(cluster) == [set(), set(), set()]


# --------------------------------------------------------------------------------- made again


def test_deletion_voids_all_records_dead_letters_too() -> None:
    """Made again from latest, so that no predicate covers the messages published before."""
    cluster, topic, producer_id = with_session()
    got = receipts(cluster.ask("a", fetch(most=2)))
    cluster.ask("a", m.RejectRequest(got, 0.0, DEATH))
    listed = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10), of=m.PeekReply)
    deaths = tuple(m.SpanRecord(item.span, item.record) for item in listed.items)
    assert deaths
    deleted(cluster)
    cluster.advance(1)
    created(cluster, start="latest")
    for node in "abc":
        assert spans(cluster.ask(node, fetch("g!dead"))) == []
        reply = cluster.ask(node, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10, complete=True))
        assert isinstance(reply, m.PeekReply)
        assert reply.items == ()
    assert outcomes(cluster.ask("b", m.RedriveRequest("jobs", 0, "g", deaths))) == [Code.NOT_FOUND]
    assert spans(cluster.ask("a", fetch())) == []
    more(cluster, topic, producer_id, 10)
    assert spans(cluster.ask("a", fetch())) == [(10, 11)]


def test_an_ack_after_a_deletion_stays_where_the_deletion_comes_later() -> None:
    """c voted for an ACK of the group that was made again, and then hears of the deletion, and then of the creation."""
    cluster = with_messages()
    cluster.ask("a", fetch(most=1))
    cluster.advance(1)
    cluster.drop = deaf("c")
    gone = deleted(cluster)
    cluster.advance(1)
    made = created(cluster, "b")
    assert outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=3)))))) == ["acked"]
    core = cluster.nodes["c"]
    (replica,) = core.replicas.values()

    def acked() -> list[tuple[int, Kind]]:
        return [(record.generation, record.kind) for _, record in replica.views.find("g").records.items()]

    voted = acked()
    assert voted == [(made.generation, Kind.ACKED)]
    merging.take_in_group(core.context, gone, cluster.now)
    assert [
        entry.record.generation
        for record in core.snapshot(cluster.now)
        if isinstance(record, RecordsMerged)
        for entry in record.entries
    ] == [made.generation], "a start from a snapshot knows of it, too"
    merging.take_in_group(core.context, made, cluster.now)
    assert acked() == voted


def test_a_dead_letter_in_hand_is_stale_when_the_group_was_made_again() -> None:
    cluster = with_messages()
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch(most=2))), 0.0, DEATH))
    deaths = receipts(cluster.ask("a", fetch("g!dead", hold_time=50.0)))
    deleted(cluster)
    cluster.advance(1)
    created(cluster, start="latest")
    assert outcomes(cluster.ask("b", m.AckRequest(deaths))) == [Code.STALE_GENERATION]


def test_a_replica_that_missed_both_brings_nothing_back() -> None:
    """c has acks and a dead letter of the group that was; no peer takes them from it, and it drops them."""
    cluster = with_messages()
    got = receipts(cluster.ask("c", fetch(most=4)))
    cluster.ask("c", m.RejectRequest(got, 0.0, DEATH))
    cluster.kill("c")
    deleted(cluster)
    cluster.advance(1)
    created(cluster, "a", "latest")
    cluster.start("c", 70)
    for core in cluster.nodes.values():
        assert recorded(core) == [(2, Kind.SKIPPED)]
    cluster.kill("c")
    cluster.start("c")  # its journal still has them
    assert recorded(cluster.nodes["c"]) == [(2, Kind.SKIPPED)]


def test_made_again_at_once_it_gives_no_one_company() -> None:
    cluster = with_messages()
    before = receipts(cluster.ask("a", fetch(most=3, hold_time=10.0)))
    deleted(cluster)
    created(cluster)
    assert spans(cluster.ask("b", fetch())) == [(3, 10)], "somebody is at work on the first three"
    assert outcomes(cluster.ask("b", m.AckRequest(before))) == [Code.STALE_GENERATION]
    cluster.advance(10.1)
    after = receipts(cluster.ask("b", fetch(most=3)))
    assert [item.receipt.span.start for item in after][:1] == [0]
    assert min(item.receipt.owner.ballot for item in after) > before[0].receipt.owner.ballot
    reply = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10), of=m.PeekReply)
    assert reply.items[0].attempts == 0, "attempts begin anew"


def test_a_hold_that_ends_while_a_group_skips_is_offered_before_the_rest_of_its_batch() -> None:
    """No client gets it: a FETCH waits until the group has begun, and by then it is skipped."""
    cluster = with_messages()
    cluster.ask("a", fetch(most=1, hold_time=2.0))
    deleted(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ReplicaListReply) and sender != to
    cluster.submit("a", m.SetGroup("jobs", "g", start="latest"))
    cluster.advance(3.0)
    assert any(replica.views.groups["g"].available.messages == 1 for replica in replicas(cluster))
    cluster.hear_all(3.0)
    created(cluster, "b", "latest")
    assert spans(cluster.ask("b", fetch())) == []


def test_holds_of_a_deleted_group_are_handed_over_by_a_clean_stop_and_told_to_who_was_killed() -> None:
    for end in ("stop", "kill"):
        cluster = with_messages(hold_time_max=10.0)
        cluster.ask("a", fetch(most=3, hold_time=10.0))
        deleted(cluster)
        for node in "ab":
            getattr(cluster, end)(node)
            cluster.start(node, 1)
        created(cluster)
        assert spans(cluster.ask("b", fetch(hold_time=5.0))) == [(3, 10)], end


def test_no_ballot_below_those_of_before_is_granted() -> None:
    """The clock at the deletion is the minimum ballot: a late HOLD of the group that was would be below it."""
    cluster = with_messages()
    got = receipts(cluster.ask("a", fetch(most=3, hold_time=1.0)))
    deleted(cluster)
    created(cluster)
    for core in cluster.nodes.values():
        (replica,) = core.replicas.values()
        assert replica.views.groups["g"].min_ballot >= got[0].receipt.owner.ballot.time


def test_a_release_still_frees_what_is_held() -> None:
    cluster = with_messages()
    got = receipts(cluster.ask("a", fetch(most=3, hold_time=10.0)))
    deleted(cluster)
    cluster.ask("b", m.ReleaseRequest(got))
    created(cluster)
    assert spans(cluster.ask("b", fetch())) == [(0, 10)]


# --------------------------------------------------------------------------------------- RECLAIM


def test_reclaim_deletes_what_only_that_group_kept() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch("mian", most=1, hold_time=1.0))
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch("main")))))
    cluster.advance(20)
    assert batches(cluster) == [1, 1, 1], "the typo keeps it"
    late = receipts(cluster.ask("a", fetch("mian", hold_time=1.0)))
    deleted(cluster, group="mian")
    cluster.submit("a", m.AckRequest(late))
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 0]


def test_payload_that_only_that_group_wanted_is_not_missed() -> None:
    cluster = with_messages()
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch("main")))))
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 0]
    cluster.ask("b", m.SetGroup("jobs", "mian"))
    tables = [replica.batches for core in cluster.nodes.values() for replica in core.replicas.values()]
    assert [each.wanted_again.messages for each in tables] == [10, 10, 10]
    deleted(cluster, group="mian")
    assert [each.wanted_again.messages for each in tables] == [0, 0, 0]


def test_a_dead_letter_of_a_deleted_group_keeps_nothing() -> None:
    cluster = with_messages()
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch("mian"))), 0.0, DEATH))
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch("main")))))
    cluster.advance(20)
    assert batches(cluster) == [1, 1, 1]
    deleted(cluster, group="mian")
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 0]


def test_a_deletion_that_too_few_know_is_unknown_and_can_be_repeated() -> None:
    cluster, topic, _ = with_session()
    created(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutGroup) and to != "a"
    check_failed(cluster.ask("a", m.DeleteGroup("jobs", "g"), 6), Code.OUTCOME_UNKNOWN)
    cluster.hear_all()
    deleted(cluster, "c")
    assert all(core.catalogue.is_group_deleted(topic.id, "g") for core in cluster.nodes.values())


def test_a_fetch_that_was_answered_not_found_goes_no_further() -> None:
    """It asks whether the group is there, and hears of the deletion first, then of nothing from the third node."""
    cluster = with_messages(3)
    cluster.drop = lambda sender, target, message: (
        target == "c" and sender != "c" and isinstance(message, m.PutGroup | m.SyncTopics)
    )
    cluster.ask("a", fetch(most=1))
    deleted(cluster, "b")  # c has heard of neither
    cluster.hear_all()
    check_failed(cluster.ask("c", fetch()._replace(start="latest")), Code.NOT_FOUND)
    (group,) = cluster.nodes["a"].catalogue.groups.values()
    assert group.generation == group.buried, "a request that is over has written a generation"
