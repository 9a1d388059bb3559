"""A group's register is decided, change by change: only a client's request stands above a confirmed change."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import LinkDown, Request
from quorumq.core.messages.records import DecisionPut, GroupPut
from quorumq.core.values.types import Batch, Group, Latest, ProducerId, Topic
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back, noted, wipe
from tests.core.steps import check_failed, fetch, more, outcomes, receipts, spans, with_messages, with_session

DECIDING = m.Prepare | m.Accept | m.ProposalReply | m.PutGroup | m.PutReply


def latest(**options: object) -> m.Fetch:
    return fetch(**options)._replace(start="latest")  # type: ignore[arg-type]


def registers(cluster: Cluster) -> list[dict[tuple[bytes, str], Group]]:
    return [core.catalogue.groups for core in cluster.nodes.values()]


def cut(cluster: Cluster, node: str) -> None:
    """All links of one node break, and messages under way on them are lost."""
    cluster.drop = lambda sender, to, message: node in (sender, to) and sender != to
    for other in cluster.names:
        if other != node:
            cluster.queue.extend([(node, LinkDown(other)), (other, LinkDown(node))])


def healed(cluster: Cluster) -> None:
    cluster.hear_all()
    for one in cluster.names:
        for other in cluster.names:
            if one != other and other not in cluster.nodes[one].state.links:
                cluster.link(one, other)
    cluster.advance(10.0)


def drained(cluster: Cluster, node: str = "a") -> list[int]:
    """Sequence numbers of all that the group is given, acked one by one in the order of delivery."""
    got: list[int] = []
    for _ in range(100):
        given = receipts(cluster.ask(node, fetch()))
        if not given:
            break
        cluster.ask(node, m.AckRequest(given))
        got += [seq for part in given for span in part.spans for seq in range(span.start, span.stop)]
    return got


# ------------------------------------------------------------------------------ what is confirmed stands


REQUESTS: dict[str, object] = {
    "a fetch from latest": latest(),
    "a fetch from earliest": fetch(),
    "a creation from latest": m.SetGroup("jobs", "g", "latest"),
    "a creation from earliest": m.SetGroup("jobs", "g"),
    "a creation from a time": m.SetGroup("jobs", "g", "time", 1),
}


@pytest.mark.parametrize(
    ("kept", "request_"),
    [
        pytest.param(
            kept, request, id=f"{name}-{kept}", marks=() if (kept + at) % 4 == 0 else pytest.mark.soak
        )
        for at, (name, request) in enumerate(REQUESTS.items())
        for kept in range(1, 14)
    ],
)
def test_a_creation_that_failed_moves_nothing_that_was_confirmed_later(request_: object, kept: int) -> None:
    """a's links break after ``kept`` messages of its exchange; the others get its register, or proposal, late."""
    cluster, topic, producer_id = with_session(3, request_timeout=1.0)
    count = 0

    def breaks(sender: str, to: str, message: object) -> bool:
        nonlocal count
        if "a" in (sender, to) and sender != to and isinstance(message, DECIDING):
            count += 1
            if count == kept:
                cut(cluster, "a")
        return False

    cluster.drop = breaks
    reply = cluster.ask("a", request_, 3.0)
    if isinstance(reply, m.Failed):
        assert reply.code in ("outcome-unknown", "too-few-replicas"), reply
        if isinstance(request_, m.SetGroup):
            assert reply.code == "outcome-unknown", reply
    cluster.advance(2.0)
    made = cluster.ask("b", m.SetGroup("jobs", "g"), of=m.GroupReply)
    healed(cluster)
    assert all(list(groups.values()) == [made.group] for groups in registers(cluster))
    more(cluster, topic, producer_id, 3)
    backlog = [] if made.group.latest else [0, 1, 2]
    held = (
        [seq for start, stop in spans(reply) for seq in range(start, stop)]
        if isinstance(reply, m.FetchReply)
        else []
    )
    assert sorted({*drained(cluster), *held}) == [*backlog, 3]


