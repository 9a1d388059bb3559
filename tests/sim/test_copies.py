"""Copies that the simulator does not bring: of messages that a full node refused, and of changes that were undone."""

from __future__ import annotations

import pytest

from quorumq.core.messages import Envelope, Store
from quorumq.core.messages.diskroom import Capacity
from quorumq.core.messages.effects import Received
from sim.cluster import Cluster
from sim.links import Links
from sim.options import Options
from sim.schedule import Schedule


def stored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[Envelope, int]:
    """Run a cluster; return the first STORE of a round that came to a, and the life that it was sent to."""
    caught: list[tuple[Envelope, int]] = []
    receive = Links.receive

    def catching(self: Links, envelope: Envelope, life: int) -> None:
        if self.name == "a" and isinstance(envelope.message, Store) and envelope.message.round:
            caught.append((envelope, life))
        receive(self, envelope, life)

    with monkeypatch.context() as patch:
        patch.setattr(Links, "receive", catching)
        cluster.run()
    return caught[-1]


@pytest.mark.parametrize("full", [True, False])
def test_a_store_that_came_to_a_full_node_has_no_copy(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(Schedule(7, "swarm", Options()))
    envelope, life = stored(cluster, monkeypatch)
    host = cluster.hosts["a"]
    assert host.core is not None
    fed: list[object] = []
    monkeypatch.setattr(host, "feed", lambda *events: fed.extend(events))
    host.core.state.disk_shortage = Capacity.FIRST if full else Capacity.PLENTY
    host.links.receive(envelope, life)
    host.core.state.disk_shortage = Capacity.PLENTY
    host.links.receive(envelope, life)
    assert len(fed) == (1 if full else 2)
    host.links.receive(envelope._replace(), life)
    assert all(isinstance(event, Received) for event in fed)
    assert len(fed) == (2 if full else 3), "the next message of the same content is another one"


def test_a_change_of_a_group_that_is_undone_has_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node answers, so that its outcome is not known: an operator undoes it, once."""
    cluster = Cluster(Schedule(7, "swarm", Options()))
    got: list[object] = []
    for host in cluster.hosts.values():
        monkeypatch.setattr(host, "on_request", lambda caller, request: got.append(request))
    operator = cluster.operators[0]
    operator.limit("g0", 0.5, 3)
    (op,) = operator.pending
    cluster.world.run(8.0)
    limit, *others = got
    assert others
    operator.arrives("a", (operator, op), limit)  # type: ignore[arg-type]
    assert got == [limit, *others]
