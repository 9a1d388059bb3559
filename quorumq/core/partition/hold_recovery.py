"""Out of quarantine before its time: the holds, learned from the other replicas.

A replica that was started again has forgotten which holds it granted, so it abstains until all of them must have run
out (quarantine). Where a partition has other replicas, they know. This module asks them (docs/protocol.md,
RECOVERY, (b)): once *every* other replica of the partition, itself out of quarantine, has answered with its table
of holds, the union of them is kept and the quarantine of this partition is over.

Why that is safe. Say that P starts again, and that a hold h is live, or will be, with a majority that counts a vote
of P's old start. That majority has another member Q.

- Q granted (or extended) h before it answered P: then h is in Q's answer, and P keeps it. If Q has it no more, it
  ran out there, and so did its coordinator's deadline; or its owner gave it up; or acked it, and then Q reports it for
  as long as it would have lasted, as that ACK may be at Q alone (`Recall.acked_early`); or it was extended at a
  majority without Q, which has a member besides P that answers, too: hence *every* other replica.
- Q granted it after it answered: before Q could answer, HELLO made P's new incarnation durable at Q, and every
  reply of Q says which incarnation of P it knows. So in that round the vote of P's old start is superseded and does
  not count. The same if Q is the coordinator.
- Q itself was started again since: it answers only out of quarantine, so this argument holds for Q's table, or all
  that Q had granted has run out. Two replicas that were started again together do not answer each other.

Two owners may be reported of one message: one of them half won it, and no node here can say which. It stays blocked
for all until both are gone (`fate.on_reported`). A hold that was learned is no memory of a ballot granted here: what
ballots this replica granted in earlier starts is bounded by the minimum ballot, and by nothing else.

Remaining times are sent as durations, so a learned hold may outlive the original by the transit time of the answer.
An answer counts only for the last request, which is repeated after ASK_AGAIN_S at the latest: that bounds it. Holds
are taken over only once enough replicas have answered: every other one, or fewer if the slot is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quorumq.core.cluster.rounds import majority_of
from quorumq.core.cluster.state import GrantTimer, NodeState
from quorumq.core.messages import HeldThere, HoldsReply, HoldsRequest, Released
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.partition.recall import Reported
from quorumq.core.partition.replica import Replica
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.types import FIRST_LAYOUT, NodeId, Now, PartitionId, ReplicaSlot

Replicas = Mapping[PartitionId, Replica]
"""This node's replicas, by partition."""

ASK_FIRST_S = 0.1
ASK_AGAIN_S = 2.0
"""A request that is not answered is repeated after the first of these; the pause doubles up to the second."""

RELEASES_MAX = 1000
"""RELEASEs that are kept until a quarantine ends. A hold of any other runs out."""

HOLDS_PER_CHUNK = 2000
"""Holds in one chunk of an answer: some 200 bytes each."""


class HoldsQuestion(NamedTuple):
    """The request to one peer that an answer would count for."""

    round: int
    pause: float  # seconds until it is repeated