def test_two_first_fetches_from_latest_begin_at_one_position() -> None:
    """b gets no last answer until a's FETCH is answered, and messages were published: they are its own, too."""
    for kind in (m.PutReply, m.ProposalReply):
        cluster, topic, producer_id = with_session(3)
        late: list[tuple[str, str, object]] = []

        def keep(sender: str, to: str, message: object, late: list = late, kind: type = kind) -> bool:  # type: ignore[type-arg]
            if to == "b" and sender != "b" and isinstance(message, kind):
                late.append((sender, to, message))
                return True
            return False

        cluster.drop = keep
        second = cluster.submit("b", latest())
        assert spans(cluster.ask("a", latest(), 1.0)) == []
        more(cluster, topic, producer_id, 3, 5)
        given = receipts(cluster.ask("a", fetch(most=2)))
        assert outcomes(cluster.ask("a", m.AckRequest(given))) == ["acked"]
        cluster.hear_all()
        for item in late:
            hand_over(cluster, *item)
        cluster.advance(1.0)
        got = [*spans(cluster.replies[second]), *spans(cluster.ask("a", fetch()))]
        assert got == [(5, 8)], f"{kind.__name__}: {got}"


def test_two_creations_of_a_deleted_group_are_one() -> None:
    cluster = with_messages(3)
    cluster.ask("a", fetch(most=1))
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g")), m.GroupReply)
    cluster.advance(11.0)
    late = held_back(
        cluster,
        lambda sender, to, message: to == "b" and sender != "b" and isinstance(message, m.ProposalReply),
    )
    second = cluster.submit("b", m.SetGroup("jobs", "g"))
    first = cluster.submit("a", m.SetGroup("jobs", "g"))
    cluster.advance(1.0)
    assert isinstance(cluster.replies[first], m.GroupReply)
    given = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("a", m.AckRequest(given))) == ["acked"]
    cluster.hear_all()
    for item in late:
        hand_over(cluster, *item)
    cluster.advance(11.0)
    assert cluster.replies[second] == cluster.replies[first]
    assert spans(cluster.ask("a", fetch())) == []


def test_a_rewind_of_unknown_outcome_is_void_in_the_group_that_is_made_again() -> None:
    """a proposes a rewind that reaches no other node; its clock is ahead. The group is deleted, made again and read."""
    cluster = with_messages(3, request_timeout=1.0)
    assert isinstance(cluster.ask("b", m.SetGroup("jobs", "g")), m.GroupReply)
    cluster.wall_off_ms["a"] = 3_600_000
    cluster.advance(1.0)
    cluster.drop = lambda sender, to, message: sender == "a" != to and isinstance(message, m.Accept)
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g", rewind=True), 2.0), m.Failed)
    cut(cluster, "a")
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g")), m.GroupReply)
    made = cluster.ask("c", m.SetGroup("jobs", "g"), of=m.GroupReply)
    given = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("b", m.AckRequest(given))) == ["acked"]
    healed(cluster)
    assert spans(cluster.ask("a", fetch())) == []
    assert all(list(groups.values()) == [made.group] for groups in registers(cluster))


def test_a_creation_of_unknown_outcome_is_over_with_the_next_deletion() -> None:
    """It was chosen, and its register is at a alone; the group is deleted, twice, through others."""
    cluster = with_messages(3, request_timeout=1.0)
    cluster.ask("b", m.SetGroup("jobs", "g"))
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g")), m.GroupReply)
    cluster.drop = lambda sender, to, message: (
        sender == "a" != to and isinstance(message, m.PutGroup | m.SyncTopics)
    )
    check_failed(cluster.ask("a", m.SetGroup("jobs", "g"), 2.0), "outcome-unknown")
    cut(cluster, "a")
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g")), m.GroupReply)
    healed(cluster)
    assert all(group.deleted for groups in registers(cluster) for group in groups.values())


