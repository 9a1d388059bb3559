"""The node's core, driven: its effects on sockets and files, and timers.

Why there is no inbox: everything runs on one event loop, and `Node.feed` is synchronous. A connection that has read
a message feeds it, the core steps, its effects are carried out, and all messages to send are in the sockets when
`feed` returns. No task is woken in between, nothing queues up, and a connection reads no further before its
last message was dealt with.

When an effect is carried out is decided in quorumq/driver.py. After a failed commit `failed` is set first, and from
then on nothing is sent to anyone, neither answers that waited for that commit nor those queued before it.

This module has no notion of a HOLD or a majority.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Final, Protocol

import trio

from quorumq.core import messages as m
from quorumq.core.messages import effects as e
from quorumq.core.messages.records import JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.errors import Code, StorageError, TooLarge
from quorumq.core.values.types import Batch, NodeId, Now, PartitionId
from quorumq.driver import Driver
from quorumq.history import HistoryWriter
from quorumq.node.changes import Changes
from quorumq.node.clients import Clients
from quorumq.node.commits import CommitRunner
from quorumq.node.committer import Committer
from quorumq.node.config import ServeConfig
from quorumq.node.health import Health
from quorumq.node.intake import Intake
from quorumq.node.producers import ProducerClocks
from quorumq.node.readers import Readers
from quorumq.node.reread import ConfigFile
from quorumq.node.shares import Shares
from quorumq.node.slices import read_slice
from quorumq.node.trace import Trace
from quorumq.node.traffic import Traffic
from quorumq.node.turns import Turns
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal
from quorumq.wire.batch import decode_header
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import encode_message
from quorumq.wire.receipts import key_number, sign_slices

TIMER_S: Final = 0.0005
"""Seconds by which a call may be early and still be due: the timer's clock is another one."""

NAMES_LOOKED_S: Final = 3600.0
"""Seconds between counts of the names of topics and groups."""

EXIT_AGAIN: Final = -1
"""Not the end of the process: it begins again from its directory."""

EXIT_OK: Final = 0
EXIT_BUG: Final = 70
EXIT_STORAGE: Final = 74
EXIT_REFUSED: Final = 78


class Caller(Protocol):
    """Target of the answer to a request: its name for the log, and its client, by name or address."""

    name: str
    whose: str

    def reply(self, key: int, reply: m.ClientReply) -> None:
        """Send ``reply``, or feed `Unsent` if that will certainly not happen."""

    def clients_changed(self) -> None:
        """Hang up on a client that may not be here any more."""


class Flushing(Protocol):
    """Something that has bytes to send at the end of a step."""

    def flush(self) -> None:
        """Send them."""


class Link(Flushing, Protocol):
    """Our connection to a peer."""

    @property
    def waiting(self) -> int:
        """Bytes queued."""

    def send(self, chunks: list[bytes | memoryview], answer: m.RemoteFetchReply | None = None) -> bool:
        """Queue a frame; False if the queue is full and the frame was dropped.

        Args:
            answer: message to give back if the link ends before the frame is begun; None if it need not be.
        """

    def has_capacity(self) -> bool:
        """Return True if anything can be queued now."""