class HoldRecovery:
    """Answers that the replicas of one node still await before their quarantine may end early.

    Attributes:
        awaited: per partition in quarantine, the other replicas that have not answered.
        releases: RELEASEs received meanwhile. A peer may report the hold of one that it gets later.
    """

    __slots__ = ("_asked", "_chunks", "_reported", "awaited", "releases")

    def __init__(self) -> None:
        self.awaited: dict[PartitionId, dict[NodeId, None]] = {}
        self._asked: dict[NodeId, HoldsQuestion] = {}
        self.releases: dict[Released, None] = {}
        self._chunks: dict[tuple[PartitionId, NodeId], dict[int, tuple[HeldThere, ...]]] = {}
        self._reported: dict[PartitionId, list[Reported]] = {}

    def await_holds(self, replica: Replica, now: Now) -> None:
        """Note whose holds ``replica``, just made or moved, needs if it is in quarantine. `ask` sends the questions.

        Earlier answers are dropped: they are of members of another set.
        """
        if replica.partition in self.awaited:
            self._discard(replica.partition)
        if now.mono < replica.quarantine_until and replica.is_trusted:
            me = replica.node.me
            others = [node for node in (*replica.members, *replica.former) if node != me]
            if others:
                self.awaited[replica.partition] = dict.fromkeys(others)

    def note_release(self, replicas: Replicas, released: Released, now: Now) -> None:
        """Keep a RELEASE for the end of a quarantine. Those of replicas that are gone or vote make room, if need be."""
        if len(self.releases) >= RELEASES_MAX:
            self.releases = {
                each: None
                for each in self.releases
                if (replica := replicas.get(each.partition)) is not None and not replica.may_vote(now)
            }
        if len(self.releases) < RELEASES_MAX:
            self.releases[released] = None

    # ------------------------------------------------------------------------ asking

    def ask(
        self, state: NodeState, replicas: Replicas, peer: NodeId, now: Now, *, afresh: bool = False
    ) -> list[Effect]:
        """Ask ``peer`` for the rest of its answer, and again after a pause. Every request has a number of its own.

        Args:
            afresh: True if a link to it was just made; False if the pause since the last request is over.
        """
        for partition in list(self.awaited):
            replica = replicas.get(partition)  # None: its topic was deleted
            if replica is None or not replica.in_quarantine(now):
                self._discard(partition)
        partitions = [partition for partition, awaited in self.awaited.items() if peer in awaited]
        before = self._asked.pop(peer, None)
        for key in [key for key in self._chunks if key[1] == peer]:
            del self._chunks[key]
        if not partitions or peer not in state.links:
            return []
        number = state.next_round()
        pause = ASK_FIRST_S if afresh or before is None else min(2 * before.pause, ASK_AGAIN_S)
        self._asked[peer] = HoldsQuestion(number, pause)
        state.at(now.mono + pause, ("recover", peer, number))
        epochs = tuple([replicas[partition].epoch for partition in partitions])
        moved = any(epoch != FIRST_LAYOUT for epoch in epochs)
        return [Send(peer, HoldsRequest(number, tuple(partitions), epochs if moved else ()))]

    def ask_soon(self, state: NodeState, replicas: Replicas, peer: NodeId, now: Now) -> list[Effect]:
        """Ask ``peer`` about a replica that was just added; in a moment, if a question to it is open.

        Why: a question is about all replicas, and voids the one before. A thousand that begin to vote one after the
        other would ask about half a million.
        """
        asked = self._asked.get(peer)
        if asked is None:
            return self.ask(state, replicas, peer, now, afresh=True)
        if asked.pause > ASK_FIRST_S:
            self._asked[peer] = asked._replace(pause=ASK_FIRST_S)
            state.at(now.mono + ASK_FIRST_S, ("recover", peer, asked.round))
        return []

    def is_current(self, peer: NodeId, number: int) -> bool:
        """Return True if request ``number`` is the last one that ``peer`` was asked, and its answer is not complete."""
        asked = self._asked.get(peer)
        return asked is not None and asked.round == number

    def on_holds_reply(self, replicas: Replicas, sender: NodeId, message: HoldsReply, now: Now) -> None:
        """Take in a chunk of an answer. When enough answers are complete, the partition's quarantine ends."""
        awaited = self.awaited.get(message.partition)
        if awaited is None or sender not in awaited or not self.is_current(sender, message.round):
            return
        replica = replicas.get(message.partition)
        if replica is None or not replica.in_quarantine(now):
            # It grants already: a late answer may be older than its grants.
            self._discard(message.partition)
            return
        chunks = self._chunks.setdefault((message.partition, sender), {})
        chunks[message.chunk] = message.holds
        if len(chunks) < message.chunks:
            return
        del self._chunks[(message.partition, sender)]
        del awaited[sender]
        reported = self._reported.setdefault(message.partition, [])
        for holds in chunks.values():
            reported += [Reported(hold, now.mono + hold.remaining) for hold in holds]
        if self.has_enough_answers(replica, awaited):
            replica.end_quarantine(reported, now)
            for released in self.releases:
                if released.partition == message.partition:
                    replica.on_release(released, now)
            self.releases = {each: None for each in self.releases if each.partition != message.partition}
            self._discard(message.partition)

    def has_enough_answers(self, replica: Replica, awaited: dict[NodeId, None]) -> bool:
        """Return True if every other replica has answered; or, of a new slot, enough nodes that voted before it.

        A node that left and had our slot answers alone: it grants nothing any more. If slots were added, n − majority +
        1 of the set before answer, for a hold that was won there has one of them. They grant in that set no more.
        """
        former = replica.former
        answered = sum(node not in awaited for node in former)
        if former and answered > len(former) - majority_of(len(former)):
            return True
        return not any(node in replica.members for node in awaited)

    def _discard(self, partition: PartitionId) -> None:
        self.awaited.pop(partition, None)
        self._reported.pop(partition, None)
        if not self.awaited:
            self._asked.clear()
            self._chunks.clear()


def answer_holds(
    kept: Callable[[PartitionId], Replica | None], sender: NodeId, message: HoldsRequest, now: Now
) -> list[Effect]:
    """Answer HOLDS-ASK: the holds of each partition in which this node may vote itself, as of this one step.

    The caller's incarnation is durable here since its HELLO, and known to `NodeState.vector` since this message. A
    node that has left the set answers as well: it grants nothing any more.

    Args:
        kept: gives the replica of a partition, also of one that was moved away.
    """
    effects: list[Effect] = []
    granted: dict[PartitionId, list[GrantTimer]] | None = None
    epochs = message.epochs or (FIRST_LAYOUT,) * len(message.partitions)
    for partition, epoch in zip(message.partitions, epochs, strict=False):
        replica = kept(partition)
        if replica is None or sender not in replica.members or not may_answer_holds(replica, epoch, now):
            continue
        if granted is None:
            granted = replica.node.grants(message.partitions, now)
        holds = replica.recall.holds_to_tell(now, granted[partition])
        chunks = chunks_of(holds, HOLDS_PER_CHUNK) or [()]
        effects += [
            Send(sender, HoldsReply(message.round, partition, number, len(chunks), chunk))
            for number, chunk in enumerate(chunks)
        ]
    return effects


def may_answer_holds(replica: Replica, epoch: int, now: Now) -> bool:
    """Return True if the replica knows all holds that it has granted, and has adopted the layout that is asked about.

    Why: an answer about another layout may be older than holds that are granted under this one.
    """
    if replica.epoch != epoch or not replica.node.trusted or replica.in_quarantine(now):
        return False
    return replica.is_trusted if replica.slot_layout else knows_slot_before(replica)


def knows_slot_before(replica: Replica) -> bool:
    """Return True if all promises are known here of the slot that this node had in the set before.

    Why by its layout: a node may have slept while it got the slot anew and lost it. It knows those of an earlier time.
    """
    before = replica.placement.before if replica.placement is not None else ()
    return ReplicaSlot(replica.node.me, replica.trusted_slot_layout) in before
