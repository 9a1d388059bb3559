"""Budgets of one exploration: the events that may happen, and their numbers.

A scenario is a budget: numbers of FETCHes through these nodes, of restarts, of ticks of the clock. Within it
the explorer tries everything. A few scenarios begin with a script, a chosen run of ordinary steps that brings the
cluster near the point that a rule is about; everything after it is again every interleaving.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property

from quorumq.core.values.types import NodeId, Now

Script = tuple[tuple[object, ...], ...]
"""Steps that bring a cluster to the beginning of an exploration (`Walk` in sim/explorer/search.py).

Each is an action, by its first words, such as ``("fetch", "a")``, ``("ask", "b", "dead", 0)`` or ``("tick",)``; or
``("deliver", "Hold", "a", "b")``, the newest message of that kind between those two; or ``("may", *step)``, if it is
possible; or ``("settle",)``: everything is
delivered, in order, until there is nothing new.
"""

TICK_S = 1.0
"""One tick of the clock, in seconds."""

HOLD_TICKS = 2
HOLD_S = HOLD_TICKS * TICK_S
CLAIM_S = 2 * HOLD_S
"""The hold time of every FETCH and EXTEND, and the cluster's hold_time_max: a quarantine ends in the third tick."""

SHORTER_S = 0.5 * TICK_S
"""A hold_time_max, in seconds, that the cluster was not made with: such a quarantine ends in the next tick."""

START = 1000.0
"""Monotonic seconds when an exploration begins. Far above 0, because the core uses 0 for "long ago"."""

WALL_MS = 1_700_000_000_000
NEVER = 1e9
"""A timeout that never ends by itself: the explorer decides when a round gives up."""


class ExplorerError(Exception):
    """The explorer itself, or a scenario's script, is wrong: not a property of the protocol."""


