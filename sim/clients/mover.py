"""Operators that move slots of partitions between nodes, through any node, two at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumq.core.messages import ChangeMembers, ChangeMembersReply, MovePartition, MovePartitionReply
from sim.clients.calls import Caller
from sim.clients.client import Answer
from sim.clients.surroundings import Surroundings
from sim.host import Host
from sim.machine import cores_of


class Mover(Caller):
    """Moves slots of the topic's partitions now and then, as some node knows them, and adds nodes to the cluster.

    Most moves with an unknown outcome are repeated through another node; the next move finishes the others.
    """

    def __init__(self, around: Surroundings, name: str, hosts: Mapping[str, Host]) -> None:
        super().__init__(around, name)
        self.hosts = hosts
        self.rng = self.world.stream(name)

    def begin(self, _: object = None, __: object = None) -> None:
        self.later(0.3 + self.rng.random(), self.work)

    def work(self) -> None:
        """Move one slot, perhaps, and go on some time later."""
        if self.world.healed:
            return
        rng, topic = self.rng, self.topics.current
        cores = cores_of(self.around.machines)
        if topic is not None and cores and rng.random() < self.options.moves:
            known = cores[rng.choice(sorted(cores))].topics.get(topic.id)
            if known is not None and not known.deleted and known.replicas:
                number = rng.randrange(known.partitions)
                members = known.replicas[number]
                others = [node for node in self.options.node_names if node not in members]
                if others:
                    self.move(
                        MovePartition("jobs", number, rng.choice(members), rng.choice(others)), self.node()
                    )
        outside = [name for name in self.options.node_names if not self.hosts[name].is_member]
        if outside and rng.random() < self.options.moves:
            name = rng.choice(outside)
            self.add(ChangeMembers("add", name, f"{name}:1"), self.node())
        self.later(rng.choice((0.05, 0.4, 1.5)) * rng.random(), self.work)

    def add(self, request: ChangeMembers, node: str) -> None:
        """Add a node, which starts then."""
        self.world.saw("a node was to be added")

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, ChangeMembersReply):
                self.world.saw("a node was added")
                self.hosts[request.node].admit(answer.layout)

        self.ask(node, request, self.timeout, then)

    def move(self, request: MovePartition, node: str) -> None:
        """Ask for one move; mostly again if its outcome is not known."""
        self.world.saw("a move was asked for")

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, MovePartitionReply):
                self.world.saw("a partition was moved")
                if any(
                    placement.sources
                    for placement in (answer.topic.layout.placements if answer.topic.layout else ())
                ):
                    self.world.saw("a moved partition has a source")
            elif not self.world.healed and self.rng.random() < 0.6:
                self.later(0.1 * self.rng.random(), self.move, request, self.node(node))

        self.ask(node, request, self.timeout, then)
