"""Messages of a consumer that were fetched ahead: they arrive, wait, and are given back.

Each of a consumer's replica sets has FETCHes of its own and a bounded share of one buffer. Before a message
is handed over, two checks are made: its deadline, by the clock that stamped the FETCH, has not passed, and its
connection is still up. (docs/protocol.md, FETCH.) Other messages
go back by LEAVE: at close, when their connection is lost, and when they are not used up as soon as expected, so that a
slow handler neither keeps work from other consumers nor uses up deliveries of messages that no handler saw.

It fetches the messages that tasks wait for, and those used up within about half a second (pace.py): a handler that
takes longer finds nothing fetched ahead, and a reader that takes thousands a second has them in the buffer.

A lot of suspects (docs/protocol.md, FETCH) is handed over with nothing beside it. A node hints to a busy consumer
that suspects wait: the consumer then fetches nothing until nothing is in hand. After a lot it fetches first
deliveries, and ignores hints, for as long as the lot took.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import trio
from trio.lowlevel import ParkingLot

from quorumq.client.base.context import REFRESH_S, Context
from quorumq.client.base.message import Message, deadline_of
from quorumq.client.consume.fetching import (
    Reader,
    ReplicaSet,
    brought,
    fetch_from,
    give_back,
    reads_all,
    release_items,
    replica_sets,
)
from quorumq.client.consume.pace import AHEAD_S, Pace
from quorumq.client.consume.settle import chunks, items_of
from quorumq.client.transport.connection import Connection
from quorumq.core import messages as m
from quorumq.core.values.errors import Busy, NotFound, PeerError, QuorumqError, TooFewReplicas, Unauthorized
from quorumq.core.values.limits import LONG_POLL_MAX_S
from quorumq.core.values.types import Span
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SignedNamed, WireSlice

GIVE_BACK_SHARE: Final = 0.5
"""Share of a message's remaining hold time when it arrived, after which it is given back if not handed over."""

LIE_S: Final = 2 * AHEAD_S
"""Seconds after which an unused buffered message is released, if no task that asked for it may return."""

LOOK_S: Final = 1.0
"""Seconds between two polls for a missing topic, and for the end of a condition that stops fetching."""

FRESH_S: Final = 5.0
UNAUTHORIZED_S: Final = 60.0
"""Seconds for which a pool retries when it becomes unauthorized, because the clients file may be changing. A refusal
at its start ends it at once."""

FIRST_S: Final = 1.0
"""Seconds to wait, when idle, for the replica set that reported suspects, before the others are asked."""

REST: Final = 4
"""After an idle period that brought no suspects, hints are ignored for this multiple of its length."""

ACK_TURNS: Final = 2
"""Turns of the loop that the next FETCH leaves to tasks that were handed messages, if no task waits for more. Acks made
at once go first, and the node serves the FETCH while its peers have the ACK, and not the other way about."""

TEND_S: Final = 0.1
"""Seconds between two looks for messages to give back."""

log = logging.getLogger("quorumq.client")


@dataclass(eq=False)
class Fetcher:
    """The partitions that share one replica set, and how much of them is in the buffer."""

    where: ReplicaSet
    first: str = ""  # address of the node to ask first: its home, or the one that answered last
    over: bool = False  # its topic is gone, or no partition has these nodes any more
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # scope of its FETCHes
    buffered: int = 0  # messages in the buffer
    buffered_bytes: int = 0
    wake: trio.Event = field(default_factory=trio.Event)
    error: QuorumqError | None = None  # why its last FETCH got no answer


