"""One node's whole protocol, as one pure state machine.

Four drivers run this same class: the trio shell on real sockets and disks, the event queue and the explorer of the
simulator, and the trio shell in virtual time. A driver gives it the records of the journal, then events with one
reading of the clocks each, and carries out the effects (core/messages/effects.py lists the driver's duties). Everything
that the node has promised is in the journal; everything else may be lost at any moment.

Here is the step: events and messages are routed, timers run, and effects are returned in order. What a HOLD or an ACK
means is in core/partition; how answers are counted, in core/cluster/rounds.py and the coordinators.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence

from quorumq.core import messages as m
from quorumq.core.cluster import peer_groups
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import RegisterRound
from quorumq.core.cluster.state import NO_END, NodeConfig
from quorumq.core.messages import effects as e
from quorumq.core.messages import records as r
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.node.request_router import RequestRouter
from quorumq.core.node.status import status
from quorumq.core.node.timers import ABOUT, LASTING, Timers
from quorumq.core.node.upkeep import Upkeep
from quorumq.core.node.vote_router import VoteRouter
from quorumq.core.partition import hold_recovery
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery import joining, resync, survivors, voterslots
from quorumq.core.recovery.replay import Replay, at_stop, cluster_made, snapshot
from quorumq.core.recovery.trust import (
    TOKEN_LOST,
    TOKEN_POSITION,
    TOKEN_STARTED,
    TOKEN_TRUSTED,
    Trust,
)
from quorumq.core.requests import merging, sources
from quorumq.core.requests.context import Context, Costly
from quorumq.core.requests.finding import tell_registers
from quorumq.core.requests.leaving import end_requests
from quorumq.core.requests.placing import TOKEN_COMPLETED, TOKEN_TOPIC, WaitingMessage, drop_batches
from quorumq.core.requests.proposing import vote
from quorumq.core.requests.publish import store_published
from quorumq.core.requests.waking import wake, wake_newly_ready
from quorumq.core.values import limits
from quorumq.core.values.clock import HALF_STEP, TOKEN_RESERVE, reserve_token
from quorumq.core.values.errors import Code
from quorumq.core.values.fairqueue import NO_CALLER
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId, Topic

_REPLIES = frozenset(m.QUORUM_REPLIES)
_REQUESTS = frozenset(m.QUORUM_REQUESTS)


class NodeCore:
    """One start of one node.

    Args:
        journal: the journal's records in order; a BatchStored may be without its body. A damaged batch is left out.
        nonce: 64 random bits for this incarnation.
        directory: 64 random bits for the data directory, used if the journal names none.
        rng: random numbers for pauses and jitter only.
        location: location of the data directory at this start, a number that a copy of the directory does not have; 0
            if the driver does not know it.
        boot: 60 bits that stand for this boot of the machine; 0 if unknown.
        newest: True if an operator says that this directory is the newest there is, wherever it lies.

    Raises:
        ValueError: the journal is another node's, or of a cluster that was made otherwise than ``config`` says.
    """

    def __init__(
        self,
        config: NodeConfig,
        journal: Iterable[r.JournalRecord],
        *,
        nonce: int,
        directory: int,
        now: Now,
        rng: random.Random,
        location: int = 0,
        boot: int = 0,
        newest: bool = False,
    ) -> None:
        self.config, self.boot = config, boot
        self.trust = Trust(config, location)
        replay = Replay(config, self.trust, journal, directory)
        self.state = replay.state(nonce, now, boot, newest=newest)
        self.context = Context(self.state, Peers(self.state, now.mono, replay.seen, replay.positions), rng)
        replay.fill(self.context, now)
        self.router = RequestRouter(self.context, self.trust)
        self.vote_router = VoteRouter(self.context)
        self.upkeep = Upkeep(self.context)
        self.timers = Timers(self.context, self.trust, self.upkeep, self.router)
        self.is_new, self.is_noted = replay.is_new, replay.is_noted
        self.void = replay.void  # batches on disk that are not needed
        self.orphans = replay.orphans  # batches of deleted topics that the journal still had at this start
        self.started = self.stopped = False
        self.serving = False  # something costly had its turn in the last step
        self._served_at = now.mono  # and when it had
        self._rest_s = 0.0  # how long nothing costly has its turn after that step

    @property
    def replicas(self) -> dict[PartitionId, Replica]:
        """Return the partitions that are kept here."""
        return self.context.replicas

    @property
    def catalogue(self) -> Catalogue:
        return self.state.catalogue

    @property
    def topics(self) -> dict[bytes, Topic]:
        """Return the registers by topic id, deleted ones included."""
        return self.catalogue.topics

    def topic_named(self, name: str) -> Topic | None:
        """Return the topic that clients of this node mean by ``name``; None if there is none."""
        return self.catalogue.topic_named(name)

    def is_deleted(self, topic: bytes) -> bool:
        return self.catalogue.is_deleted(topic)

    # ---------------------------------------------------------------- start

    def take_position(self, position: int) -> None:
        """Note the count of records that this start found. Call it before `start`; for a driver that counts them."""
        self.context.peers.positions.begin(position)

    def load_damaged(self, records: Iterable[r.BatchStored], now: Now) -> None:
        """Load batches of the journal that cannot be read, before `start`: their content is known, and absent."""
        for record in records:
            self.state.next_batch = max(self.state.next_batch, record.number + 1)
            replica = self.context.kept(record.batch.header.partition)
            if replica is not None:
                replica.batches.load_damaged(record, now)
            else:
                self.orphans.append(record.number)

    def start(self, now: Now) -> list[e.Effect]:
        """Return the first effects. Until `Durable(TOKEN_STARTED)` is fed back, the node must not speak to anyone."""
        state, config = self.state, self.config
        reserve = state.clock.request_first_reserve(now)
        records: list[r.JournalRecord] = []
        if self.is_new:
            records.append(r.DirectoryMade(config.node, config.cluster_id, state.directory))
        if not self.is_noted:
            records.append(cluster_made(config))
            if config.layout is not None:
                records.append(r.ClusterPut(config.layout))
        started = r.Started(state.incarnation, self.context.peers.positions.at_start, self.boot)
        self.trust.note_start(started)
        records += [started, r.Reserved(reserve)]
        if self.trust.resync is not None:
            state.at(now.mono + resync.ASK_AGAIN_S, ("resync",))
        records += self.trust.first_records(self.context)
        for peer in (node for node in self.catalogue.cluster.present if node != config.node):
            state.at(now.mono + self.context.rng.random() * config.sync_interval, ("sync", peer))
        state.at(now.mono + config.heartbeat, ("heartbeat",))
        state.at(now.mono + config.sync_interval, ("reclaim",))
        done = (e.Done(reserve_token(reserve)), e.Done(TOKEN_STARTED))
        return self.context.peers.positions.count([e.Persist(tuple(records), done), *drop_batches(self.void)])

    # ----------------------------------------------------------------- step

    def step(self, events: Sequence[e.Event], now: Now, rng: random.Random) -> list[e.Effect]:
        """Take events in, in order, at one reading of the clocks; due timers run first.

        Returns:
            the effects, to be carried out in order (core/messages/effects.py).
        """
        state, context = self.state, self.context
        context.rng = rng
        self.serving = False
        effects: list[e.Effect] = []
        if self.trust.lost:
            events = [event for event in events if isinstance(event, e.Durable)]
        if self.stopped or (self.trust.lost and not events):
            return effects
        state.looks_left = limits.LOOKS_PER_STEP
        state.compares_left, state.reclaims_left = limits.COMPARED_PER_STEP, limits.RECLAIMED_PER_STEP
        context.woken = {}
        waited = bool(context.costly.lines)
        if state.timers and state.timers[0][0] <= now.mono:
            for timer in self.timers.take_due(now):
                self._absorb(self.timers.on_timer(timer, now), effects, now)
        for event in events:
            if self.stopped:
                break
            new = (
                self._on_received(event.envelope, now)
                if type(event) is e.Received
                else self._on_event(event, now)
            )
            if new:
                self._absorb(new, effects, now)
        if context.join_is_due:
            context.join_is_due = False
            self._absorb(joining.go_on(context, now, afresh=False), effects, now)
        if context.departure_is_due:
            context.departure_is_due = False
            self._absorb(end_requests(context, now), effects, now)
        if context.publishing:
            self._absorb(store_published(context, now), effects, now)
        if state.newly_ready and not context.requests:
            state.newly_ready = {}
        elif state.newly_ready:
            self._absorb(wake_newly_ready(context, now), effects, now)
        if context.costly.lines:
            few = 0 < context.costly.waiting(NO_CALLER) <= limits.LEFT_OVER_MAX
            self._serve_costly(effects, now, waited or few, bool(events))
        clock, reserve = state.clock, None
        if max(clock.value, clock.highest, now.wall_ms << 16) > clock.requested_reserve - HALF_STEP:  # seldom
            reserve = None if self.stopped else clock.request_reserve(now)
        if reserve is not None:
            effects.append(e.Persist((r.Reserved(reserve),), (e.Done(reserve_token(reserve)),)))
        # Drop stale timers at the head: most rounds end long before their timer, and waking up for those would
        # dominate the cost.
        while state.timers and (head := state.timers[0][2])[0] not in LASTING:
            table = ABOUT.get(head[0])
            if table is None:
                stale = self.timers.is_stale(head)
            else:
                stale = head[1] not in getattr(context, table)  # type: ignore[misc]
            if not stale:
                break
            popped = heapq.heappop(state.timers)
            if head[0] == "expire":  # it still records the grant, but must not wake the node
                ended = state.ended_hold_timers
                while ended and ended[0][0] <= now.mono:
                    heapq.heappop(ended)
                heapq.heappush(ended, popped)
        state.looks_left = state.compares_left = state.reclaims_left = NO_END
        return context.peers.positions.count(effects) if effects else effects

    def next_deadline(self) -> float | None:
        """Return the time of the latest next call of `step` (monotonic seconds), with events or without."""
        idle = self.stopped or self.trust.lost or not self.state.timers
        return None if idle else self.state.timers[0][0]

    def _absorb(self, new: list[e.Effect], effects: list[e.Effect], now: Now) -> None:
        """Append effects; messages to ourselves, and requests taken up again, are fed back in at once, in order."""
        me = self.state.me
        for effect in new:
            kind = type(effect)
            if (kind is e.Send and effect.to == me) or kind is e.Again:  # type: ignore[union-attr]
                break
        else:  # mostly
            effects += new
            return
        queue, at = list(new), 0
        while at < len(queue):
            effect = queue[at]
            at += 1
            if isinstance(effect, e.Send) and effect.to == me:
                queue[at:at] = self._on_message(me, self.state.incarnation, effect.message, now)
            elif isinstance(effect, e.Again):
                key, request, looked, caller = effect
                queue[at:at] = self.router.on_request(key, request, now, looked=looked, caller=caller)
            else:
                effects.append(effect)
            if len(queue) > 4096:
                queue, at = queue[at:], 0

    def _serve_costly(self, effects: list[e.Effect], now: Now, waited: bool, busy: bool) -> None:
        """Do costly work for one caller after another, as far as one step has time for it.

        Before the next share there is a pause for others, as long as the last share's rest. If the work ``waited``
        already, the pause is `limits.COSTLY_PAUSE_S` at least. If there were other events (``busy``), it is
        `limits.COSTLY_WAIT_S` at least, unless a step without events is earlier.
        """
        costly, spent = self.context.costly, 0
        pause = (limits.COSTLY_WAIT_S if busy else limits.COSTLY_PAUSE_S) if waited else 0.0
        if now.mono >= self._served_at + max(self._rest_s, pause):
            self.serving, self._served_at = True, now.mono
            while costly.lines and spent < limits.COSTLY_PER_STEP and not self.stopped:
                cost, work = costly.take()
                spent += cost
                self._absorb(self._begin(work, now), effects, now)
        if costly.lines:
            again = self._served_at + max(self._rest_s, limits.COSTLY_PAUSE_S)
            self.state.at(max(now.mono, again), ("serve",))

    def rest(self, mono: float) -> None:
        """Begin the pause of the last step, which was `serving`: all that it led to is carried out."""
        self._rest_s = min(limits.COSTLY_REST * (mono - self._served_at), limits.COSTLY_REST_MAX_S)
        self._served_at = mono

    def _begin(self, work: Costly, now: Now) -> list[e.Effect]:
        """Begin a costly chunk of work, which has its turn."""
        match work:
            case e.Again(key, request, looked, caller):
                return self.router.on_request(key, request, now, looked=looked, caller=caller, waits=False)
            case ("remote", sender, message):
                return self.router.on_remote_fetch(sender, message, now, waits=False)
            case ("wake", group_key, keys):
                self.context.woken = {}
                return wake(self.context, group_key, keys, now)
        return self.timers.on_timer(work, now, waits=False)

    # --------------------------------------------------------------- events

    def _on_event(self, event: e.Event, now: Now) -> list[e.Effect]:
        match event:
            case e.Ours(message):
                return self._on_message(self.state.me, self.state.incarnation, message, now)
            case e.Request(key, request, caller):
                return self.router.on_request(key, request, now, caller=caller)
            case e.Durable(token, position):
                self.context.peers.positions.on_durable(position)
                return self._on_durable(token, now)
            case e.Unsent(key):
                return self.context.releases.take_back(key, now)
            case e.Unposted(message):
                return self.context.releases.of_slices(message.slices, now)
            case e.Gone(key):
                pending = self.context.requests.get(key)
                effects = pending.on_gone(self.context, now) if pending is not None else []
                if key not in self.context.requests:  # else it has begun, and goes on to its end
                    self.context.costly.drop(key)
                return effects
            case e.LinkUp():
                return self._on_link_up(event, now)
            case e.HelloRefused(peer, Code.SUPERSEDED, detail, seen_n):
                reason = f"{peer} refuses this node: {detail}"
                if seen_n:
                    return self.trust.lose(self.context, seen_n, reason)
                self.stopped = True
                return [e.Stop(reason)]
            case e.HelloRefused(_, Code.CLUSTER_MISMATCH, _, layout) if layout:
                self.state.removed_in = max(self.state.removed_in, layout)
                self.context.departure_is_due = True
            case e.LinkDown(peer):
                self.state.on_link_down(peer)
            case e.DiskFull(shortage):
                self.state.disk_shortage = Shortage(shortage)
            case e.MemoryFull(detail):
                self.state.memory_full = detail
            case e.MovesLimited(bytes_per_s, at_once):
                self.context.throttle.limit(bytes_per_s, at_once, now)
            case e.Damaged(number):
                for replica in (*self.replicas.values(), *self.context.sources.values()):
                    if number in replica.batches.stored:
                        replica.storing.on_damaged(number, now)
            case e.CleanStop():
                self.stopped = True  # nothing is sent or answered after it
                return [e.Persist(records) for records in at_stop(self.context, now)]
        return []

    def _on_durable(self, token: int, now: Now) -> list[e.Effect]:
        if token >= 0:  # a batch, mostly
            self.vote_router.on_durable(token, now)
            return []
        if token == TOKEN_POSITION:
            return []
        if token == TOKEN_TOPIC:
            self.state.registers_durable += 1
            return []
        if token == TOKEN_STARTED:
            self.started = True
            self.context.peers.positions.quiet = self.context.peers.positions.durable
            self.trust.after_first_commit(self.context)
            if self.trust.resync is not None:
                return []  # after a loss the topic may merely be unknown here: its batches stay until a later start
            orphans, self.orphans = self.orphans, []
            return drop_batches(orphans)
        if token == TOKEN_LOST:
            self.stopped = True
            return [e.Restart(self.trust.resync.reason if self.trust.resync is not None else "")]
        if token == TOKEN_TRUSTED:
            if not self.trust.on_trusted(self.context, now):
                return []
            return [
                effect
                for peer in self.state.links
                for effect in (
                    *self.context.hold_recovery.ask(self.state, self.replicas, peer, now, afresh=True),
                    *self.upkeep.send_digests(peer, now),
                )
            ]
        if TOKEN_COMPLETED < token <= TOKEN_COMPLETED // 2:
            waited = self.context.completions[token - TOKEN_COMPLETED]
            if isinstance(waited, WaitingMessage):
                del self.context.completions[token - TOKEN_COMPLETED]
                if self.state.superseded(waited.sender, waited.incarnation):
                    return []
                return self._on_message(*waited, now)
            return joining.on_completed(self.context, self.trust, token - TOKEN_COMPLETED, now)
        self.state.clock.on_reserve_durable((token - TOKEN_RESERVE) << 16)
        return self._on_reserve(now)

    def _on_reserve(self, now: Now) -> list[e.Effect]:
        """Go on with requests that wait for a stamp: there are stamps again."""
        context = self.context
        effects: list[e.Effect] = []
        waiting, context.unstamped = context.unstamped, {}
        for key in waiting:
            if key in context.requests:
                effects += context.requests[key].go_on(context, now)
        return effects

    # ---------------------------------------------------------------- links

    def hello(self, now: Now) -> m.Hello:
        return self.context.peers.hello(now)

    def _on_link_up(self, event: e.LinkUp, now: Now) -> list[e.Effect]:
        """Exchange registers, and send our digests: HELLO was accepted."""
        reason = self.trust.compare(self.context, event)
        if reason:
            return self.trust.lose(self.context, max((seen.n for seen in event.seen), default=0), reason)
        peer = event.peer
        self.state.on_link(peer, event.incarnation)
        self.state.learn(peer, event.incarnation)
        self.state.clock.merge(event.stamp)
        self.context.peers.received_at[peer] = now.mono
        effects = self.trust.confirm(self.context, peer)
        return effects + self._ask_afresh(peer, now) + self.upkeep.greet(peer, now)

    def _ask_afresh(self, peer: NodeId, now: Now) -> list[e.Effect]:
        """Ask a peer for what this node has to learn: a link was made, ours or the one that it answers over."""
        learner, context = self.trust.resync, self.context
        effects = learner.ask(context, peer, now, afresh=True) if learner is not None else []
        effects += context.hold_recovery.ask(self.state, self.replicas, peer, now, afresh=True)
        for number, pending in list(context.rounds.items()):
            round_ = pending.rounds.get(number)
            if type(round_) is RegisterRound and round_.awaits(peer):
                pending.begin_again_soon(context, number, now)
            elif round_ is not None:
                effects += pending.on_link(context, number, peer, now)
        return effects + joining.go_on(context, now, afresh=True)

    # ------------------------------------------------------- messages of peers

    def accepts(self, envelope: m.Envelope) -> bool:
        """Return True if a peer's message may be looked at: meant for this start, and not from a superseded one."""
        if envelope.to_incarnation != self.state.incarnation:
            return False
        return not self.state.superseded(envelope.sender, envelope.incarnation)

    def _on_received(self, envelope: m.Envelope, now: Now) -> list[e.Effect]:
        sender, incarnation, _, to_incarnation, stamp, message = envelope
        state, context = self.state, self.context
        if (
            incarnation != state.known.get(sender) or to_incarnation != state.incarnation
        ):  # else it is as before
            if not self.accepts(envelope):
                return []
            state.learn(sender, incarnation)
        if stamp > state.clock.value:
            state.clock.merge(stamp)
        context.peers.received_at[sender] = now.mono
        if state.answering.get(sender) != incarnation:
            state.on_words(sender, incarnation)
            if sender in state.answering:  # earlier answers were lost
                effects = self._ask_afresh(sender, now)
                return effects + self._on_message(sender, incarnation, message, now)
        return self._on_message(sender, incarnation, message, now)

    def _on_message(
        self, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[e.Effect]:
        kind = type(message)
        if kind in _REPLIES:
            return self._on_reply(sender, incarnation, message, now)  # type: ignore[arg-type]
        if kind in _REQUESTS:
            return self.vote_router.on_request(sender, incarnation, message, now)  # type: ignore[arg-type]
        context = self.context
        match message:
            case m.Release(released):
                return self.vote_router.on_release(sender, released, now)
            case m.ReleaseReply(released):
                self.state.release_confirmed(sender, released)
            case m.Heartbeat():
                return self.upkeep.on_heartbeat(sender, incarnation, message, now)
            case m.PutCluster(n) if self.state.trusted or not n:
                return voterslots.put_cluster(context, sender, message, now)
            case m.PutTopic(n, topic) if self.state.trusted or not n or topic.next_layout is not None:
                return merging.put_topic(context, sender, message, now)
            case m.Prepare() | m.Accept() if self.state.trusted:
                return vote(context, sender, message, now)
            case m.Prepare() | m.Accept():
                return [
                    e.Send(sender, m.ProposalReply(message.round, None, None, None, (), Code.NOT_TRUSTED))
                ]
            case m.PutGroup():
                return merging.put_group(context, sender, message, now)
            case m.ReplicaPeekRequest() if message.partition not in self.replicas:
                return [e.Send(sender, m.ReplicaPeekReply(message.round, Code.UNKNOWN_TOPIC, None))]
            case m.ReplicaPeekRequest():
                page = self.replicas[message.partition].on_peek(message.request, now)
                return [e.Send(sender, m.ReplicaPeekReply(message.round, "", page))]
            case m.SyncRegisters():
                return self.upkeep.on_registers_compared(sender, message)
            case m.SyncTopics():
                return merging.take_in_registers(context, sender, message, now)
            case m.SyncDigests() | m.SyncListed() if message.partition in self.replicas:
                return self.upkeep.on_compared(sender, message, now)
            case m.SyncState() if message.partition in self.replicas:
                return self.replicas[message.partition].on_sync_state(sender, message, now)
            case m.SyncPull():
                return sources.on_pull(context, sender, message, now)
            case m.SourceRequest():
                return sources.answer(context, sender, message, now)
            case m.SourceReply():
                return sources.on_answer(context, sender, message, now)
            case m.GroupsRequest() if self.state.trusted:
                new = [replica.partition.topic for replica in context.new_slots()]
                return peer_groups.answer_groups(self.catalogue, new, sender, message)
            case m.RegistersRequest() if self.state.trusted:
                return tell_registers(context, sender, message)
            case m.GroupsReply() if context.peer_groups.awaits(message):
                effects = merging.take_in_groups(context, message.groups, now)
                return effects + context.peer_groups.on_groups_reply(sender, message)
            case m.ResyncRequest(_, PartitionId() as subject, _, epoch) if waits := context.wait_to_adopt(
                subject, epoch, sender, incarnation, message
            ):
                return waits
            case m.ResyncRequest():
                return resync.answer_resync(context, sender, message, now)
            case m.ResyncReply():
                return joining.on_answer(context, self.trust, sender, message, now)
            case m.SurvivorsRequest():
                effects = survivors.answer_survivors(context, self.trust.resync, sender, message)
                return effects + self.trust.end_resync(context, now)
            case m.HoldsRequest():
                return hold_recovery.answer_holds(context.kept, sender, message, now)
            case m.HoldsReply():
                context.hold_recovery.on_holds_reply(self.replicas, sender, message, now)
            case m.RemoteFetch():
                return self.router.on_remote_fetch(sender, message, now)
            case m.RemoteGone(number):
                context.costly.drop((sender, number))
                pending = context.requests.get(context.sub_fetches.pop((sender, number), 0))
                return pending.on_gone(context, now) if pending is not None else []
        return []

    def _on_reply(
        self, sender: NodeId, incarnation: Incarnation, message: m.QuorumReply, now: Now
    ) -> list[e.Effect]:
        """Route a reply to its round; one whose round is over still teaches its content."""
        context = self.context
        effects: list[e.Effect] = []
        kind = type(message)
        if kind is m.StoreReply or kind is m.AckReply:
            context.peers.note_position(sender, incarnation, message.position)  # type: ignore[union-attr]
        elif kind is m.HoldReply:
            if sender != self.state.me:
                context.hold_times.end(message.round, now.mono)
        elif isinstance(message, m.PutReply | m.ProposalReply | m.RegistersReply):
            self.state.learn_register_vector(message.known)
            voterslots.check_epoch(context, sender, message.round, message.epoch)
            if isinstance(message, m.PutReply) and message.refused == Code.DELETED and message.topic:
                effects = merging.take_in_topic(context, message.topic, now)  # ends requests for the topic
        pending = context.rounds.get(message.round)
        if pending is not None:
            if isinstance(message, m.PutReply) and message.refused == Code.NOT_TRUSTED:
                effects += pending.on_not_trusted(context, message.round, sender, now)
                if message.round in context.rounds:
                    pending.begin_again_soon(context, message.round, now)
                return effects
            round_ = pending.rounds[message.round]
            if round_.awaits(sender):  # a second copy counts no more
                effects += pending.on_reply(context, sender, incarnation, message, now)
                if type(round_) is RegisterRound and message.round in context.rounds and round_.is_overtaken:
                    pending.begin_again_soon(context, message.round, now)
        elif isinstance(message, m.HoldReply):
            replica = self.replicas.get(message.partition)
            if replica is not None and message.tombs:
                return replica.learning.repair(message.group, message.tombs, now)
        elif isinstance(message, m.RemoteFetchReply) and message.round in context.called_off:
            # Called off, but answered all the same. Any other answer to a round that is over is a second copy. A client
            # may be working on its messages, and LEAVE is only for messages that certainly no client works on.
            del context.called_off[message.round]
            return context.releases.of_slices(message.slices, now)
        if kind is m.StoreReply and message.votes is not None:  # type: ignore[union-attr]
            effects += self._on_reply(sender, incarnation, message.votes, now)  # type: ignore[union-attr]
        return effects

    # ------------------------------------------------------- journal and status

    def snapshot(self, now: Now) -> list[r.JournalRecord]:
        """Return everything durable but the batches, for the head of a journal segment."""
        return snapshot(self.context, self.trust, now)

    def status(self, now: Now) -> dict[str, object]:
        return status(self.context, self.trust, now)

    def check(self, now: Now) -> None:
        due = self.state.timers and self.state.timers[0][0] <= now.mono
        if due or NO_CALLER in self.context.costly.lines:
            self.context.check_requests()  # costly work that is due, and left to a later step, may be offered or not
        else:
            self.context.check(now)