def now_at(tick: int, wall_ms: int = WALL_MS) -> Now:
    """Return the clocks at a tick. The time of day stands still: it decides nothing but the next ballot."""
    return Now(START + tick * TICK_S, wall_ms)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Number of times that each thing may happen, in the order in which a state keeps the rest."""

    ticks: int = 0  # ticks of the clock
    attempts: int = 2  # FETCHes of one message each, of clients that have nothing in hand
    # Crashes; a crashed node starts from its journal at once and links up later, peer by peer.
    restarts: int = 0
    clean_stops: int = 0  # clean stops, each followed by a start
    # Disks lost, each followed by a resync in one step, from the nodes of ``wiped_hears``; empty: from all
    # other replicas.
    wipes: int = 0
    # Disks lost, each followed by a resync whose messages are like any others.
    resyncs: int = 0
    # Directories that are restored to their state when the exploration began, at another location.
    restores: int = 0
    acks: int = 0  # these and the next four: requests of the client
    rejects: int = 0
    extends: int = 0
    claims: int = 0  # EXTENDs for `CLAIM_S`
    releases: int = 0
    redrives: int = 0
    comparisons: int = 0  # rounds of anti-entropy between two nodes
    # RECLAIMs of one node each. A rewind is confirmed before the first of them, by the script.
    reclaims: int = 0
    rewinds: int = 0  # rewinds of the group, through the nodes of ``rewind_via``
    purges: int = 0  # purges of the group's dead letters
    dead_reads: int = 0  # FETCHes of one dead letter each, through the nodes of ``dead_via``
    backlog_purges: int = 0  # purges of the group's backlog, through the nodes of ``purge_via``
    busy: int = 0  # FETCHes of clients that have something in hand
    # PUBLISHes of the message, through the nodes of ``publish_via``. It is nowhere before, and a FETCH waits for it
    # until the next tick.
    publishes: int = 0
    # Promises to close the message's producer id, each followed by a round of closing, through the nodes of
    # ``coordinators``.
    closes: int = 0


BUDGETS = tuple(field.name for field in fields(Budget))
"""The things that are counted: ticks first."""

NO_FETCH = Budget(attempts=0)


@dataclass(frozen=True)
class Scenario:
    """The bounds of one exploration. One message, published before it begins, unless that is part of it."""

    name: str  # for the command line
    about: str  # one line for people
    _: KW_ONLY
    budget: Budget = Budget()
    nodes: tuple[NodeId, ...] = ("a", "b", "c")  # the cluster
    rf: int = 3  # the topic's replication factor
    # Nodes that have the message at the start (it is durable there); empty: every replica.
    stored_on: tuple[NodeId, ...] = ()
    unaware: tuple[NodeId, ...] = ()  # nodes that have not heard of the topic at the start
    coordinators: tuple[NodeId, ...] = ()  # nodes that FETCHes are sent to; empty: every replica
    # Through which nodes the client settles (ACK, REJECT, EXTEND, LEAVE, REDRIVE); empty: every node.
    via: tuple[NodeId, ...] = ()
    restart_nodes: tuple[NodeId, ...] = ()  # nodes that may crash; empty: every node
    beside: bool = (
        False  # True if purges of the backlog, and FETCHes by id, name another message, which is not there
    )
    by_id: bool = False  # True if FETCHes name the messages that they are to bring
    wiped_hears: tuple[NodeId, ...] = ()
    # Changes of the group: "rewind" to the earliest message, "skip" to behind it; "unmake", which
    # deletes it, and "make", which makes it again; "pause", "resume", and
    # "late make" and "late resume", which were made at the beginning.
    rewind_to: tuple[str, ...] = ("rewind",)
    # See there; empty: every replica. So with dead_via, purge_via and publish_via.
    rewind_via: tuple[NodeId, ...] = ()
    dead_via: tuple[NodeId, ...] = ()
    purge_via: tuple[NodeId, ...] = ()
    publish_via: tuple[NodeId, ...] = ()
    full: tuple[NodeId, ...] = ()  # nodes whose disks take no message
    reject_as: tuple[str, ...] = (
        "dead",
    )  # outcomes that a REJECT may ask for: "now", "delay" (one tick), "interrupted" or "dead"
    give_up: bool = True  # True if a round may time out at any moment (else: never)
    # True if a FETCH may also take its ballot from a clock that lags behind all others.
    low_clocks: bool = False
    # True if an fsync of a node that may crash is a step of its own, and a crash loses all that was written after it.
    unsynced: bool = False
    max_deliveries: int = 5  # maximum of the topic
    shorter_holds: bool = False  # True if each start tries a lower hold_time_max first
    # Nodes that are not in the list that the cluster was made with. They start with the longer one, with
    # the operator tries to start the others again.
    joining: tuple[NodeId, ...] = ()
    # Members that were added to the cluster after it was made: they are no voters.
    later: tuple[NodeId, ...] = ()
    # Requests about a topic, once each, with the node: "create", each other one with one
    # replica; "late create", which was made at the beginning; or, about one that is there, "alter", for one more
    # partition, "delete", "forbid", that a FETCH make a group, what `GROUP_OPERATIONS` of sim/explorer/observations.py
    # has, changes of the members and moves (sim/explorer/members.py). The cluster has no other topic then, and no
    # message but what ``stored_on`` names, or "send" publishes; but for changes of the members beside FETCHes.
    operators: tuple[tuple[str, NodeId], ...] = ()
    # Nodes whose time of day is ahead of the others' by a window of names.
    ahead: tuple[NodeId, ...] = ()
    # True if an ACK that was sent ends no hold, even after a change of the group: for scripts that end before a
    # majority has heard of it.
    acks_end_nothing: bool = False
    # The slot of the first node goes to the second one, in a layout that every node knows to be chosen at the start.
    # Each node adopts it once, whenever it likes.
    move: tuple[NodeId, NodeId] | tuple[()] = ()
    # Voters in a layout of the cluster that is chosen at the start. Each node adopts it once, whenever it likes.
    voters: tuple[NodeId, ...] = ()
    # End that has to be possible from every state, if all states are seen: one of `GOALS` of
    # sim/explorer/goals.py.
    goal: str = ""
    # Nodes that get slots beside those of the set, in such a layout.
    added: tuple[NodeId, ...] = ()
    script: Script = ()  # brings the cluster to the beginning of the exploration

    @cached_property
    def index(self) -> dict[NodeId, int]:
        """Return the index of each node."""
        return {name: at for at, name in enumerate(self.nodes)}

    @property
    def has_work(self) -> bool:
        """Return True if clients work on the first topic. Operators may change the members beside them."""
        return not self.operators or self.budget.attempts > 0

    @cached_property
    def symmetric(self) -> bool:
        """Return True if the nodes differ by name only, so that the first FETCH may go through the first of them.

        Names also break ties between ballots, which only lagging clocks can bring about.
        """
        chosen = any(getattr(self, part.name) for part in fields(self) if part.default == ())
        return not chosen and len(self.nodes) == self.rf and not self.low_clocks
