"""What one node does, and what the network may hold.

Everything that an exploration meets twice is kept once and has a number: node states, messages, sets of messages,
facts. What a node does at an event depends on its own state, the event and the time alone, so each such step runs
the real core once and is then looked up. This is where the speed comes from: a cluster has far more states than
each of its nodes has.

The core is driven by quorumq/driver.py. Persists are durable at once, unless the scenario makes each fsync a step of
its own: then what waits in the driver is part of a node's state.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from quorumq.core.effects import (
    CleanStop,
    Event,
    LinkDown,
    LinkUp,
    Persist,
    Received,
    Request,
    Restart,
    SendStored,
    Stop,
    Unsent,
)
from quorumq.core.messages import (
    QUORUM_REPLIES,
    AckRequest,
    AlterTopic,
    ClientReply,
    ClientRequest,
    CreateTopic,
    DeleteTopic,
    Envelope,
    ExtendRequest,
    Failed,
    Fetch,
    Fetched,
    Heartbeat,
    HoldReply,
    HoldsAsk,
    HoldsTold,
    LeaveRequest,
    Named,
    PeerMessage,
    PurgeRequest,
    PutTopic,
    RedriveRequest,
    RejectRequest,
    Released,
    RemoteFetch,
    RemoteFetched,
    Resolved,
    SetGroup,
    Store,
    SyncOffer,
    SyncTopics,
    TopicCreated,
    Welcome,
)
from quorumq.core.nodecore import NodeCore
from quorumq.core.partition.group import DEAD_SUFFIX
from quorumq.core.records import (
    BatchStored,
    DirectoryMade,
    JournalRecord,
    PeerSeen,
    Reserved,
    Started,
    Vouched,
)
from quorumq.core.recovery import Recovery
from quorumq.core.resync import far_above
from quorumq.core.state import NodeConfig
from quorumq.core.types import (
    Incarnation,
    Kind,
    Letter,
    NodeId,
    Now,
    Origin,
    PartitionId,
    Receipt,
    Record,
    Span,
)
from quorumq.driver import Driver, Waiting
from quorumq.wire.batch import Message, build_batch
from sim.explorer.clone import clone, key_of
from sim.explorer.scenario import HOLD_S, TICK_S, Scenario

START = 1000.0
"""Monotonic seconds when an exploration begins. Far above 0, because the core uses 0 for "long ago"."""

WALL_MS = 1_700_000_000_000
NEVER = 1e9
"""A timeout that does not come by itself: the explorer decides when a round gives up."""

GROUP = "g"
DEAD_GROUP = GROUP + DEAD_SUFFIX
TOPIC = "t"
ORIGIN = Origin("p", 1, 1, 1)
SPAN = Span(ORIGIN, 0, 1)
CREATED = "u"
"""The topic that a scenario with ``operators`` is about."""

SETUP_KEY = 1000
HELLO_KEY = 1001
UNTRACKED = -1
"""The journal of a node that cannot crash any more."""

NOT_SENT: tuple[type, ...] = (Heartbeat, SyncTopics, Released, PutTopic)
"""Messages that are always lost here. Heartbeats and registers say nothing new in these clusters; a lost Released
only has the RELEASE repeated in front of the next HOLD. Offers of anti-entropy that come with a new link are lost, too,
unless the scenario has anti-entropy in it."""

NOT_SENT_OF_OPERATORS = (Heartbeat, SyncTopics, SyncOffer, HoldsAsk)
"""Likewise where operators work on topics: there are no holds. Of registers, what is written by rounds is enough."""


class Middle(random.Random):
    """A source of randomness without any: pauses have no meaning where time moves in ticks."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


RNG = Middle(0)


class ExplorerError(Exception):
    """The explorer itself, or a scenario's script, is wrong: not a property of the protocol."""


class Local:
    """One state of one node: the core, its journal (by number), and what it has not synced yet."""

    __slots__ = ("core", "dead", "due", "index", "journal", "links", "pending", "problem", "rank", "served")

    def __init__(self, core: NodeCore, index: int, journal: int, pending: tuple[Persist, ...]) -> None:
        self.core = core
        self.index = index
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
        self.problem = ""  # an invariant of the core that it breaks


