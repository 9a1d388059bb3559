"""A broker of the log. The text that it implements:

    "The consumer specifies its offset in the log with each request and receives back a chunk of log beginning from
    that position." "To avoid this there are parameters that allow the consumer request to block in a long poll."
    "High watermark: the smallest log end offset of the in-sync replicas; what is behind it is not yet safe, and
    consumers may not read it." "The leader epoch takes the high watermark's place" in deciding what a follower cuts
    off. "Committed offsets go to an own topic; the leader of the group's partition of it is the group's coordinator."

Each replica appends to its disk before it counts, as in the other designs; such logs mostly do not wait for their
disks. An oracle is the controller (sim/rivals/oracle.py). A publish is confirmed once all in-sync replicas have it,
and these are a majority at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.rivals.harness import Run
from sim.rivals.log.group import Group
from sim.rivals.log.wire import (
    NOT_COORDINATOR,
    Commit,
    Entry,
    FindCoordinator,
    NotLeader,
    OffsetFetch,
    Offsets,
    Poll,
    Polled,
    Produce,
    Pull,
    Pulled,
)
from sim.rivals.machine import Machine
from sim.rivals.oracle import Oracle, Term
from sim.rivals.workload import Key

LAG_S = 1.0
"""Seconds after which a follower that has not caught up is no in-sync replica any more."""

PULL_S = 0.5
"""Seconds that a leader keeps a follower's request when there is nothing new."""


NO_TERM = Term("", 0, ())


@dataclass(eq=False, slots=True)
class Log:
    """One partition at one broker."""

    entries: list[Entry] = field(default_factory=list)
    durable: int = 0  # number of them that survive
    high: int = 0  # the high watermark
    term: Term = NO_TERM
    ends: dict[str, int] = field(default_factory=dict)  # as the leader, how far each follower is
    # As the leader, when each follower last had everything.
    caught_up: dict[str, float] = field(default_factory=dict)
    next: dict[str, int] = field(default_factory=dict)  # per producer the number that it must publish next
    # Requests to be answered when the high watermark has come so far.
    waits: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Put entries at the end."""
        self.entries += entries
        for entry in entries:
            if isinstance(entry.key, Key):
                self.next[entry.key.producer_id] = max(
                    entry.key.seq + 1, self.next.get(entry.key.producer_id, 0)
                )

    def cut(self, at: int) -> None:
        """Take off everything from this offset on."""
        del self.entries[at:]
        self.durable = min(self.durable, at)
        self.next.clear()
        kept, self.entries = self.entries, []
        self.append(tuple(kept))

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the entry before an offset."""
        return self.entries[offset - 1].epoch if offset else 0


