"""One step of one node, and the effects that the world around it collects.

The core is driven by quorumq/driver.py. Persists are durable at once, unless each fsync is a step of its own: then
the driver's queue is part of a node's state.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages import ClientReply, Envelope, PeerMessage, ResyncReply
from quorumq.core.messages.effects import Persist, Raised, Restart, SendStored, Stop
from quorumq.core.messages.records import NUMBERED, JournalRecord, PeerSeen, Reserved, Trusted
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import NodeId, Now
from quorumq.driver import Driver, Waiting
from sim.explorer.journals import RNG, UNTRACKED, Journals
from sim.explorer.traffic import Traffic


class Outcome(NamedTuple):
    """Effects of one step of a node."""

    local: int
    sent: tuple[int, ...] = ()  # messages
    replies: tuple[tuple[int, int], ...] = ()  # (request key, number of the reply)
    problem: str = ""  # a broken invariant

    def then(self, later: Outcome) -> Outcome:
        """Return both, one after the other, without their replies."""
        return Outcome(later.local, (*self.sent, *later.sent), (), self.problem or later.problem)


class Machine:
    """The world around one node during one step.

    Args:
        core: the node's, ours to change.
        pending: appended records that are not durable; they wait in the driver.
        setup: True if everything is durable at once, and nothing is lost.
    """

    def __init__(
        self,
        journals: Journals,
        traffic: Traffic,
        core: NodeCore,
        journal: int,
        pending: tuple[Persist, ...],
        now: Now,
        setup: bool = False,
    ) -> None:
        self.core = core
        self.number = journal
        self.sent: list[int] = []
        self.replies: list[tuple[int, int]] = []
        self.stopped = ""
        self.durable = 0
        self._now = now
        self._journals = journals
        self._traffic = traffic
        self._setup = setup
        self._slow = not setup and core.config.node in journals.slow
        self.driver = Driver(core, self, self, RNG)
        self.driver.waiting.extend(Waiting(ticket, persist) for ticket, persist in enumerate(pending, 1))
        self.ticket = len(pending)

    def end_step(self) -> tuple[Persist, ...]:
        """End the step, and return the records that are not durable. Cuts the circle, so that all is released at
        once."""
        pending = tuple(persist for _, persist in self.driver.waiting)
        del self.driver
        return pending

    def fsync(self) -> None:
        """Make the oldest Persist durable."""
        self._write(self.driver.waiting[0].persist.records)
        self.durable += 1
        self.driver.synced()

    def _write(self, records: tuple[JournalRecord, ...]) -> None:
        self.number = self._journals.append(self.number, records, self.core.config.node)

    # ---------------------------------------------------------------- the driver's port

    def now(self) -> Now:
        return self._now

    def send(self, to: NodeId, message: PeerMessage) -> None:
        state = self.core.state
        link = state.links.get(to)
        if link is None or (not self._setup and self._traffic.is_lost(message)):
            return
        # Only an answer to a new slot has to say which ballots its sender may have granted.
        stamp = state.clock.value if isinstance(message, ResyncReply) else 0
        envelope = Envelope(state.me, state.incarnation, to, link, stamp, message)
        self.sent.append(self._traffic.message(envelope))

    def send_stored(self, effect: SendStored) -> None:
        self.send(effect.to, self._traffic.store)

    def reply(self, key: int, reply: ClientReply) -> None:
        self.replies.append((key, self._traffic.reply(reply)))

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        pass

    def end(self, effect: Stop | Restart) -> None:
        self.stopped = effect.reason

    def raised(self, effect: Raised) -> None:
        raise effect.error

    def flush(self) -> None:
        pass

    # -------------------------------------------------------------- the driver's journal

    position = 0
    needs_sync = False  # the exploration says when

    @property
    def written(self) -> int:
        return self.durable

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        housekeeping = all(isinstance(record, Reserved | PeerSeen | Trusted) for record in records)
        if self._slow and self.core.started and (self.driver.waiting or not housekeeping):
            self.ticket += 1
            return self.ticket
        self._write(records)
        return self.durable

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Drop batches from the journal. While anything before is not durable they stay, as if a crash took that."""
        if self.number != UNTRACKED and not self.driver.waiting:
            kept = tuple(
                record
                for record in self._journals.records(self.number)
                if not (isinstance(record, NUMBERED) and record.number in numbers)
            )
            self.number = self._journals.number(kept, self.core.config.node)

    def begin_sync(self, here: bool) -> None:
        pass
