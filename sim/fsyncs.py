"""When a simulated disk is done: the journal of one machine, as its driver sees it.

An fsync takes its time and serves all that was appended before it began. It ends while the process runs, or when it
does again.
"""

from __future__ import annotations

import random

from quorumq.core.messages.records import JournalRecord
from quorumq.storage.commit import NoCapacity
from sim.disks import SimJournal
from sim.machine import Machine

FULL_AGAIN_S = 0.1
"""Seconds after which a write that found no room is tried again, and so is a start."""


class Disk:
    """The journal of a machine, and its fsyncs, whose seconds are drawn."""

    def __init__(self, machine: Machine, journal: SimJournal, rng: random.Random) -> None:
        self.machine = machine
        self.world = machine.world
        self.journal = journal
        self.rng = rng

    @property
    def durable(self) -> int:
        return self.journal.durable

    @property
    def position(self) -> int:
        return self.journal.records_durable()

    @property
    def needs_sync(self) -> bool:
        return self.journal.durable < self.journal.position

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        if records:
            self.journal.append(records)
            self.machine.sightings.appends(records, self.machine.core, self.machine.timed)
        return self.journal.position

    def drop(self, numbers: tuple[int, ...]) -> None:
        self.machine.sightings.discards(map(self.journal.header, numbers))
        self.journal.drop(numbers)

    def begin_sync(self, here: bool) -> None:
        """Begin an fsync; it serves everything appended so far."""
        self.journal.begin()
        seconds = self.world.options.fsync * (0.3 + self.rng.expovariate(1.4))
        if self.machine.slow_until > self.world.time:
            seconds = min(seconds * self.machine.slow_factor, 5.0)
        self.world.after(seconds, self.on_synced, self.machine.life)

    def on_synced(self, life: int, _: object) -> None:
        """End the fsync: actions that waited for it may happen."""
        if life != self.machine.life or self.machine.core is None:
            return
        if self.machine.frozen_until > self.world.time:
            self.world.at(self.machine.frozen_until, self.on_synced, life)
            return
        try:
            self.journal.finish()
        except NoCapacity:
            self.world.saw("a write waited for room on the disk")
            self.world.after(FULL_AGAIN_S, self.on_synced, life)
            return
        self.machine.synced()
