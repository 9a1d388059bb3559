"""One simulated machine: the real NodeCore, its journal, its clocks and its connections.

The driver's duties are those of core/effects.py. What is added here is everything that goes wrong: fsyncs
take their time and serve many Persists, a crash loses what was not durable, or not written, the process freezes,
connections break, and peers notice late. A host has a `life` number per start: what was scheduled in an
earlier life does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from typing import Any

from quorumq.core.effects import (
    CleanStop,
    Damaged,
    DiskFull,
    Event,
    Gone,
    HelloRefused,
    LinkDown,
    LinkUp,
    Received,
    Request,
    Restart,
    SendStored,
    Stop,
    Unposted,
    Unsent,
)
from quorumq.core.messages import (
    AlterTopic,
    ClientReply,
    ClientRequest,
    CreateTopic,
    Envelope,
    Failed,
    Fetched,
    Hello,
    Hold,
    HoldReply,
    HoldsTold,
    PeerMessage,
    RegistersTold,
    Release,
    RemoteFetched,
    Slice,
    Store,
    Welcome,
)
from quorumq.core.nodecore import NodeCore
from quorumq.core.records import (
    AttemptsCounted,
    BatchStored,
    ClusterMade,
    GroupPut,
    JournalRecord,
    OriginsClosed,
    RecordsMerged,
    Started,
    TopicPut,
)
from quorumq.core.state import NodeConfig
from quorumq.core.types import (
    STAMP_ZERO,
    Batch,
    BatchHeader,
    Incarnation,
    Kind,
    NodeId,
    Now,
    PartitionId,
    Span,
)
from quorumq.driver import Driver
from quorumq.history import spans_value
from sim.disks import DamagedBody, MemoryJournal, SimJournal
from sim.knowledge import compare, compare_holds, known_of
from sim.observer import Observer
from sim.store_journal import StoreJournal
from sim.world import REFUSAL, RESET, Clock, SimError, World

CLUSTER_ID = "sim"

WRITES = (CreateTopic, AlterTopic)
"""Requests that no copy follows: it would be one more write, made after the client was told of the first."""


class Host:
    """One machine and the node that runs on it, if it does.

    Args:
        observer: hears what the machine does.
        name: the node's id.

    Attributes:
        core: the node, or None while it is down.
        started: whether the node may speak.
        frozen_until: true time until which the process does not run.
    """

    def __init__(self, observer: Observer, name: NodeId) -> None:
        self.observer = observer
        self.world: World = observer.world
        self.name = name
        self.rng = self.world.stream(f"node/{name}")
        self.disk_rng = self.world.stream(f"disk/{name}")
        self.recall_rng = self.world.stream(f"recall/{name}")
        options = self.world.options
        self.clock = Clock(self.world.stream(f"clock/{name}"), options.clock_rate, options.wall_offset)
        self.config = NodeConfig(
            node=name,
            nodes=options.node_names,
            cluster_id=CLUSTER_ID,
            hold_time_max=options.hold_time_max,
            request_timeout=options.request_timeout,
            heartbeat=options.heartbeat,
            sync_interval=options.sync_interval,
            sync_grace=options.sync_grace,
            origin_idle=options.origin_idle,
            auto_create_topics=options.implicit,
        )
        self.journal: SimJournal = (
            StoreJournal(name, CLUSTER_ID, self.disk_rng) if options.disk == "store" else MemoryJournal()
        )
        self.config_rng = self.world.stream(f"config/{name}")
        self.core: NodeCore | None = None
        self.driver: Driver | None = None
        self.started = False
        self.life = 0
        self.frozen_until = 0.0
        self.slow_until = 0.0
        self.slow_factor = 1.0
        self.backlog: deque[tuple[Any, Any, Any]] = deque()
        self.wake_at: float | None = None
        self.writing = False
        self.keys = 0
        self.open: dict[int, tuple[Any, Any]] = {}
        self.keys_of: dict[tuple[str, int], int] = {}
        self.links: dict[NodeId, tuple[Incarnation, int]] = {}
        self.dials: dict[NodeId, int] = {}
        self.stored: dict[tuple[Any, ...], None] = {}  # batches that were durable here once
        self.foreign: dict[tuple[Any, ...], Batch] = {}
        self.timed = False
        self.once: dict[tuple[str, int], None] = {}  # requests of which a second copy would be another write

    # ------------------------------------------------------------ life and death

    def boot(self, life: int, _: object = None) -> None:
        """Start the node, unless something happened to it since this was planned."""
        if life != self.life or self.core is not None:
            return
        now = self.clock.now(self.world.time)
        records = self.journal.open()
        self.try_another_configuration(records)
        nonce, directory = self.rng.getrandbits(64), self.rng.getrandbits(64) | 1
        core = NodeCore(
            self.config,
            records,
            nonce=nonce,
            directory=directory,
            now=now,
            rng=self.rng,
            place=self.journal.place(),
        )
        if core.suspected:
            self.world.saw("a directory that was moved was suspected")
        core.take_position(self.journal.records_durable())
        core.load_damaged(self.journal.damaged(), now)
        if self.journal.damaged():
            self.world.saw("a start found a damaged batch")
        self.core = core
        self.driver = Driver(core, self, self, self.rng)
        for record in records:
            if type(record) is BatchStored:  # nobody may have waited for its fsync, and it survived
                self.note_stored(record.batch.header)
        core.state.next_batch = max(core.state.next_batch, self.journal.next_number())
        self.journal.ready(lambda: core.snapshot(self.clock.now(self.world.time)))
        held = any(view.holds.holds for replica in core.replicas.values() for view in replica.groups.values())
        if held:
            self.world.saw("a clean stop's holds were restored")
        if any(self.observer.is_over(partition.topic) for partition in core.replicas):
            self.world.saw("a node came back with a topic that was deleted meanwhile")
        quiet = core.state.quarantine_until <= now.mono
        self.world.note(
            f"node:{self.name}",
            "start",
            incarnation=core.state.incarnation.n,
            outcome="fresh" if not records else "restored" if quiet else "quarantine",
        )
        self.driver.start()
        self.driver.commit()
        self.arm()

    def try_another_configuration(self, records: list[Any]) -> None:
        """Now and then somebody first tries to start the node with what the cluster was not made with."""
        rng = self.config_rng
        if not any(type(record) is ClusterMade for record in records) or rng.random() >= 0.2:
            return
        change: dict[str, Any] = {"hold_time_max": self.config.hold_time_max * rng.choice((0.5, 2.0))}
        if rng.random() < 0.5:
            change = {"nodes": (*self.config.nodes, "another")}
        other = dataclasses.replace(self.config, **change)
        now = self.clock.now(self.world.time)
        with contextlib.suppress(ValueError):
            NodeCore(other, records, nonce=1, directory=1, now=now, rng=rng)
            raise SimError(
                f"node {self.name} takes a configuration that its cluster was not made with: {change}"
            )
        self.world.saw("another configuration was refused")

    def leave_world(self, *, power: bool, clean: bool = False) -> None:
        """The process is gone: with it everything but the journal."""
        core = self.core
        assert core is not None
        for replica in core.replicas.values():
            for view in replica.groups.values():
                if any(held.owner.node == self.name for _, held in view.holds.holds.items()):
                    self.world.saw("a node went down while it held")
        self.core = self.driver = None
        self.started = self.writing = False
        self.life += 1
        self.backlog.clear()
        self.wake_at = None
        self.frozen_until = 0.0
        self.links.clear()
        self.dials.clear()
        if power and self.world.options.durability == "os":
            self.stored.clear()  # what is found at the next start, or stored again, is noted again
            if self.journal.durable < self.journal.written:
                self.world.saw("a power cut took what was only written")
        if not clean:
            self.journal.crash(self.disk_rng, power=power)
        if power:
            self.clock.reboot(self.disk_rng, self.world.time)
        callers, self.open = self.open, {}
        self.keys_of.clear()
        for client, op in callers.values():
            if op is not None and self.disk_rng.random() < (0.3 if power else 0.9):
                self.world.transmit(self.name, client.name, client.on_reply, op, (RESET, None))
        self.observer.on_death(self.name, power=power)

    def crash(self, *, power: bool) -> None:
        """Stop without warning."""
        if self.core is None:
            return
        self.world.note(
            f"node:{self.name}",
            "crash",
            incarnation=self.core.state.incarnation.n,
            detail="power" if power else "process",
        )
        self.leave_world(power=power)

    def begin_again(self, life: int, _: object = None) -> None:
        """The core asked for another one in its place: its directory cannot vouch, and is resynced."""
        if life == self.life and self.core is not None:
            self.world.saw("a node could not vouch, and began again")
            self.crash(power=False)
            self.boot(self.life)

    def stop(self) -> None:
        """A clean stop."""
        if self.core is None or not self.started or self.frozen_until > self.world.time:
            self.crash(power=False)
            return
        core, driver = self.core, self.driver
        assert driver is not None
        driver.silent = True
        driver.feed(CleanStop())
        self.journal.close()
        records = self.journal.kept()
        if records is not None and core.state.vouched:
            compare_holds(core, records, self.clock.now(self.world.time))
        self.world.note(f"node:{self.name}", "stop", incarnation=core.state.incarnation.n, reason="asked to")
        self.leave_world(power=False, clean=True)

    # -------------------------------------------------------------------- steps

    def feed(self, *events: Event) -> None:
        """Let the core take events in, and carry out what it says."""
        core, driver = self.core, self.driver
        if core is None or driver is None:
            return
        if driver.busy:  # it takes them in when it has carried out what it is at
            driver.feed(*events)
            return
        self.timed = not events
        driver.feed(*events)
        options = self.world.options
        if options.check:
            core.check(self.clock.now(self.world.time))
        if options.recall and self.recall_rng.random() < options.recall:
            self.recall()
        self.arm()

    def recall(self) -> None:
        """What is in the journal must be what the node knows (sim/knowledge.py)."""
        core, records = self.core, self.journal.kept()
        if core is not None and records is not None and core.started and not core.silenced:
            durable = self.journal.durable >= self.journal.position
            now = self.clock.now(self.world.time)
            compare(core, records, now, durable=durable, times=self.observer.steady)
            self.world.saw("a journal was compared with what its node knows")

    def knows_what(self, other: Host) -> bool:
        """Whether what ``other`` knows is known here, durably, and what it has is here; attempts are an estimate."""
        if (
            self.core is None
            or other.core is None
            or not (self.core.state.vouched and other.core.state.vouched)
        ):
            return False
        mine, theirs = known_of(self.core, ()), known_of(other.core, ())
        same = all(
            mine.get(what) == theirs.get(what)
            for what in dict.fromkeys([*mine, *theirs])
            if what in ("topics", "groups", "replicas")
            or what.endswith((", records", ", delays", "reclaimed", "closed"))
        )
        return (
            same
            and self.journal.durable >= self.journal.position
            and all(
                self.core.replicas[partition].present.covers(span)
                for partition, replica in other.core.replicas.items()
                for span in replica.present.items()
            )
        )

    def arm(self) -> None:
        """See to it that the core is woken at its next deadline."""
        if self.driver is None:
            return
        deadline = self.driver.next_deadline()
        if deadline is None:
            return
        time = self.clock.true_time(deadline)
        if time < self.world.time:
            time = self.world.time
        if self.wake_at is None or time < self.wake_at:
            self.wake_at = time
            self.world.at(time, self.wake, time, self.life)

    def wake(self, time: float, life: int) -> None:
        """A deadline has come."""
        if life != self.life or self.driver is None or self.wake_at != time:
            return
        if self.frozen_until > self.world.time:
            self.wake_at = self.frozen_until
            self.world.at(self.frozen_until, self.wake, self.frozen_until, life)
            return
        self.wake_at = None
        deadline = self.driver.next_deadline()
        if deadline is not None:
            now = self.clock.mono(self.world.time)
            if now < deadline < now + 1e-6:
                self.clock.last = deadline  # rounding must not make it wake a moment early, again and again
            if now + 1e-6 <= deadline:
                self.arm()
                return
        self.feed()

    # ------------------------------------------------------------ what the driver asks

    def now(self) -> Now:
        return self.clock.now(self.world.time)

    def flush(self) -> None:
        pass

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        """What was appended survives now."""
        for record in records:
            if type(record) is BatchStored and self.journal.header(record.number) is not None:
                self.note_stored(record.batch.header)
            elif type(record) is Started:
                self.on_started()

    def end(self, effect: Stop | Restart) -> None:
        if isinstance(effect, Stop):
            raise SimError(f"node {self.name} stopped itself: {effect.reason}")
        self.world.after(0.0, self.begin_again, self.life)

    def send_stored(self, effect: SendStored) -> None:
        try:
            batch = self.journal.batch(effect.batch)
        except DamagedBody as error:
            self.on_damaged(error)
            return
        self.send(effect.to, Store(0, effect.epoch, batch, effect.age_ms))

    # ------------------------------------------------------------------- the journal

    @property
    def durable(self) -> int:
        return self.journal.durable

    @property
    def written(self) -> int:
        return self.journal.written

    @property
    def position(self) -> int:
        return self.journal.records_durable()

    @property
    def needs_sync(self) -> bool:
        return self.journal.durable < self.journal.position

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        if records:
            self.journal.append(records)
            self.observe(records)
        return self.journal.position

    def forget(self, numbers: tuple[int, ...]) -> None:
        self.note_forgotten(numbers)
        self.journal.forget(numbers)

    def begin_sync(self, here: bool) -> None:
        """Begin an fsync; it serves everything appended so far."""
        self.journal.begin()
        seconds = self.world.options.fsync * (0.3 + self.disk_rng.expovariate(1.4))
        if self.slow_until > self.world.time:
            seconds = min(seconds * self.slow_factor, 5.0)
        self.world.after(seconds, self.on_synced, self.life)

    def on_synced(self, life: int, _: object) -> None:
        """The fsync is over: what waited for it may happen."""
        if life != self.life or self.core is None:
            return
        if self.frozen_until > self.world.time:
            self.world.at(self.frozen_until, self.on_synced, life)
            return
        self.journal.finish()
        self.driver.synced()
        for number in self.journal.reclaim():
            self.on_damaged(DamagedBody(number))
        if self.core.state.vouched:
            self.journal.vouch()
        self.feed()

    def begin_write(self) -> None:
        """Begin a write without an fsync, if none is under way."""
        if not self.writing:
            self.writing = True
            self.world.after(0.0001 + self.disk_rng.random() * 0.001, self.on_written, self.life)

    def on_written(self, life: int, _: object) -> None:
        """Everything appended so far is written: it survives the process, and an fsync follows."""
        if life != self.life or self.core is None:
            return
        if self.frozen_until > self.world.time:
            self.world.at(self.frozen_until, self.on_written, life)
            return
        self.writing = False
        self.journal.write()
        self.world.saw("a batch waited for no fsync")
        self.driver.wrote()
        self.feed()

    def note_stored(self, header: BatchHeader) -> None:
        """A batch is durable here: the judge of loss counts on how many nodes each is when its publish is confirmed."""
        key = (header.partition, header.sections)
        if key in self.stored:
            return
        self.stored[key] = None
        self.world.note(
            f"node:{self.name}",
            "store",
            topic=self.observer.topic_name(header.partition),
            partition=header.partition.number,
            spans=spans_value(header.sections),
        )

    def note_forgotten(self, numbers: tuple[int, ...]) -> None:
        """Where the payload comes back, it is stored again."""
        for header in map(self.journal.header, numbers):
            if header is not None:
                self.stored.pop((header.partition, header.sections), None)

    def observe(self, records: tuple[Any, ...]) -> None:
        """What a journal record says of the run."""
        for record in records:
            kind = type(record)
            if kind is AttemptsCounted:
                if self.timed:
                    self.world.saw("a hold expired")
            elif kind is GroupPut:
                self.observer.note_register(self.name, record.group)
            elif kind is TopicPut:
                self.observer.registers.seen(self.name, record.topic)
            elif kind is OriginsClosed:
                self.world.saw("an origin was closed")
            elif kind is RecordsMerged:
                for span, value in record.entries:
                    if value.kind in (Kind.SKIPPED, Kind.PURGED):
                        self.observer.note_purged(self.name, record.partition, record.group, span, value)
                    letter = value.letter
                    if value.kind != Kind.DEAD or letter.node != self.name or letter.reason == "rejected":
                        continue
                    if letter.reason == "expired":
                        self.world.saw("a message expired")
                        self.see_ttl(record.partition, span)
                    if self.observer.full or letter.reason == "expired":
                        self.observer.note_letter(self.name, record, span, value)

    def see_ttl(self, partition: PartitionId, span: Span) -> None:
        """Whose TTL it was that is over."""
        replica = self.core.replicas.get(partition) if self.core is not None else None
        for _, slot in replica.index.within(span) if replica is not None else ():
            if not replica.batches[slot.number].header.ttl_ms:  # type: ignore[union-attr]
                self.world.saw("a message expired by the topic's TTL")

    # -------------------------------------------------------------- connections

    def on_started(self) -> None:
        """This start is durable: the node may speak."""
        self.started = True
        for peer in self.config.nodes:
            if peer != self.name:
                self.dial(peer, self.life)

    def dial(self, peer: NodeId, life: int) -> None:
        """Try to connect to ``peer``, now and again until it works."""
        if life != self.life or self.core is None or peer in self.links:
            return
        pause = (
            0.1 + self.disk_rng.random() * 0.3 + 3 * self.world.distance
        )  # an answer comes before it is over
        self.world.after(pause, self.dial, peer, life)
        if self.frozen_until > self.world.time:
            return
        hello = self.core.hello(self.clock.now(self.world.time))
        self.dials[peer] = number = self.dials.get(peer, 0) + 1
        target = self.observer.hosts[peer]
        self.world.transmit(self.name, peer, target.on_hello, (self, life, number), hello)

    def on_hello(self, caller: tuple[Host, int, int], hello: Hello) -> None:
        """A peer dials."""
        if self.core is None or not self.started:
            return
        if self.frozen_until > self.world.time:
            self.backlog.append((self.on_hello, caller, hello))
            return
        self.world.messages += 1
        self.keys += 1
        self.open[self.keys] = (caller, None)
        self.feed(Request(self.keys, hello))

    def on_welcome(self, answer: tuple[int, int, NodeId, int], reply: ClientReply) -> None:
        """A peer answers our HELLO."""
        life, number, peer, their_life = answer
        if life != self.life or self.core is None or peer in self.links or self.dials.get(peer) != number:
            return
        if self.frozen_until > self.world.time:
            self.backlog.append((self.on_welcome, answer, reply))
            return
        self.world.messages += 1
        if not isinstance(reply, Welcome):
            self.feed(HelloRefused(peer, reply.code, reply.detail, reply.needed))  # type: ignore[union-attr]
            return
        self.links[peer] = (reply.incarnation, their_life)
        self.feed(
            LinkUp(
                peer,
                reply.incarnation,
                reply.stamp,
                reply.seen_n,
                reply.seen_directories,
                reply.position,
                reply.position_by,
            )
        )

    def on_link_lost(self, peer: NodeId, lives: tuple[int, int]) -> None:
        """Our connection to that life of ``peer`` is gone, as we notice now."""
        life, their_life = lives
        link = self.links.get(peer)
        if life != self.life or self.core is None or link is None or link[1] != their_life:
            return
        if self.frozen_until > self.world.time:
            self.backlog.append((self.on_link_lost, peer, lives))
            return
        del self.links[peer]
        self.feed(LinkDown(peer))
        self.dial(peer, self.life)

    def lose_link(self, peer: NodeId, seconds: float) -> None:
        """Our connection to ``peer`` breaks; we notice in ``seconds``."""
        link = self.links.get(peer)
        if link is not None:
            self.world.after(seconds, self.on_link_lost, peer, (self.life, link[1]))

    def send(self, to: NodeId, message: PeerMessage) -> None:
        """Send over our connection; dropped where there is none."""
        link = self.links.get(to)
        world = self.world
        if link is None:
            if type(message) is RemoteFetched and message.slices:
                world.saw("an answer to another node was never begun")
                self.feed(Unposted(message))
            return
        core = self.core
        assert core is not None
        kind = type(message)
        world.count(kind.__name__)
        if kind is HoldReply:
            if message.abstained and not message.error:  # type: ignore[union-attr]
                world.saw("a replica in quarantine abstained")
            if message.resolved:  # type: ignore[union-attr]
                world.saw("read repair fired")
            if any(item.ballot == STAMP_ZERO for item in message.not_due):  # type: ignore[union-attr]
                world.saw("a HOLD asked for what was not due")
            if any(item.unseen for item in message.granted):  # type: ignore[union-attr]
                world.saw("a replica voted on what it had not seen")
            for item in message.refused:  # type: ignore[union-attr]
                if item.remaining > 0:
                    world.saw("a HOLD met another's hold")
                    break
        elif kind is Hold:
            self.observer.on_hold_sent(self.name, self.life, message.round)  # type: ignore[union-attr]
        elif kind is Release and self.observer.full:
            self.observer.note_release(self.name, message)  # type: ignore[arg-type]
        envelope = Envelope(self.name, core.state.incarnation, to, link[0], core.state.clock.value, message)
        if kind.__name__ == "RemoteFetched":  # what another node's client is answered: the bytes go along
            try:
                bodies = self.bodies(message.slices)  # type: ignore[union-attr]
            except DamagedBody as error:
                self.on_damaged(error)
                self.feed(Unposted(message))  # type: ignore[arg-type]
                bodies = ()
                refusal = RemoteFetched(message.round, "too-few-replicas", "a damaged copy", ())  # type: ignore[union-attr]
                message, envelope = refusal, envelope._replace(message=refusal)
            world.transmit(self.name, to, self.observer.hosts[to].receive_slices, envelope, (link[1], bodies))
            if message.slices:  # type: ignore[union-attr]
                self.observer.on_fetched(self.name, message)
            return
        world.transmit(self.name, to, self.observer.hosts[to].receive, envelope, link[1])

    def bodies(self, slices: tuple[Slice, ...]) -> tuple[Batch, ...]:
        """The batches that slices are parts of: from our journal, or as another node sent them."""
        found: list[Batch] = []
        for part in slices:
            header = part.header
            batch = self.foreign.get((header.partition, header.sections, header.crc))
            found.append(batch if batch is not None else self.journal.batch(part.batch))
        return tuple(found)

    def receive_slices(self, envelope: Envelope, extra: tuple[int, tuple[Batch, ...]]) -> None:
        """As `receive`, with the batches that the message's slices are parts of."""
        life, batches = extra
        for batch in batches:
            header = batch.header
            self.foreign[(header.partition, header.sections, header.crc)] = batch
            if len(self.foreign) > 256:
                del self.foreign[next(iter(self.foreign))]
        self.receive(envelope, life)

    def receive(self, envelope: Envelope, life: int) -> None:
        """Something comes in over a connection to our life number ``life``."""
        core = self.core
        if core is None or not self.started:
            return
        if self.frozen_until > self.world.time:
            self.backlog.append((self.receive, envelope, life))
            return
        self.world.messages += 1
        if life != self.life:  # the other side has not noticed yet that we were started again
            sender = self.observer.hosts[envelope.sender]
            sender.lose_link(self.name, self.world.options.latency)
        if core.state.superseded(envelope.sender, envelope.incarnation):
            self.world.saw("a message of a superseded incarnation came")
        if type(envelope.message) is RegistersTold and envelope.message.topics:
            self.world.saw("a node asked for a topic that it did not know")
        waited = bool(core.recovery.unheard)
        self.feed(Received(envelope))
        if waited and type(envelope.message) is HoldsTold:
            self.see_recovery(core)

    def see_recovery(self, core: NodeCore) -> None:
        """A replica was told holds: whether that ended its quarantine, and what it learned."""
        if core.recovery.unheard:
            return
        self.world.saw("a quarantine ended early")
        tables = [view.holds for replica in core.replicas.values() for view in replica.groups.values()]
        if any(table.holds for table in tables):
            self.world.saw("a hold was learned from a peer")

    # ------------------------------------------------------------------- clients

    def on_request(self, caller: tuple[Any, int], request: ClientRequest) -> None:
        """A client asks."""
        client, op = caller
        if type(request) in WRITES:
            if (client.name, op) in self.once:
                return
            self.once[(client.name, op)] = None
        if self.core is None or not self.started:
            self.world.transmit(self.name, client.name, client.on_reply, op, (REFUSAL, None))
            return
        if self.frozen_until > self.world.time:
            self.backlog.append((self.on_request, caller, request))
            return
        self.world.messages += 1
        self.world.count(type(request).__name__)
        self.keys += 1
        self.open[self.keys] = caller
        self.keys_of[(client.name, op)] = self.keys
        self.feed(Request(self.keys, request))

    def on_gone(self, name: str, op: int) -> None:
        """A client's connection is gone, with a request open on it."""
        key = self.keys_of.pop((name, op), None)
        if key is None or key not in self.open:
            return
        if self.frozen_until > self.world.time:
            self.keys_of[(name, op)] = key
            self.backlog.append((self.on_gone, name, op))
            return
        client, _ = self.open[key]
        self.open[key] = (client, -1)
        # Else the core's answer is under way already when the connection ends.
        if self.disk_rng.random() < 0.5:
            self.feed(Gone(key))

    def reply(self, key: int, reply: ClientReply) -> None:
        """Write an answer to whoever asked."""
        client, op = self.open.pop(key)
        if op is None:  # a peer's HELLO
            caller, life, number = client
            answer = (life, number, self.name, self.life)
            self.world.transmit(self.name, caller.name, caller.on_welcome, answer, reply)
            return
        if op == -1:  # the connection is known to be gone: the write is never begun
            if type(reply) is Fetched:
                self.world.saw("a reply was never begun")
                self.feed(Unsent(key))
            return
        self.keys_of.pop((client.name, op), None)
        batches: tuple[Batch, ...] | None = None
        if type(reply) is Fetched:
            try:
                batches = self.bodies(reply.slices)
            except DamagedBody as error:
                self.on_damaged(error)
                self.feed(Unsent(key))
                refusal = Failed("too-few-replicas", "a damaged copy of a batch: ask another node", 1, 0)
                self.world.transmit(self.name, client.name, client.on_reply, op, (refusal, None))
                return
            if any(part.deliveries[0].receipt.owner.node == self.name for part in reply.slices):
                self.observer.on_fetched(self.name, reply)
        self.world.transmit(self.name, client.name, client.on_reply, op, (reply, batches))

    # ------------------------------------------------------------------ deletion

    def check_deleted(self) -> None:
        """Of topics that are deleted nothing is left, once the node has heard of it: no state, no batch.

        A batch that this start could not tell a topic of stays until the next one (`NodeCore.orphans`).
        """
        core, over = self.core, self.observer.is_over
        assert core is not None
        gone = list(filter(over, self.observer.names))
        left = {
            "a register": [
                topic.name for topic in core.topics.values() if over(topic.id) and not topic.deleted
            ],
            "replicas": [found for found in core.replicas if over(found.topic)],
            # A group whose topic's register was damaged, and nobody else has by now, nobody can tell from a new one.
            "groups": [found for found in core.groups if over(found[0]) and found[0] in core.topics],
            "settled groups": [
                found
                for found in core.settled_groups
                if over(found[0].topic) and found[0].topic in core.topics
            ],
            "hints": [found for found in (*core.state.parked, *core.state.active) if over(found[0].topic)],
            "requests": [one for one in core.requests.values() if any(map(one.concerns, gone))],
            "batches": [
                number
                for number, header in self.journal.stored()
                if over(header.partition.topic) and number not in core.orphans
            ],
        }
        for what, found in left.items():
            if found:
                raise SimError(f"node {self.name} still has {what} of a topic that was deleted: {found[:3]}")

    # --------------------------------------------------------------------- faults

    def on_damaged(self, error: DamagedBody) -> None:
        """A batch cannot be read: nobody is sent what its bytes are."""
        self.world.saw("a damaged batch was not served")
        self.journal.set_aside(error.number)
        self.feed(Damaged(error.number))

    def freeze(self, seconds: float) -> None:
        """The process does not run for a while; what comes in waits."""
        if self.core is not None:
            self.frozen_until = max(self.frozen_until, self.world.time + seconds)
            self.world.after(seconds, self.thaw, self.life)

    def thaw(self, life: int, _: object = None) -> None:
        """The process runs again and takes in what has come meanwhile."""
        if life != self.life or self.frozen_until > self.world.time:
            return
        while self.backlog and self.life == life:
            action, one, two = self.backlog.popleft()
            action(one, two)

    def set_disk_full(self, full: bool, life: int) -> None:
        """Only the reserve of disk space is left, or there is space again."""
        if life == self.life and self.core is not None:
            self.feed(DiskFull(full))
