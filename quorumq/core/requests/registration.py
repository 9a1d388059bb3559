"""Registration of groups: a group may be read in a partition once enough nodes have its register. Requests wait here.

A group is read once a majority of the nodes has its register, and a majority of the partition's replica set: then each
later write of a register, and each question which groups there are, meets one that has it. So FETCHes, and requests
that have changed the group, wait for one `Registration` of their node. It

1. has the first register chosen, if no node here has heard of the group (core/requests/proposing.py);
2. has the present messages skipped, if the group is to begin with what is published from now on
(core/requests/skipping.py), once a majority of each set has that register: their answers name all partitions that may
have messages;
3. writes the register to all nodes, until a majority of each awaited set has it.

Each node answers to the register with partitions that it has heard of and the sender has not. Because ALTER asks for
groups only nodes that have its proposal, one node at least is asked by both, and informs the later one
(docs/registers.md, MORE PARTITIONS).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round, majority_of
from quorumq.core.cluster.topics import required_sets
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator, late
from quorumq.core.requests.promising import note_promised
from quorumq.core.requests.proposing import PROPOSALS_MAX, Proposer
from quorumq.core.requests.skipping import Skipping
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    Group,
    Incarnation,
    Instance,
    Latest,
    NodeId,
    Now,
    PartitionId,
    Stamp,
    Topic,
)

ANEW_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses after which a request begins again, in seconds. Later it waits for the timeout of its round."""

EVERY: tuple[int, ...] = ()
"""Stands for all partitions."""


class Wanted(NamedTuple):
    """Partitions that a request waits for: those by number, and all from ``known`` on, which may be added meanwhile."""

    partitions: tuple[int, ...]
    known: int


