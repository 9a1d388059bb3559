"""Journals of nodes. Two from which a node starts alike are one."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from quorumq.core.cluster.members import Members, first_layout
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.records import CleanStopped, JournalRecord, Started
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import STAMP_ZERO, ClusterLayout, Member, NodeId, Now, ReplicaSlot
from sim.explorer.clone import key_of
from sim.explorer.numbered import Numbered
from sim.explorer.scenario import HOLD_S, NEVER, SHORTER_S, Scenario, now_at

UNTRACKED = -1
"""The journal of a node that cannot crash any more."""


class Moved(NamedTuple):
    """In a journal: it was brought back from a backup, to another place, with the records before this."""


Records = tuple[JournalRecord | Moved, ...]


class Middle(random.Random):
    """A source of randomness without any: pauses have no meaning when time moves in ticks.

    Attributes:
        share: result of each draw between 0 and 1.
    """

    share = 0.5

    def random(self) -> float:
        return self.share

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def getrandbits(self, k: int) -> int:
        """Return 1: two creations differ by their stamps."""
        return 1


RNG = Middle(0)


class Journals:
    """All journals of one exploration, by number.

    Args:
        reorder: True if a CLEAN_STOP is found again after other records.

    Attributes:
        slow: nodes that make each fsync a step of its own.
    """

    def __init__(self, scenario: Scenario, reorder: bool) -> None:
        self._scenario = scenario
        self._reorder = reorder
        # If a node cannot crash, a slow fsync is the same as slow messages.
        self.slow = (scenario.restart_nodes or scenario.nodes) if scenario.unsynced else ()
        self._grown = grown(scenario)
        self._kept: Numbered[Records] = Numbered()
        self._next: dict[tuple[int, Records], int] = {}

    def records(self, journal: int) -> Records:
        """Return the records of a journal."""
        return self._kept.all[journal]

    def number(self, records: Records, node: NodeId) -> int:
        """Return the number of a journal: of the first that was met of all those that load alike."""
        return self._kept.number(records, (node, key_of(self.load(records, node, now_at(0)))))

    def append(self, journal: int, records: Records, node: NodeId) -> int:
        """Return the number of a journal with more records."""
        if journal == UNTRACKED or not records:
            return journal
        step = (journal, records)
        number = self._next.get(step)
        if number is None:
            number = self._next[step] = self.number((*self.records(journal), *records), node)
        return number

    def config_of(self, node: NodeId) -> NodeConfig:
        """Return the configuration of a node."""
        scenario = self._scenario
        made_of = tuple(name for name in scenario.nodes if name not in (*scenario.joining, *scenario.later))
        return NodeConfig(
            node=node,
            nodes=scenario.nodes if node in scenario.joining else made_of,
            hold_time_max=HOLD_S,
            request_timeout=NEVER,
            heartbeat=NEVER,
            sync_interval=NEVER,
            sync_grace=0.0,
            steal_after=0.0,
            layout=self._grown,
        )

    def with_voters(self) -> ClusterLayout | None:
        """Return the layout of the cluster that a scenario with ``voters`` has chosen; None without one."""
        scenario = self._scenario
        if not scenario.voters:
            return None
        config = self.config_of(scenario.nodes[0])
        layout = config.layout or first_layout(config.nodes)
        before, number = Members(layout).slots, layout.number + 1
        since = {slot.node: slot.since for slot in before}
        slots = tuple(ReplicaSlot(node, since.get(node, number)) for node in scenario.voters)
        made = STAMP_ZERO._replace(time=number)
        return layout._replace(number=number, made=made, slots=slots, before=before, epoch=number)

    def load(self, records: Records, node: NodeId, now: Now, nonce: int = 0) -> NodeCore:
        """Make a core from a journal; ``nonce`` makes its starts different from those of another directory."""
        scenario, config = self._scenario, self.config_of(node)
        changed = replace(
            config, nodes=scenario.nodes, hold_time_max=SHORTER_S if scenario.shorter_holds else HOLD_S
        )
        if changed != config and any(isinstance(record, Started) for record in records):
            with suppress(UsageError):  # refused: as the cluster was made
                return self._start(changed, records, nonce, now)
        return self._start(config, records, nonce, now)

    def _start(self, config: NodeConfig, records: Records, nonce: int, now: Now) -> NodeCore:
        index = self._scenario.index[config.node]
        written = tuple(record for record in records if not isinstance(record, Moved))
        moved = len(records) - len(written)
        if self._reorder:
            written = stop_found_again(written)
        return NodeCore(
            config,
            written,
            nonce=nonce or 100 + index + 1000 * moved,  # the starts of a copy are others
            directory=200 + index,
            now=now,
            rng=RNG,
            location=1 + moved if self._scenario.budget.restores else 0,
        )


def grown(scenario: Scenario) -> ClusterLayout | None:
    """Return the layout of the cluster with the later members of a scenario; None without any."""
    if not scenario.later:
        return None
    made = first_layout(name for name in scenario.nodes if name not in scenario.later)
    added = tuple(Member(name, f"{name}:1") for name in scenario.later)
    return ClusterLayout(1, STAMP_ZERO._replace(time=1), made.members + added, made.voters)


def stop_found_again(records: tuple[JournalRecord, ...]) -> tuple[JournalRecord, ...]:
    """Return a journal whose CLEAN_STOP looks like its last record, even with records after it."""
    stops = [record for record in records if isinstance(record, CleanStopped)]
    starts = [record for record in records if isinstance(record, Started)]
    if not stops:
        return records
    rest = [record for record in records if not isinstance(record, CleanStopped)]
    return (*rest, stops[-1]._replace(incarnation=starts[-1].incarnation))