class Broker:
    """One process. The last partition is that of the group's offsets.

    Args:
        records: records that its disk kept: (partition, offset, entries), later ones over earlier ones.
    """

    def __init__(self, run: Run, machine: Machine, records: list[Any]) -> None:
        self.run = run
        self.machine = machine
        self.name = machine.name
        self.oracle: Oracle = run.oracle
        self.majority = run.options.nodes // 2 + 1
        self.offsets_partition = run.options.partitions
        self.logs = [Log() for _ in range(run.options.partitions + 1)]
        for number, offset, entries in records:
            log = self.logs[number]
            log.cut(offset)
            log.append(entries)
            log.durable = len(log.entries)
        self.polls: dict[int, Poll] = {}
        self.pulls: dict[str, Pull] = {}
        self.pulling: dict[str, int] = {}
        self.pulls_made = machine.life << 32  # an answer to an earlier life's request may still come
        self.group: Group | None = None
        self.committed: dict[int, int] = {}
        self.commits: dict[tuple[int, int], int] = {}  # by generation and partition
        self.replayed = 0
        machine.after(LAG_S / 4, self.tick)

    # ----------------------------------------------------------------- leaders

    def on_terms(self, terms: dict[int, Term]) -> None:
        """Take in the leaders that the controller names."""
        for number, term in terms.items():
            log = self.logs[number]
            if term.epoch > log.term.epoch:
                log.waits.clear()
                log.term = term
                log.ends.clear()
                now = self.machine.mono
                log.caught_up = dict.fromkeys(term.replicas, now)
                if number == self.offsets_partition:
                    self.become_coordinator(term.leader == self.name)
            log.term = term
            if term.leader == self.name:
                self.advance(number)
        for leader in dict.fromkeys(term.leader for term in terms.values()):
            if leader != self.name and leader not in self.pulling:
                self.pull(leader)

    def leads(self, number: int) -> bool:
        """Return True if this broker believes that it leads the partition."""
        return self.logs[number].term.leader == self.name

    def append(self, number: int, entries: tuple[Entry, ...], then: Callable[[], None] | None) -> None:
        """Append as the leader; ``then`` is called once the high watermark covers it."""
        log = self.logs[number]
        offset = len(log.entries)
        log.append(entries)
        if then is not None:
            log.waits.append((len(log.entries), then))
        if entries:
            self.write(number, offset, entries, lambda: self.advance(number))
            self.answer_pulls()
        elif then is not None and log.high >= len(log.entries):
            log.waits.pop()[1]()

    def write(self, number: int, offset: int, entries: tuple[Entry, ...], then: Callable[[], None]) -> None:
        """Write entries that are in the log to the disk."""
        log, end, epoch = self.logs[number], offset + len(entries), self.logs[number].term.epoch

        def durable() -> None:
            if log.term.epoch == epoch or log.epoch_before(min(end, len(log.entries))) == entries[-1].epoch:
                log.durable = max(log.durable, min(end, len(log.entries)))
                self.machine.note("store", (entry.key for entry in entries if isinstance(entry.key, Key)))
            then()

        self.machine.persist(((number, offset, entries),), durable)

    def advance(self, number: int) -> None:
        """Move the high watermark as far as all in-sync replicas are."""
        log = self.logs[number]
        if not self.leads(number):
            return
        ends = [log.durable if name == self.name else log.ends.get(name, 0) for name in log.term.replicas]
        high = min(ends)
        if high <= log.high:
            return
        log.high = high
        if number == self.offsets_partition:
            self.catch_up_offsets(high)
        ready = [then for offset, then in log.waits if offset <= high]
        log.waits = [wait for wait in log.waits if wait[0] > high]
        for then in ready:
            then()
        self.answer_polls()

    def tick(self) -> None:
        """Put followers that lag out of the in-sync replicas."""
        self.machine.after(LAG_S / 4, self.tick)
        for number, log in enumerate(self.logs):
            if self.leads(number):
                late = self.machine.mono - LAG_S
                alive = tuple(
                    name
                    for name in log.term.replicas
                    if name == self.name or log.caught_up.get(name, 0.0) > late
                )
                if alive != log.term.replicas:
                    self.propose(number, alive)

    def propose(self, number: int, replicas: tuple[str, ...]) -> None:
        """Change the in-sync replicas, if the controller agrees."""
        log = self.logs[number]
        if self.oracle.propose(number, log.term.epoch, replicas):
            log.term = log.term._replace(replicas=replicas)
            self.advance(number)

    # ---------------------------------------------------------------- followers

    def pull(self, leader: str) -> None:
        """Ask a leader for new entries of its partitions, from the durable end on."""
        ends: dict[int, tuple[int, int, int]] = {}
        for number, log in enumerate(self.logs):
            if log.term.leader == leader:
                log.cut(log.durable)  # another leader's answer is on its way to the disk
                ends[number] = (log.term.epoch, log.durable, log.epoch_before(log.durable))
        if not ends:
            self.pulling.pop(leader, None)
            return
        self.pulls_made += 1
        self.pulling[leader] = self.pulls_made
        self.machine.send(leader, Pull(self.pulls_made, ends))
        self.machine.after(PULL_S + 0.5, self.pull_again, leader, self.pulls_made)

    def pull_again(self, leader: str, number: int) -> None:
        """Ask again, as no answer came."""
        if self.pulling.get(leader) == number:
            self.pull(leader)

    def on_message(self, sender: str, message: Any) -> None:
        if isinstance(message, Pull):
            self.pulls[sender] = message
            self.on_pull(sender, message)
            self.answer_pulls()
            self.machine.after(PULL_S, self.end_pull, sender, message)
        else:
            self.on_pulled(sender, message)

    def on_pull(self, sender: str, pull: Pull) -> None:
        """Note the end of a follower's log."""
        for number, (epoch, end, last) in pull.ends.items():
            log = self.logs[number]
            if not self.leads(number) or epoch != log.term.epoch:
                continue
            if end > len(log.entries) or log.epoch_before(end) != last:
                continue
            log.ends[sender] = end
            if end == len(log.entries):
                log.caught_up[sender] = self.machine.mono
            if end >= log.high and sender not in log.term.replicas:
                self.propose(number, (*log.term.replicas, sender))
            self.advance(number)

    def answer_pulls(self) -> None:
        """Answer the followers for which there is something."""
        for sender, pull in list(self.pulls.items()):
            if any(self.news(number, *end) for number, end in pull.ends.items()):
                self.end_pull(sender, pull)

    def news(self, number: int, epoch: int, end: int, last: int) -> bool:
        """Return True if a follower must cut something off, or lacks something."""
        log = self.logs[number]
        if not self.leads(number) or epoch != log.term.epoch:
            return False
        return end != len(log.entries) or log.epoch_before(end) != last

    def end_pull(self, sender: str, pull: Pull) -> None:
        """Answer a follower, empty if nothing is new."""
        if self.pulls.get(sender) is not pull:
            return
        del self.pulls[sender]
        parts: dict[int, tuple[int, int, tuple[Entry, ...], int]] = {}
        for number, (epoch, end, last) in pull.ends.items():
            log = self.logs[number]
            if not self.leads(number) or epoch != log.term.epoch:
                continue
            if end > len(log.entries) or log.epoch_before(end) != last:
                cut = min(end, len(log.entries))
                while cut and log.entries[cut - 1].epoch > last:
                    cut -= 1
                cut = cut - 1 if cut == end else cut
                parts[number] = (epoch, cut, (), log.high)
            else:
                parts[number] = (epoch, -1, tuple(log.entries[end:]), log.high)
            if log.caught_up.get(sender) is not None and end == len(log.entries):
                log.caught_up[sender] = self.machine.mono
        self.machine.send(sender, Pulled(pull.number, parts))

    def on_pulled(self, leader: str, answer: Pulled) -> None:
        """Append the leader's entries; the next request says that they are durable."""
        if answer.number != self.pulling.get(leader):
            return  # asked again meanwhile: these entries would stand at another place than the leader's
        self.pulling[leader] = 0
        left = 1

        def done() -> None:
            nonlocal left
            left -= 1
            if not left and self.pulling.get(leader) == 0:
                self.pull(leader)

        for number, (epoch, cut, entries, high) in answer.parts.items():
            log = self.logs[number]
            if epoch != log.term.epoch or log.term.leader != leader:
                continue
            if cut >= 0:
                log.cut(cut)
            elif entries:
                offset = len(log.entries)
                log.append(entries)
                left += 1
                self.write(number, offset, entries, done)
            log.high = max(log.high, min(high, len(log.entries)))
        done()

    # ------------------------------------------------------------------- clients

    def on_request(self, key: int, request: Any) -> None:
        if isinstance(request, Produce):
            self.on_produce(key, request)
        elif isinstance(request, Poll):
            self.polls[key] = request
            self.machine.after(request.wait, self.end_poll, key)
            self.answer_polls()
        elif isinstance(request, FindCoordinator):
            self.machine.reply(key, NotLeader(self.oracle.leader(self.offsets_partition)))
        elif self.group is None:
            self.machine.reply(key, NOT_COORDINATOR)
        elif isinstance(request, OffsetFetch):
            # Commits that are under way are waited for.
            self.append(self.offsets_partition, (), lambda: self.reply_offsets(key, request))
        elif isinstance(request, Commit):
            verdict = self.group.may_commit(request)
            if verdict is True:
                epoch = self.logs[self.offsets_partition].term.epoch
                entries = tuple(
                    Entry(epoch, p, offset)
                    for p, offset in request.offsets.items()
                    if offset > self.commits.get((request.generation, p), -1)
                )  # a connection keeps its order; here an older commit may come later
                self.commits.update({(request.generation, e.key): e.value for e in entries})
                self.append(self.offsets_partition, entries, lambda: self.machine.reply(key, True))
            else:
                self.machine.reply(key, verdict)
        else:
            self.group.on_request(key, request)

    def reply_offsets(self, key: int, request: OffsetFetch) -> None:
        """Reply with the group's offsets."""
        self.machine.reply(key, Offsets({p: self.committed.get(p, 0) for p in request.partitions}))

    def on_gone(self, key: int) -> None:
        self.polls.pop(key, None)

    def on_produce(self, key: int, request: Produce) -> None:
        """Append once, even if it is retried."""
        log = self.logs[request.partition]
        if not self.leads(request.partition):
            self.machine.reply(key, NotLeader(self.oracle.leader(request.partition)))
        elif request.first > log.next.get(request.producer_id, 0) or len(log.term.replicas) < self.majority:
            self.machine.reply(key, False)
        elif request.first < log.next.get(request.producer_id, 0):
            last = (request.producer_id, request.items[-1][0].seq)
            place = next(i for i, e in enumerate(log.entries) if (e.key.producer_id, e.key.seq) == last) + 1
            if place <= log.high:
                self.machine.reply(key, True)
            else:
                log.waits.append((place, lambda: self.machine.reply(key, True)))
        else:
            entries = tuple(Entry(log.term.epoch, one, value) for one, value in request.items)
            self.append(request.partition, entries, lambda: self.machine.reply(key, True))

    def answer_polls(self) -> None:
        """Answer the consumers for which there is something."""
        for key, poll in list(self.polls.items()):
            if any(not self.leads(p) or offset < self.logs[p].high for p, offset in poll.offsets.items()):
                self.end_poll(key)

    def end_poll(self, key: int) -> None:
        """Answer a consumer."""
        poll = self.polls.pop(key, None)
        if poll is None:
            return
        entries: dict[int, tuple[Entry, ...]] = {}
        for number, offset in poll.offsets.items():
            log = self.logs[number]
            if not self.leads(number):
                self.machine.reply(key, NotLeader(""))
                return
            entries[number] = tuple(log.entries[offset : min(log.high, offset + poll.most)])
        self.machine.reply(key, Polled(entries))

    # --------------------------------------------------------------- coordinator

    def become_coordinator(self, mine: bool) -> None:
        """Coordinate the group here from now on, or no more."""
        if self.group is not None:
            self.group.over = True
        self.group = None
        self.committed = {}
        self.replayed = 0
        if mine:
            log = self.logs[self.offsets_partition]
            log.high = min(log.high, len(log.entries))
            self.group = Group(lambda: self.machine.mono, self.machine.after, self.machine.reply, self.keep)
            # Entries in a new leader's log are not taken back any more.
            self.catch_up_offsets(len(log.entries))
            kept = [entry.value for entry in log.entries if entry.key == "group"]
            if kept:
                self.group.restore(kept[-1])

    def catch_up_offsets(self, safe: int) -> None:
        """Note that commits below this offset are safe by now."""
        for entry in self.logs[self.offsets_partition].entries[self.replayed : safe]:
            if entry.key != "group":
                self.committed[entry.key] = entry.value
        self.replayed = max(self.replayed, safe)

    def keep(self, kept: Any, then: Callable[[], None]) -> None:
        """Write the entries that the next coordinator needs."""
        log = self.logs[self.offsets_partition]
        self.append(self.offsets_partition, (Entry(log.term.epoch, "group", kept),), then)
