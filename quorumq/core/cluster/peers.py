"""One node's view of the others: HELLO, the starts and directories that it has seen, their heartbeats."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable

from quorumq.core.cluster.positions import Positions
from quorumq.core.cluster.state import NodeState
from quorumq.core.cluster.topics import layout_digest
from quorumq.core.messages import VERSIONS, Admitted, Failed, Heartbeat, Hello, LayoutMark, Welcome
from quorumq.core.messages.effects import Effect, Persist, Reply, Send
from quorumq.core.messages.records import BatchStored, JournalRecord, PeerPosition, PeerSeen
from quorumq.core.messages.sync import SeenStart
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import DIGEST_BYTES, LAYOUT_MARKS_MAX
from quorumq.core.values.types import ClusterLayout, Incarnation, Machines, NodeId, Now, PartitionId

SOFTWARE = "quorumq"

OF_CLUSTER = bytes(16)
"""Stands for the id of a topic in the mark of the layout of the cluster."""

TWICE_S = 3.0
"""Seconds. If a start was heard from within them, it is running: another one of the same node runs beside it."""

SILENT_S = 1.0
"""Seconds beyond a heartbeat's interval after which a node that said nothing is silent."""

STARTS_TOLD = 16
"""Last starts of a node that are kept, and sent to it. One would suffice if no WELCOME were ever lost."""

StartsSeen = dict[NodeId, tuple[PeerSeen, ...]]
"""Last starts seen of each node, with their directories, the newest last."""