@dataclass(eq=False)
class Node:
    """One running node."""

    core: NodeCore  # built from ``store``'s records; not started yet
    store: Journal  # replayed, not rolled yet
    config: ServeConfig
    _: KW_ONLY
    clock: Callable[[], Now]  # reads both clocks
    rng: InitVar[random.Random]  # given to the core
    commits: InitVar[CommitRunner]
    log: Any
    history: InitVar[HistoryWriter | None] = None
    """Writes the node's, wherever that goes; None: to the file that ``config`` names, if any."""
    file: ConfigFile | None = None  # that ``config`` was read from; None if that does not change
    readers: Readers = field(default_factory=Readers)
    traffic: Traffic = field(default_factory=Traffic)
    links: dict[NodeId, Link] = field(default_factory=dict)  # our connections to peers, by node id
    callers: dict[int, Caller] = field(default_factory=dict)  # callers that wait for the reply to a key
    shown: dict[int, Caller] = field(
        default_factory=dict
    )  # connections of clients that have shown their identity
    failed: tuple[int, str] | None = None
    """Exit code and reason once the node must stop; nothing is sent from then on."""
    ended: trio.Event = field(default_factory=trio.Event)  # set with ``failed``
    _keys: int = 0
    _dirty: dict[int, Flushing] = field(default_factory=dict)
    _last: tuple[m.PeerMessage | None, int, list[bytes | memoryview]] = (None, 0, [])  # that was encoded
    _timer_scope: trio.CancelScope | None = None
    _timer_at: float = math.inf  # when it wakes at the latest (monotonic seconds)
    _to_dial: dict[NodeId, trio.Event] = field(default_factory=dict)
    _names_at: float = -math.inf  # when names are counted again (monotonic seconds)
    _lost: dict[PartitionId, int] = field(default_factory=dict)  # counts that the log has said last
    when_members_change: Callable[[], None] = lambda: None

    def __post_init__(self, rng: random.Random, commits: CommitRunner, history: HistoryWriter | None) -> None:
        core, store, config, log = self.core, self.store, self.config, self.log
        clock = self.now = self.clock
        self.health, self.trace = (
            Health(config, clock),
            Trace(config, log, history, core.catalogue.cluster.present),
        )
        self.changes, self.producer_clocks = Changes(log), ProducerClocks(log)
        self.shares = Shares(lambda: clock().mono)
        self.turns = Turns(self.feed, self.shares.begin)
        self.keys = {key_number(secret): secret for secret in config.secrets}  # the cluster's, by number
        self.secret_number, self.secret = next(iter(self.keys.items()))  # signed with, and shown to peers
        self.intake = Intake(config, store, log)
        self.committer = Committer(store, commits, lambda: core.snapshot(clock()), self, log)
        self.driver = Driver(core, self, self.committer, rng)
        path = config.clients_file
        self.clients = Clients(path, log, config.hold_time_max) if path else None
        self._moved, self._cluster = core.trust.moved, core.catalogue.cluster
        self._resyncing = core.trust.resync is not None or bool(store.not_trusted)

    # ---------------------------------------------------------------- start and end

    def start(self) -> None:
        """Make this start durable, blocking for the disk: then the node may speak. StorageError if it is refused."""
        now = self.clock()
        self.store.roll(lambda: self.core.snapshot(now))
        self.driver.start()
        self.committer.commit()
        self._or_stop(self.driver.synced)
        self.feed()
        state = self.core.state
        self.trace.found(self.core.replicas.values())
        self.trace.started(state.incarnation, waits=state.quarantine_until > self.clock().mono)

    @property
    def silent(self) -> bool:
        """True if nothing may be sent or answered any more."""
        return self.driver.silent

    @property
    def has_failed(self) -> bool:
        return self.failed is not None

    def fall_silent(self) -> None:
        """Send and answer nothing any more."""
        self.driver.silent = True

    def fail(self, code: int, reason: str, **fields: object) -> None:
        """Stop: say nothing more to anyone, and end with ``code``. The first reason counts."""
        if self._end(code, reason):
            self.log.error("node_stops", reason=reason, exit_code=code, **fields)

    def _end(self, code: int, reason: str) -> bool:
        if self.failed is not None:
            return False
        self.failed = (code, reason)
        self.driver.silent = self.driver.ended = True
        self.ended.set()
        return True

    def _or_stop(self, function: Callable[..., None]) -> None:
        """Call ``function``. Any exception that it raises is the end of the node."""
        try:
            function()
        except Exception as error:
            self._stop_by(error)

    def _stop_by(self, error: Exception) -> None:
        """Stop the node because of an error in a place that must not raise."""
        if isinstance(error, StorageError):
            self.fail(EXIT_STORAGE, str(error))
        else:
            self.fail(EXIT_BUG, f"a bug in this node: {error!r}", exc_info=True)

    async def settled(self) -> None:
        """Wait until everything appended is durable, or the node has failed, or its disk has no room."""
        while (
            self.failed is None
            and (self.committer.committing or self.store.needs_sync)
            and not self.committer.stalled
        ):
            self.driver.commit_all()
            await self.committer.rest()

    # ----------------------------------------------------------------------- events

    def key(self) -> int:
        """Return a fresh key for a request."""
        self._keys += 1
        return self._keys

    def feed(self, *events: e.Event) -> None:
        """Take events in and carry out everything that follows from them. Never raises."""
        if events and (len(events) > 1 or type(events[0]) is not e.Received):
            of_clients = [event for event in events if type(event) is not e.Received]
            self.traffic.noticed(of_clients, self.clock().mono)
            self.changes.noticed(of_clients, self.callers, self.core.catalogue)
        driver = self.driver
        try:
            driver.feed(*events)
        except Exception as error:
            self._stop_by(error)
        if self.core.context.adopted:
            self.changes.adopted(self.core.context.adopted)
        if not driver.busy:
            self._arm(driver.mono)
            cluster = self.core.state.catalogue.cluster
            if cluster is not self._cluster:
                self._cluster = cluster
                self.when_members_change()
            if (self._moved or self._resyncing) and not driver.silent:
                self._note_trust()

    def _note_trust(self) -> None:
        """Say when this directory is trusted, and end its resync."""
        core = self.core
        if self._moved and not core.trust.moved and core.trust.journal_location is not None:
            self._moved = False
            self.log.warning("directory_trusted", reason=core.trust.journal_location.why)
        if self._resyncing and core.state.trusted and not self.committer.committing:
            self._end_resync()

    def _end_resync(self) -> None:
        """Trust the directory again, from the next segment on, which says so: the core votes again, durably."""
        self._resyncing = False
        self.log.info("resync_over")
        if self.store.not_trusted:
            self.store.trusted()
            self.committer.roll()

    def dirty(self, item: Flushing) -> None:
        """Have ``item`` flushed at the end of this step."""
        self._dirty[id(item)] = item
        if not self.driver.busy:
            self._dirty.pop(id(item)).flush()

    def flush(self) -> None:
        """Send the queued messages, unless the node is silent."""
        if self.driver.silent:
            self._dirty.clear()
        while self._dirty:  # messages lost by it may feed back
            dirty, self._dirty = self._dirty, {}
            for item in dirty.values():
                item.flush()

    # ---------------------------------------------------------------------- effects

    def end(self, effect: e.Stop | e.Restart) -> None:
        if isinstance(effect, e.Stop):
            self.fail(EXIT_REFUSED, effect.reason)
        elif self._end(
            EXIT_AGAIN, effect.reason
        ):  # the process builds another node from the directory (serve.py)
            self.log.warning("resync_begins", reason=effect.reason)

    def raised(self, effect: e.Raised) -> None:
        self.health.count("requests_failed")
        reason = repr(effect.error)
        self.log.error("request_failed", request=effect.request, reason=reason, exc_info=effect.error)

    def send(self, to: NodeId, message: m.PeerMessage) -> None:
        link = self.links.get(to)
        if link is None or not link.has_capacity():
            self._drop(message)
            return
        stamp = self.core.state.clock.value
        answer = message if isinstance(message, m.RemoteFetchReply) and message.slices else None
        try:
            chunks = self._encode(message, stamp)
        except StorageError:
            raise
        except Exception as error:  # a wait for its answer ends by time-out; nothing else fails
            kind = type(message).__name__
            self.log.error("message_not_sent", peer=to, message=kind, reason=str(error), exc_info=error)
            self.health.count("messages_not_sent")
            self._drop(message)
            return
        if link.send(chunks, answer):
            self._dirty[id(link)] = link
        else:
            self._drop(message)

    def _encode(self, message: m.PeerMessage, stamp: int) -> list[bytes | memoryview]:
        if isinstance(message, m.RemoteFetchReply) and message.slices:
            return self._encode_fetched(message, stamp)
        if isinstance(message, m.ReplicaPeekReply) and message.page is not None and message.page.slices:
            return self._encode_page(message, message.page, stamp)
        last, at, chunks = self._last
        if last is not message or at != stamp:
            chunks = encode_message(message, stamp=stamp)
            self._last = (message, stamp, chunks)  # to several peers: encoded once
        return chunks

    def _drop(self, message: m.PeerMessage) -> None:
        self.health.count("sends_dropped")
        if isinstance(message, m.RemoteFetchReply) and message.slices:
            self.feed(e.Unposted(message))

    def _encode_fetched(self, message: m.RemoteFetchReply, stamp: int) -> list[bytes | memoryview]:
        """Encode holds won on behalf of a peer's client, signed and with their bytes; if that fails, the reason."""
        try:
            signed = sign_slices(message.slices, secret=self.secret, key=self.secret_number)
            answer = message._replace(slices=signed)
            return encode_message(answer, stamp=stamp, read=self.read_slice)
        except DamagedBatch as error:
            self.damaged(error.number, error)
            detail = f"node {self.config.node} has a damaged copy of a batch: ask another node"
        except KeyError:  # forgotten since the core answered: its topic was deleted, or its group rewound
            detail = "a batch of this answer was dropped while it waited to be sent: ask again"
        except TooLarge as error:
            detail = f"{error}: ask for less at once"
        self.feed(e.Unposted(message))
        refusal = m.RemoteFetchReply(message.round, Code.TOO_FEW_REPLICAS, detail, ())
        return encode_message(refusal, stamp=stamp)

    def _encode_page(
        self, message: m.ReplicaPeekReply, page: m.PeekReply, stamp: int
    ) -> list[bytes | memoryview]:
        """Encode a page of PEEK for a peer's client, with its bytes; without, if they cannot be had or sent."""
        try:
            return encode_message(message, stamp=stamp, read=self.read_slice)
        except DamagedBatch as error:
            self.damaged(error.number, error)
        except (KeyError, TooLarge):  # its topic was deleted meanwhile; or deaths take up the frame
            pass
        return encode_message(message._replace(page=page._replace(slices=())), stamp=stamp)

    def send_stored(self, effect: e.SendStored) -> None:
        to, epoch, number, age_ms = effect
        link = self.links.get(to)
        if link is None or not link.has_capacity():
            self.health.count("sends_dropped")
            return
        try:
            raw = self.store.raw_header(number)
            body = self.store.read_slice(number)
            batch = Batch(decode_header(raw), raw, body)
        except (KeyError, DamagedBatch, BadValue) as error:
            self.damaged(number, error)
            return
        message = m.Store(0, epoch, batch, age_ms)
        if link.send(encode_message(message, stamp=self.core.state.clock.value)):
            self._dirty[id(link)] = link

    def reply(self, key: int, reply: m.ClientReply) -> None:
        self.traffic.answered(key, reply, self.clock().mono)
        self.changes.answered(key, reply)
        caller = self.callers.pop(key, None)
        if caller is None:
            if isinstance(reply, m.FetchReply):
                self.feed(e.Unsent(key))
                self.trace.given_back(reply, "the client is gone")
            return
        if isinstance(reply, m.StatusReply) and "node" in reply.fields:  # else it goes on with partitions
            status = {**reply.fields, **self.health.fields(self.intake.inflight_bytes, self.store)}
            status |= self.producer_clocks.fields(self.driver.mono)
            status["insecure"] = bool(self.config.exposed)
            status["clients_file_problem"] = self.clients.problem if self.clients is not None else ""
            status["config_file_problem"] = self.file.problem if self.file is not None else ""
            status["needs_restart"] = self.file.needs_restart if self.file is not None else []
            reply = reply._replace(fields=status)
        if isinstance(reply, m.DescribeGroupsReply):
            known, now = self.core.catalogue.topics, self.driver.mono
            reply = reply._replace(groups=self.readers.describe(reply.groups, known, now))
        caller.reply(key, reply)

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        if self.trace.on:
            self.trace.durable(records, self.core.catalogue.topics)

    # ----------------------------------------------------------------------- commits

    def appended(self) -> None:
        if self.intake.check_due:
            self._check_space()

    def wrote(self) -> None:
        self.intake.wake()

    def synced(self, seconds: float, size: int) -> None:
        self.health.synced(seconds, self.driver.mono)
        self.traffic.fsyncs.note(seconds)
        self.intake.committed(size)
        self._or_stop(self.driver.synced)
        if not self.driver.silent:  # nothing may stand behind CLEAN_STOP
            self.committer.roll_if_due()
            self.committer.compact()
        self.intake.wake()
        if self.intake.check_due or self.core.state.disk_shortage or self.store.owed_bytes:
            self._check_space()
        if not self.driver.busy:  # else the step that began it goes on
            self.feed()

    def disk_filled(self) -> None:
        self._check_space()

    def disk_failed(self, error: BaseException) -> None:
        if isinstance(error, StorageError):
            self.fail(EXIT_STORAGE, str(error))
        else:
            self.fail(EXIT_BUG, f"a bug in this node: {error!r}")

    # ------------------------------------------------------------------------ timers

    async def run_timers(self) -> None:
        """Step the core when its next deadline is due. Runs until cancelled."""
        while True:
            with trio.CancelScope() as scope:
                self._timer_scope = scope
                self._timer_at = math.inf
                self._arm(self.clock().mono)
                await trio.sleep_forever()
            self._timer_scope = None
            due = self.driver.next_deadline()
            if due is not None and due <= self.clock().mono + TIMER_S:
                self.feed()

    def _arm(self, mono: float) -> None:
        """Have the timer task wake in time; sooner than needed does no harm."""
        due = self.driver.next_deadline()
        if due is not None and due < self._timer_at and self._timer_scope is not None:
            self._timer_at = due
            seconds = max(0.0, due - mono)
            self._timer_scope.deadline = trio.current_time() + seconds
            self.turns.wake_within(seconds)

    # ------------------------------------------------------------------------- links

    async def pause_dialling(self, peer: NodeId, seconds: float) -> None:
        """Wait before dialling ``peer`` again: for ``seconds``, or until it dials us."""
        self._to_dial[peer] = trio.Event()
        with trio.move_on_after(seconds):
            await self._to_dial[peer].wait()

    def peer_dialled(self, peer: NodeId) -> None:
        """Dial ``peer`` at once if we have no link to it: it is up, and waits for that."""
        if peer in self._to_dial:
            self._to_dial[peer].set()

    # -------------------------------------------------------------------- what is seen

    def _check_space(self) -> None:
        if self.failed is not None:
            return
        before = self.core.state.disk_shortage
        try:
            self.intake.remake_reserve()
            shortage = self.intake.shortage(before, stalled=self.committer.stalled)
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
            return
        if shortage != before:
            self.feed(e.DiskFull(shortage))

    def _check_memory(self) -> None:
        """Refuse new messages above `memory_max`, until a tenth of it is free again."""
        most, full = self.config.memory_max, bool(self.core.state.memory_full)
        if most is None or self.failed is not None:
            return
        used = self.health.rss()
        if not full and used > most:
            self.log.warning("memory_full", rss=used, memory_max=most)
            refusal = (
                f"node {self.config.node} takes {used} bytes of memory, and may take {most} (memory_max): "
                "no publishes, new topics and new groups until that is less; let consumers ack what is there"
            )
            self.feed(e.MemoryFull(refusal))
        elif full and used <= most - most // 10:
            self.log.info("memory_not_full", rss=used, memory_max=most)
            self.feed(e.MemoryFull(""))

    async def watch(self) -> None:
        """Every second look at memory, disk and files, mark the durable records, and flush. Runs until cancelled."""
        while True:
            self.committer.retry()
            self._check_space()
            self._check_memory()
            self.committer.mark_if_quiet()
            self._report_lost()
            self._report_names()
            self.trace.flush()
            for _ in range(2):  # a change of a file counts after two looks
                if self.clients is not None and self.clients.refresh():
                    for connection in list(self.shown.values()):
                        connection.clients_changed()
                if self.file is not None and self.file.refresh(self.log):
                    config = self.file.config
                    self.feed(e.MovesLimited(config.move_bytes_per_s, config.moves_at_once))
                await trio.sleep(0.5)

    def _report_names(self) -> None:
        """Say, every hour, that half of the names are taken: without any left no topic or group can be made."""
        now = self.clock().mono
        if now < self._names_at:
            return
        self._names_at = now + NAMES_LOOKED_S
        used = self.core.catalogue.names_used()
        if used.are_half_gone:
            self.log.warning("names_run_out", **used._asdict())

    def _report_lost(self) -> None:
        """Log the partitions with messages that no replica has, or that a replica has again."""
        for partition, replica in self.core.replicas.items():
            lost, before = replica.batches.lost, self._lost.get(partition, 0)
            if lost != before:
                self._lost[partition] = lost
                say = self.log.error if lost > before else self.log.warning
                say("messages_lost", topic=replica.topic.name, partition=partition.number, messages=lost)
        for partition in [
            lost_partition for lost_partition in self._lost if lost_partition not in self.core.replicas
        ]:
            del self._lost[partition]

    # ----------------------------------------------------------------------- reading

    def read_slice(self, part: m.Slice) -> bytes | memoryview:
        """Return the bytes of a slice, checked; raises as `quorumq.node.slices.read_slice` does."""
        return read_slice(self.store, part)

    def damaged(self, number: int, error: Exception) -> None:
        """Note that a batch cannot be read here: the core chooses it no more, and fetches it from a peer."""
        self.store.set_aside(number)
        self.log.error("batch_damaged", batch=number, error=str(error))
        self.feed(e.Damaged(number))