def test_a_fetch_that_hears_late_that_its_group_was_deleted_writes_nothing() -> None:
    cluster = with_messages()
    cluster.drop = lambda sender, to, message: (
        to == "c" != sender and isinstance(message, m.PutGroup | m.SyncTopics | m.Prepare | m.Accept)
    )
    cluster.ask("a", fetch(most=1))
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g")), m.GroupReply)
    cluster.hear_all()
    check_failed(cluster.ask("c", latest()), "outcome-unknown")
    check_failed(cluster.ask("c", latest()), "not-found")
    assert all(group.deleted for groups in registers(cluster) for group in groups.values())


def test_a_request_waits_for_a_stamp_where_the_clocks_are_an_hour_ahead() -> None:
    """The deletion's ballot is above b's reserve, and then above that of all others."""
    cluster = with_messages()
    cluster.ask("a", fetch(most=1))
    cluster.wall_off_ms["b"] = 3_600_000
    assert isinstance(cluster.ask("b", m.DeleteGroup("jobs", "g"), 0.1), m.GroupReply)
    assert not any(core.context.unstamped for core in cluster.nodes.values())


# ------------------------------------------------------------------------------ later messages are the group's


@pytest.mark.parametrize("off_ms", [-(1 << 41), -86_400_000, -3_000, -200, 3_000, 86_400_000])
@pytest.mark.parametrize("how", ["created", "fetched", "rewound"])
@pytest.mark.parametrize("wrong", ["the producer", "the node", "all nodes"])
def test_a_group_from_now_on_gets_what_is_published_after_its_ok_whatever_clocks_say(
    off_ms: int, how: str, wrong: str
) -> None:
    cluster, topic, producer_id = with_session(5)
    if how == "rewound":
        cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.advance(1.0)
    for node in {"the producer": "", "the node": "b", "all nodes": "abc"}[wrong]:
        cluster.wall_off_ms[node] = off_ms
    if how == "fetched":
        reply = cluster.submit("b", latest())
    else:
        reply = cluster.submit("b", m.SetGroup("jobs", "g", "latest", rewind=how == "rewound"))
    cluster.advance(0.5)
    assert not isinstance(cluster.replies[reply], m.Failed), cluster.replies[reply]
    batch = cluster.batch(topic, producer_id, 5, [b"after"] * 2)
    if wrong == "the producer":
        batch = dated(cluster, topic, producer_id, 5, off_ms)
    assert isinstance(cluster.ask("c", m.Publish(batch), 0.5), m.PublishReply)
    assert spans(cluster.ask("a", fetch())) == [(5, 7)]


def dated(cluster: Cluster, topic: Topic, producer_id: ProducerId, first: int, off_ms: int) -> Batch:
    """A batch of two messages by a producer whose clock is off."""
    before, cluster.time = cluster.time, cluster.time + off_ms / 1000
    try:
        return cluster.batch(topic, producer_id, first, [b"after"] * 2)
    finally:
        cluster.time = before


def test_a_message_absent_at_the_question_belongs_to_the_group() -> None:
    """c has a message, of unknown outcome, that neither a nor b has; they are asked. It spreads later, and is new."""
    cluster, topic, producer_id = with_session(3)
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and sender != to
    publishing = cluster.submit("c", m.Publish(cluster.batch(topic, producer_id, 3, [b"late"])))
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g", "latest")), m.GroupReply)
    cluster.advance(6.0)
    assert isinstance(cluster.replies[publishing], m.Failed)
    healed(cluster)
    assert drained(cluster) == [3]


def test_reclaimed_messages_are_skipped_by_a_group_from_latest() -> None:
    """One replica retained what the others reclaimed: no replica pulls it again for a group that is not to get it."""
    cluster, topic, producer_id = with_session()
    given = receipts(cluster.ask("a", fetch("main")))
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and sender != to
    cluster.ask("a", m.AckRequest(given))
    cluster.advance(20.0)
    there = [
        sum(copy.batches.present.messages for copy in core.replicas.values())
        for core in cluster.nodes.values()
    ]
    healed(cluster)
    assert isinstance(cluster.ask("b", m.SetGroup("jobs", "g", "latest")), m.GroupReply)
    cluster.advance(10.0)
    more(cluster, topic, producer_id, 10)
    assert drained(cluster) == [10], there
    for core in cluster.nodes.values():
        for replica in core.replicas.values():
            assert not replica.batches.wanted_again.messages