class Prefetched:
    """A slice of a FETCH's reply, in the buffer."""

    def __init__(
        self, part: WireSlice, fetched: m.FetchReply, connection: Connection, fetcher: Fetcher, now: float
    ) -> None:
        self.part = part
        self.connection = connection
        self.fetcher = fetcher
        self.hold_time = fetched.hold_time
        self.sent_at = fetched.sent_at
        self.deadline = deadline_of(fetched.sent_at, fetched.hold_time)
        self.came = now
        self.give_back_at = now + GIVE_BACK_SHARE * (self.deadline - now)
        self.remaining = part.header.size  # messages not handed over
        self.messages: list[Message] | None = None  # decoded, once it is its turn
        self.at = 0  # the next of these

    def is_stale(self, now: float, soon: int, *, wished: bool) -> bool:
        """Return True if it is to go back. ``soon`` messages will be used soon; ``wished``: a task may ask again."""
        if self.connection.lost or now >= self.give_back_at:
            return True
        return not wished and (now >= self.came + LIE_S or (not soon and now > self.came))


@dataclass(eq=False)
class Prefetch:
    """Buffer of one consumer: fetches ahead, and hands over."""

    context: Context
    unpack: Callable[[Prefetched], list[Message]]  # the messages of a slice in the buffer
    in_hand: Callable[[], int]  # how many messages are handed over and not settled
    waiting: int = 0  # tasks that wait for messages
    requested: int = 0  # messages that they asked for
    wish: int = 0  # messages asked for by a task that stopped waiting, and may ask again
    pace: Pace = field(default_factory=Pace)  # how fast messages are used up
    arrival: ParkingLot = field(default_factory=ParkingLot)  # tasks that wait for messages or for an error
    error: QuorumqError | None = None
    """No replica set has answered for the whole timeout, or a reply was not understood; tasks that wait raise it."""
    fatal: QuorumqError | None = None  # why fetching has ended for good
    given_back: int = 0  # messages given back without having been handed over, so far
    expired: int = 0
    """Messages not handed over because their deadline had passed or their connection was lost, so far."""
    closed: bool = False  # nothing more is handed over
    _lot: list[Prefetched] = field(default_factory=list)
    """Suspects: until all of them are settled nothing else is fetched."""
    _lot_since: float = 0.0  # when room was made for it
    _lot_begun: bool = False  # a part of the lot was handed over
    _had_lot: bool = False  # the last reply with messages was a lot
    _suspects_from: Fetcher | None = None  # fetcher that fetches suspects once no message is in hand
    _next_suspects_from: Fetcher | None = None  # fetcher of a hint that is not acted on yet
    _hinted_at: float = 0.0  # since when
    _pending: int = 0  # messages then in hand or in the buffer
    _pending_at: float = 0.0  # when that changed
    _fresh_until: float = 0.0  # a refusal before this time counts as one at the start
    _refused_at: float | None = None  # time of the first refusal after being allowed; None if not refused
    _deaf_until: float = 0.0  # hints are ignored until then
    _fetchers: list[Fetcher] = field(default_factory=list)
    _buffer: deque[Prefetched] = field(default_factory=deque)  # the first one is being handed over
    _filled: trio.Event = field(default_factory=trio.Event)  # there is some
    _void: dict[bytes, int] = field(default_factory=dict)  # by topic: the last generation that was ended

    # ------------------------------------------------------------------ fetching

    def open(
        self,
        reader: Reader,
        sets: list[ReplicaSet],
        *,
        messages: int,
        size: int,
        patience: float,
        expected: tuple[str, ...] | None = None,
    ) -> None:
        """Have `run` fetch from these, up to ``messages`` messages and ``size`` bytes in all.

        While the consumer makes room for suspects, nothing is fetched as long as a message in hand is settled every
        ``patience`` seconds. Where
        ``expected`` topics are given, even none, fetching waits for these, and for any that is deleted meanwhile.
        """
        self.reader = reader
        self._patience = patience
        self._most, self._most_bytes = messages, size
        self._expected = expected
        self._fresh_until = self.context.clock() + FRESH_S
        self._fetchers = [Fetcher(where) for where in sets]

    async def run(self, nursery: trio.Nursery) -> None:
        """Fetch until cancelled, also from partitions added later. A fetcher without named partitions reads all of
        them."""
        nursery.start_soon(self._tend_buffer)
        for fetcher in self._fetchers:
            nursery.start_soon(self._run_fetcher, fetcher, nursery)
        for name in self._expected or ():
            nursery.start_soon(self._expect, name, nursery, 0.0)
        while True:
            await trio.sleep(REFRESH_S)
            names = dict.fromkeys(fetcher.where.topic for fetcher in self._fetchers if fetcher.where.nodes)
            # Errors are reported by the fetchers themselves.
            for topic in await self.context.present(list(names), self.reader.timeout):
                self._follow(topic.name, replica_sets(topic), nursery)
            await self._go_home()

    async def _go_home(self) -> None:
        """Have each fetcher ask its home, if that can be reached: the node that was started last would have none."""
        for fetcher in [one for one in self._fetchers if one.first and not self.reader.only]:
            home = await self.context.nodes.home_among(fetcher.where.nodes, self.reader.pool)
            fetcher.first = home or fetcher.first

    def _follow(self, name: str, sets: Sequence[ReplicaSet], nursery: trio.Nursery) -> None:
        """Fetch from the present replica sets of a topic. Those that it had before may be of nodes that have left.

        A set that gets a partition is fetched from anew: the FETCH that a node has parked does not name it.
        """
        homes = {fetcher.where.nodes: fetcher for fetcher in self._fetchers if fetcher.where.topic == name}
        if not homes:
            return  # it was deleted meanwhile
        for where in sets:
            fetcher = homes.get(where.nodes)
            if fetcher is not None and reads_all(fetcher.where, where):
                del homes[where.nodes]
                fetcher.where = where
            else:
                self._begin(where, nursery)
        self._drop(homes.values())

    def _begin(self, where: ReplicaSet, nursery: trio.Nursery) -> None:
        fetcher = Fetcher(where)
        self._fetchers.append(fetcher)
        nursery.start_soon(self._run_fetcher, fetcher, nursery)

    async def _expect(self, name: str, nursery: trio.Nursery, wait: float) -> None:
        """Fetch from a topic as soon as it is there."""
        is_told = False
        while True:
            await trio.sleep(wait)
            wait = LOOK_S
            try:
                topic = await self.context.topic(name, timeout=self.reader.timeout)
            except NotFound:
                if not is_told:
                    log.warning("no topic %r is there: group %r waits for it", name, self.reader.group)
                is_told = True
            except (TooFewReplicas, Busy) as exc:
                await trio.lowlevel.checkpoint()  # as in `_fetch`
                self._unanswered(exc)
            except QuorumqError as exc:
                if not self._is_passing(exc):
                    self._fail(exc)
                    return
            else:
                if is_told:
                    log.info("topic %r is there: group %r reads it", name, self.reader.group)
                for where in replica_sets(topic):
                    self._begin(where, nursery)
                return

    async def _run_fetcher(self, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        try:
            with fetcher.scope:
                while not fetcher.over:
                    await self._fetch(fetcher)
        except QuorumqError as exc:  # can never work
            # A consumer that never got an answer lacks the group, and nothing makes it.
            if isinstance(exc, NotFound) and fetcher.first and self._expected is not None:
                self._discard(fetcher, nursery)
            else:
                self._fail(exc)

    def _discard(self, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        """Drop a fetcher whose topic or group is gone: look for the topic that has the name now."""
        name = fetcher.where.topic
        if not fetcher.over:
            nursery.start_soon(self._expect, name, nursery, LOOK_S)
        self._drop([one for one in self._fetchers if one.where.topic == name])

    def _drop(self, fetchers: Iterable[Fetcher]) -> None:
        """End fetchers. Their messages in the buffer stay."""
        for one in fetchers:
            one.over = True
            one.scope.cancel()
            if self._suspects_from is one:
                self._suspects_from = None
            if self._next_suspects_from is one:
                self._next_suspects_from = None
        self._fetchers = [one for one in self._fetchers if not one.over]

    def _fail(self, error: QuorumqError) -> None:
        self.fatal = error
        self.arrival.unpark_all()

    async def _fetch(self, fetcher: Fetcher) -> None:
        fetcher.wake = trio.Event()
        capacity_bytes = max(1, self._most_bytes // len(self._fetchers)) - fetcher.buffered_bytes
        capacity = self._capacity(fetcher)
        if capacity <= 0 or capacity_bytes <= 0:
            if self.requested:
                with trio.move_on_after(LOOK_S):
                    await fetcher.wake.wait()
            else:
                await fetcher.wake.wait()
            for _ in range(ACK_TURNS):
                if not self.requested:
                    await trio.lowlevel.checkpoint()
            return
        idle = self.is_idle()
        hinted = idle and self._suspects_from is fetcher
        first = fetcher.first
        try:
            fetched, connection = await fetch_from(
                self.context,
                fetcher.where,
                self.reader,
                max_messages=capacity,
                max_bytes=capacity_bytes,
                max_wait=0.0 if hinted and len(self._fetchers) > 1 else LONG_POLL_MAX_S,
                first=first,
                idle=idle,
                had_lot=self._had_lot,
            )
        except (TooFewReplicas, Busy) as exc:
            if hinted:
                self._suspects_from = None
            await trio.lowlevel.checkpoint()  # if the client was closed, this ends here, and is no trouble
            fetcher.error = exc
            self._unanswered(exc)
            return
        except Unauthorized as exc:
            if not self._is_passing(exc):
                raise
            fetcher.first = ""  # other nodes may have the right file
            if hinted:
                self._suspects_from = None
            await trio.sleep(LOOK_S)
            return
        if fetcher.first == first:  # else it goes home next
            fetcher.first = connection.address
        self.error = fetcher.error = self._refused_at = None
        self._fresh_until = 0.0
        now = self.context.clock()
        if hinted:
            self._clear_hint(now)
            self.want()
        if fetched.suspects and self._suspects_from is None:
            self._next_suspects_from = fetcher
        if fetched.slices:
            parts = cast("tuple[WireSlice, ...]", fetched.slices)
            came = [Prefetched(part, fetched, connection, fetcher, now) for part in parts]
            for buffer in came:
                fetcher.buffered += buffer.remaining
                fetcher.buffered_bytes += len(buffer.part.body)
                self._buffer.append(buffer)
            self._had_lot = (
                bool(parts[0].deliveries) and parts[0].deliveries[0].suspect
            )  # all are, or none is
            if self._had_lot:
                self._end_lot_if_over()
                if self._lot:  # and a lot from elsewhere
                    self._release_later([item for buffer in came for item in self._take_out(buffer)])
                else:
                    self._next_suspects_from = None
                    self._lot, self._lot_begun = came, False
                    self._lot_since = self._hinted_at if hinted else now
            self._filled.set()
            self.arrival.unpark_all()

    def _is_passing(self, error: QuorumqError) -> bool:
        """Return True if a pool is to ask again after this refusal, and log it."""
        now = self.context.clock()
        if self._expected is None or not isinstance(error, Unauthorized) or now < self._fresh_until:
            return False
        if self._refused_at is None:
            self._refused_at = now
        text = "group %r is refused what it was allowed, and asks on for %g s in all: %s"
        self.context.log.warning(
            ("refused", self.reader.group), text, self.reader.group, UNAUTHORIZED_S, error
        )
        return now < self._refused_at + UNAUTHORIZED_S

    def _capacity(self, fetcher: Fetcher) -> int:
        """Return the number of messages the next FETCH may bring; 0 while that is not worth one."""
        if self._lot:
            self._end_lot_if_over()
            if self._lot:
                return 0
        now = self.context.clock()
        if self._next_suspects_from is not None:
            self._act_on_hint(now)
        if self._suspects_from is not None and self._must_pause(fetcher):
            return 0
        ahead = self.pace.ahead(now, self.waiting)
        count = len(self._fetchers)
        window = min(
            max(1, self._most // count), self.requested + self.wish - (-ahead // count)
        )  # rounded up
        capacity = window - fetcher.buffered
        return capacity if capacity * 4 >= window and capacity > 0 else 0

    def sets(self) -> list[ReplicaSet]:
        return [fetcher.where for fetcher in self._fetchers]

    def is_idle(self) -> bool:
        """Return True if nothing is in hand: only then a FETCH may bring suspects (docs/protocol.md)."""
        return not self.in_hand() and not any(buffer.remaining for buffer in self._buffer)

    def _end_lot_if_over(self) -> None:
        """End the lot when none of it is in the buffer or in hand, or its hold time is over.

        Until then nothing is fetched, and nothing handed over beside it. A task that collects messages and settles none
        of them is not stuck for longer.
        """
        lot = self._lot
        if not lot:
            return
        now = self.context.clock()
        pending = self.in_hand() or any(buffer.remaining for buffer in lot)
        if not (pending and now < lot[0].deadline):
            self._lot = []
            self._deaf_until = now + (now - self._lot_since)

    def _must_pause(self, fetcher: Fetcher) -> bool:
        """Return True while this fetcher must pause, so that the consumer becomes idle for suspects."""
        now = self.context.clock()
        pending = self.in_hand() + sum(one.buffered for one in self._fetchers)
        if pending != self._pending or self._pending_at < self._hinted_at:
            self._pending, self._pending_at = pending, now
        waited = now - self._pending_at
        if not pending:
            return fetcher is not self._suspects_from and waited < FIRST_S
        if waited < self._patience:
            return True
        self._clear_hint(now)
        return False

    def _act_on_hint(self, now: float) -> None:
        """Have the fetcher of the last hint fetch suspects next, unless hints are ignored now."""
        if now >= self._deaf_until:
            self._suspects_from, self._next_suspects_from = self._next_suspects_from, None
            self._hinted_at = now

    def _clear_hint(self, now: float) -> None:
        """End an idle period, or the attempt at one. If it brought no suspects, hints are ignored for a while."""
        self._suspects_from = None
        self._deaf_until = now + REST * (now - self._hinted_at)

    def _unanswered(self, error: QuorumqError) -> None:
        """Have waiting tasks raise an error of one replica set if none of the others answers; else log it."""
        if all(fetcher.error is not None for fetcher in self._fetchers):
            self._trouble(error)
            return
        text = "group %r reads on from other nodes, and a part of the partitions cannot be read: %s"
        self.context.log.warning(("unanswered", self.reader.group), text, self.reader.group, error)

    def _trouble(self, error: QuorumqError) -> None:
        self.error = error
        self.arrival.unpark_all()

    def want(self) -> None:
        """Wake fetchers that may fetch for a task that waits, or was handed something."""
        for fetcher in self._fetchers:
            self._wake(fetcher)

    def _wake(self, fetcher: Fetcher) -> None:
        """Wake the fetcher if a fetch may be useful; while suspects are pending, wake it always."""
        if fetcher.over:  # its topic's buffer outlives it
            return
        if self._suspects_from is not None or self._lot or self._capacity(fetcher):
            fetcher.wake.set()

    def handed(self, count: int) -> None:
        self.wish = 0
        self.pace.handed(self.context.clock(), count)
        self.want()

    def missed(self, count: int) -> None:
        """Note that a task asked for ``count`` messages and left without any: have some if it asks again."""
        self.wish = count
        self.want()

    # ----------------------------------------------------------------- hand-over

    def take(self, most: int) -> list[Message]:
        """Return up to ``most`` messages of one slice, handed over now: deadlines are ahead, the connection is up."""
        self._end_lot_if_over()
        lot = self._lot
        if lot and not self._put_first(lot):
            return []
        while self._buffer and not self.closed:
            buffer = self._buffer[0]
            if lot and buffer not in lot:
                return []
            if buffer.connection.lost or self.context.clock() >= buffer.deadline:
                self.expired += buffer.remaining
                items = self._take_out(buffer)
                if buffer.connection.lost:
                    self._release_later(items)
                continue
            if self._void and self._is_void(buffer):
                self._release_later(self._take_out(buffer))
                continue
            messages = self._open(buffer) if buffer.messages is None else buffer.messages
            taken = messages[buffer.at : buffer.at + most]
            if taken:
                buffer.at += len(taken)
                self._unstock(buffer, len(taken))
                self._lot_begun = bool(lot)
                return taken
            self._take_out(buffer)  # damaged messages in it were not handed over, and are no longer here
        return []

    def _put_first(self, lot: list[Prefetched]) -> bool:
        """Put messages of the lot first if they may be handed over; return True then."""
        if self._lot_begun:
            return True
        if self.in_hand():
            return False
        self._buffer = deque([*lot, *(one for one in self._buffer if one not in lot)])
        return True

    def emptied(self) -> None:
        """Let fetchers and tasks go on that waited until nothing is in hand."""
        if self.waiting:
            self.want()
            if self._buffer:
                self.arrival.unpark_all()

    def _open(self, buffer: Prefetched) -> list[Message]:
        try:
            buffer.messages = self.unpack(buffer)
        except PeerError as exc:
            buffer.messages = []
            self._trouble(exc)
        return buffer.messages

    def _unstock(self, buffer: Prefetched, count: int) -> None:
        buffer.remaining -= count
        buffer.fetcher.buffered -= count

    def rewound(self, topic: bytes, generation: int) -> None:
        """Void generations up to the one that a rewind ended: their buffered messages could no longer be acked.

        Redriven messages may stand if the rewind leaves them out.
        """
        self._void[topic] = max(generation, self._void.get(topic, 0))

    def _is_void(self, buffer: Prefetched) -> bool:
        receipts = [delivery.receipt for delivery in buffer.part.deliveries]
        return any(not it.n and it.generation <= self._void.get(it.partition.topic, -1) for it in receipts)

    # --------------------------------------------------------------- giving back

    def _take_out(self, buffer: Prefetched) -> list[SignedNamed]:
        """Take a slice out of the buffer; return the items by which its messages not handed over are given back."""
        self._buffer.remove(buffer)
        self._unstock(buffer, buffer.remaining)
        buffer.fetcher.buffered_bytes -= len(buffer.part.body)
        self._wake(buffer.fetcher)
        if buffer.messages is None:
            return release_items((buffer.part,))
        rest = buffer.messages[buffer.at :]
        if not rest:  # mostly
            return []
        return [SignedNamed(item.signed, item.spans) for chunk in chunks(items_of(rest)) for item in chunk]

    def _release_later(self, items: list[SignedNamed]) -> None:
        if items:
            self.context.nodes.spawn(self._give_back, items)

    async def _give_back(self, items: list[SignedNamed]) -> None:
        count = sum(span.size for item in items for span in spans_named(item))
        self.given_back += count
        if count:
            text = "%d messages for group %r were fetched ahead and are given back"
            self.context.log.info(("leave", self.reader.group), text, count, self.reader.group)
        await give_back(self.context, items)

    async def release(self, late: Iterable[m.ClientReply]) -> None:
        """Give back everything that was not handed over, and the messages of replies that no task waited for."""
        items = [item for buffer in list(self._buffer) for item in self._take_out(buffer)]
        await self._give_back([*items, *(item for reply in late for item in brought(reply))])

    async def _tend_buffer(self) -> None:
        """Release buffered messages that were not used in time, or whose connection is lost, and reduce the prefetch
        size."""
        while True:
            if not self._buffer:
                self._filled = trio.Event()
                await self._filled.wait()
            await trio.sleep(min(TEND_S, self.reader.hold_time / 20))
            now = self.context.clock()
            soon = self.requested + self.pace.ahead(now, self.waiting)
            wished = self.wish > 0
            stale = [buffer for buffer in self._buffer if buffer.is_stale(now, soon, wished=wished)]
            if not all(buffer.connection.lost for buffer in stale):
                self.pace.slowed()
                self.wish = 0
            self._release_later([item for buffer in stale for item in self._take_out(buffer)])


def spans_named(item: SignedNamed) -> tuple[Span, ...]:
    """Return the spans an item names; of a whole receipt, its own."""
    return item.spans or (read_receipt(item.signed).span,)
