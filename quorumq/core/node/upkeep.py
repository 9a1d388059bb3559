"""A node's regular work: heartbeats, anti-entropy with a peer, RECLAIM, burial and the steps of layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorumq.core.messages import Heartbeat, PutCluster, SyncDigests, SyncListed, SyncRegisters
from quorumq.core.messages.effects import Done, Effect, Persist, Send
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery.resync import in_chunks
from quorumq.core.recovery.trust import TOKEN_POSITION
from quorumq.core.requests import sources
from quorumq.core.requests.burial import bury
from quorumq.core.requests.closing import PRODUCER_IDS_PER_ROUND, CloseCoordinator
from quorumq.core.requests.context import Context
from quorumq.core.requests.layout_steps import change_layouts, take_steps
from quorumq.core.requests.membership import finish_undecided
from quorumq.core.requests.packing import pack_deleted
from quorumq.core.requests.placing import drop_batches
from quorumq.core.values.limits import DELETED_PAGES_TOLD
from quorumq.core.values.types import Group, Incarnation, NodeId, Now, PartitionId, Topic


class Upkeep:
    """The component that keeps replicas alike, and drops payload that is not needed.

    Attributes:
        differed: buckets of registers that differed when they were last compared with a peer.
    """

    __slots__ = ("context", "differed")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.differed: dict[NodeId, tuple[int, ...]] = {}

    # ------------------------------------------------------------------ heartbeats

    def heartbeat(self, now: Now) -> list[Effect]:
        """Send heartbeats; and journal now and then the peers' reports on their directories."""
        effects = self.context.heartbeats(now)
        peers = self.context.peers
        if peers.positions.counting:  # for the next ones
            effects.append(Persist(peers.positions.records(peers.seen, now), (Done(TOKEN_POSITION),)))
        return effects

    def on_heartbeat(
        self, sender: NodeId, incarnation: Incarnation, message: Heartbeat, now: Now
    ) -> list[Effect]:
        """Note that a peer lives, the groups it has a FETCH parked for, and its statement about itself.

        One that knows only an older layout of the cluster gets ours.
        """
        self.context.peers.note_position(sender, incarnation, message.position)
        # Partitions without a replica here (their topics were deleted) are left out: nothing would drop them, or ask.
        named = dict.fromkeys(pair for pair in message.waiting if pair[0] in self.context.replicas)
        for key in [key for key in self.context.state.parked if key[2] == sender and key[:2] not in named]:
            del self.context.state.parked[key]
        for partition, group in named:
            self.context.state.parked[(partition, group, sender)] = now.mono
        self.context.peers.on_heartbeat(sender, message)
        layout = self.context.catalogue.cluster.layout
        return [Send(sender, PutCluster(0, layout))] if message.layout < layout.number else []

    # ---------------------------------------------------------------- anti-entropy

    def greet(self, peer: NodeId, now: Now) -> list[Effect]:
        """Send our digests: a link is up."""
        return self._send_register_digests(peer) + self.send_digests(peer, now)

    def sync(self, peer: NodeId, now: Now) -> list[Effect]:
        """Send our digests, and ask for messages that have been missing here for long."""
        return (
            self._send_register_digests(peer)
            + pack_deleted(self.context.state)
            + self.send_digests(peer, now, absent=True)
        )

    def _send_register_digests(self, peer: NodeId) -> list[Effect]:
        catalogue = self.context.catalogue
        return [Send(peer, SyncRegisters(catalogue.sums.root(), catalogue.deleted.key_number))]

    def on_registers_compared(self, sender: NodeId, message: SyncRegisters) -> list[Effect]:
        """Compare sums of registers: one for all is answered with those of our buckets, and these with registers.

        Packed registers are sent of buckets that differed before, too, a few at a time. Why: a deletion that
        one of two nodes has learned makes their buckets differ for a moment, and a bucket may have thousands. With
        another key (while secrets are changed) all buckets differ: then packed registers are not compared.
        """
        sums, deleted = self.context.catalogue.sums, self.context.catalogue.deleted
        ours = sums.all()
        if len(message.sums) != len(ours):
            if message.sums == sums.root():
                self.differed.pop(sender, None)
                return []
            return [Send(sender, SyncRegisters(ours, deleted.key_number))]
        differing = sums.differing(message.sums)
        before = self.differed.get(sender, ()) if message.key_number == deleted.key_number else ()
        self.differed[sender] = tuple(differing)
        again = [bucket for bucket in differing if bucket in before and deleted.page(bucket)]
        registers = [register for bucket in differing for register in sums.of_bucket(bucket)]
        topics = [register for register in registers if isinstance(register, Topic)]
        groups = [register for register in registers if isinstance(register, Group)]
        packed = b"".join(map(deleted.page, again[:DELETED_PAGES_TOLD]))
        return [Send(sender, chunk) for chunk in in_chunks(topics, groups, packed)]

    def send_digests(self, peer: NodeId, now: Now, *, absent: bool = False) -> list[Effect]:
        """Send digests of each partition that the peer has, too. ``absent``: and ask for messages missing for long."""
        for partition, replica in self.context.replicas.items():
            batches = replica.batches
            if (
                peer in batches.keepers or peer in batches.partners
            ):  # one that has left is only asked for absent ones
                replica.sync.owed[peer] = absent
                self.context.state.comparing[partition] = None
        return self.go_on_comparing(now)

    def on_compared(self, sender: NodeId, message: SyncDigests | SyncListed, now: Now) -> list[Effect]:
        """Compare a peer's digests with ours: now, or when the step's time for it is over, later."""
        replica = self.context.replicas[message.partition]
        if message.epoch != replica.epoch:
            return []
        replica.sync.take(sender, message)
        self.context.state.comparing[message.partition] = None
        return self.go_on_comparing(now)

    def go_on_comparing(self, now: Now) -> list[Effect]:
        """Do the work of anti-entropy, partition by partition, as far as one step has time for it.

        The rest has its turn later. Digests received meanwhile replace older ones.
        """
        state = self.context.state
        effects: list[Effect] = []
        waiting, state.comparing = state.comparing, {}
        for partition, replica in self._in_turn(
            waiting, lambda: state.compares_left <= 0, state.compare_later
        ):
            if state.compares_left > 0:
                effects += replica.sync.work(replica.topic, now)
            if replica.sync.is_left():
                state.compare_later(partition)
        return effects

    def _in_turn(
        self,
        waiting: dict[PartitionId, None],
        is_over: Callable[[], bool],
        later: Callable[[PartitionId], None],
    ) -> Iterator[tuple[PartitionId, Replica]]:
        """Yield partitions with their replicas until the step's time for the work is over; ``later`` gets the rest."""
        remaining = iter(waiting)
        for partition in remaining:
            replica = self.context.replicas.get(partition)
            if replica is None:
                continue  # its topic was deleted, or the partition moved away, meanwhile
            yield partition, replica
            if is_over():
                break
        for partition in remaining:
            later(partition)

    # --------------------------------------------------------------------- RECLAIM

    def regular_work(self, now: Now) -> list[Effect]:
        """Do the regular work on partitions: drop payload that no group needs, bury dying messages, take the steps of
        layouts of topics and of the cluster, and ask other slots which of the messages here they lack."""
        context = self.context
        context.state.reclaiming.update(dict.fromkeys(context.replicas))
        effects = self.go_on_reclaiming(now) + bury(context, now)
        effects += change_layouts(context, now) + finish_undecided(context, now)
        effects += take_steps(context, now)  # Answers to earlier questions decide it.
        for replica in (*context.sources.values(), *context.replicas.values()):
            if sources.lackers(replica):
                effects += sources.ask_lackers(context, replica, now)
        return effects

    def go_on_reclaiming(self, now: Now) -> list[Effect]:
        """Drop the payload that no group needs, partition by partition, as far as one step has time for it.

        If a drop waits for the list of groups, ask the peers for it. On average one replica at a time proposes to
        close finished producer ids.
        """
        state = self.context.state
        effects: list[Effect] = []
        topics: dict[bytes, None] = {}
        waiting, state.reclaiming = state.reclaiming, {}
        for partition, replica in self._in_turn(
            waiting, lambda: state.reclaims_left <= 0, state.reclaim_later
        ):
            if replica.closing.dropping:
                effects += replica.closing.go_on_dropping(now)
            replica.reclaim.sweep(now)
            effects += drop_batches(replica.batches.take_mended())
            if replica.reclaim.unneeded and state.trusted and (replica.is_trusted or replica.learns):
                listed_at = self.context.peer_groups.answered_by_majority(
                    replica.members, partition.topic, now
                )
                effects += replica.reclaim.drop(listed_at, replica.topic.retention_s, now)
                if replica.reclaim.unneeded_last > listed_at:
                    topics[partition.topic] = None
            if replica.reclaim.more:
                state.reclaim_later(partition)
            else:
                effects += self._close_some(partition, replica, now)
        return effects + self.context.peer_groups.ask(topics, now)

    def _close_some(self, partition: PartitionId, replica: Replica, now: Now) -> list[Effect]:
        """Ask the other replicas about some producer ids that are done with here."""
        context = self.context
        if not (replica.batches.idle_since and context.state.trusted and replica.is_trusted):
            return []
        if context.rng.random() * len(replica.members) >= 1:
            return []
        numbers = replica.closing.candidates(context.config.session_idle, now, PRODUCER_IDS_PER_ROUND)
        return CloseCoordinator(partition, numbers).start(context, now) if numbers else []
