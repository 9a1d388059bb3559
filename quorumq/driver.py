"""Carries out the effects of a core: "persist before send" is written here, and nowhere else.

A `Driver` stands between one core and the world around it, which is a `Port` and a `RecordSink`. It lets the core step,
and carries out the effects in their order (core/messages/effects.py). Production, the simulator, the explorer and the
tests bring worlds of their own, and share this file: when an answer may go out, and when a commit begins, is decided
here for all of them.

The order of one `feed`:

1. The core takes in the events. Events that an effect feeds back (a token, a message to ourselves, an answer that
   could not be sent) are taken in by a next step, before anything else: the core is never entered twice.
2. Messages are sent first: a peer's fsync is further away than ours.
3. If a request waits for the disk, a commit begins, unless one is under way: then the next one serves all records
   appended meanwhile.

When a commit is over, the world calls `synced` or `wrote`. The effects that waited for it are carried out in the order
in which they were appended.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from quorumq.core.messages import ClientReply, PeerMessage
from quorumq.core.messages.effects import (
    Done,
    DropBatches,
    Durable,
    Effect,
    Event,
    Ours,
    Persist,
    Raised,
    Reply,
    Restart,
    Send,
    SendStored,
    Stop,
)
from quorumq.core.messages.records import JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import NodeId, Now

LAZY_COMMIT_S: Final = 0.05
"""Seconds for which records that no effect waits for may stay in memory."""


class Port(Protocol):
    """The world around one core. If an effect leads to an event, a port gives it to `Driver.feed`."""

    def now(self) -> Now:
        """Return both clocks."""

    def send(self, to: NodeId, message: PeerMessage) -> None:
        """Send to a peer; drop the message if the peer cannot be reached."""

    def send_stored(self, effect: SendStored) -> None:
        """Read the batch, and send it."""

    def reply(self, key: int, reply: ClientReply) -> None:
        """Answer a client."""

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        """Take note that these records are durable. No peer and no client knows of them yet."""

    def end(self, effect: Stop | Restart) -> None:
        """End or restart, because this core must not go on."""

    def raised(self, effect: Raised) -> None:
        """Report that a request met a bug, and was refused. The core is as it was, and goes on."""

    def flush(self) -> None:
        """Flush the sent messages, because nothing more is sent for now."""


class RecordSink(Protocol):
    """Destination of records."""

    @property
    def durable(self) -> int:
        """Return the highest durable ticket: everything up to it is durable."""

    @property
    def position(self) -> int:
        """Return the number of records that were ever appended and are durable (`Durable.position`)."""

    @property
    def needs_sync(self) -> bool:
        """Return True if any record is neither durable nor on its way."""

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        """Append records and return their ticket; without records, the ticket of the last one."""

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Mark batches as dropped. Their bytes are freed later."""

    def begin_sync(self, here: bool) -> None:
        """Make everything appended durable, then call `Driver.synced`.

        Args:
            here: True if it may be over when this returns: nothing else would wait with the caller.
        """


class Waiting(NamedTuple):
    """A Persist that was appended and is not durable yet."""

    ticket: int
    persist: Persist