class Registration(Coordinator):
    """One group of one topic, on its way to be read.

    Args:
        key: a negative number, so that it is no client's.
        latest: True if a group that is new here begins with messages that are published from now on.

    Attributes:
        waiting: requests by key, with the partitions that each waits for.
        anew: the rounds that were begun again.
    """

    __slots__ = ("anew", "latest", "name", "proposer", "put", "skipping", "topic", "waiting", "written")

    def __init__(self, key: int, topic: bytes, name: str, *, latest: bool) -> None:
        super().__init__(key)
        self.topic = topic
        self.name = name
        self.latest = latest
        self.waiting: dict[int, Wanted] = {}
        self.proposer: Proposer | None = None
        self.skipping: Skipping | None = None
        self.put: Round | None = None
        self.written: Group | None = None
        self.anew: list[int] = []

    @property
    def awaited_by(self) -> Sequence[int]:
        return tuple(self.waiting)

    def concerns(self, topic: bytes) -> bool:
        return self.topic == topic

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.finish(context, None)  # the requests that wait hear it as well

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        del context.registrations[(self.topic, self.name)]
        return super().finish(context, reply)

    def wait(self, context: Context, key: int, requested: Wanted, now: Now) -> list[Effect]:
        """Have the request hear when the group may be read there, or that it cannot be."""
        self.waiting[key] = requested
        if self.put is None:
            return []
        known = context.catalogue.group(self.topic, self.name)
        return self._tell(context, now) if known == self.written else self.start(context, now)

    # ------------------------------------------------------------------------ the way

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Do the next thing, by what is known of the group here."""
        self.close_rounds(context)
        self.put = None
        known = context.catalogue.group(self.topic, self.name)
        if known is None:
            return self._propose(context, now)
        self.written = known
        self.put = round_ = self.open_register_round(context, now)
        put = self._put(context, round_.number, known)
        return [Send(node, put) for node in round_.members]

    def begin_again_soon(self, context: Context, number: int, now: Now) -> None:
        """Begin again after a pause: a node that does not count in round ``number`` may count by then.

        Why: it has no link yet, is not trusted yet, or adopts a layout later than this one. Else the round waits for
        its timeout, and with it all requests that wait for this one. The pauses are ever longer, and end.
        """
        if number not in self.anew and len(self.anew) < len(ANEW_S):
            context.state.at(now.mono + ANEW_S[len(self.anew)], ("anew", number))
            self.anew.append(number)

    def _put(self, context: Context, number: int, group: Group) -> m.PutGroup:
        """Return the PUT-GROUP of a round. Nodes answer it with the topic's register if they know more partitions.

        Why only those that are confirmed, while messages are to be skipped: a node that knows that a proposed one is
        confirmed has to say so, as messages may be there.
        """
        topic = context.catalogue.topics[self.topic]
        partitions = topic.partitions if group.latest == Latest.SKIPPING else topic.all_partitions
        return m.PutGroup(number, group, partitions, topic.layout_known)

    def _propose(self, context: Context, now: Now) -> list[Effect]:
        """Propose the first register, unless this node knows that the topic makes no groups for a FETCH."""
        if self.proposer is None:
            instance = Instance(self.topic, self.name, 0)
            self.proposer = Proposer(instance, alike=not self.latest, implicit=True)
        topic = context.catalogue.topics[self.topic]
        if not (topic.auto_create_groups or self.proposer.sent):
            problem = context.catalogue.no_group(topic.name, self.name)
            return self._fail(context, list(self.waiting), problem, now)
        if not topic.auto_create_groups or self.proposer.proposals >= PROPOSALS_MAX:
            return self._give_up(context, 0, now)
        return self.proposer.propose(self, context, now)

    def own_value(self, context: Context, ballot: Stamp) -> Group:
        first = Group(self.topic, self.name, 0)
        return first._replace(latest=Latest.SKIPPING, made=ballot) if self.latest else first

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.ProposalReply):
            assert self.proposer is not None
            if message.error == Code.NOT_TRUSTED:
                return self.on_not_trusted(context, message.round, sender, now)
            return self.proposer.on_reply(self, context, sender, incarnation, message, now)
        if isinstance(message, m.PutReply):
            return self._on_put(context, sender, incarnation, message, now)
        return super().on_reply(context, sender, incarnation, message, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert self.skipping is not None
        effects = self.skipping.on_answer(context, round_, sender, bit, message, now)
        return effects + self._skipped(context, now)

    def _skipped(self, context: Context, now: Now) -> list[Effect]:
        """Begin the group: all that was there is behind it."""
        if self.skipping is None or not self.skipping.done:
            return []
        group = self.skipping.group._replace(latest=Latest.BEGUN)
        self.skipping = None
        effects = merging.take_in_group(context, group, now)
        return effects if self.done else effects + self.start(context, now)

    def _on_put(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PutReply, now: Now
    ) -> list[Effect]:
        round_ = self.put
        assert round_ is not None
        if message.refused == Code.UNKNOWN_TOPIC:
            if (round_.number, sender) in self.taught or self.written is None:
                return []
            self.taught[(round_.number, sender)] = None
            topic = context.catalogue.topics[self.topic]
            return [
                Send(sender, m.PutTopic(0, topic)),
                Send(sender, self._put(context, round_.number, self.written)),
            ]
        note_promised(context, (self.topic, self.name), message.promised)
        effects = merging.take_in_topic(context, message.topic, now) if message.topic is not None else []
        if not self.done and message.group is not None:
            effects += merging.take_in_group(context, message.group, now)
        if self.done:  # the topic was deleted
            return effects
        round_.hear(sender, incarnation)
        if context.catalogue.group(self.topic, self.name) != self.written:
            return effects + self.start(context, now)
        return effects + self._tell(context, now)

    def _tell(self, context: Context, now: Now) -> list[Effect]:
        """Answer the requests that wait for no more than is done."""
        round_ = self.put
        assert round_ is not None
        answered = round_.valid(context.state)
        topic = context.catalogue.topics[self.topic]
        sets = required_sets(topic, context.config.nodes, context.config.machines)
        if self.written is not None and self.written.latest == Latest.SKIPPING:
            if not self._is_at_each(context, round_, answered, [nodes for each in sets for nodes in each]):
                return []
            self.close_rounds(context)
            self.put, self.skipping = None, Skipping(self, topic, self.written)
            return [*self.skipping.start(context, now), *self._skipped(context, now)]
        for number in range(topic.partitions):
            there = self._is_at_each(context, round_, answered, sets[number])
            if there and self.written is not None and not self.written.deleted:
                context.catalogue.registered_groups[(PartitionId(self.topic, number), self.name)] = None
        over = [
            key
            for key, requested in self.waiting.items()
            if self._is_there(context, topic, round_, requested, answered)
        ]
        effects: list[Effect] = []
        for key in over:
            waiter = context.requests.get(key)
            if self.waiting.pop(key, None) is not None and waiter is not None:
                effects += waiter.on_registered(context, self.topic, now)
        if not self.waiting and not self.done:
            effects += self.finish(context, None)
        return effects

    def _is_there(
        self, context: Context, topic: Topic, round_: Round, requested: Wanted, answered: int
    ) -> bool:
        """Return True if these nodes are enough for the ``requested`` partitions."""
        config = context.config
        sets = required_sets(topic, config.nodes, config.machines)
        needing = [*[sets[number] for number in requested.partitions], *sets[requested.known :]]
        needed = dict.fromkeys([nodes for each in needing for nodes in each])
        return self._is_at_each(context, round_, answered, needed)

    def _is_at_each(
        self, context: Context, round_: Round, bits: int, sets: Iterable[tuple[NodeId, ...]]
    ) -> bool:
        """Return True if these nodes are a majority of the voters and of each set, but for removed nodes."""
        gone = context.catalogue.cluster.gone
        return round_.is_majority(bits) and round_.is_majority_of_each(bits, sets, gone)

    # ------------------------------------------------------------------------ it cannot be

    def on_not_trusted(self, context: Context, number: int, sender: NodeId, now: Now) -> list[Effect]:
        """Fail the requests that a majority can no longer be had for, as ``sender`` cannot take the register in.

        Why: while no majority can take the register in, no node can deliver for the group either. The requests
        fail at once and do not wait for the timeout.
        """
        round_ = self.rounds[number]
        round_.unreachable |= round_.bits_of([sender])
        reachable = round_.bits_of([context.state.me, *context.state.links]) & ~round_.unreachable
        topic = context.catalogue.topics[self.topic]
        lost = [
            key
            for key, requested in self.waiting.items()
            if not self._is_there(context, topic, round_, requested, reachable)
        ]
        return self._fail(context, lost, None, now)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self._give_up(context, len(self.rounds[number].answered_by), now)

    def _give_up(self, context: Context, answered: int, now: Now) -> list[Effect]:
        """Fail after too few answers in time. If something of it was proposed, or skipped, that may be in effect."""
        proposed = self.proposer is not None and self.proposer.sent
        code = Code.OUTCOME_UNKNOWN if proposed or self.skipping is not None else Code.TOO_FEW_REPLICAS
        detail = f"group {self.name!r} could not be registered through {context.state.me}: ask another node"
        needed = majority_of(len(context.catalogue.cluster.voters))
        return self._fail(context, list(self.waiting), m.Failed(code, detail, needed, answered), now)

    def _fail(self, context: Context, keys: list[int], problem: m.Failed | None, now: Now) -> list[Effect]:
        for key in keys:
            del self.waiting[key]
        effects = self.finish(context, None) if not self.waiting else []
        for key in keys:
            waiter = context.requests.get(key)
            if waiter is not None:
                effects += waiter.on_unregistered(context, self.topic, problem, now)
        return effects


class GroupChange(Coordinator):
    """A request that changes a group's register, and has it written to all partitions."""

    __slots__ = ("request", "topic")

    def __init__(self, key: int, request: Any, topic: bytes) -> None:
        super().__init__(key)
        self.request = request
        self.topic = topic

    def concerns(self, topic: bytes) -> bool:
        return self.topic == topic

    def known(self, context: Context) -> Group | None:
        return context.catalogue.group(self.topic, self.request.group)

    def is_late(self, known: Group) -> bool:
        """Return True if the request names a generation, and the group was changed since."""
        return self.request.id is not None and known.generation > self.request.generation

    def refuse_late(self, context: Context, known: Group) -> list[Effect]:
        """Fail: nothing is done to a later generation, ``known``, than the one that the request is about."""
        return self.finish(context, late(self.request.group, self.request.generation, known.generation))

    def write(self, context: Context, now: Now) -> list[Effect]:
        """Write the register that is known here to all partitions: `on_registered` hears of it."""
        return register(context, self.key, self.topic, self.request.group, EVERY, now)

    def answer(self, context: Context, group: Group) -> list[Effect]:
        return self.finish(context, m.GroupReply(group))

    def on_unregistered(
        self, context: Context, topic: bytes, problem: m.Failed | None, now: Now
    ) -> list[Effect]:
        needed, answered = (problem.needed, problem.answered) if problem is not None else (1, 0)
        return self.fail_unknown(context, needed, answered)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        asked = self.rounds[number]
        return self.fail_unknown(context, majority_of(len(asked.members)), len(asked.answered_by))

    def fail_unknown(self, context: Context, needed: int = 1, answered: int = 0) -> list[Effect]:
        """Fail: the change may have been made, or may yet be."""
        detail = f"group {self.request.group!r}: it may have happened, or may yet happen: do it again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, needed, answered)


def register(
    context: Context,
    key: int,
    topic: bytes,
    name: str,
    partitions: tuple[int, ...],
    now: Now,
    *,
    latest: bool = False,
) -> list[Effect]:
    """Have request ``key`` hear when group ``name`` may be read in these partitions of the topic."""
    known = context.catalogue.topics[topic].partitions
    requested = Wanted(partitions, known if partitions else 0)
    registration = context.registrations.get((topic, name))
    if isinstance(registration, Registration):
        return registration.wait(context, key, requested, now)
    registration = Registration(context.next_key(), topic, name, latest=latest)
    context.registrations[(topic, name)] = registration
    registration.waiting[key] = requested
    return context.begin(registration, now)
