"""Room of a node: requests under way and begun, bytes that wait for the disk, and the disk itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio

from quorumq.core import messages as m
from quorumq.core.messages.diskroom import CAPACITIES, Shortage, why_full
from quorumq.core.values.limits import KIB, MIB, SPANS_PER_REQUEST_MAX
from quorumq.node.config import ServeConfig
from quorumq.storage.journal import Journal
from quorumq.wire.values import WireSlice

PENDING_BYTES_MAX: Final = 64 * MIB
"""Most bytes that wait for a commit; above it no connection is read."""

SPACE_CHECK_BYTES: Final = 1 * MIB
"""Appended bytes after which the disk is asked for its free space. It is asked every second too, and after every
commit while it is full. Bytes that other programs write meanwhile have to fit into the reserve."""

STALE_S: Final = 0.1
"""Seconds, or a tenth of its hold time, that a FETCH's reply may wait for the client to read."""


class Connection(Protocol):
    """Connection to hang up on if too many frames are begun."""

    def give_up(self, reason: str) -> None:
        """Hang up."""


@dataclass(eq=False)
class Intake:
    """Bounds of the requests under way, the frames begun, and the bytes that wait for the disk."""

    config: ServeConfig
    store: Journal  # bytes that wait for a commit, and the disk's free bytes
    log: Any
    inflight_bytes: int = 0  # bytes of requests that are not answered yet
    paused: bool = False  # no new requests of clients are taken
    _lot: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _waiting: int = 0  # tasks that are parked there
    _parts: dict[Connection, int] = field(default_factory=dict)
    """Bytes of frames that are not complete, the oldest frame first."""
    _parts_bytes: int = 0
    _committed: int = 0  # bytes since the disk was asked, less those that waited for a commit then

    @property
    def pressed(self) -> bool:
        """True if too much is under way to take in more requests."""
        return (
            self.inflight_bytes >= self.config.inflight_bytes_max
            or self.store.pending_bytes >= PENDING_BYTES_MAX
        )

    def take(self, weight: int) -> None:
        """Count ``weight`` bytes of requests under way; negative when they are answered."""
        self.inflight_bytes += weight
        if weight < 0 and self._waiting:
            self.wake()

    def begun(self, connection: Connection, size: int, *, anew: bool = False) -> None:
        """Note the received bytes of an incomplete frame; 0 when it is complete, or when the connection is over.

        They have a bound of their own, over all connections, of the size of ``inflight_bytes_max``. Beyond it the
        connection that began first is hung up on: frames that stay incomplete must not keep out those of others.

        Args:
            anew: it is another frame than the last time.
        """
        if anew or not size:
            self._parts_bytes -= self._parts.pop(connection, 0)
        if size:
            self._parts_bytes += size - self._parts.get(connection, 0)
            self._parts[connection] = size
        most = self.config.inflight_bytes_max
        while self._parts_bytes > most:
            oldest = next(iter(self._parts))
            oldest.give_up(
                f"{self._parts_bytes} bytes of frames are begun in {len(self._parts)} connections, and at most "
                f"{most} may be (inflight_bytes_max): this one began first"
            )

    def wake(self) -> None:
        """Less is under way, or less waits for the disk."""
        if self._waiting and not self.pressed:
            self._lot.unpark_all()

    async def wait(self) -> None:
        """Wait until requests may be taken in."""
        while self.pressed or self.paused:
            self._waiting += 1
            try:
                await self._lot.park()
            finally:
                self._waiting -= 1

    def committed(self, size: int) -> None:
        """Count ``size`` bytes that a commit has written."""
        self._committed += size

    @property
    def check_due(self) -> bool:
        """True if more than `SPACE_CHECK_BYTES` were appended since the disk was asked."""
        return self._committed + self.store.pending_bytes > SPACE_CHECK_BYTES

    def remake_reserve(self) -> None:
        """Make the disk's last reserve anew if it is missing and fits.

        Raises:
            StorageError: the disk does not say how much is free.
        """
        store = self.store
        needed = store.start_bytes + store.owed_bytes + store.reserve_bytes // 10
        if store.owed_bytes and store.free_bytes >= needed:
            store.reserve()

    def shortage(self, before: Shortage, *, stalled: bool) -> Shortage:
        """Return the shortage of space on the disk, and log it if it changes.

        At the edge it would flap with every commit: so it counts as fuller until there is a tenth more.

        Raises:
            StorageError: the disk does not say how much is free.
        """
        store = self.store
        self._committed = -store.pending_bytes
        free, reserve, more = store.free_bytes, store.kept_free, store.reserve_bytes // 10
        shortage = Shortage.FULL if stalled else self._shortage_at(free)
        if shortage < before and self._shortage_at(free - more) >= before:
            shortage = before
        capacity = CAPACITIES[shortage]
        if shortage > before:
            reason = why_full(shortage, self.config.node)
            fields = {"free": free, "reserve": reserve, "data_dir": self.config.data_dir}
            self.log.warning("disk_full", capacity=capacity, reason=reason, **fields)
        elif shortage < before:
            self.log.info("disk_not_full", capacity=capacity, free=free, reserve=reserve)
        return shortage

    def _shortage_at(self, free: int) -> Shortage:
        """Return the shortage with ``free`` bytes, once the last reserve, if missing, is made of them."""
        store = self.store
        free -= store.owed_bytes
        if free >= store.kept_free:
            return Shortage.NONE
        if not store.last_bytes or free >= store.start_bytes:
            return Shortage.RESERVE
        return Shortage.LAST_RESERVE if free + store.last_bytes >= store.start_bytes else Shortage.FULL


def stale_after(reply: m.FetchReply) -> float:
    """Return the seconds that a FETCH's reply may wait for the client to read."""
    return min(STALE_S, reply.hold_time / 10)


def foreign_bytes(reply: m.ClientReply) -> int:
    """Return the bytes of records that a reply keeps in memory: those from another node. Ours are read later."""
    if not isinstance(reply, m.FetchReply | m.PeekReply | m.ShowReply):
        return 0
    parts: tuple[object, ...] = reply.slices
    return sum(len(part.body) for part in parts if isinstance(part, WireSlice))


def weight_of(request: Any, frame_bytes: int) -> int:
    """Return the bytes that a request may cost while it is under way, its answer's values included."""
    match request:
        case m.Fetch():
            return frame_bytes + KIB + 32 * min(max(0, request.max_messages), 1 << 16)
        case m.PeekRequest():
            return frame_bytes + KIB + 256 * min(max(0, request.limit), SPANS_PER_REQUEST_MAX)
        case m.Metadata() | m.StatusRequest() | m.ShowRequest() | m.DescribeGroups():
            return frame_bytes + 256 * KIB
    return 2 * frame_bytes + KIB
