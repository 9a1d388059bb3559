"""Clusters whose members change: nodes are asked to let another one in, and it starts."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.types import ClusterLayout, Incarnation, NodeId
from tests.core.cluster import Cluster


class GrowingCluster(Cluster):
    """A cluster that nodes are added to."""

    def hello_of(self, name: NodeId) -> m.Hello:
        """HELLO of an empty node that asks to be let in."""
        return m.Hello(
            m.VERSIONS, "cluster", b"", 0.0, name, Incarnation(0, 0), 0, 0, 0, address=f"{name}:7401"
        )

    def asks(self, name: NodeId, through: NodeId = "a") -> Any:
        """The answer to an empty node that asks to be let in."""
        return self.ask(through, self.hello_of(name))

    def change(self, name: NodeId, through: NodeId = "a", **more: str) -> ClusterLayout:
        """Have a node be a member."""
        reply = self.ask(through, m.ChangeMembers("add", name, f"{name}:7401", **more))
        assert isinstance(reply, m.ChangeMembersReply), reply
        return reply.layout

    def enter(self, name: NodeId, through: NodeId = "a", *, journal: bool = False) -> None:
        """Start a node that was added, with an empty directory unless ``journal``."""
        admitted = self.asks(name, through)
        assert isinstance(admitted, m.Admitted), admitted
        self.layouts[name] = admitted.layout
        if name not in self.names:
            self.names += (name,)
        if not journal:
            self.journals[name] = []
        self.start(name)
        self.relink()

    def add(self, name: NodeId, through: NodeId = "a", **more: str) -> None:
        """Add a node, and start it."""
        self.change(name, through, **more)
        self.enter(name, through)

    def relink(self) -> None:
        """Have every pair without a link dial again, as nodes do all the time."""
        for one in list(self.nodes):
            for other in list(self.nodes):
                if one != other and other not in self.nodes[one].state.links:
                    self.link(one, other)
        self.advance(1.0)
