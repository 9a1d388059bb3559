"""The nodes of a cluster together: how they begin, find each other, and start again without their disk."""

from __future__ import annotations

from collections import deque
from itertools import combinations

from quorumq.core import messages as m
from quorumq.core.cluster.raising import present_placement
from quorumq.core.cluster.topics import with_layout
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import Event, LinkDown, LinkUp, Ours, Received, Request
from quorumq.core.messages.records import (
    BatchStored,
    ClusterPut,
    DirectoryMade,
    JournalRecord,
    PeerSeen,
    Started,
    Trusted,
    TrustLost,
)
from quorumq.core.recovery.replay import cluster_made
from quorumq.core.recovery.resync import far_above
from quorumq.core.recovery.trust import FIRST_ABOVE
from quorumq.core.requests.moving import numbered
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    Incarnation,
    Layout,
    NodeId,
    Now,
    PartitionId,
    Placement,
    ReplicaSlot,
    Topic,
)
from quorumq.wire.batch import Message, build_batch
from sim.explorer.clone import clone
from sim.explorer.journals import UNTRACKED
from sim.explorer.machine import Outcome
from sim.explorer.nodes import Nodes
from sim.explorer.requests import CREATED, GROUP, PRODUCER_ID, TOPIC, fetch
from sim.explorer.scenario import WALL_MS, ExplorerError, Scenario, now_at

SETUP_KEY = 1000
HELLO_KEY = 1001


