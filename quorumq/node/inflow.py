"""Bytes received on a connection, cut into frames: in one epoll with those of others, or awaited alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import trio

from quorumq.core.messages.effects import Event
from quorumq.core.values.errors import PeerError
from quorumq.core.values.limits import KIB
from quorumq.node.intake import Intake
from quorumq.node.transport import RECEIVE_BYTES, RECEIVE_BYTES_MAX, ConnectionLost, Transport
from quorumq.node.turns import Turns
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, Frame, FrameReader

FRAME_BYTES_PER_S: Final = 64 * KIB
"""If a frame is slower than this, `stall_timeout` apart, its connection ends."""

Take = Callable[[list[Event]], bool]
"""Takes frames out of the reader, and adds events for the core to a list; False if some have to wait."""


class Owner(Protocol):
    """Owner of the bytes."""

    closed: bool

    def may_read(self) -> bool:
        """Return True if anything may be read now; else its bytes stay where they are."""

    async def rest(self) -> None:
        """Wait until more frames may be taken."""

    def give_up(self, reason: str) -> None:
        """Hang up."""


@dataclass(slots=True, eq=False)
class Inflow:
    """Inbound bytes of one connection."""

    turns: Turns
    intake: Intake
    transport: Transport
    owner: Owner
    stall_timeout: float  # seconds without a byte of an incomplete frame after which the connection ends
    reader: FrameReader = field(default_factory=partial(FrameReader, HANDSHAKE_BYTES_MAX))
    """Cuts frames; of the size of a stranger's first one until it is opened up."""
    _part: int = -1  # number of the frame begun, by `FrameReader.frames`, and since when
    _part_since: float = 0.0
    _take: Take = field(init=False)
    _alone: trio.Event | None = None  # while it takes turns: goes off when that is to end
    _broken: Exception | None = None
    _waits: bool = False  # whether complete frames wait for the owner

    async def next_frame(self) -> Frame:
        """Return one frame; before `serve`."""
        while True:
            frame = self.reader.next_frame()
            if frame is not None:
                return frame
            self._feed(await self.transport.receive())

    async def serve(self, feed: Callable[..., None], take: Take) -> None:
        """Read until the connection ends."""
        self._take = take
        owner = self.owner
        while not owner.closed:
            if self._waits:
                await owner.rest()
                if self.transport.hung_up():
                    raise ConnectionLost("the other side closed")
                self._waits = False
                self._part = -1  # the time in which we did not read is not the frame's
            events: list[Event] = []
            try:
                self._waits = not take(events)
            finally:
                if events:
                    feed(*events)
            if self._waits:
                continue
            if not owner.closed and (self.reader.pending_bytes or not await self._take_turns()):
                await self._more()

    async def _take_turns(self) -> bool:
        """Be read together with others, until something is to be waited for; False if that cannot be."""
        if not self.turns.join(self.transport.fileno(), self):
            return False
        self.intake.begun(self.owner, 0)
        self._alone = trio.Event()
        try:
            await self._alone.wait()
        finally:
            self.release()
        if self._broken is not None:
            raise self._broken
        return True

    def take_turn(self, events: list[Event]) -> None:
        if self._alone is None or self._alone.is_set():  # hung up on just now, or its own task goes on
            return
        try:
            self._waits = not self.owner.may_read()
            data = None if self._waits else self.transport.receive_now()
            if data is None and not self._waits:
                return
            while data is not None:
                if data:
                    self.reader.feed(data)
                else:
                    self._feed(data)
                self._waits = not self._take(events)
                if self._waits or self._alone is None:
                    break  # or else it was hung up on, as an answer could not be sent
                if not self.reader.pending_bytes:
                    return
                # The rest of a large frame is mostly received by now. No more than it: the frames after it are for
                # another step. (Over TLS, those that share its last record are taken, too.)
                size = min(self.reader.missing_bytes, RECEIVE_BYTES_MAX)
                if not size or not self.turns.may_go_on(size):
                    break
                data = self.transport.receive_now(size)
        except Exception as error:  # the task that serves the connection ends it
            self._broken = error
        if self._alone is not None:
            self._alone.set()

    def release(self) -> None:
        """Take no more turns. Before the transport is closed."""
        if self._alone is not None:
            self.turns.release(self.transport.fileno())
            self._alone.set()
            self._alone = None

    async def _more(self) -> None:
        """Feed the reader the next bytes. An incomplete frame has to grow, and to be complete some time.

        Raises:
            PeerError: it did not.
        """
        reader, now = self.reader, trio.current_time()
        pending = reader.pending_bytes
        anew = self._part != reader.frames
        if anew:
            self._part, self._part_since = reader.frames, now
        self.intake.begun(self.owner, pending, anew=anew)
        if not pending:
            self._feed(await self.transport.receive())
            return
        timeout = self.stall_timeout
        due = self._part_since + timeout + reader.expected_bytes / FRAME_BYTES_PER_S
        with trio.move_on_at(min(now + timeout, due)) as waiting:
            most = min(max(reader.missing_bytes, RECEIVE_BYTES), RECEIVE_BYTES_MAX)
            data = await self.transport.receive(most)
        if waiting.cancelled_caught:
            progress = f"after {pending} of {reader.expected_bytes} bytes"
            if due < now + timeout:
                raise PeerError(
                    f"a frame did not become complete in {due - self._part_since:g} s, {progress}"
                )
            raise PeerError(f"a frame was begun and did not come on for {timeout:g} s, {progress}")
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if not data:
            self.reader.close()
            raise ConnectionLost("the other side closed")
        self.reader.feed(data)
