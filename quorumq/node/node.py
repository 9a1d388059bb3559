"""The node's core, carried out: effects in order, group commit, timers.

Why there is no inbox: everything runs on one event loop, and `Node.feed` is synchronous. A connection that has read
a message feeds it, the core steps, its effects are carried out, and what there is to send is in the sockets when
`feed` returns. No task is woken in between, nothing queues up, and a connection reads no further before its
last message was dealt with. What an effect feeds back (a token, a message to ourselves) is taken in by the call
that is running already: the core is never entered twice.

The rule that everything here obeys is in core/effects.py: `Persist.then` is carried out after the commit, and
there is one place that does it, `_carry_out_waiting`. After a failed commit `failed` is set first, and from then on
nothing is sent to anyone: not what waited for that commit, and not what was queued before it.

Nothing here knows what a HOLD or a majority is.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import trio
from crc32c import crc32c

from quorumq.core.effects import (
    Damaged,
    DiskFull,
    Done,
    Durable,
    Event,
    Forget,
    Persist,
    Received,
    Reply,
    Restart,
    Send,
    SendStored,
    Stop,
    Unposted,
    Unsent,
)
from quorumq.core.errors import QuorumqError, StorageError, TooLarge
from quorumq.core.limits import MIB
from quorumq.core.messages import (
    ClientReply,
    Envelope,
    Fetched,
    PeekReply,
    PeerMessage,
    RemoteFetched,
    Slice,
    StatusReply,
    Store,
)
from quorumq.core.nodecore import NodeCore
from quorumq.core.records import BatchStored, GroupPut, TopicPut
from quorumq.core.types import Batch, NodeId, Now, PartitionId
from quorumq.node.commits import CommitRunner
from quorumq.node.config import ServeConfig
from quorumq.node.health import Health
from quorumq.node.trace import Trace
from quorumq.storage.commit import Commit
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal
from quorumq.wire.batch import Corrupt, decode_header
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import encode_message
from quorumq.wire.receipts import seal_slices

LAZY_COMMIT_S: Final = 0.05
"""How long records that nobody waits for may stay in memory."""

UNSYNCED_S: Final = 1.0
"""How long what was published with durability "os" may stay without an fsync."""

PENDING_BYTES_MAX: Final = 64 * MIB
"""What may wait for a commit; above it no connection is read."""

CHECKED_WHOLE_BYTES: Final = 256 * 1024
"""Batches up to this size are checked as a whole whenever a part of one is read."""

SPACE_CHECK_BYTES: Final = 1 * MIB
"""The disk is asked for its room after every commit, and whenever so much more waits for the next one."""

EXIT_AGAIN: Final = -1
"""Not the end of the process: it begins again from its directory."""

EXIT_OK: Final = 0
EXIT_BUG: Final = 70
EXIT_STORAGE: Final = 74
EXIT_REFUSED: Final = 78


class Asker(Protocol):
    """Where the answer to a request goes."""

    def reply(self, key: int, reply: ClientReply) -> None:
        """Send ``reply``, or feed `Unsent` if that will certainly not happen."""


class Flushing(Protocol):
    """Something that has bytes to send at the end of a step."""

    def flush(self) -> None:
        """Send them."""


class Link(Flushing, Protocol):
    """Our connection to a peer."""

    @property
    def waiting(self) -> int:
        """Bytes queued."""

    def send(self, pieces: list[bytes | memoryview], answer: RemoteFetched | None = None) -> bool:
        """Queue a frame; False where the queue is full and the frame was dropped.

        Args:
            pieces: of the frame.
            answer: what it says, where that has to be given back if the link ends before the frame is begun.
        """

    def has_room(self) -> bool:
        """Whether anything can be queued now."""


class Noted(NamedTuple):
    """Behind a `Persist.then`: these batches and registers are durable, for the history."""

    records: tuple[BatchStored | GroupPut | TopicPut, ...]


Then = Send | Reply | Done | Noted


class Node:
    """One running node.

    Args:
        core: built from ``store``'s records; not started yet.
        store: replayed, not rolled yet.
        config: for limits.
        clock: reads both clocks.
        rng: given to the core.
        commits: runs commits.
        log: structured logger.

    Attributes:
        links: our connections to peers, by node id.
        askers: who waits for the reply to a key.
        failed: exit code and reason once the node must stop; nothing is sent from then on.
        ended: set with ``failed``.
        silent: nothing may be sent or answered any more.
        paused: no new requests of clients are taken.
    """

    def __init__(
        self,
        core: NodeCore,
        store: Journal,
        config: ServeConfig,
        *,
        clock: Callable[[], Now],
        rng: random.Random,
        commits: CommitRunner,
        log: Any,
    ) -> None:
        self.core = core
        self.store = store
        self.config = config
        self.clock = clock
        self.log = log
        self.health = Health(config, clock)
        self.trace = Trace(config, log)
        self.links: dict[NodeId, Link] = {}
        self.askers: dict[int, Asker] = {}
        self.failed: tuple[int, str] | None = None
        self.ended = trio.Event()
        self.silent = False
        self.paused = False
        self.inflight_bytes = 0
        self._rng = rng
        self._commits = commits
        self._keys = 0
        self._events: deque[Event] = deque()
        self._stepping = False
        self._waiting: deque[tuple[int, tuple[Then, ...]]] = deque()  # (ticket, then)
        self._hasty: deque[tuple[int, tuple[Then, ...]]] = deque()  # likewise, for what needs no fsync
        self._ever_hasty = (
            False  # then no fsync is waited for on the loop: what needs none would wait with it
        )
        self._writing = False  # a commit that begins a segment is under way: nothing else may write
        self._syncing: Commit | None = None
        self._sync_wanted = False  # though nobody waits for it
        self._lazy_at = math.inf  # when a commit that syncs is due at the latest
        self._dirty: dict[int, Flushing] = {}
        self._last: tuple[PeerMessage | None, int, list[bytes | memoryview]] = (None, 0, [])
        self._timer_scope: trio.CancelScope | None = None
        self._room = trio.Event()
        self._space_checked = 0  # bytes that waited for a commit then
        self._to_dial: dict[NodeId, trio.Event] = {}
        self._idle = trio.Event()
        self._suspected = core.suspected
        self._resyncing = core.resync is not None or bool(store.cannot_vouch)
        self._lost: dict[PartitionId, int] = {}  # what the log has said last

    # ---------------------------------------------------------------- start and end

    def start(self) -> None:
        """Make this start durable. Blocks for the disk; the node may speak when this returned.

        Raises:
            StorageError: the disk refused.
        """
        now = self.clock()
        self.store.roll(lambda: self.core.snapshot(now))
        self._stepping = True
        for effect in self.core.start(now):
            assert isinstance(effect, Persist), "the first effects are durable before anything else"
            self._persist(effect)
        self._stepping = False
        self.store.commit()
        self._carry_out_waiting()
        self.feed()
        self.trace.started(self)

    def fail(self, code: int, reason: str, **facts: object) -> None:
        """Stop: say nothing more to anyone, and end with ``code``. The first reason counts."""
        if self.failed is None:
            self.failed = (code, reason)
            self.silent = True
            self.log.error("node_stops", reason=reason, exit_code=code, **facts)
            self.ended.set()

    def _begin_again(self, reason: str) -> None:
        """This start is over: the process builds another node from the directory (serve.py)."""
        if self.failed is None:
            self.failed = (EXIT_AGAIN, reason)
            self.silent = True
            self.log.warning("resync_begins", reason=reason)
            self.ended.set()

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._syncing is not None

    async def settled(self) -> None:
        """Wait until everything appended is durable, or the node has failed."""
        while self.failed is None and (self.committing or self.store.needs_sync):
            self._idle = trio.Event()
            self._commit_all()
            if self.committing:
                await self._idle.wait()

    # ----------------------------------------------------------------------- events

    def key(self) -> int:
        """A fresh key for a request."""
        self._keys += 1
        return self._keys

    def feed(self, *events: Event) -> None:
        """Take events in and carry out everything that follows from them. Never raises."""
        self._events.extend(events)
        if self._stepping or self.failed is not None:
            return
        self._stepping = True
        now = self.clock()
        try:
            while True:
                some = list(self._events)
                self._events.clear()
                for effect in self.core.step(some, now, self._rng):
                    self._carry_out(effect)
                if not self._events:
                    self._end_of_step()
                if not self._events or self.failed is not None:
                    break
                now = self.clock()
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
        except Exception as error:
            self.fail(EXIT_BUG, f"a bug in this node: {error!r}", exc_info=True)
        finally:
            self._stepping = False
        self._arm(now)

    def _end_of_step(self) -> None:
        """Send first: a peer's fsync is further away than ours."""
        if self.silent:
            self._dirty.clear()
            return
        self._flush()
        if self._waiting or self._hasty:
            self._commit(sync=bool(self._waiting))
            self._flush()
        if self._suspected and not self.core.suspected and self.core.placed is not None:
            self._suspected = False
            self.log.warning("directory_trusted", reason=self.core.placed.why)
        if self._resyncing and self.core.state.vouched and not self.committing:
            self._end_resync()

    def _flush(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for item in dirty.values():
                item.flush()

    def _end_resync(self) -> None:
        """The core vouches again, durably: so may the directory, from the next segment on, which says so."""
        self._resyncing = False
        self.log.info("resync_over")
        if self.store.cannot_vouch:
            self.store.vouch()
            self._roll()

    def dirty(self, item: Flushing) -> None:
        """Have ``item`` flushed at the end of this step."""
        self._dirty[id(item)] = item
        if not self._stepping:
            self._dirty.pop(id(item)).flush()

    # ---------------------------------------------------------------------- effects

    def _carry_out(self, effect: Any) -> None:
        if self.silent and not isinstance(effect, Persist):
            return
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Reply(key, reply):
                self._reply(key, reply)
            case Persist():
                self._persist(effect)
            case Done(token):
                self._events.append(Durable(token, self.store.position))
            case SendStored():
                self._send_stored(effect)
            case Forget(numbers):
                self.store.forget(numbers)
                self._commit_lazily()
            case Stop(reason):
                self.fail(EXIT_REFUSED, reason)
            case Restart(reason):
                self._begin_again(reason)
            case Noted(records):
                self.trace.durable(self, records)

    def _send(self, to: NodeId, message: PeerMessage) -> None:
        state = self.core.state
        stamp = state.clock.value
        if to == state.me:
            envelope = Envelope(to, state.incarnation, to, state.incarnation, stamp, message)
            self._events.append(Received(envelope))
            return
        link = self.links.get(to)
        if link is None or not link.has_room():
            self._drop(message)
            return
        if isinstance(message, RemoteFetched) and message.slices:
            pieces = self._encode_fetched(message, stamp)
            queued = link.send(pieces, message)
        elif isinstance(message, PeekReply) and message.slices:
            queued = link.send(self._encode_page(message, stamp))
        else:
            last, at, pieces = self._last
            if last is not message or at != stamp:
                pieces = encode_message(message, stamp=stamp)
                self._last = (message, stamp, pieces)  # to several peers: encoded once
            queued = link.send(pieces)
        if queued:
            self._dirty[id(link)] = link
        else:
            self._drop(message)

    def _drop(self, message: PeerMessage) -> None:
        """There is no way to send ``message`` now."""
        self.health.count("sends_dropped")
        if isinstance(message, RemoteFetched) and message.slices:
            self._events.append(Unposted(message))

    def _encode_fetched(self, message: RemoteFetched, stamp: int) -> list[bytes | memoryview]:
        """What was won on behalf of a peer's client, sealed and with its bytes; where that fails, why."""
        try:
            sealed = seal_slices(message.slices, secret=self.config.secret_bytes)
            answer = message._replace(slices=sealed)
            return encode_message(answer, stamp=stamp, read=self.read_slice)
        except DamagedBatch as error:
            self.damaged(error.number, error)
            detail = f"node {self.config.node} has a damaged copy of a batch: ask another node"
        except KeyError:  # forgotten since the core answered: its topic was deleted
            detail = "a batch of this answer was dropped while it waited to be sent: ask again"
        except TooLarge as error:
            detail = f"{error}: ask for less at once"
        self._events.append(Unposted(message))
        refusal = RemoteFetched(message.round, "too-few-replicas", detail, ())
        return encode_message(refusal, stamp=stamp)

    def _encode_page(self, message: PeekReply, stamp: int) -> list[bytes | memoryview]:
        """A page of PEEK for a peer's client, with its bytes; where they cannot be had or sent, without."""
        try:
            return encode_message(message, stamp=stamp, read=self.read_slice)
        except DamagedBatch as error:
            self.damaged(error.number, error)
        except (KeyError, TooLarge):  # its topic was deleted meanwhile; or letters take up the frame
            pass
        return encode_message(message._replace(slices=()), stamp=stamp)

    def _send_stored(self, effect: SendStored) -> None:
        to, epoch, number, age_ms = effect
        link = self.links.get(to)
        if link is None or not link.has_room():
            self.health.count("sends_dropped")
            return
        try:
            raw = self.store.raw_header(number)
            body = self.store.read_slice(number)
            batch = Batch(decode_header(raw), raw, body)
        except (KeyError, DamagedBatch, BadValue) as error:
            self.damaged(number, error)
            return
        message = Store(0, epoch, batch, age_ms)
        if link.send(encode_message(message, stamp=self.core.state.clock.value)):
            self._dirty[id(link)] = link

    def _reply(self, key: int, reply: ClientReply) -> None:
        asker = self.askers.pop(key, None)
        if asker is None:
            if isinstance(reply, Fetched):
                self._events.append(Unsent(key))
                self.trace.given_back(reply, "the client is gone")
            return
        if isinstance(reply, StatusReply):
            reply = StatusReply({**reply.facts, **self.health.facts(self)})
        asker.reply(key, reply)

    # ----------------------------------------------------------------- group commit

    def _persist(self, effect: Persist) -> None:
        ticket = self.store.append(effect.records)
        if self.store.pending_bytes > self._space_checked + SPACE_CHECK_BYTES:
            self._check_space()
        then: tuple[Then, ...] = effect.then
        if self.trace.on and effect.records:
            noted = tuple(
                record for record in effect.records if isinstance(record, BatchStored | GroupPut | TopicPut)
            )
            then = (Noted(noted), *then) if noted else then
        if not then:
            self._commit_lazily()
            return
        self._ever_hasty = self._ever_hasty or not effect.sync
        waiting, reached = (
            (self._waiting, self.store.durable) if effect.sync else (self._hasty, self.store.written)
        )
        if ticket <= reached and not waiting:
            for item in then:
                self._carry_out(item)
        else:
            waiting.append((ticket, then))

    def _commit_lazily(self) -> None:
        """Nobody waits for what was appended: the next commit takes it, and one comes soon."""
        self._sync_within(LAZY_COMMIT_S)

    def _sync_within(self, seconds: float) -> None:
        self._lazy_at = min(self._lazy_at, self.clock().mono + seconds)

    def _commit_all(self) -> None:
        """Have everything appended fsynced, as soon as no other commit is in the way."""
        self._sync_wanted = True
        self._commit()

    def _commit(self, sync: bool = False) -> None:
        """Write what was appended, and start an fsync unless one is under way: then the next commit has it.

        Args:
            sync: whether somebody waits for the fsync. Without, it only writes, if somebody waits for that; it may
                do so while an fsync is under way, and its own follows within `UNSYNCED_S`.
        """
        if self._writing or self.failed is not None:
            return
        if (sync or self._sync_wanted) and self._syncing is None:
            self._sync_wanted = False
            self._lazy_at = math.inf
            if not self.store.needs_sync:
                self._carry_out_waiting()
                return
            self._writing = self.store.rolling
            self._syncing = commit = self.store.begin_commit()
            if self._writing or self._write(commit):
                here = sync and not self._writing and not self._ever_hasty
                self._commits.start(commit, self._committed, here=here)
        elif self._hasty and self.store.needs_write and not self.store.rolling:
            self._sync_within(UNSYNCED_S)
            if (
                self._write(self.store.begin_commit(sync=False))
                and self.store.should_roll
                and not self.silent
            ):
                self._roll()

    def _write(self, commit: Commit) -> bool:
        """Write on the loop: that is a copy in memory. Whether the system took it."""
        try:
            commit.write()
            self.store.note_written(commit)
        except StorageError as error:
            self._syncing = None if commit is self._syncing else self._syncing
            self.fail(EXIT_STORAGE, str(error))
            return False
        if self._hasty:
            self._carry_out_waiting()
        if not self.pressed:
            self._room.set()
        return True

    def _committed(self, commit: Commit, error: BaseException | None, seconds: float) -> None:
        """On the loop: the disk has it, or has refused. What waited for it may be said now, or never."""
        self._writing = False
        self._syncing = None
        self._idle.set()
        if self.failed is not None:
            with contextlib.suppress(StorageError):
                self.store.finish(commit)
            return
        try:
            if error is not None and not isinstance(error, QuorumqError):
                self.fail(EXIT_BUG, f"a bug in this node: {error!r}")
                return
            self.store.finish(commit)
        except StorageError as failure:
            self.fail(EXIT_STORAGE, str(failure))
            return
        self.health.synced(seconds)
        self._carry_out_waiting()
        if not self.silent:  # nothing may stand behind CLEAN_STOP
            if not self.store.rolling and self.store.should_roll:
                self._roll()
            self._reclaim()
        if not self.pressed:
            self._room.set()
        self._check_space()
        if self._sync_wanted:
            self._commit()
        self.feed()

    def _carry_out_waiting(self) -> None:
        stepping, self._stepping = self._stepping, True  # what follows is fed afterwards
        try:
            while self._hasty and self._hasty[0][0] <= self.store.written:
                for item in self._hasty.popleft()[1]:
                    self._carry_out(item)
            while self._waiting and self._waiting[0][0] <= self.store.durable:
                for item in self._waiting.popleft()[1]:
                    self._carry_out(item)
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
        except Exception as error:
            self.fail(EXIT_BUG, f"a bug in this node: {error!r}", exc_info=True)
        finally:
            self._stepping = stepping

    def _reclaim(self) -> None:
        """Go on emptying old segments, a little after each fsync until there is none worth it."""
        before = self.store.pending_bytes
        try:
            damaged = self.store.reclaim()
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
            return
        if self.store.pending_bytes > before:
            self._commit_all()
        for number in damaged:
            self.damaged(number, DamagedBatch("found while it was copied out of an old segment", number))

    def _roll(self) -> None:
        """The segment is full: begin another with a snapshot of now. Between two steps, so it is whole."""
        now = self.clock()
        try:
            self.store.roll(lambda: self.core.snapshot(now))
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
            return
        self.log.info("segment_begun", segments=len(self.store.live))
        self._commit_all()

    # ------------------------------------------------------------------------ timers

    async def run_timers(self) -> None:
        """Step the core when its next deadline comes. Runs until cancelled."""
        while True:
            with trio.CancelScope() as scope:
                self._timer_scope = scope
                self._arm(self.clock())
                await trio.sleep_forever()
            self._timer_scope = None
            if self.clock().mono >= self._lazy_at:
                self._lazy_at = math.inf
                self._commit_all()
            self.feed()

    def _arm(self, now: Now) -> None:
        """Have the timer task wake in time; sooner than needed does no harm."""
        scope = self._timer_scope
        if scope is None:
            return
        due = self.core.next_deadline()
        at = self._lazy_at if due is None else min(due, self._lazy_at)
        deadline = math.inf if at == math.inf else trio.current_time() + max(0.0, at - now.mono)
        if deadline < scope.deadline:
            scope.deadline = deadline

    # ------------------------------------------------------------------------- links

    async def pause_dialling(self, peer: NodeId, seconds: float) -> None:
        """Wait before dialling ``peer`` again: so long, or until it dials us."""
        self._to_dial[peer] = trio.Event()
        with trio.move_on_after(seconds):
            await self._to_dial[peer].wait()

    def peer_dialled(self, peer: NodeId) -> None:
        """``peer`` is up: it waits for our link to it, so we dial at once, if we have none."""
        if peer in self._to_dial:
            self._to_dial[peer].set()

    # ---------------------------------------------------------------- room and pressure

    @property
    def pressed(self) -> bool:
        """Whether too much is under way to take in more requests."""
        return (
            self.inflight_bytes >= self.config.inflight_bytes_max
            or self.store.pending_bytes >= PENDING_BYTES_MAX
        )

    def take_weight(self, weight: int) -> None:
        """``weight`` bytes of requests are under way; negative when they are answered."""
        self.inflight_bytes += weight
        if weight < 0 and not self.pressed:
            self._room.set()

    async def room(self) -> None:
        """Wait until requests may be taken in."""
        while self.pressed or self.paused:
            if self._room.is_set():  # never replace an event that others wait for
                self._room = trio.Event()
            await self._room.wait()

    def _check_space(self) -> None:
        if self.failed is not None:
            return
        self._space_checked = self.store.pending_bytes
        try:
            free = self.store.free_bytes
        except StorageError as error:
            self.fail(EXIT_STORAGE, str(error))
            return
        reserve = self.store.kept_free
        full = self.core.state.disk_full
        # Full until there is a tenth more than the reserve: at the edge it would flap with every commit.
        if not full and free < reserve:
            self.log.warning("disk_full", free=free, reserve=reserve, data_dir=self.config.data_dir)
            self.feed(DiskFull(True))
        elif full and free >= reserve + reserve // 10:
            self.log.info("disk_has_room", free=free, reserve=reserve)
            self.feed(DiskFull(False))

    async def watch(self) -> None:
        """Look at the free space when nothing is written, too, and flush the history. Runs until cancelled."""
        while True:
            self._check_space()
            self._report_lost()
            self.trace.flush()
            await trio.sleep(1.0)

    def _report_lost(self) -> None:
        """Say where messages were found to be nowhere, or came back."""
        for partition, replica in self.core.replicas.items():
            lost, before = replica.lost, self._lost.get(partition, 0)
            if lost != before:
                self._lost[partition] = lost
                say = self.log.error if lost > before else self.log.warning
                say("messages_lost", topic=replica.topic.name, partition=partition.number, messages=lost)
        for partition in [found for found in self._lost if found not in self.core.replicas]:
            del self._lost[partition]

    # ----------------------------------------------------------------------- reading

    def read_slice(self, part: Slice) -> bytes | memoryview:
        """The bytes of a slice, checked against the CRCs of the batch or of its records.

        Raises:
            DamagedBatch: they are not what was published.
            StorageError: the disk cannot be read.
        """
        header = part.header
        start, stop = header.end_of(part.first - 1), header.end_of(part.stop - 1)
        size = header.end_of(header.size - 1)
        whole = size <= CHECKED_WHOLE_BYTES or 2 * (stop - start) >= size
        data = self.store.read_slice(part.batch, start, stop, check=whole)
        if not whole:
            try:
                check_records(part, data)
            except Corrupt as error:
                raise DamagedBatch(str(error), part.batch) from None
        return data

    def damaged(self, number: int, error: Exception) -> None:
        """A batch cannot be read here: the core chooses it no more, and fetches it from a peer."""
        self.store.set_aside(number)
        self.log.error("batch_damaged", batch=number, error=str(error))
        self.feed(Damaged(number))


def check_records(part: Slice, data: bytes | memoryview) -> None:
    """See that ``data`` is records [first, stop) of a batch as they were published.

    Raises:
        Corrupt: a record has another CRC-32C.
    """
    header = part.header
    base = at = header.end_of(part.first - 1)
    view = memoryview(data)
    for index in range(part.first, part.stop):
        end = header.end_of(index)
        if crc32c(view[at - base : end - base]) != header.crc_of(index):
            raise Corrupt(f"batch {header.key()}: record {index} is damaged on disk")
        at = end