class World:
    """The cluster of one exploration within its bounds.

    Attributes:
        members: the replicas; all nodes if operators work on topics.
        topic: the topic that operators and clients work on.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = Nodes(scenario)
        self.members: tuple[NodeId, ...] = ()
        self.topic = b""
        self._links: dict[tuple[int, int, int], tuple[Outcome, Outcome] | None] = {}

    # ------------------------------------------------------------------------- links

    def link(self, one: int, other: int, tick: int) -> tuple[Outcome, Outcome] | None:
        """Link two nodes again: the old links are down, HELLO both ways, both links up.

        None if one refuses the other: they stay as they are.
        """
        key = (one, other, tick)
        if key not in self._links:
            now = now_at(tick)
            a = self.nodes.step(one, [LinkDown(self.nodes.locals[other].node)], now)
            b = self.nodes.step(other, [LinkDown(self.nodes.locals[one].node)], now)
            back = self._dial(a, b, now)
            self._links[key] = self._dial(*back, now) if back is not None else None
        return self._links[key]

    def _dial(self, dialler: Outcome, acceptor: Outcome, now: Now) -> tuple[Outcome, Outcome] | None:
        """Exchange one HELLO and its WELCOME; return (acceptor, dialler) after it.

        None if it is refused, or shows the dialler that its directory is an old copy: it does not go on with that.
        """
        nodes = self.nodes
        hello = nodes.locals[dialler.local].core.hello(now)
        accepted = nodes.step(acceptor.local, [Request(HELLO_KEY, hello)], now)
        answer = nodes.traffic.replies.all[accepted.replies[0][1]]
        if not isinstance(answer, m.Welcome):
            return None
        up = LinkUp(answer.node, answer.incarnation, answer.stamp, answer.seen)
        linked = nodes.step(dialler.local, [up], now)
        if nodes.locals[linked.local].core.trust.lost:
            return None
        return acceptor.then(accepted), dialler.then(linked)

    def are_linked(self, one: int, other: int) -> bool:
        """Return True if both have a link to this very incarnation of the other."""
        a, b = self.nodes.locals[one], self.nodes.locals[other]
        first, second = a.core.state.incarnation, b.core.state.incarnation
        return a.links.get(b.node) == second and b.links.get(a.node) == first

    # -------------------------------------------------------------------- a lost disk

    def wipe(self, locals_: tuple[int, ...], index: int, tick: int) -> list[Outcome]:
        """Lose a disk, and bring the node back with the knowledge of every other replica.

        docs/protocol.md, RECOVERY, "empty, wiped": the others record the new incarnation in one step with what they
        answer, the node starts far above the highest start count they report, and its quarantine begins. What the
        core's resync does message by message (quorumq/core/recovery/resync.py) is one step here.
        """
        now = now_at(tick)
        nodes = self.nodes
        name = self.scenario.nodes[index]
        old = nodes.locals[locals_[index]].core
        answering = self.scenario.wiped_hears or self.members
        others = [at for at, node in enumerate(self.scenario.nodes) if at != index and node in answering]
        seen = max(nodes.locals[locals_[at]].core.context.peers.seen[name][-1].incarnation.n for at in others)
        records: list[JournalRecord] = [
            DirectoryMade(name, old.config.cluster_id, old.state.directory),
            Started(Incarnation(far_above(seen), old.state.incarnation.nonce)),
            Trusted(),
        ]
        for at in others:
            node_state = nodes.locals[locals_[at]]
            state = node_state.core.state
            records += [
                record
                for record in node_state.core.snapshot(now)
                if not isinstance(record, DirectoryMade | Started | Trusted | PeerSeen)
            ]
            records.append(PeerSeen(state.me, state.incarnation, state.directory))
            written = nodes.journals.records(node_state.journal)
            records += [record for record in written if isinstance(record, BatchStored)][:1]
        outcomes = [Outcome(local) for local in locals_]
        # From now on there are two directories, whose starts count by themselves.
        nonce = old.state.incarnation.nonce + 100
        outcomes[index] = nodes.begin(nodes.journals.number(tuple(records), name), name, now, nonce)
        for at in others:
            linked = self.link(outcomes[index].local, outcomes[at].local, tick)
            if linked is None:
                raise ExplorerError(f"{self.scenario.nodes[at]} refuses node {name}, which was wiped")
            outcomes[index], outcomes[at] = outcomes[index].then(linked[0]), linked[1]
        return outcomes

    def lose(self, locals_: tuple[int, ...], index: int, tick: int) -> Outcome:
        """Lose a disk: the node begins far above its former starts, and resyncs once it is linked to the others.

        In production it begins so in a second start, which the first HELLO to a peer that has seen it brings about.
        """
        nodes, name = self.nodes, self.scenario.nodes[index]
        old = nodes.locals[locals_[index]].core
        others = [nodes.locals[local].core for at, local in enumerate(locals_) if at != index]
        last = max(
            starts[-1].incarnation.n for core in others if (starts := core.context.peers.seen.get(name))
        )
        records = self._made(name, old.state.directory + 100)
        records += (TrustLost(far_above(last), "its disk was lost"),)
        nonce = old.state.incarnation.nonce + 100
        return nodes.begin(nodes.journals.number(records, name), name, now_at(tick), nonce)

    def _made(self, name: NodeId, directory: int) -> tuple[JournalRecord, ...]:
        """Return the first records of a directory, with the members as the cluster was made with, or has them."""
        config = self.nodes.journals.config_of(name)
        layout = (ClusterPut(config.layout),) if config.layout is not None else ()
        return DirectoryMade(name, config.cluster_id, directory), cluster_made(config), *layout

    # ------------------------------------------------------------------ the beginning

    def _first(self, name: NodeId, now: Now) -> Outcome:
        """Start a node: empty, or as a later member that has resynced."""
        records: tuple[JournalRecord, ...] = ()
        if name in self.scenario.later:
            directory = 200 + self.scenario.index[name]
            start = Incarnation(FIRST_ABOVE + 1, 100 + self.scenario.index[name])
            lost = TrustLost(FIRST_ABOVE, "it was added")
            records = (*self._made(name, directory), lost, Started(start), Trusted())
        return self.nodes.begin(self.nodes.journals.number(records, name), name, now)

    def first_locals(self) -> tuple[int, ...]:
        """Return a cluster that runs, with one topic, one group and one message, and nothing under way."""
        scenario, nodes = self.scenario, self.nodes
        now = now_at(0)
        locals_ = [self._first(name, now).local for name in scenario.nodes]
        for a, b in combinations(range(len(locals_)), 2):
            linked = self.link(locals_[a], locals_[b], 0)
            if linked is None:
                assert scenario.nodes[b] in scenario.joining
                continue
            locals_[a], locals_[b] = linked[0].local, linked[1].local
        if scenario.has_work:
            before = tuple(locals_)
            self._first_topic(locals_, now)
            for index in map(scenario.index.__getitem__, scenario.unaware):
                locals_[index] = before[index]
        else:
            self.members = scenario.nodes
            if scenario.operators[0][0] != "create":
                topic = self._create(locals_, m.CreateTopic(CREATED, scenario.rf), now).topic
                self.topic = topic.id
                self._store(locals_, topic, scenario.stored_on, now)
                if scenario.move:
                    self._choose_layout(locals_, topic, now)
        budget = scenario.budget
        can_crash = budget.restarts or budget.clean_stops or budget.wipes or budget.resyncs or budget.restores
        for index, local in enumerate(locals_):
            node_state = nodes.locals[local]
            core = clone(node_state.core)
            core.state.round_count = core.router.sessions = 0
            core.state.disk_shortage = Shortage(scenario.nodes[index] in scenario.full)
            if core.state.trusted:
                core.trust.confirmed_by.clear()
            locals_[index] = nodes.number(core, node_state.journal if can_crash else UNTRACKED, ())
        return tuple(locals_)

    def _create(self, locals_: list[int], creation: m.CreateTopic, now: Now) -> m.TopicReply:
        created = self._settle(locals_, 0, Request(SETUP_KEY, creation), now)
        assert isinstance(created, m.TopicReply), created
        return created

    def _first_topic(self, locals_: list[int], now: Now) -> None:
        """Make one topic, one group and one message."""
        scenario = self.scenario
        topic = self._create(
            locals_, m.CreateTopic(TOPIC, scenario.rf, 1, scenario.max_deliveries), now
        ).topic
        self.topic, self.nodes.partition = topic.id, PartitionId(topic.id, 0)
        self.members = topic.replicas[0]
        for index, name in enumerate(scenario.nodes):
            if name in self.members:
                reply = self._settle(locals_, index, Request(SETUP_KEY, fetch(GROUP, now)), now)
                assert isinstance(reply, m.FetchReply), reply
        if scenario.added:
            topic = self._have_learners(locals_, topic, now)
        stored_on = (*(scenario.stored_on or self.members), *scenario.added)
        self._store(locals_, topic, stored_on if not scenario.budget.publishes else (), now)
        if scenario.move or scenario.added:
            self._choose_layout(locals_, topic, now)

    def may_adopt(self, local: int) -> bool:
        """Return True if a node has not adopted the layout that is chosen yet."""
        moved, chosen, core = self.nodes.moved, self.nodes.chosen, self.nodes.locals[local].core
        if chosen is not None:
            return core.catalogue.is_newer(chosen) and chosen not in core.context.adopting
        assert moved is not None
        ours = core.topics.get(moved.id)
        return ours is not None and ours.layout_number < moved.layout_number

    def _have_learners(self, locals_: list[int], topic: Topic, now: Now) -> Topic:
        """Have every node adopt a layout in which some are to get slots, and return the topic's register with it."""
        placement = present_placement(topic, 0)._replace(learners=self.scenario.added)
        topic = with_layout(topic, Layout(topic.id, FIRST_LAYOUT + 1, topic.made, (placement,)))
        for index in range(len(locals_)):
            self._settle(locals_, index, Ours(m.PutTopic(0, topic)), now)
        return topic

    def _choose_layout(self, locals_: list[int], topic: Topic, now: Now) -> None:
        """Have every node know that a layout with another set is chosen, which no node has adopted yet."""
        moves = dict((self.scenario.move,) if self.scenario.move else ())
        nodes = [moves.get(node, node) for node in topic.replicas[0]] + [*self.scenario.added]
        slots, number = tuple([ReplicaSlot(node, 0) for node in nodes]), topic.layout_number + 1
        placement = numbered(topic, Placement(0, 0, slots, (), tuple(moves)), number)
        layout = Layout(topic.id, number, topic.made, (placement,))
        self.nodes.moved = with_layout(topic, layout)
        for index in range(len(locals_)):
            put = m.PutTopic(0, topic._replace(next_layout=layout))
            self._settle(locals_, index, Ours(put), now)
            if self.scenario.has_work:
                self.nodes.locals[locals_[index]].core.catalogue.registered_groups[
                    (PartitionId(topic.id, 0), GROUP)
                ] = None

    def _store(self, locals_: list[int], topic: Topic, names: tuple[NodeId, ...], now: Now) -> None:
        """Store the message at these nodes."""
        batch = build_batch(PartitionId(topic.id, 0), PRODUCER_ID, 0, WALL_MS, [Message(b"work")])
        store = self.nodes.traffic.store = m.Store(0, FIRST_LAYOUT, batch)
        for name in names:
            index = self.scenario.index[name]
            own = self.nodes.locals[locals_[index]].core.state.incarnation
            self._settle(locals_, index, Received(m.Envelope(name, own, name, own, 0, store)), now)

    def _settle(self, locals_: list[int], index: int, event: Event, now: Now) -> m.ClientReply | None:
        """Run an event and all that follows from it on a perfect network; return the answer to the request."""
        traffic = self.nodes.traffic
        answer: m.ClientReply | None = None
        queue: deque[tuple[int, Event]] = deque([(index, event)])
        while queue:
            at, event = queue.popleft()
            outcome = self.nodes.step(locals_[at], [event], now, setup=True)
            assert not outcome.problem, outcome.problem
            locals_[at] = outcome.local
            queue.extend((traffic.to[sent], Received(traffic.messages.all[sent])) for sent in outcome.sent)
            for _, reply in outcome.replies:
                answer = traffic.replies.all[reply]
        return answer
