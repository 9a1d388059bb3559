"""Operators that move slots of partitions between nodes, through any node, two at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorumq.core.messages import (
    AlterTopic,
    ChangeMembers,
    ChangeMembersReply,
    Failed,
    MovePartition,
    TopicReply,
)
from quorumq.core.values.errors import Code
from quorumq.core.values.types import ClusterLayout, MemberState
from sim.clients.calls import ALL, Caller
from sim.clients.client import Answer
from sim.clients.surroundings import Surroundings
from sim.host import Host
from sim.machine import cores_of

RAISES = 0.2
"""Share of the probability of a move with which a replication factor is changed."""


VOTERS = 0.05
"""Share with which more voters are asked for: it cannot be undone, and fewer nodes leave then."""


class Mover(Caller):
    """Moves slots of partitions and voters now and then, raises replication factors, adds nodes, has them leave.

    Most moves with an unknown outcome are repeated through another node; the next move finishes the others.
    """

    def __init__(
        self, around: Surroundings, name: str, hosts: Mapping[str, Host], leaving: dict[str, None]
    ) -> None:
        super().__init__(around, name)
        self.hosts = hosts
        self.leaving = leaving  # nodes that are drained, of all such operators
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
                leaving = [node for node in members if node in self.leaving]
                source = rng.choice(leaving if leaving and rng.random() < 0.8 else members)
                if others:
                    self.move(MovePartition("jobs", number, source, rng.choice(others)), self.node())
        if topic is not None and rng.random() < RAISES * self.options.moves:
            self.raise_to(rng.choice((1, 3, 5)), self.node())
        self.change_members()
        self.later(rng.choice((0.05, 0.4, 1.5)) * rng.random(), self.work)

    def change_members(self) -> None:
        """Add a node, drain one that was added, remove one that was drained, or change the voters, perhaps."""
        rng, share = self.rng, self.options.moves
        added = [name for name in self.options.node_names if name not in self.options.founder_names]
        outside = [name for name in added if not self.hosts[name].is_member]
        inside = [name for name in added if self.hosts[name].is_member and name not in self.leaving]
        if outside and rng.random() < share:
            name = rng.choice(outside)
            self.change(ChangeMembers("add", name, f"{name}:1"), self.node())
        elif inside and rng.random() < 0.3 * share:
            self.change(ChangeMembers("drain", rng.choice(inside)), self.node())
        elif self.leaving and rng.random() < share:
            self.change(ChangeMembers("remove", rng.choice(sorted(self.leaving))), self.node())
        elif added and rng.random() < 0.5 * share:
            self.change(ChangeMembers("move-voter", rng.choice(self.options.node_names)), self.node())
        elif added and rng.random() < VOTERS * share:
            self.change(ChangeMembers("raise-voters", "", voters=5), self.node())

    def change(self, request: ChangeMembers, node: str) -> None:
        """Ask for one change of the members, and again until its outcome is known: the node begins, or ends."""
        self.world.saw(f"a node was to {request.change}")

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, ChangeMembersReply):
                self.world.saw(f"a node did {request.change}")
                self.changed(request, answer.layout)
            elif not (isinstance(answer, Failed) and answer.code in (Code.USAGE, Code.CONFLICT)):
                self.later(0.1 + 0.2 * self.rng.random(), self.change, request, self.node(node))

        self.ask_as_seen(request, node, then)

    def ask_as_seen(
        self,
        request: AlterTopic | ChangeMembers | MovePartition,
        node: str,
        then: Callable[[Answer, Any], None],
    ) -> None:
        """Send a change, to the members or the topic as a node shows them; not if none knows the topic."""
        if isinstance(request, ChangeMembers):
            known = self.shown(ALL, node)
            asked = known and request._replace(layout=known.layout)
        else:
            asked = self.as_seen(request, "jobs", node)
        if asked is not None:
            self.ask(node, asked, self.timeout, then)

    def changed(self, request: ChangeMembers, layout: ClusterLayout) -> None:
        """Do the operator's work on the machine of a node once the members have changed."""
        named = [member for member in layout.members if member.node == request.node]
        is_member = bool(named) and named[-1].state != MemberState.REMOVED
        if request.change == "add" and is_member:
            self.hosts[request.node].admit(layout)
        elif request.change == "drain" and is_member:
            self.leaving[request.node] = None
        elif request.change == "remove" and not is_member:
            self.leaving.pop(request.node, None)
            self.hosts[request.node].dismiss(layout.number)

    def raise_to(self, rf: int, node: str) -> None:
        """Ask for another replication factor; mostly again if its outcome is not known."""

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, TopicReply):
                self.world.saw("a replication factor was changed")
                if any(len(members) > self.options.rf for members in answer.topic.replicas):
                    self.world.saw("a partition has more slots than it was made with")
            elif not (isinstance(answer, Failed) and answer.code == Code.USAGE) and self.rng.random() < 0.6:
                self.later(0.1 * self.rng.random(), self.raise_to, rf, self.node(node))

        if not self.world.healed:
            self.ask_as_seen(AlterTopic("jobs", rf=rf), node, then)

    def move(self, request: MovePartition, node: str) -> None:
        """Ask for one move; mostly again if its outcome is not known."""
        self.world.saw("a move was asked for")

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, TopicReply):
                self.world.saw("a partition was moved")
                if any(
                    placement.sources
                    for placement in (answer.topic.layout.placements if answer.topic.layout else ())
                ):
                    self.world.saw("a moved partition has a source")
            elif not self.world.healed and self.rng.random() < 0.6:
                self.later(0.1 * self.rng.random(), self.move, request, self.node(node))

        self.ask_as_seen(request, node, then)
