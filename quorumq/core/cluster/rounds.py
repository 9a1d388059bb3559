"""Counting answers.

Every quorum request is one round. A reply counts once per replica, only for its round, and only while no newer
incarnation of its sender is known to any node in the round: that start may have lost its promises. Because a
later reply may bring such news, nothing is added up in between; each decision counts again, over the replies that are
valid at that moment (docs/protocol.md, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorumq.core.cluster.state import NodeState
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Incarnation, NodeId, Span


def majority_of(members: int) -> int:
    return members // 2 + 1


class Round:
    """One quorum round.

    Args:
        number: unique within this start of the coordinating node.
        members: the replica set that votes.
    """

    __slots__ = ("answered_by", "majority", "members", "number", "unreachable")

    def __init__(self, number: int, members: tuple[NodeId, ...]) -> None:
        self.number = number
        self.members = members
        self.majority = majority_of(len(members))
        self.answered_by: dict[NodeId, Incarnation] = {}
        self.unreachable = 0  # bits of those that there was no link to: they will not answer

    def awaits(self, sender: NodeId) -> bool:
        """Return True if an answer of ``sender`` is awaited: it is a member, and has not answered yet."""
        return sender in self.members and sender not in self.answered_by

    def hear(self, sender: NodeId, incarnation: Incarnation) -> int:
        """Return the sender's bit if this reply is its first and it is a member; 0 if it does not count.

        Superseded incarnations are left out when votes are counted, not here.
        """
        if sender not in self.members or sender in self.answered_by:
            return 0
        self.answered_by[sender] = incarnation
        bit = 1 << self.members.index(sender)
        self.unreachable &= ~bit
        return bit

    def mark_unreachable(self, state: NodeState) -> list[NodeId]:
        """Mark members that cannot answer now: they are not asked and not waited for. Return the others."""
        there: list[NodeId] = []
        for at, member in enumerate(self.members):
            if member == state.me or member in state.answering:
                there.append(member)
            else:
                self.unreachable |= 1 << at
        return there

    def repeated(self, message: Any) -> Any:
        """Return a message of the round as it is sent again, to a member that did not know the topic or the layout."""
        return message

    def bits_of(self, nodes: Iterable[NodeId]) -> int:
        """Return the bits of these nodes, each once, as far as they are members."""
        return sum(1 << self.members.index(node) for node in nodes if node in self.members)

    def valid(self, state: NodeState) -> int:
        """Return the bits of members whose replies count now."""
        bits, known = 0, state.known
        for sender, incarnation in self.answered_by.items():
            # Nearly always it is the start that is known.
            if known.get(sender) == incarnation or not self.is_superseded(state, sender, incarnation):
                bits |= 1 << self.members.index(sender)
        return bits

    def is_superseded(self, state: NodeState, sender: NodeId, incarnation: Incarnation) -> bool:
        """Return True if a newer start of ``sender`` is known than the one that answered.

        Why a method: the simulator leaves this rule out.
        """
        return state.superseded(sender, incarnation)

    @property
    def everyone(self) -> bool:
        """Return True if all members that were asked have answered."""
        return len(self.answered_by) + self.unreachable.bit_count() >= len(self.members)

    def is_majority(self, bits: int) -> bool:
        return bits.bit_count() >= self.majority

    def is_read(self, bits: int) -> bool:
        """Return True if every majority has at least one of these members."""
        return bits.bit_count() > len(self.members) - self.majority

    def is_counted(self, bits: int, node: NodeId) -> bool:
        """Return True if these bits have a node's vote."""
        return bool(bits & self.bits_of([node]))

    def is_majority_of_each(
        self, bits: int, sets: Iterable[tuple[NodeId, ...]], gone: tuple[NodeId, ...] = ()
    ) -> bool:
        """Return True if these bits are a majority of each of ``sets`` of members, such as partitions' replica sets.

        A set that has too few nodes besides those that were removed from the cluster (``gone``) needs all the others.
        """
        answered = [member for at, member in enumerate(self.members) if bits & (1 << at)]
        return all(
            sum(node in answered for node in nodes) >= majority_of(len(nodes))
            or (gone and {*nodes} - {*gone} <= {*answered})
            for nodes in sets
        )

    def cannot_win(self, against: int) -> bool:
        """Return True if there can be no majority: ``against`` do not vote for it, others cannot be reached."""
        return len(self.members) - (against | self.unreachable).bit_count() < self.majority

    def is_blocked_by(self, bits: int) -> bool:
        """Return True if these members alone leave no majority to the others, reachable or not."""
        return len(self.members) - bits.bit_count() < self.majority


class RegisterRound(Round):
    """A round about registers: only voters are counted, and only if they answer in the epoch of the round.

    Others may be asked, because replica sets need a majority, too, and have them as members.
    """

    __slots__ = ("all_voters", "epoch", "mask", "voters")

    def __init__(
        self, number: int, members: tuple[NodeId, ...], voters: tuple[NodeId, ...], epoch: int
    ) -> None:
        super().__init__(number, members)
        self.epoch = epoch
        self.voters = len(voters)
        self.mask = self.all_voters = self.bits_of(voters)
        self.majority = majority_of(len(voters))

    def check_epoch(self, sender: NodeId, epoch: int) -> None:
        """Leave a voter out of the count if it answers in another epoch.

        Why: majorities of two sets of voters need not meet.
        """
        if epoch != self.epoch:
            self.mask &= ~self.bits_of([sender])

    @property
    def is_overtaken(self) -> bool:
        """Return True if too few voters are left in the epoch of the round, as others have answered in another one."""
        silent = self.unreachable & ~self.bits_of(self.answered_by)
        return self.mask != self.all_voters and (self.mask & ~silent).bit_count() < self.majority

    def is_counted(self, bits: int, node: NodeId) -> bool:
        return super().is_counted(bits & self.mask, node)

    def is_majority(self, bits: int) -> bool:
        return (bits & self.mask).bit_count() >= self.majority

    def is_read(self, bits: int) -> bool:
        return (bits & self.mask).bit_count() > self.voters - self.majority


class Votes(SpanMap[int]):
    """Bits of voters by span of messages."""

    __slots__ = ()

    def add(self, spans: Iterable[Span], bit: int) -> None:
        for span in spans:
            producer_id, start, stop = span
            runs = self.runs.get(producer_id)
            if runs is None:
                self.put(span, bit)
            elif (
                len(runs) == 1 and type(runs) is tuple and runs[0][:2] == (start, stop)
            ):  # as the first voter for the span
                self.runs[producer_id] = ((start, stop, runs[0][2] | bit),)
            else:
                self.update(span, lambda old: (old or 0) | bit)
