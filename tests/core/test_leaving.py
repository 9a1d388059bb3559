"""A node that is drained or removed answers its clients at once (docs/layouts.md, MEMBERS 12)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import HelloRefused
from quorumq.core.values.errors import Code
from quorumq.core.values.types import MemberState
from tests.core.growing import GrowingCluster
from tests.core.network import hand_over
from tests.core.steps import fetch, published, receipts


def with_leaver() -> GrowingCluster:
    """Return a cluster with `jobs` on a, b and c, and d, which keeps nothing."""
    cluster = GrowingCluster(3)
    published(cluster)
    cluster.add("d")
    return cluster


def change(cluster: GrowingCluster, name: str, through: str = "a", node: str = "d") -> None:
    """Drain or remove a node."""
    cluster.ask(through, m.ChangeMembers(name, node), of=m.ChangeMembersReply)


def learns(cluster: GrowingCluster, how: str) -> None:
    """Have d learn that it was removed: from a HELLO that is refused, or from the layout."""
    if how == "refused":
        cluster.link("d", "b")
    else:
        hand_over(cluster, "b", "d", m.PutCluster(0, cluster.nodes["b"].catalogue.cluster.layout))


def code_of(reply: object) -> str:
    """Return the code of a refusal."""
    assert isinstance(reply, m.Failed), reply
    return reply.code


def test_a_drained_node_coordinates_no_publishes_and_deliveries() -> None:
    cluster = with_leaver()
    given = receipts(cluster.ask("d", fetch(most=5)))
    parked = cluster.submit("d", fetch("other", wait=20.0, least=100))
    change(cluster, "drain")
    assert code_of(cluster.replies[parked]) == Code.OUTCOME_UNKNOWN, "it has made the group"
    for request in (m.AckRequest(given), fetch(), m.ExtendRequest(given, 5.0, 0.0)):
        refused = cluster.ask("d", request)
        assert code_of(refused) == Code.NOT_STORED
        assert "node d was drained: ask another node" in refused.detail
    assert isinstance(cluster.ask("a", m.AckRequest(given)), m.SettleReply)
    assert len(receipts(cluster.ask("b", fetch("other")))) == 1, "what the FETCH at d held was given back"
    assert cluster.topic("more"), "operators are served"
    cluster.change("d")
    assert isinstance(cluster.ask("d", fetch()), m.FetchReply), "it was taken back into use"


@pytest.mark.parametrize("how", ["refused", "told"])
def test_a_removed_node_answers_at_once(how: str) -> None:
    """It would wait for its timeout, as no peer answers."""
    cluster = with_leaver()
    change(cluster, "drain")
    change(cluster, "remove")
    cluster.hear_all()
    waiting = cluster.submit("d", m.CreateTopic("more"))
    learns(cluster, how)
    assert code_of(cluster.replies[waiting]) == Code.OUTCOME_UNKNOWN
    for request in (
        fetch(),
        m.CreateTopic("again"),
        m.ReleaseRequest(()),
        m.DescribeGroups((("jobs", "g"),)),
    ):
        refused = cluster.ask("d", request)
        assert code_of(refused) == Code.NOT_STORED
        assert "node d was removed from the cluster: ask another node" in refused.detail
    known = cluster.ask("d", m.Metadata(("unheard-of",)))
    assert [info.node for info in known.nodes] == [*"abc"], "its clients learn whom to ask"
    assert isinstance(cluster.ask("d", m.StatusRequest()), m.StatusReply)


def test_a_refusal_of_an_older_layout_says_nothing() -> None:
    """The name was given again since: this is the present member of that name."""
    cluster = with_leaver()
    core = cluster.nodes["d"]
    cluster.feed("d", HelloRefused("b", Code.CLUSTER_MISMATCH, "", core.catalogue.cluster.layout.number))
    assert core.state.standing == MemberState.JOINED
    cluster.feed("d", HelloRefused("b", Code.CLUSTER_MISMATCH, "another cluster", 0))
    assert core.state.standing == MemberState.JOINED
    cluster.feed("d", HelloRefused("b", Code.CLUSTER_MISMATCH, "", core.catalogue.cluster.layout.number + 1))
    assert core.state.standing == MemberState.REMOVED
