"""Copies that the simulator does not bring: of messages that a full node refused, and of changes that were undone."""

from __future__ import annotations

import dataclasses

import pytest

from quorumq.core.messages import Envelope, PauseGroup, Store
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import Received
from sim.clients import calls
from sim.clients.operator import Operator
from sim.cluster import Cluster
from sim.links import Links
from sim.options import Options
from sim.schedule import Schedule


def stored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[Envelope, int]:
    """Run a cluster; return the first STORE of a round that a got, and the life that it was sent to."""
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
    host.core.state.disk_shortage = Shortage.RESERVE if full else Shortage.NONE
    host.links.receive(envelope, life)
    host.core.state.disk_shortage = Shortage.NONE
    host.links.receive(envelope, life)
    assert len(fed) == (1 if full else 2)
    host.links.receive(envelope._replace(), life)
    assert all(isinstance(event, Received) for event in fed)
    assert len(fed) == (2 if full else 3), "the next message of the same content is another one"


@pytest.mark.parametrize("names_what_it_saw", [True, False])
def test_a_copy_of_an_undone_change_is_void(names_what_it_saw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not names_what_it_saw:
        monkeypatch.setattr(calls, "as_seen", lambda request, topic, groups: request._replace(id=topic.id))
    cluster = Cluster(Schedule(7, "quiet", Options(operators=1)))
    got: list[tuple[str, object]] = []
    arrives = Operator.arrives

    def arriving(self: Operator, node: str, caller: tuple[Operator, int], request: object) -> None:
        if isinstance(request, PauseGroup):
            got.append((node, request))
        arrives(self, node, caller, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Operator, "arrives", arriving)
    cluster.world.at(3.0, lambda _, __: cluster.operators[0].pause("g0"))
    cluster.world.at(
        5.0, lambda _, __: cluster.hosts[got[0][0]].on_request((cluster.operators[0], -2), got[0][1])
    )
    cluster.schedule = dataclasses.replace(cluster.schedule, ends=6.0)
    cluster.run()
    assert [request.paused for _, request in got] == [True, False]  # type: ignore[attr-defined]
    topic = cluster.around.topics.current
    assert topic is not None
    paused = [
        host.core.catalogue.groups[(topic.id, "g0")].pause.on for host in cluster.hosts.values() if host.core
    ]
    assert any(paused) != names_what_it_saw
