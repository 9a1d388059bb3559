"""A reply that waited while the caller was started again must not be counted by its new start.

The replica answers over its link of that moment, which goes to the new start; so nothing but the round number says
that the answer is to a question of the old one.
"""

from __future__ import annotations

from quorumq.core.messages import Envelope, OpenSession, Publish, PublishReply, Store, StoreReply
from quorumq.core.messages.effects import Received
from tests.core.cluster import Cluster
from tests.core.steps import opened


def test_a_late_stored_does_not_confirm_a_publish_of_the_next_start() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    late: list[tuple[str, StoreReply]] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, StoreReply) and to == "c":
            late.append((sender, message))
        return False

    cluster.drop = keep
    for seq in range(20):
        cluster.ask("c", Publish(cluster.batch(topic, producer_id, seq, [b"x"])), of=PublishReply)
    cluster.crash("c")
    cluster.drop = lambda sender, to, message: isinstance(message, Store) and sender == "c" != to
    open_keys = [
        cluster.submit("c", Publish(cluster.batch(topic, producer_id, seq, [b"y"]))) for seq in range(20, 40)
    ]
    core = cluster.nodes["c"]
    for sender, message in late:
        incarnation = cluster.nodes[sender].state.incarnation
        envelope = Envelope(sender, incarnation, "c", core.state.incarnation, core.state.clock.value, message)
        cluster.feed("c", Received(envelope))
    assert len(late) >= 20
    assert [key for key in open_keys if key in cluster.replies] == []


def test_round_numbers_are_never_used_by_two_starts() -> None:
    cluster = Cluster()
    seen: dict[int, int] = {}
    for start in range(4):
        core = cluster.nodes["b"]
        before = core.state.round_count
        cluster.topic(f"t{start}")
        cluster.ask("b", OpenSession())
        for number in range(before, core.state.round_count + 100):
            assert seen.setdefault(number, start) == start
        cluster.crash("b")
