"""A node list of even length: half of it decides nothing, and a majority recovers each decision."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.cluster.topics import replica_sets
from tests.core.cluster import Cluster
from tests.core.steps import check_failed


@pytest.mark.parametrize("members", range(1, 12))
def test_two_majorities_share_a_member_and_a_reading_quorum_meets_each(members: int) -> None:
    assert 2 * majority_of(members) > members
    assert majority_of(members) <= members
    reading = members - majority_of(members) + 1
    assert reading + majority_of(members) > members


@pytest.mark.parametrize(("size", "of_voters"), [(2, 1), (4, 2), (6, 2)])
def test_half_of_the_voters_or_fewer_change_nothing(size: int, of_voters: int) -> None:
    cluster = Cluster(size)
    topic = cluster.topic(rf=1)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    voters = cluster.nodes["a"].catalogue.cluster.voters
    assert len(voters) == min(size, 5)
    config = cluster.nodes["a"].context.config
    added_on = replica_sets(topic, 2, config.nodes, config.machines)[1][0]
    half = voters[:of_voters]
    sides = (half[0], cluster.names[-1]) if 2 * of_voters == len(voters) else (half[0],)
    cluster.drop = lambda sender, to, message: (sender in half) != (to in half)
    for request in (
        m.CreateTopic("other", 1),
        m.AlterTopic("jobs", max_deliveries=9),
        m.AlterTopic("jobs", partitions=2),
        m.DeleteTopic("jobs", topic.id),
    ):
        is_promised = isinstance(request, m.AlterTopic) and request.partitions is None
        reads = of_voters > len(voters) - majority_of(len(voters))
        for name in sides:
            is_far = isinstance(request, m.AlterTopic) and (added_on in half) != (name in half)
            refused = is_far if not is_promised else not reads
            code = "too-few-replicas" if refused else "outcome-unknown"
            check_failed(cluster.ask(name, request, 6.0), code)


@pytest.mark.parametrize("other", ["a", "b", "c"])
def test_any_two_of_four_nodes_find_a_value_of_three(other: str) -> None:
    cluster = Cluster(4)
    cluster.drop = lambda sender, to, message: "d" in (sender, to) and sender != to
    cluster.topic()
    cluster.drop = lambda sender, to, message: sender != to and {sender, to} != {"d", other}
    cluster.ask("d", m.Metadata(("jobs",)), 1.1, of=m.MetadataReply)