@pytest.mark.parametrize("finishes", ["a fetch", "a creation"])
def test_a_beginning_that_was_left_half_done_is_finished_by_who_finds_it(finishes: str) -> None:
    cluster, topic, producer_id = with_session(3, request_timeout=1.0)
    cluster.drop = lambda sender, to, message: type(message).__name__ in ("ReplicaList", "ReplicaListReply")
    check_failed(cluster.ask("a", latest(), 2.0), "outcome-unknown")
    assert {group.latest for groups in registers(cluster) for group in groups.values()} == {Latest.SKIPPING}
    more(cluster, topic, producer_id, 3)
    cluster.hear_all()
    if finishes == "a fetch":
        assert spans(cluster.ask("c", fetch())) == []
    else:
        assert isinstance(cluster.ask("b", m.SetGroup("jobs", "g")), m.GroupReply)
    assert {group.latest for groups in registers(cluster) for group in groups.values()} == {Latest.BEGUN}
    more(cluster, topic, producer_id, 4, 2)
    assert drained(cluster) == [4, 5]


def test_a_skip_that_another_one_finished_is_discarded() -> None:
    """c asks for the groups; a ends meanwhile, and a message is published before c's first answer.

    b answers c after the publish, and knows the message; c has no answer from a node that has begun in its page.
    """
    cluster, topic, producer_id = with_session(3)
    late: list[tuple[str, str, object]] = []
    cluster.drop = lambda sender, to, message: type(message).__name__ == "ReplicaList"
    first = cluster.submit("c", latest())  # has it decided, and is cut off from all answers
    cluster.advance(0.1)

    def keep(sender: str, to: str, message: object) -> bool:
        kinds = m.PutGroup if sender == "c" else m.PutGroup | m.SyncTopics
        return "c" in (sender, to) and sender != to and isinstance(message, kinds)

    cluster.drop = keep
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    more(cluster, topic, producer_id, 3)
    cluster.hear_all()
    for item in late:
        hand_over(cluster, *item)
    again = cluster.submit("c", latest())
    cluster.advance(6.0)
    del first, again
    assert drained(cluster) == [3]


# ------------------------------------------------------------------------------ who decides, and what it costs


def test_a_group_is_made_by_no_fetch_after_its_topic_was_told_not_to() -> None:
    cluster = with_messages(3)
    cluster.advance(3.0)
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.PutTopic | m.SyncTopics)
    assert isinstance(cluster.ask("a", m.AlterTopic("jobs", auto_create_groups=False)), m.TopicReply)
    # Node c accepts the first one's register before it hears: a creation from latest may find that, and have it chosen.
    for request, code in (
        (fetch("tpyo"), "outcome-unknown"),
        (fetch("tpyo"), "not-found"),
        (fetch("tpyo")._replace(start="latest"), "not-found"),
    ):
        check_failed(cluster.ask("c", request), code)
    cluster.hear_all(5.0)
    assert registers(cluster) == [{}, {}, {}]
    assert isinstance(cluster.ask("c", m.SetGroup("jobs", "typo")), m.GroupReply), (
        "asked for by name it is made"
    )


def counted(cluster: Cluster, request: object, node: str = "a") -> tuple[list[str], int]:
    """Return the messages that a request causes, by type, and the number of records at its node."""
    kinds: list[str] = []

    def note(sender: str, to: str, message: object) -> bool:
        if sender != to and not isinstance(message, m.Heartbeat):
            kinds.append(type(message).__name__)
        return False

    cluster.drop = note
    before = sum(isinstance(it, DecisionPut | GroupPut) for it in cluster.journals[node])
    reply = cluster.ask(node, request)
    assert not isinstance(reply, m.Failed), reply
    cluster.hear_all()
    return kinds, sum(isinstance(it, DecisionPut | GroupPut) for it in cluster.journals[node]) - before