class Peers:
    """The other nodes, seen from one.

    Args:
        began_at: time of this start (monotonic seconds).
        seen: last starts of each node, from the journal.
        told: positions that the peers reported, from the journal.

    Attributes:
        received_at: time of each peer's last message (monotonic seconds).
        reported: each peer's statements about itself, for status pages and messages.
        unanswered: time of each peer's last FETCH that it did not answer.
    """

    __slots__ = ("began_at", "positions", "received_at", "reported", "seen", "state", "unanswered")

    def __init__(
        self, state: NodeState, began_at: float, seen: StartsSeen, reported: dict[NodeId, tuple[int, int]]
    ) -> None:
        self.state = state
        self.began_at = began_at
        self.seen = seen
        self.positions = Positions(reported)
        self.received_at: dict[NodeId, float] = {}
        self.reported: dict[NodeId, dict[str, object]] = {}
        self.unanswered: dict[NodeId, float] = {}

    # ---------------------------------------------------------------------- HELLO

    def hello(self, now: Now) -> Hello:
        """Return the first message to a peer that this node dials."""
        state = self.state
        return Hello(
            versions=VERSIONS,
            cluster_id=state.config.cluster_id,
            nodes=node_list_digest(state.config.nodes, state.config.machines),
            hold_time_max=state.config.hold_time_max,
            node=state.me,
            incarnation=state.incarnation,
            directory=state.directory,
            wall_ms=now.wall_ms,
            stamp=state.clock.value,
            software=SOFTWARE,
            layouts=self.layout_marks(),
        )

    def layout_marks(self) -> tuple[LayoutMark, ...]:
        """Return the layouts that a peer compares with its own. A node that is not trusted may have an old one."""
        adopted = [topic.layout for topic in self.state.catalogue.live() if topic.layout is not None]
        if not self.state.trusted or not (adopted or self.layout.number):
            return ()
        cluster = (LayoutMark(OF_CLUSTER, self.layout.number, cluster_digest(self.layout)),)
        first = heapq.nsmallest(LAYOUT_MARKS_MAX - 1, adopted)
        marks = tuple(LayoutMark(each.topic, each.number, layout_digest(each)) for each in first)
        return cluster + marks if self.layout.number else marks

    @property
    def layout(self) -> ClusterLayout:
        """Return the newest layout of the cluster that is known here."""
        return self.state.catalogue.cluster.layout

    def on_hello(self, key: int, hello: Hello, now: Now) -> list[Effect]:
        """Welcome a node or client that was not refused. All that we have seen of a node becomes durable first."""
        seen = self.seen.get(hello.node, ())
        same = bool(seen) and seen[-1].directory == hello.directory
        position, position_by = self.positions.reported.get(hello.node, (0, 0)) if same else (0, 0)
        state = self.state
        welcome = Reply(
            key,
            Welcome(
                version=min(hello.versions[1], VERSIONS[1]),
                cluster_id=state.config.cluster_id,
                node=state.me,
                incarnation=state.incarnation,
                directory=state.directory,
                wall_ms=now.wall_ms,
                stamp=state.clock.value,
                seen=tuple(start.incarnation for start in seen),
                software=SOFTWARE,
                position=position,
                position_by=position_by,
            ),
        )
        if not hello.node:
            return [welcome]
        state.clock.merge(hello.stamp)
        ahead_s = (hello.wall_ms - now.wall_ms) / 1000
        self.reported.setdefault(hello.node, {})["clock_difference_s"] = ahead_s
        start = PeerSeen(hello.node, hello.incarnation, hello.directory)
        if seen[-1:] == (start,):
            return [Persist((), (welcome,))]
        self._note(start)
        return [Persist((start,), (welcome,))]

    def _note(self, start: PeerSeen) -> None:
        """Take note of a start that is newer than those seen of its node; a record of it has to become durable."""
        seen = self.seen.get(start.node, ())
        if not seen or seen[-1].directory != start.directory:
            self.positions.discard(start.node)
        self.seen[start.node] = seen_last(seen, start)
        self.state.learn(start.node, start.incarnation)

    def refusal(self, hello: Hello, now: Now) -> Failed | None:
        """Return why a node or client is not welcome; None if it is."""
        config = self.state.config
        lowest, highest = VERSIONS
        if hello.versions[0] > highest or hello.versions[1] < lowest:
            return Failed(
                Code.CLUSTER_MISMATCH,
                f"protocol versions {hello.versions[0]} to {hello.versions[1]} are offered, node "
                f"{config.node!r} speaks {lowest} to {highest}: upgrade the older side",
            )
        if hello.cluster_id != config.cluster_id and (hello.node or hello.cluster_id):
            return Failed(
                Code.CLUSTER_MISMATCH,
                f"the cluster here is {config.cluster_id!r}, the caller's is {hello.cluster_id!r}: "
                "check cluster_id in its configuration, or the address it was given",
            )
        if not hello.node:
            return None
        if not hello.nodes:
            return None  # it asks to be let in
        if hello.nodes != node_list_digest(config.nodes, config.machines):
            on = dict(config.machines)
            nodes = ", ".join(f"{node} on {on[node]}" if node in on else node for node in config.nodes)
            return Failed(
                Code.CLUSTER_MISMATCH,
                f"node {hello.node!r} has another node list than node {config.node!r}, whose list is "
                f"{nodes}: make `nodes` and `machines` the same everywhere. A list says which nodes the cluster was "
                "made with; a node that was added has `join` instead",
            )
        if why := self.why_no_member(hello):
            was = self.state.catalogue.cluster.member(hello.node) is not None
            return Failed(Code.CLUSTER_MISMATCH, why, self.layout.number if was else 0)
        if hello.hold_time_max != config.hold_time_max:
            return Failed(
                Code.CLUSTER_MISMATCH,
                f"node {hello.node!r} has hold_time_max = {hello.hold_time_max} s, node {config.node!r} has "
                f"{config.hold_time_max} s: make it the same everywhere",
            )
        return self._refuse_start(hello, now) or self._refuse_layouts(hello)

    def _refuse_layouts(self, hello: Hello) -> Failed | None:
        """Refuse a node that has another layout of a number that this node has, too."""
        ours = (
            {(mark.topic, mark.number): mark.digest for mark in self.layout_marks()} if hello.layouts else {}
        )
        for mark in hello.layouts:
            if ours.get(mark[:2], mark.digest) != mark.digest:
                of_cluster = mark.topic == OF_CLUSTER
                name = (
                    "the cluster" if of_cluster else f"topic {self.state.catalogue.topics[mark.topic].name!r}"
                )
                return Failed(
                    Code.CLUSTER_MISMATCH,
                    f"layout {mark.number} of {name} at node {hello.node!r} is another one than at node "
                    f"{self.state.me!r}: these are nodes of two clusters, or survivors were declared without one of "
                    "them. Start the one that is wrong with an empty data directory",
                )
        return None

    def why_no_member(self, hello: Hello) -> str:
        """Return why the node that says HELLO has no part in this cluster; "" if it has."""
        node, layout = hello.node, self.layout
        if self.state.catalogue.cluster.is_member(node):
            return ""
        if self.state.catalogue.cluster.member(node) is not None:
            return f"node {node!r} was removed from this cluster (layout {layout.number} at node {self.state.me!r})"
        names = ", ".join(self.state.catalogue.cluster.present)
        return f"node {node!r} is not in the node list of node {self.state.me!r}, which is {names}: {add_it(hello)}"

    def admission(self, hello: Hello, now: Now) -> Admitted | Failed:
        """Return the answer to a node that asks to be let in: all that it has to know, once it is a member.

        Until then it is to ask again, which `NOT_STORED` says. So is one with the id of a node that is running: it
        would take its place.
        """
        config, layout, me = self.state.config, self.layout, self.state.me
        if hello.node == me or self.is_up(hello.node, now, TWICE_S):
            return Failed(
                Code.NOT_STORED,
                f"node {hello.node!r} is running, and linked to node {me!r}: give this one an id of its own. If it was "
                "just stopped, this passes by itself",
            )
        if self.state.catalogue.cluster.is_member(hello.node):
            return Admitted(config.nodes, config.hold_time_max, config.machines, layout)
        return Failed(
            Code.NOT_STORED,
            f"node {hello.node!r} is no member of this cluster at node {me!r}: {add_it(hello)}",
        )

    def owes_answer(self, node: NodeId) -> bool:
        """Return True if a node said nothing since it was asked for a FETCH that it did not answer."""
        return self.received_at.get(node, math.inf) <= self.unanswered.get(node, -math.inf)

    def is_silent(self, node: NodeId, now: Now) -> bool:
        """Return True if a node said nothing for a while, or owes an answer."""
        lately = now.mono - SILENT_S - self.state.config.heartbeat
        return self.received_at.get(node, math.inf) < lately or self.owes_answer(node)

    def is_up(self, node: NodeId, now: Now, within: float | None = None) -> bool:
        """Return True if a node is linked, and was heard from lately: one that was stopped keeps its links.

        Args:
            within: seconds; None: those between heartbeats, with time to spare.
        """
        within = TWICE_S + self.state.config.heartbeat if within is None else within
        return node in self.state.links and now.mono - self.received_at.get(node, -1e18) < within

    def is_away(self, node: NodeId, now: Now) -> bool:
        """Return True if a node is not up, and this start has had the time to hear from it."""
        lately = now.mono - TWICE_S - self.state.config.heartbeat
        return node != self.state.me and self.began_at < lately and not self.is_up(node, now)

    def _refuse_start(self, hello: Hello, now: Now) -> Failed | None:
        """Return why this start of a node that belongs here is not welcome."""
        if hello.node == self.state.me and hello.incarnation != self.state.incarnation:
            return Failed(
                Code.SUPERSEDED, f"node id {hello.node!r} is this very node's: give each node its own id"
            )
        live = self.state.links.get(hello.node)
        if live is not None and live != hello.incarnation and self.is_up(hello.node, now, TWICE_S):
            return Failed(
                Code.NOT_STORED,
                f"start {live.n} of node {hello.node!r} was heard from within the last {TWICE_S:.0f} s: is it running "
                "twice? If it was just restarted, this passes by itself",
            )
        known = self.seen.get(hello.node, ())
        seen = known[-1].incarnation if known else Incarnation(0, 0)
        is_known = any(start.directory == hello.directory for start in known)
        fault = "is an old copy, or runs twice" if is_known else "was emptied, or is an old copy"
        if hello.incarnation.n < seen.n or (hello.incarnation.n == seen.n and hello.incarnation != seen):
            return Failed(
                Code.SUPERSEDED,
                f"node {self.state.me!r} has seen start {seen.n} of node {hello.node!r}, and this is start "
                f"{hello.incarnation.n}: the data directory {fault}",
                seen.n,
            )
        return None

    def newest_starts(self) -> tuple[SeenStart, ...]:
        """Return the newest start seen of each node, for a node that resyncs."""
        return tuple(SeenStart(*self.seen[node][-1]) for node in sorted(self.seen))

    def take_in(self, starts: Iterable[SeenStart]) -> list[Effect]:
        """Take note of starts that another node has seen, as if this node had received their HELLOs.

        Why: a node that lost its directory may have been one of the few that knew a start. An emptied directory of
        that node would pass for its first one (docs/layouts.md, MEMBERS 6).
        """
        records: list[PeerSeen] = []
        for node, incarnation, directory in starts:
            seen = self.seen.get(node, ())
            if node == self.state.me or (seen and seen[-1].incarnation.n >= incarnation.n):
                continue
            records.append(PeerSeen(node, incarnation, directory))
            self._note(records[-1])
        return [Persist(tuple(records))] if records else []

    # ------------------------------------------------------------------ heartbeats

    def heartbeats(self, waiting: Iterable[tuple[PartitionId, str]], quarantine_s: float) -> list[Effect]:
        """Return a heartbeat for every peer that there is a link to."""
        beat = Heartbeat(
            tuple(waiting),
            quarantine_s,
            self.full(self.state.me),
            position=self.positions.durable,
            trusted=self.state.trusted,
            layout=self.layout.number,
        )
        return [Send(peer, beat) for peer in self.state.links]

    def on_heartbeat(self, sender: NodeId, message: Heartbeat) -> None:
        """Keep a peer's statement about itself."""
        self.reported.setdefault(sender, {}).update(
            quarantine_s=message.quarantine_s, trusted=message.trusted, full=message.full
        )

    def is_trusted(self, node: NodeId) -> bool:
        """Return True if a peer is trusted, by its last heartbeat."""
        return bool(self.reported.get(node, {}).get("trusted", True))

    def full(self, node: NodeId) -> str:
        """Return why a node takes no new messages, by its last heartbeat, and the remedy; "" if it takes them."""
        if node == self.state.me:
            return self.state.no_capacity(BatchStored)
        return str(self.reported.get(node, {}).get("full", ""))

    def note_position(self, sender: NodeId, incarnation: Incarnation, position: int) -> None:
        """Note how many records of its directory a peer's start reports as durable."""
        seen = self.seen.get(sender)
        if position and seen and seen[-1].incarnation == incarnation:
            positions, start = self.positions, incarnation.n
            before, told_by = positions.reported.get(sender, (0, 0))
            if told_by != start or position > before:
                positions.reported[sender] = (position, start)
                positions.fresh[sender] = None

    # --------------------------------------------------------------------- journal

    def snapshot(self) -> list[JournalRecord]:
        records: list[JournalRecord] = []
        for node in sorted(self.seen):
            seen = self.seen[node]
            records += seen
            if node in self.positions.reported:  # the directory's record stands before it
                records.append(PeerPosition(node, seen[-1].directory, *self.positions.reported[node]))
        return records


def seen_last(seen: tuple[PeerSeen, ...], start: PeerSeen) -> tuple[PeerSeen, ...]:
    """Return the last starts seen of a node, with one more; a record that is replayed twice changes nothing."""
    return (*(known for known in seen if known != start), start)[-STARTS_TOLD:]


def add_it(hello: Hello) -> str:
    """Return the command that has a node be a member."""
    return f"`quorumq nodes add {hello.node} --address {hello.address or 'HOST:PORT'}` lets it in"


def cluster_digest(layout: ClusterLayout) -> bytes:
    """Return the digest of a layout of the cluster."""
    words = [layout.number, *layout.made, layout.voters, *(word for each in layout.members for word in each)]
    if layout.slots:
        words += [layout.epoch, *(word for each in (*layout.slots, *layout.before) for word in each)]
    return hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=DIGEST_BYTES).digest()


def node_list_digest(nodes: tuple[NodeId, ...], machines: Machines = ()) -> bytes:
    """Return the digest of the node list and its machines for HELLO; it does not depend on the order of either."""
    text = "\0".join([*sorted(nodes), *(f"{node}\0\0{machine}" for node, machine in sorted(machines))])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