class Outcome(NamedTuple):
    """What a step of one node led to."""

    local: int
    sent: tuple[int, ...]  # messages
    replies: tuple[tuple[int, int], ...]  # (request key, number of the reply)
    problem: str  # a broken invariant, or ""


class Switches:
    """What the explorer's own part of a rule is, where the rule is the driver's and not the core's.

    A rule's entry in rules.py changes these, or patches the core, and nothing else.
    """

    __slots__ = ("late_replies", "leave_delivered", "reorder_journal")

    def __init__(self) -> None:
        self.leave_delivered = False  # LEAVE also for what was delivered
        self.late_replies = False  # replies whose round is over still matter
        self.reorder_journal = False  # a CLEAN_STOP is found again after other records


class World:
    """The nodes, messages and steps of one exploration.

    Args:
        scenario: the bounds.
        switches: the driver's part of the rules.
    """

    def __init__(self, scenario: Scenario, switches: Switches) -> None:
        self.scenario = scenario
        self.switches = switches
        self.names = scenario.nodes
        self.index = {name: at for at, name in enumerate(self.names)}
        self.locals: list[Local] = []
        self._local_ids: dict[Hashable, int] = {}
        self.messages: list[Envelope] = []
        self.to: list[int] = []  # per message, the index of the node that it goes to
        self._message_ids: dict[tuple[type, Envelope], int] = {}
        self.fetching: dict[int, int] = {}  # per RemoteFetch, its copy; per copy, itself
        self.replies: list[ClientReply] = []
        self._reply_ids: dict[tuple[type, ClientReply], int] = {}
        self.journals: list[tuple[JournalRecord, ...]] = []
        self._journal_ids: dict[Hashable, int] = {}
        self._journal_next: dict[tuple[int, tuple[JournalRecord, ...]], int] = {}
        self.steps: dict[Hashable, Outcome] = {}
        self._links: dict[tuple[int, int, int], tuple[Outcome, Outcome] | None] = {}
        self._forgotten: dict[int, int] = {}
        self.core_steps = 0
        self.keeps_journals = bool(scenario.restarts or scenario.clean_stops or scenario.wipes)
        self.not_sent = NOT_SENT if scenario.offers else (*NOT_SENT, SyncOffer)
        if scenario.operators:
            self.not_sent = NOT_SENT_OF_OPERATORS
        # Where a node cannot crash, a slow fsync is the same as slow messages.
        self.unsynced = (scenario.restart_nodes or scenario.nodes) if scenario.unsynced else ()
        self.keeps_given = switches.leave_delivered
        self.partition = PartitionId(b"", 0)
        self.members: tuple[NodeId, ...] = ()
        self.topic = b""  # what there is to be altered and deleted

    # ----------------------------------------------------------------- keeping once

    def now(self, tick: int, wall_ms: int = WALL_MS) -> Now:
        """The clocks at a tick. The time of day stands still: it decides nothing but the next ballot."""
        return Now(START + tick * TICK_S, wall_ms)

    def local_id(self, core: NodeCore, index: int, journal: int, pending: tuple[Persist, ...]) -> int:
        """The number of a node's state."""
        key = (index, journal, pending, key_of(core))
        found = self._local_ids.get(key)
        if found is None:
            found = self._local_ids[key] = len(self.locals)
            self.locals.append(Local(core, index, journal, pending))
        return found

    def message_id(self, envelope: Envelope) -> int:
        """The number of a message. Two of different types may be equal: they are tuples."""
        key = (type(envelope.message), envelope)
        found = self._message_ids.get(key)
        if found is None:
            found = self._message_ids[key] = len(self.messages)
            self.messages.append(envelope)
            self.to.append(self.index[envelope.to])
            if isinstance(envelope.message, RemoteFetch):
                # A copy is told from the first by its stamp, which says nothing here.
                self.fetching[found] = (
                    found if envelope.stamp else self.message_id(envelope._replace(stamp=1))
                )
        return found

    def reply_id(self, reply: ClientReply) -> int:
        """The number of an answer to a client."""
        key = (type(reply), reply)
        found = self._reply_ids.get(key)
        if found is None:
            found = self._reply_ids[key] = len(self.replies)
            self.replies.append(reply)
        return found

    def append(self, journal: int, records: Iterable[JournalRecord], index: int) -> int:
        """The number of a journal with more records. Two that load alike are one."""
        new = tuple(records)
        if journal == UNTRACKED or not new:
            return journal
        step = (journal, new)
        found = self._journal_next.get(step)
        if found is None:
            found = self._journal_next[step] = self.journal_id((*self.journals[journal], *new), index)
        return found

    def journal_id(self, records: tuple[JournalRecord, ...], index: int) -> int:
        """The number of a journal: of the first that was met of all those that load alike."""
        core = self.load(records, index, Now(START, WALL_MS))
        key = (index, key_of(core))
        found = self._journal_ids.get(key)
        if found is None:
            found = self._journal_ids[key] = len(self.journals)
            self.journals.append(records)
        return found

    def load(self, records: tuple[JournalRecord, ...], index: int, now: Now, nonce: int = 0) -> NodeCore:
        """A new core from a journal; ``nonce`` where its starts are told from those of another directory."""
        config = NodeConfig(
            node=self.names[index],
            nodes=self.names,
            hold_time_max=HOLD_S,
            request_timeout=NEVER,
            heartbeat=NEVER,
            sync_interval=NEVER,
            sync_grace=0.0,
            steal_after=0.0,
        )
        if self.switches.reorder_journal:
            records = stop_found_again(records)
        return NodeCore(config, records, nonce=nonce or 100 + index, directory=200 + index, now=now, rng=RNG)

    # -------------------------------------------------------------------- the driver

    def drive(
        self,
        core: NodeCore,
        index: int,
        journal: int,
        pending: tuple[Persist, ...],
        events: list[Event],
        now: Now,
    ) -> Outcome:
        """Let ``core`` (ours to change) take ``events`` in, and carry out what follows within the node."""
        self.core_steps += 1
        return self.finish(Machine(self, core, index, journal, pending, now), events)

    def finish(self, run: Machine, events: list[Event]) -> Outcome:
        """The events, what follows, and the core's own invariants, once for each new state of the node."""
        core, now = run.core, run.now()
        problem = ""
        before = len(self.locals)
        try:
            run.driver.feed(*events)
        except AssertionError as error:
            problem = f"invariant of node {core.config.node}: {error}"
        self.tidy(core, now)
        local = self.local_id(core, run.index, run.number, run.leave())
        if len(self.locals) > before and not problem:
            try:
                core.check(now)
            except AssertionError as error:
                problem = self.locals[local].problem = f"invariant of node {core.config.node}: {error}"
        if run.stopped:
            problem = f"node {core.config.node} stops: {run.stopped}"
        problem = problem or self.locals[local].problem
        return Outcome(local, tuple(run.sent), tuple(run.replies), problem)

    def step(self, local: int, events: list[Event], now: Now) -> Outcome:
        """What node state ``local`` does at ``events``. Not looked up: callers keep what they ask for often."""
        this = self.locals[local]
        return self.drive(clone(this.core), this.index, this.journal, this.pending, events, now)

    def tidy(self, core: NodeCore, now: Now) -> None:
        """Take out of a core what cannot matter here, so that states that behave alike are one.

        Hints on who else is fetching have no effect with ``steal_after = 0``; nobody reads when a peer was heard; what
        a node was asked for its holds before it could answer waits here until it can, so nobody need ask again;
        timers whose round, request or hold is gone do nothing when they come.
        """
        state = core.state
        state.active.clear()
        state.parked.clear()
        state.stirred = False
        core.context.peers.heard_at.clear()
        core.context.peers.facts.clear()
        core.context.announced.clear()
        core.context.fetches = 0
        if not self.keeps_given:
            core.context.given.clear()
        if state.quarantine_until <= now.mono:
            state.quarantine_until = 0.0
        for peer in [peer for peer, owed in state.unconfirmed.items() if not owed]:
            del state.unconfirmed[peer]
        for replica in core.replicas.values():
            if replica.quarantine_until <= now.mono:
                replica.quarantine_until = 0.0
            for view in replica.views.groups.values():
                for key in view.ready:
                    view.ready[key] = 0.0
        core.context.recovery.forget_greetings()
        if not any(replica.quarantine_until for replica in core.replicas.values()):
            core.context.recovery = Recovery()
        self._tidy_timers(core, now)

    def _tidy_timers(self, core: NodeCore, now: Now) -> None:
        kept: dict[tuple[float, tuple[object, ...]], None] = {}
        for time, _, what in core.state.timers:
            if self._matters(core, time, what, now):
                kept[(time, what)] = None
        for partition, replica in core.replicas.items():
            for view in replica.views.groups.values():
                for span, held in view.all_held():
                    # Earlier timers for this hold would only be set again to its deadline when they come.
                    kept[(held.deadline, ("expire", partition, view.name, span))] = None
        timers = sorted(kept, key=lambda item: (item[0], repr(item[1])))
        core.state.timers = [(time, count, what) for count, (time, what) in enumerate(timers, 1)]
        core.state.timer_count = len(timers)

    def _matters(self, core: NodeCore, time: float, what: tuple[object, ...], now: Now) -> bool:
        """Whether a timer may still do something when it comes. One of a kind that is not known here may."""
        match what:
            case ("round", number):
                return number in core.context.rounds
            case ("refresh", *_):
                return time > now.mono
            case ("again", key):
                return key in core.context.requests
            case ("advance" | "gathered", key):
                # While its rounds are open a FETCH does not advance, and when they close it does so by itself.
                coordinator = core.context.requests.get(key)  # type: ignore[call-overload]
                return coordinator is not None and (what[0] == "gathered" or not coordinator.rounds)
            case ("forget", key):
                return key in core.context.given
            case ("expire" | "heartbeat" | "sync" | "reclaim" | "recover", *_):
                return False  # set below; never; when the scenario says so; nothing that was asked is lost for good
        return True

    def forget_journal(self, local: int) -> int:
        """The same node once it cannot crash any more: its journal does not matter."""
        found = self._forgotten.get(local)
        if found is None:
            this = self.locals[local]
            found = self._forgotten[local] = self.local_id(this.core, this.index, UNTRACKED, this.pending)
        return found

    # -------------------------------------------------------------------- the network

    def is_dead(self, message: int, local: int, tick: int) -> bool:
        """Whether a message can have no effect any more on the node it goes to (docs/verification.md, pruning)."""
        this = self.locals[local]
        found = this.dead.get(message)
        if found is None:
            found = this.dead[message] = self._is_dead(message, local, tick)
        return found

    def _is_dead(self, message: int, local: int, tick: int) -> bool:
        envelope = self.messages[message]
        core = self.locals[local].core
        if not core.accepts(envelope):
            return True
        reply = envelope.message
        if isinstance(reply, HoldsTold):
            waiting = core.context.recovery.unheard.get(reply.partition, ())
            return envelope.sender not in waiting or not core.context.recovery.is_current(
                envelope.sender, reply.round
            )
        if not isinstance(reply, QUORUM_REPLIES) or self.switches.late_replies:
            return False
        coordinator = core.context.rounds.get(reply.round)
        if coordinator is not None:
            heard = coordinator.rounds[reply.round].heard
            repeats = isinstance(reply, HoldReply) and bool(reply.resolved or reply.not_due or reply.refused)
            if envelope.sender not in heard or repeats:
                return False
        elif isinstance(reply, RemoteFetched):
            return not reply.slices
        elif not isinstance(reply, HoldReply) or not reply.resolved:
            return True
        outcome = self.deliver(local, message, tick)
        return outcome.local == local and not outcome.sent and not outcome.replies

    def deliver(self, local: int, message: int, tick: int) -> Outcome:
        """A message arrives."""
        key = (local, message, tick)
        found = self.steps.get(key)
        if found is None:
            envelope = self.messages[message]
            found = self.steps[key] = self.step(local, [Received(envelope)], self.now(tick))
        return found

    def do(self, local: int, what: tuple[Hashable, ...], tick: int) -> Outcome:
        """Something else happens to one node: see `events_for`, and "give up", "offer" and "fsync" here."""
        key = (local, what, type(what[-1]), tick)
        found = self.steps.get(key)
        if found is None:
            found = self.steps[key] = self._do(local, what, tick)
        return found

    def _do(self, local: int, what: tuple[Hashable, ...], tick: int) -> Outcome:
        this = self.locals[local]
        now = self.now(tick)
        match what:
            case ("wake",):
                return self.step(local, [], now)
            case ("give up", int(number)):
                return self._fire(this, now, ("round", number))
            case ("offer", str(peer)):
                return self._fire(this, now, ("sync", peer))
            case ("again", int(key)):
                return self._fire(this, now, what)
            case ("unsent", int(key)):
                return self.step(local, [Unsent(key)], now)
            case ("fsync",):
                return self._fsync(this, now)
            case ("clean stop",):
                return self.step(local, [CleanStop()], now)
            case ("fetch", int(key), int(wall_ms), str(group)):
                fetch = Fetch((TOPIC,), group, 1, 1 << 20, 1, 0, 0.0, HOLD_S, now.mono)
                return self.step(local, [Request(key, fetch)], self.now(tick, wall_ms))
            case ("ask", int(key), request):
                return self.step(local, [Request(key, request)], now)  # type: ignore[arg-type]
        raise ExplorerError(f"{what} is nothing that happens to a node")

    def _fire(self, this: Local, now: Now, what: tuple[object, ...]) -> Outcome:
        """A timer comes now, whatever it was set to."""
        core = clone(this.core)
        others = [timer for timer in core.state.timers if timer[2] != what]
        core.state.timers = [(now.mono, 0, what), *others]
        return self.drive(core, this.index, this.journal, this.pending, [], now)

    def _fsync(self, this: Local, now: Now) -> Outcome:
        """The oldest Persist becomes durable, and what waited for it alone is carried out."""
        core = clone(this.core)
        run = Machine(self, core, this.index, this.journal, this.pending, now)
        problem = ""
        try:
            run.fsync()
            run.driver.feed()
            core.check(now)
        except AssertionError as error:
            problem = f"invariant of node {self.names[this.index]}: {error}"
        self.tidy(core, now)
        return Outcome(
            self.local_id(core, this.index, run.number, run.leave()),
            tuple(run.sent),
            tuple(run.replies),
            problem,
        )

    # ------------------------------------------------------------ starts and links

    def restart(self, local: int, tick: int) -> Outcome:
        """kill -9 and a start from the journal. What was not synced is gone."""
        key = (local, "restart", tick)
        found = self.steps.get(key)
        if found is None:
            this = self.locals[local]
            found = self.steps[key] = self.begin(this.journal, this.index, self.now(tick))
        return found

    def begin(self, journal: int, index: int, now: Now, nonce: int = 0) -> Outcome:
        """A start from a journal, up to where the node may speak; it has no links yet.

        It counts the group's register as settled, as a FETCH through it would soon find: a majority has it.
        """
        core = self.load(self.journals[journal], index, now, nonce)
        run = Machine(self, core, index, journal, (), now)
        run.driver.start()
        if self.partition.topic:
            core.catalogue.settled_groups[(self.partition, GROUP)] = None
        return self.finish(run, [])

    def link(self, one: int, other: int, tick: int) -> tuple[Outcome, Outcome] | None:
        """Two nodes find each other again: the old links are down, HELLO both ways, both links up.

        None where one refuses the other: they stay as they are.
        """
        key = (one, other, tick)
        if key not in self._links:
            now = self.now(tick)
            first, second = self.locals[one], self.locals[other]
            a = self.step(one, [LinkDown(self.names[second.index])], now)
            b = self.step(other, [LinkDown(self.names[first.index])], now)
            back = self._dial(a, b, now)
            forth = self._dial(back[0], back[1], now) if back is not None else None
            self._links[key] = forth
        return self._links[key]

    def _dial(self, dialler: Outcome, acceptor: Outcome, now: Now) -> tuple[Outcome, Outcome] | None:
        """One HELLO and its WELCOME; (acceptor, dialler) after it, or None where it is refused."""
        core = self.locals[dialler.local].core
        hello = core.hello(now)
        accepted = self.step(acceptor.local, [Request(HELLO_KEY, hello)], now)
        answer = self.replies[accepted.replies[0][1]]
        if not isinstance(answer, Welcome):
            return None
        up = LinkUp(
            answer.node,
            answer.incarnation,
            answer.stamp,
            answer.seen_n,
            answer.seen_directories,
        )
        linked = self.step(dialler.local, [up], now)
        return (
            Outcome(
                accepted.local, (*acceptor.sent, *accepted.sent), (), acceptor.problem or accepted.problem
            ),
            Outcome(linked.local, (*dialler.sent, *linked.sent), (), dialler.problem or linked.problem),
        )

    def are_linked(self, one: int, other: int) -> bool:
        """Whether both have a link to this very incarnation of the other."""
        a, b = self.locals[one], self.locals[other]
        return (
            a.links.get(self.names[b.index]) == b.core.state.incarnation
            and b.links.get(self.names[a.index]) == a.core.state.incarnation
        )

    def wipe(self, locals_: tuple[int, ...], index: int, tick: int) -> list[Outcome]:
        """A disk is lost, and the node comes back with what every other replica knows, in one step.

        docs/protocol.md, RECOVERY, "empty, wiped": the others record the new incarnation in one step with what they
        answer, the node starts far above the highest start count they report, and its quarantine begins. The core has
        no resync yet; this does what it will do, all at once.
        """
        now = self.now(tick)
        old = self.locals[locals_[index]].core
        heard = self.scenario.wiped_hears or self.members
        others = [at for at in range(len(self.names)) if at != index and self.names[at] in heard]
        seen = max(self.locals[locals_[at]].core.context.peers.seen[self.names[index]][0].n for at in others)
        records: list[JournalRecord] = [
            DirectoryMade(self.names[index], old.config.cluster_id, old.state.directory),
            Started(Incarnation(far_above(seen), old.state.incarnation.nonce)),
            Vouched(),
        ]
        for at in others:
            this = self.locals[locals_[at]].core
            for record in this.snapshot(now):
                if not isinstance(record, DirectoryMade | Started | Vouched | PeerSeen):
                    records.append(record)
            records.append(PeerSeen(self.names[at], this.state.incarnation, this.state.directory))
            records += [
                item for item in self.journals[self.locals[locals_[at]].journal] if type(item) is BatchStored
            ][:1]
        outcomes = [Outcome(local, (), (), "") for local in locals_]
        # From now on there are two directories, whose starts count by themselves.
        nonce = old.state.incarnation.nonce + 100
        outcomes[index] = self.begin(self.journal_id(tuple(records), index), index, now, nonce)
        for at in others:
            linked = self.link(outcomes[index].local, outcomes[at].local, tick)
            if linked is None:
                raise ExplorerError(f"{self.names[at]} refuses node {self.names[index]}, which was wiped")
            a, b = linked
            outcomes[index] = a._replace(sent=(*outcomes[index].sent, *a.sent))
            outcomes[at] = b
        return outcomes

    # -------------------------------------------------------------------- the beginning

    def first_locals(self) -> tuple[int, ...]:
        """A cluster that runs, with one topic, one group and one message, and nothing under way."""
        scenario = self.scenario
        now = self.now(0)
        locals_ = [
            self.begin(self.journal_id((), index), index, now).local for index in range(len(self.names))
        ]
        for a in range(len(self.names)):
            for b in range(a + 1, len(self.names)):
                linked = self.link(locals_[a], locals_[b], 0)
                assert linked is not None
                locals_[a], locals_[b] = linked[0].local, linked[1].local
        if scenario.operators:
            self.members = self.names
            if scenario.operators[0][0] != "create":
                created = self._settle(locals_, 0, Request(SETUP_KEY, CreateTopic(CREATED, 1)), now)
                assert isinstance(created, TopicCreated), created
                self.topic = created.topic.id
        else:
            self._first_topic(locals_, now)
        for index in range(len(self.names)):
            core = clone(self.locals[locals_[index]].core)
            core.state.round_count = core.door.sessions = 0
            core.vouching.vouchers.clear()
            journal = self.locals[locals_[index]].journal if self.keeps_journals else UNTRACKED
            self.tidy(core, now)
            locals_[index] = self.local_id(core, index, journal, ())
        self.steps.clear()
        return tuple(locals_)

    def _first_topic(self, locals_: list[int], now: Now) -> None:
        """One topic, one group and one message."""
        scenario = self.scenario
        creation = CreateTopic(TOPIC, scenario.rf, 1, scenario.max_deliveries)
        created = self._settle(locals_, 0, Request(SETUP_KEY, creation), now)
        assert isinstance(created, TopicCreated), created
        self.partition = PartitionId(created.topic.id, 0)
        self.members = created.topic.replicas[0]
        for index, name in enumerate(self.names):
            if name in self.members:
                fetch = Fetch((TOPIC,), GROUP, 1, 1, 1, 0, 0.0, HOLD_S, now.mono)
                reply = self._settle(locals_, index, Request(SETUP_KEY, fetch), now)
                assert isinstance(reply, Fetched), reply
        batch = build_batch(self.partition, ORIGIN, 0, WALL_MS, [Message(b"work")])
        self.store = Store(0, created.topic.epoch, batch)
        for name in scenario.stored_on or self.members:
            core = self.locals[locals_[self.index[name]]].core
            own = core.state.incarnation
            envelope = Envelope(name, own, name, own, 0, self.store)
            self._settle(locals_, self.index[name], Received(envelope), now)

    def _settle(self, locals_: list[int], index: int, event: Event, now: Now) -> ClientReply | None:
        """An event, and everything that follows from it on a perfect network; the answer to the request."""
        answer: ClientReply | None = None
        queue: deque[tuple[int, Event]] = deque([(index, event)])
        while queue:
            at, event = queue.popleft()
            this = self.locals[locals_[at]]
            run = Machine(self, clone(this.core), at, this.journal, (), now, setup=True)
            run.driver.feed(event)
            self.tidy(run.core, now)
            run.leave()
            locals_[at] = self.local_id(run.core, at, run.number, ())
            for message in run.sent:
                envelope = self.messages[message]
                queue.append((self.index[envelope.to], Received(envelope)))
            for _, reply in run.replies:
                answer = self.replies[reply]
        return answer

    # -------------------------------------------------------------------- requests

    def operation(self, kind: str, index: int) -> ClientRequest:
        """What an operator of the scenario asks."""
        if kind == "alter":
            return AlterTopic(CREATED, partitions=2)
        if kind == "delete":
            return DeleteTopic(CREATED, self.topic)
        return self.creation(index)

    def creation(self, index: int) -> CreateTopic:
        """A creation: each other one wants one replica only."""
        return CreateTopic(CREATED, 1 if index % 2 else len(self.names))

    def request(self, kind: str, receipt: Receipt | None, life: tuple[int, int], now: Now) -> ClientRequest:
        """The request with which a client settles a delivery, redrives what was listed dead at (generation, n) =
        ``life``, purges dead letters or the backlog ("clear"), or rewinds."""
        if kind == "redrive":
            dead = Record(*life, Kind.DEAD)
            return RedriveRequest(TOPIC, 0, GROUP, (Resolved(SPAN, dead),))
        if kind == "purge":
            return PurgeRequest(TOPIC, 0, DEAD_GROUP)
        if kind == "clear":
            return PurgeRequest(TOPIC, 0, GROUP)
        if kind == "rewind":
            return SetGroup(TOPIC, GROUP, "earliest", 0, rewind=True)
        if kind == "skip":
            return SetGroup(TOPIC, GROUP, "time", WALL_MS + 1, rewind=True)
        assert receipt is not None
        items = (Named(receipt, (receipt.span,)),)
        match kind:
            case "ack":
                return AckRequest(items)
            case "now":
                return RejectRequest(items, 0.0)
            case "delay":
                return RejectRequest(items, TICK_S)
            case "dead":
                letter = Letter(receipt.owner.ballot, "rejected", fingerprint="f")
                return RejectRequest(items, 0.0, letter)
            case "extend":
                return ExtendRequest(items, HOLD_S, now.mono)
            case "leave":
                return LeaveRequest(items)
        raise ExplorerError(f"a client cannot ask for {kind!r}")