def test_a_new_group_costs_two_rounds_and_a_known_one_none() -> None:
    cluster = with_messages(3)
    made, records = counted(cluster, fetch(most=1))
    assert sorted(kind for kind in made if "Hold" not in kind) == sorted(
        ["Accept", "ProposalReply", "PutGroup", "PutReply"] * 2
    )
    assert records == 2
    cluster.ask("a", fetch("other", most=1))
    known, records = counted(cluster, fetch("other", most=1))
    assert ([kind for kind in known if "Hold" not in kind], records) == ([], 0)
    elsewhere, records = counted(cluster, fetch("other", most=1), "b")
    assert sorted(kind for kind in elsewhere if "Hold" not in kind) == [
        "PutGroup",
        "PutGroup",
        "PutReply",
        "PutReply",
    ], "once, at each other node"
    assert records == 0


def test_many_fetches_that_begin_together_have_a_group_decided_once() -> None:
    cluster = with_messages(1)
    kinds: list[str] = []
    cluster.drop = lambda sender, to, message: sender != to and bool(kinds.append(type(message).__name__))
    held = cluster.drop
    keys = []
    for _ in range(20):
        cluster.keys += 1
        keys.append(cluster.keys)
        cluster.queue.append(("a", Request(cluster.keys, fetch(wait=0.5))))
    cluster.drop = held
    cluster.run()
    assert kinds.count("Accept") == 2
    assert kinds.count("PutGroup") == 2
    cluster.advance(2.0)
    assert all(isinstance(cluster.replies[key], m.FetchReply) for key in keys)
    assert not cluster.nodes["a"].context.registrations


def test_votes_outlive_a_restart_and_a_wiped_disk() -> None:
    """a and b accept the default; a dies before it informs another node; b is wiped: the choice stands."""
    cluster = with_messages(3, request_timeout=1.0)
    cluster.drop = lambda sender, to, message: (
        (to == "c" and isinstance(message, m.Accept))
        or (isinstance(message, m.ProposalReply) and sender != to)
    )
    cluster.submit("a", fetch())
    cluster.kill("a")
    cluster.hear_all()
    cluster.start("a")
    assert len(cluster.nodes["a"].catalogue.decisions) == 1
    wipe(cluster, "b", 5.0)
    assert len(cluster.nodes["b"].catalogue.decisions) == 1
    made = cluster.ask("c", m.SetGroup("jobs", "g", "latest"), of=m.GroupReply)
    assert made.group.latest == Latest.NO, "the FETCH's proposal had been chosen"
    assert not any(core.catalogue.decisions for core in cluster.nodes.values())
    assert drained(cluster) == [0, 1, 2]


def test_an_undecided_register_is_deleted_with_its_topic() -> None:
    cluster, topic, _ = with_session(1, request_timeout=1.0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ProposalReply) and sender != to
    cluster.submit("a", fetch())
    cluster.advance(2.0)
    assert all(core.catalogue.decisions for core in cluster.nodes.values())
    cluster.hear_all()
    cluster.ask("b", m.DeleteTopic("jobs", topic.id))
    assert not any(core.catalogue.decisions for core in cluster.nodes.values())


def test_one_request_of_a_node_proposes_at_a_time() -> None:
    """Otherwise they compete: with long round trips nothing is ever chosen."""
    cluster = Cluster()
    cluster.topic()
    cluster.delay = 0.1
    asked = noted(
        cluster, lambda sender, to, message: isinstance(message, m.Prepare) and sender == "a" and to == "b"
    )
    keys = [cluster.submit("a", m.SetGroup("jobs", "g", start="latest")) for _ in range(12)]
    cluster.advance(3.0)
    assert all(isinstance(cluster.replies[key], m.GroupReply) for key in keys)
    assert len(asked) == 1


def test_requests_of_all_nodes_at_once_come_to_an_end_though_a_round_trip_is_long() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.delay = 0.1
    keys = [cluster.submit(node, m.SetGroup("jobs", "g", start="latest")) for node in "abc" * 5]
    cluster.advance(5.0)
    assert sum(isinstance(cluster.replies.get(key), m.GroupReply) for key in keys) > 10