class Driver:
    """Drives one core.

    Args:
        core: core that is not started yet, or a state of one that was.
        port: the world around it.
        journal: destination of its records.
        rng: random numbers for the core.

    Attributes:
        events: events for the next step.
        waiting: Persists that wait for an fsync, in order.
        syncing: True while an fsync is under way.
        silent: True once nothing may be sent or answered any more; records are still appended.
        ended: True once the core takes no more steps.
        busy: True while effects are being carried out.
        mono: time of the last step (monotonic seconds).
        sync_at: time when an fsync is due (monotonic seconds) though no effect waits for it.
    """

    def __init__(self, core: NodeCore, port: Port, journal: RecordSink, rng: random.Random) -> None:
        self.core = core
        self.port = port
        self.journal = journal
        self.rng = rng
        self.events: deque[Event] = deque()
        self.waiting: deque[Waiting] = deque()
        self.syncing = False
        self.silent = False
        self.ended = False
        self.sync_at = math.inf
        self.mono = 0.0
        self._last_wanted = 0  # the last ticket whose fsync an effect waits for
        self._sync_wanted = False  # an fsync is wanted though no effect waits for it
        self.busy = False

    # ---------------------------------------------------------------------- steps

    def start(self) -> None:
        """Carry out the first effects. The node may speak once the core has heard that they are durable."""
        self.busy = True
        try:
            now = self.port.now()
            self.mono = now.mono
            self.carry_out(self.core.start(now))
        finally:
            self.busy = False

    def feed(self, *events: Event) -> None:
        """Take events in and carry out everything that follows. If it is under way already, it takes them in too."""
        self.events.extend(events)
        if self.busy or self.ended:
            return
        self.busy = True
        try:
            while True:
                now = self.port.now()
                self.mono = now.mono
                if now.mono >= self.sync_at:
                    self.sync_at = math.inf
                    self._sync_wanted = True
                taken = list(self.events)
                self.events.clear()
                self.carry_out(self.core.step(taken, now, self.rng))
                if self.core.serving:
                    self.core.rest(self.port.now().mono)
                if not self.events:
                    self.port.flush()
                    # Once silent, no effect waits any more, and nothing may stand behind the last records.
                    sync_now = (self.waiting or self._sync_wanted) and not self.silent
                    if sync_now and self.commit():
                        self.port.flush()  # it may be over
                if not self.events or self.ended:
                    break
        finally:
            self.busy = False

    def next_deadline(self) -> float | None:
        """Return the latest time for the next `feed` (monotonic seconds), events or not."""
        due = self.core.next_deadline()
        if self.sync_at < (math.inf if due is None else due):
            return self.sync_at
        return due

    # -------------------------------------------------------------------- effects

    def carry_out(self, effects: Iterable[Effect | Done]) -> None:
        port = self.port
        for effect in effects:
            if isinstance(effect, Persist):
                self.persist(effect)
            elif self.silent:
                continue
            elif isinstance(effect, Send):
                if effect.to == self.core.state.me:
                    self.events.append(Ours(effect.message))
                else:
                    port.send(effect.to, effect.message)
            elif isinstance(effect, Reply):
                port.reply(effect.key, effect.reply)
            elif isinstance(effect, Done):
                self.events.append(Durable(effect.token, self.journal.position))
            elif isinstance(effect, SendStored):
                port.send_stored(effect)
            elif isinstance(effect, DropBatches):
                self.journal.drop(effect.numbers)
                self._sync_within(LAZY_COMMIT_S)
            elif isinstance(effect, Raised):
                port.raised(effect)
            else:
                assert isinstance(effect, Stop | Restart), "the core begins its Again itself"
                port.end(effect)

    def persist(self, persist: Persist) -> None:
        """Append, and have `Persist.then` wait for the commit. If it is empty, a commit begins within LAZY_COMMIT_S."""
        ticket = self.journal.append(persist.records)
        self.waiting.append(Waiting(ticket, persist))
        if ticket <= self.journal.durable:
            self._release()
        elif persist.then:
            self._last_wanted = ticket
        else:
            self._sync_within(LAZY_COMMIT_S)

    def _release(self) -> None:
        """Carry out the effects whose records are durable."""
        durable = self.journal.durable
        while self.waiting and self.waiting[0].ticket <= durable:
            _, (records, then) = self.waiting.popleft()
            if records and not self.silent:
                self.port.kept(records)
            self.carry_out(then)

    # -------------------------------------------------------------------- commits

    def commit(self) -> bool:
        """Begin the commit that effects wait for; False if one is under way: then the next one serves them."""
        if self.ended:
            return False
        waits = self._last_wanted > self.journal.durable
        if (waits or self._sync_wanted) and not self.syncing:
            self._sync_wanted = False
            self.sync_at = math.inf
            if self.journal.needs_sync:
                self.syncing = True
                self.journal.begin_sync(here=waits)
                return True
        return False

    def commit_all(self) -> None:
        """Have everything appended fsynced as soon as no other commit is in the way."""
        self._sync_wanted = True
        self.commit()

    def synced(self) -> None:
        """Carry out the effects that waited for the fsync, which is over. `feed` goes on."""
        self.syncing = False
        busy, self.busy = self.busy, True  # the resulting events are fed afterwards
        try:
            self._release()
        finally:
            self.busy = busy

    def _sync_within(self, seconds: float) -> None:
        self.sync_at = min(self.sync_at, self.mono + seconds)
