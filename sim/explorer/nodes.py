"""The states of single nodes, and the steps between them.

A node's step depends on its own state, the event and the time alone, so each such step runs the real
core once and is then looked up. This makes the explorer quick: a cluster has far more states than each of its
nodes has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from quorumq.core.cluster.state import Timer
from quorumq.core.messages import (
    QUORUM_REPLIES,
    CloseRequest,
    HoldReply,
    HoldsReply,
    PutCluster,
    PutTopic,
    RemoteFetchReply,
)
from quorumq.core.messages.effects import CleanStop, Event, Ours, Persist, Received, Request, Unsent
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.closed import number_of
from quorumq.core.values.types import Kind, NodeId, Now, PartitionId, Topic
from sim.explorer.clone import clone, key_of
from sim.explorer.journals import RNG, UNTRACKED, Journals
from sim.explorer.machine import Machine, Outcome
from sim.explorer.requests import CREATED, GROUP, SPAN, WINDOW_S, fetch, named
from sim.explorer.scenario import HOLD_S, NEVER, WALL_MS, ExplorerError, Scenario, now_at
from sim.explorer.tidy import take_apart, tidy
from sim.explorer.traffic import Traffic


class Local:
    """One state of one node: the core, its journal (by number), and its unsynced records."""

    __slots__ = (
        "core", "dead", "due", "group", "journal", "links", "node", "pending", "problem", "rank", "served"
    )  # fmt: skip

    def __init__(self, core: NodeCore, journal: int, pending: tuple[Persist, ...]) -> None:
        self.core = core
        self.node = core.config.node
        self.journal = journal
        self.pending = pending
        self.dead: dict[int, bool] = {}
        self.links = core.state.links
        self.due = min((timer[0] for timer in core.state.timers), default=NEVER)
        self.rank = rank_of(core)
        self.served = tuple(
            sorted(
                (topic.rf, topic.made)
                for topic in core.catalogue.topics.values()
                if topic.name == CREATED and not topic.deleted
            )
        )
        # The register of the group.
        self.group = next(
            (group for (_, name), group in core.catalogue.groups.items() if name == GROUP), None
        )
        self.problem = ""  # an invariant of the core that it breaks


def rank_of(core: NodeCore) -> tuple[int, bool, int, int]:
    """Return a node's record of the message, as its generation reads it: (generation, acked, n, kind).

    It only rises, unless a rewind that covers the message is followed by one that does not.
    """
    for replica in core.replicas.values():
        view = replica.views.groups.get(GROUP)
        if view is not None:
            for _, record in view.records.within(SPAN):
                if record.generation >= view.generation or not view.covers(SPAN.producer_id, WALL_MS):
                    return (record.generation, record.kind == Kind.ACKED, record.n, int(record.kind))
            return (
                view.generation if view.covers(SPAN.producer_id, WALL_MS) else 0,
                False,
                0,
                int(Kind.OPEN),
            )
    return (0, False, 0, int(Kind.OPEN))


class Nodes:
    """All states of single nodes that were met, by number, and the known results of their steps.

    Attributes:
        release_delivered, late_replies, reorder_journal: True if a rule of the driver is left out (sim/rules): LEAVE
            also for delivered messages; replies whose round is over still matter; a CLEAN_STOP is found again after
            other records.
    """

    release_delivered = late_replies = reorder_journal = False

    def __init__(self, scenario: Scenario) -> None:
        self.named = named(scenario)
        self.journals = Journals(scenario, self.reorder_journal)
        self.traffic = Traffic(scenario)
        self.locals: list[Local] = []
        self.steps: dict[Hashable, Outcome] = {}
        self.core_steps = 0
        self.partition: PartitionId | None = None
        self._ahead = scenario.ahead
        self._reclaims = scenario.budget.reclaims > 0
        self.moved: Topic | None = None  # the register with the layout that moves the partition, adopted
        self.chosen = self.journals.with_voters()  # the layout of the cluster with other voters
        self._max_wait = HOLD_S if scenario.budget.publishes else 0.0
        self._numbers: dict[Hashable, int] = {}
        self._dropped: dict[int, int] = {}
        self._machine = partial(Machine, self.journals, self.traffic)

    def number(self, core: NodeCore, journal: int, pending: tuple[Persist, ...]) -> int:
        """Return the number of a node's state."""
        key: Hashable = (core.config.node, journal, pending, key_of(core))
        if self._reclaims:
            key = (
                key,
                *[(tuple(each.reclaim.unneeded), *each.views.to_reclaim) for each in core.replicas.values()],
            )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.locals)
            self.locals.append(Local(core, journal, pending))
        return number

    def drop_journal(self, local: int) -> int:
        """Return the same node once it cannot crash any more: its journal does not matter."""
        number = self._dropped.get(local)
        if number is None:
            node_state = self.locals[local]
            number = self._dropped[local] = self.number(node_state.core, UNTRACKED, node_state.pending)
        return number

    # ---------------------------------------------------------------------- any step

    def step(self, local: int, events: list[Event], now: Now, *, setup: bool = False) -> Outcome:
        """Run ``events`` on node state ``local``. Not looked up: callers keep the outcomes they often need."""
        return self._finish(self._at(local, now, setup), events)

    def _at(self, local: int, now: Now, setup: bool = False) -> Machine:
        node_state = self.locals[local]
        return self._machine(clone(node_state.core), node_state.journal, node_state.pending, now, setup)

    def _finish(self, machine: Machine, events: list[Event]) -> Outcome:
        """Run the events and their results, and check the core's invariants once for each new state of the node."""
        core, now = machine.core, machine.now()
        self.core_steps += 1
        before = len(self.locals)
        problem = failure(core, machine.driver.feed, *events)
        tidy(core, now, keeps_given=self.release_delivered)
        local = self.number(core, machine.number, machine.end_step())
        node_state = self.locals[local]
        if len(self.locals) == before:
            take_apart(core)  # the state was met before, and this copy of it is not kept
        elif not problem:
            node_state.problem = failure(core, core.check, now)
        if machine.stopped:
            problem = f"node {core.config.node} stops: {machine.stopped}"
        return Outcome(local, tuple(machine.sent), tuple(machine.replies), problem or node_state.problem)

    # --------------------------------------------------------------------- messages

    def is_dead(self, message: int, local: int, tick: int) -> bool:
        """Return True if a message can have no effect any more on its receiver (docs/verification.md, pruning)."""
        node_state = self.locals[local]
        dead = node_state.dead.get(message)
        if dead is None:
            dead = node_state.dead[message] = self._is_dead(message, local, tick)
        return dead

    def _is_dead(self, message: int, local: int, tick: int) -> bool:
        envelope = self.traffic.messages.all[message]
        core = self.locals[local].core
        if not core.accepts(envelope):
            return True
        reply = envelope.message
        if isinstance(reply, HoldsReply):
            waiting = core.context.hold_recovery.awaited.get(reply.partition, ())
            return envelope.sender not in waiting or not core.context.hold_recovery.is_current(
                envelope.sender, reply.round
            )
        if not isinstance(reply, QUORUM_REPLIES) or self.late_replies:
            return False
        coordinator = core.context.rounds.get(reply.round)
        if coordinator is not None:
            answered = coordinator.rounds[reply.round].answered_by
            repeats = isinstance(reply, HoldReply) and bool(reply.tombs or reply.not_due or reply.refused)
            if envelope.sender not in answered or repeats:
                return False
        elif isinstance(reply, RemoteFetchReply):
            return not reply.slices
        elif not isinstance(reply, HoldReply) or not reply.tombs:
            return True
        outcome = self.deliver(local, message, tick)
        return outcome.local == local and not outcome.sent and not outcome.replies

    def deliver(self, local: int, message: int, tick: int) -> Outcome:
        """Deliver a message."""
        key = (local, message, tick)
        outcome = self.steps.get(key)
        if outcome is None:
            envelope = self.traffic.messages.all[message]
            outcome = self.steps[key] = self.step(local, [Received(envelope)], now_at(tick))
        return outcome

    # -------------------------------------------------------------------- other steps

    def do(self, local: int, event: tuple[Hashable, ...], tick: int) -> Outcome:
        """Do something else to one node, such as ("wake",) or ("give up", the number of a round)."""
        key = (local, event, type(event[-1]), tick)
        outcome = self.steps.get(key)
        if outcome is None:
            outcome = self.steps[key] = self._do(local, event, tick)
        return outcome

    def _do(self, local: int, event: tuple[Hashable, ...], tick: int) -> Outcome:
        now = now_at(tick)
        match event:
            case ("wake",):
                return self.step(local, [], now)
            case ("give up", int(number)):
                return self._fire(local, now, ("round", number))
            case ("offer", str(peer)):
                return self._fire(local, now, ("sync", peer))
            case ("again", int(key)):
                return self._fire(local, now, ("again", key))
            case ("unsent", int(key)):
                return self.step(local, [Unsent(key)], now)
            case ("fsync",):  # ends the oldest Persist: the effects that waited for it alone are carried out
                machine = self._at(local, now)
                machine.fsync()
                return self._finish(machine, [])
            case ("clean stop",):
                return self.step(local, [CleanStop()], now)
            case ("restart",):
                return self.begin(self.locals[local].journal, self.locals[local].node, now)
            case ("fetch", int(key), int(wall_ms), str(group), bool(idle)):
                hold = min(HOLD_S, self.locals[local].core.config.hold_time_max)
                asked = fetch(group, now, idle, hold, self._max_wait, self.named)
                return self.step(local, [Request(key, asked)], now_at(tick, wall_ms))
            case ("reclaim",):
                return self._fire(local, now, ("reclaim",))
            case ("close",):
                return self._close(local, now)
            case ("adopt",):
                put = PutTopic(0, self.moved) if self.moved is not None else PutCluster(0, self.chosen)  # type: ignore[arg-type]
                return self.step(local, [Ours(put)], now)
            case ("ask", int(key), request):
                if self.locals[local].node in self._ahead:
                    now = now_at(tick, WALL_MS + 1000 * WINDOW_S)
                return self.step(local, [Request(key, request)], now)  # type: ignore[arg-type]
        raise ExplorerError(f"{event} is nothing that happens to a node")

    def _fire(self, local: int, now: Now, event: Timer) -> Outcome:
        """Fire a timer now, before its time if need be."""
        machine = self._at(local, now)
        state = machine.core.state
        state.timers = [(now.mono, 0, event), *[timer for timer in state.timers if timer[2] != event]]
        return self._finish(machine, [])

    def _close(self, local: int, now: Now) -> Outcome:
        """Have a node promise to close the producer id of the message, and ask its set if all are done with it."""
        assert self.partition is not None
        core = self.locals[local].core
        ask = CloseRequest(
            0, self.partition, core.catalogue.epoch_of(self.partition), (number_of(SPAN.producer_id),)
        )
        promised = self.step(local, [Ours(ask)], now)
        RNG.share = 0.0  # else one of the set, at random, begins the round
        try:
            return promised.then(self._fire(promised.local, now, ("reclaim",)))
        finally:
            del RNG.share

    def begin(self, journal: int, node: NodeId, now: Now, nonce: int = 0) -> Outcome:
        """Start from a journal, up to where the node may speak; it has no links yet. Unsynced records are gone.

        It counts the group's register as settled, as a FETCH through it would soon find: a majority has it.
        """
        core = self.journals.load(self.journals.records(journal), node, now, nonce)
        machine = self._machine(core, journal, (), now)
        machine.driver.start()
        if self.partition is not None and core.catalogue.reads(self.partition.topic, GROUP):
            core.catalogue.registered_groups[(self.partition, GROUP)] = None
        return self._finish(machine, [])


def failure(core: NodeCore, act: Callable[..., object], *args: object) -> str:
    """Return the core's own invariant that ``act`` finds broken, or ""."""
    try:
        act(*args)
    except AssertionError as error:
        return f"invariant of node {core.config.node}: {error}"
    return ""