class Machine:
    """The world around one node during one step; what leaves the node is collected.

    Args:
        world: the exploration's.
        core: the node's, ours to change.
        index: of the node.
        journal: the number of what is durable.
        pending: what was appended and is not durable; it waits in the driver.
        now: the time of the step.
        setup: whether everything is durable at once, and nothing is lost.
    """

    def __init__(
        self,
        world: World,
        core: NodeCore,
        index: int,
        journal: int,
        pending: tuple[Persist, ...],
        now: Now,
        setup: bool = False,
    ) -> None:
        self.world = world
        self.core = core
        self.index = index
        self.number = journal
        self.setup = setup
        self.sent: list[int] = []
        self.replies: list[tuple[int, int]] = []
        self.stopped = ""
        self.durable = 0
        self._now = now
        self._slow = core.config.node in world.unsynced and not setup  # each fsync is a step of its own
        self.driver = Driver(core, self, self, RNG)
        self.ticket = 0
        for persist in pending:
            self.ticket += 1
            self.driver.waiting.append(Waiting(self.ticket, persist))

    def leave(self) -> tuple[Persist, ...]:
        """The step is over: what is appended and not durable. Cuts the circle, so that all is freed at once."""
        pending = tuple(persist for _, persist in self.driver.waiting)
        del self.driver
        return pending

    def fsync(self) -> None:
        """The oldest Persist becomes durable."""
        records = self.driver.waiting[0].persist.records
        self.number = self.world.append(self.number, records, self.index)
        self.durable += 1
        self.driver.synced()

    # ---------------------------------------------------------------- the driver's port

    def now(self) -> Now:
        return self._now

    def send(self, to: NodeId, message: PeerMessage) -> None:
        state = self.core.state
        link = state.links.get(to)
        if link is None or (isinstance(message, self.world.not_sent) and not self.setup):
            return
        self.sent.append(self.world.message_id(Envelope(state.me, state.incarnation, to, link, 0, message)))

    def send_stored(self, effect: SendStored) -> None:
        self.send(effect.to, self.world.store)

    def reply(self, key: int, reply: ClientReply) -> None:
        self.replies.append((key, self.world.reply_id(reply)))

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        pass

    def end(self, effect: Stop | Restart) -> None:
        self.stopped = effect.reason

    def flush(self) -> None:
        pass

    # -------------------------------------------------------------- the driver's journal

    @property
    def written(self) -> int:
        return self.durable

    @property
    def position(self) -> int:
        return 0

    @property
    def needs_sync(self) -> bool:
        return False  # the exploration says when

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        housekeeping = all(isinstance(record, Reserved | PeerSeen | Vouched) for record in records)
        if self._slow and self.core.started and (self.driver.waiting or not housekeeping):
            self.ticket += 1
            return self.ticket
        self.number = self.world.append(self.number, records, self.index)
        return self.durable

    def forget(self, numbers: tuple[int, ...]) -> None:
        """Drop batches from the journal. While anything before is not durable they stay, as if a crash took that."""
        if self.number != UNTRACKED and not self.driver.waiting:
            kept = [
                record
                for record in self.world.journals[self.number]
                if not (isinstance(record, BatchStored) and record.number in numbers)
            ]
            self.number = self.world.journal_id(tuple(kept), self.index)

    def begin_sync(self, here: bool) -> None:
        pass

    def begin_write(self) -> None:
        pass


def rank_of(core: NodeCore) -> tuple[int, bool, int, int]:
    """What a node's record says of the message, as its generation reads it: (generation, acked, n, kind).

    It only rises, unless a rewind that covers the message is followed by one that does not.
    """
    for replica in core.replicas.values():
        view = replica.views.groups.get(GROUP)
        if view is not None:
            for _, record in view.records.within(SPAN):
                if record.generation >= view.generation or not view.covers(WALL_MS):
                    return (record.generation, record.kind == Kind.ACKED, record.n, int(record.kind))
            return (view.generation if view.covers(WALL_MS) else 0, False, 0, int(Kind.OPEN))
    return (0, False, 0, int(Kind.OPEN))


def stop_found_again(records: tuple[JournalRecord, ...]) -> tuple[JournalRecord, ...]:
    """A journal whose CLEAN_STOP looks like its last record, whatever came after it."""
    from quorumq.core.records import CleanStopped

    stops = [record for record in records if isinstance(record, CleanStopped)]
    starts = [record for record in records if isinstance(record, Started)]
    if not stops:
        return records
    rest = [record for record in records if not isinstance(record, CleanStopped)]
    return (*rest, stops[-1]._replace(incarnation=starts[-1].incarnation))


__all__ = ["Failed", "World"]
