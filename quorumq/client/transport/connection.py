"""One connection to one node, on trio.

Two tasks per connection: one reads and hands each reply to its waiter, one writes the queued frames, as much as there
is at once. A frame that finds nothing queued before it is given to the socket itself, which takes it mostly; and bytes
that arrive are taken from the socket itself, once it is there.
No other task touches the stream, so a waiter that is cancelled never leaves half a frame behind.

A third looks for signs of life while a request waits: a machine that stands still keeps its connections, and takes
all that fits into its buffers. If no byte was received for a while it asks for one, by a LEAVE of nothing, which any
node answers at once. Without an answer, requests that may as well be carried out twice are sent elsewhere first;
later all are. A node that is only slow answers, and keeps its requests.

A waiter whose connection dies needs to know whether its request may have reached the node: a frame
that the writer never began is *not sent*, which makes the difference between NotStored and OutcomeUnknown.
"""

from __future__ import annotations

import math
import os
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from quorumq.client.transport.protocol import ClientProtocol
from quorumq.client.transport.tls import Authorities, TlsStream
from quorumq.core import messages as m
from quorumq.core.values.errors import PeerError, QuorumqError, Unanswered, UsageError
from quorumq.core.values.limits import INFLIGHT_REQUESTS_MAX
from quorumq.wire.address import split_address
from quorumq.wire.tls import own_ca, plain_hint
from quorumq.wire.tls import reason_of as tls_reason_of

RECEIVE_BYTES: Final = 256 * 1024
RECEIVE_BYTES_MAX: Final = 1024 * 1024
"""Bytes read at once in the middle of a larger reply."""

WRITE_BYTES: Final = 1024 * 1024
"""Bytes that one write takes from the queue, about."""

INFLIGHT_MAX: Final = INFLIGHT_REQUESTS_MAX - 56
"""Requests of one connection that this side lets wait at once: fewer than the node reads ahead, so that an
EXTEND is never stuck behind them unread."""

TICK_S: Final = 0.2
"""Seconds between two looks at a connection with waiting requests. All that follows is counted in ticks, not in
seconds, so that a client that stood still itself does not take its own pause for the node's."""

PING_TICKS: Final = 1
"""Ticks without a byte after which a sign of life is asked for."""

PATIENT_PING_TICKS: Final = 5
"""The same if all waiting requests are FETCHes and others that are not sent elsewhere."""

SILENT_TICKS: Final = 2
"""Ticks without one after that until requests go elsewhere that may be carried out twice."""

LOST_TICKS: Final = 10
"""Ticks without one until the connection is given up."""

REPEATABLE: Final = frozenset({
    m.Publish, m.AckRequest, m.ExtendRequest, m.ReleaseRequest, m.Metadata, m.OpenSession,
})  # fmt: skip
"""Requests that may be under way at two nodes at once: done by both, they have one effect, or cost nothing. Not FETCH,
which would hold twice as many messages; nor REJECT, whose second copy gets `HoldLost` if the message was settled anew
in between."""

Dial = Callable[[str], Awaitable[trio.abc.Stream]]
Orphan = Callable[["Connection", m.ClientReply], None]


class Lost(Exception):
    """The connection is gone, or a request on it had no answer in time.

    Args:
        sent: whether the request may have reached the node.
    """

    def __init__(self, cause: str, *, sent: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.sent = sent


@dataclass(slots=True, eq=False)
class Waiter:
    """One request on its way."""

    number: int
    chunks: list[bytes | memoryview]
    orphan: Orphan | None
    repeatable: bool
    end: float  # until when it waits at most, by trio's clock
    late: bool = False  # that is over
    ticks: int = 0  # for how long it waits
    event: trio.Event | None = field(default_factory=trio.Event)
    reply: m.ClientReply | None = None
    sent: bool = False
    withdrawn: bool = False


async def dial_tcp(address: str) -> trio.SocketStream:
    """Return a TCP stream to "host:port" (IPv6 as "[::1]:port"); UsageError if that is no address."""
    host, port = split_address(address)
    try:
        return await trio.open_tcp_stream(host, port)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not the name of a host: {error}") from None


def dial_tls(ca: str) -> Dial:
    """Make a dial by TLS: a node shows a certificate for its address, of authorities in the PEM file ``ca``."""
    authorities = Authorities(ca)

    async def dial(address: str) -> trio.abc.Stream:
        host, _ = split_address(address)
        stream = TlsStream(await dial_tcp(address), authorities.context(), host)
        try:
            await stream.handshake()
        except OSError as error:  # also from ssl
            await trio.aclose_forcefully(stream)
            hint = plain_hint(True) if ca == own_ca() else ""
            raise ConnectionError(f"{reason_of(error)}{hint}") from None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    return dial


class Connection:
    """A connection to one node, once HELLO was accepted. Made by `open_connection`."""

    def __init__(self, address: str, stream: trio.abc.Stream, protocol: ClientProtocol) -> None:
        assert protocol.welcome is not None
        self.address = address
        self.welcome = protocol.welcome
        self.lost: str = ""
        """Why the connection is gone; "" while it is there."""
        self.ended = trio.Event()
        """Set once `run` has ended and the stream is closed."""
        self.ended_here = False
        """True once this side hangs up."""
        self.on_members: Callable[[m.MetadataReply], None] = lambda reply: None
        """Called with the members of the cluster when the node says, unasked, that these have changed."""
        self.silent = False
        """True after a sign of life was asked for and has not arrived."""
        self.late: list[m.ClientReply] = []
        """Replies that arrived during `finish` to requests without a waiter."""
        self._finishing = False
        self._tls = stream if isinstance(stream, TlsStream) else None
        self._stream = stream if self._tls is None else self._tls.inner
        self._tick_s: float = getattr(stream, "tick_s", TICK_S)  # a stream in memory may need fewer looks
        self._protocol = protocol
        self._waiters: dict[int, Waiter] = {}
        self._outbox: deque[Waiter] = deque()
        self._rest: bytes | memoryview = b""  # rest of a frame that the socket did not take
        self._writing = False  # the stream is the writer's
        # None if the bytes do not go into a socket
        socket = self._stream.socket if isinstance(self._stream, trio.SocketStream) else None
        self._socket = socket if os.name == "posix" else None
        self._wake = trio.Event()
        self._asked = trio.Event()  # set while a request waits
        self._has_received = False  # anything, since the last tick
        self._slots = trio.Semaphore(INFLIGHT_MAX)
        self._time = trio.lowlevel.current_clock().current_time
        self._scope = trio.CancelScope()

    @property
    def node(self) -> str:
        """The id of the node at the other end."""
        return self.welcome.node

    async def run(self) -> None:
        """Read and write until the connection is lost or `close` is called. Raises nothing but Cancelled."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._write)
                    nursery.start_soon(self._guard, self._read)
                    nursery.start_soon(self._watch)
        finally:
            self._fail(self.lost or "the connection was closed here")
            with trio.CancelScope(shield=True):
                # Forceful: queued bytes are of no use once no caller waits for the replies.
                await trio.aclose_forcefully(self._stream)
            self.ended.set()

    def close(self) -> None:
        """Hang up. Waiters get `Lost`."""
        self.ended_here = True
        self._fail("the connection was closed here")

    @property
    def has_orphans(self) -> bool:
        """Return True if a request without a waiter may still be answered, and the answer be given back."""
        return any(it.orphan is not None and it.event is None for it in self._waiters.values())

    async def finish(self) -> None:
        """Send queued frames and hang up, but read on until the node has as well.

        The node drops the FETCHes that it had parked for this connection. A reply that it had begun by then, to a
        request without a waiter, is in `late`: with `close`, the messages of a FETCH would wait for their holds.
        If the node does not answer this waits, so give it a deadline, and `close` after it.
        """
        self._finishing = self.ended_here = True
        self._wake.set()
        await self.ended.wait()

    async def ask(
        self, request: m.ClientRequest, *, timeout: float, orphan: Orphan | None = None
    ) -> m.ClientReply:
        """Send a request and wait for its reply, which may be `Failed`.

        Args:
            orphan: called (in another task, perhaps, and must not block) with a reply that arrives after this wait
                was cancelled or timed out.

        Raises:
            Lost: the connection went, the time is over, or the node gives no sign of life and the request may as well
                go to another; ``sent`` says whether the node may have it.
            TooLarge: the request is over a limit of the wire; nothing was sent.
        """
        end = self._time() + timeout
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_at(end) as waiting:
                await self._slots.acquire()
            if waiting.cancelled_caught:
                raise Lost(f"no answer within {timeout:.3g} s", sent=False) from None
        try:
            if self.lost:
                raise Lost(self.lost, sent=False)
            waiter = self.post(request, orphan, end)
            if timeout >= self._tick_s:
                await self._replied(waiter)
            else:  # it may be over before the next tick begins
                with trio.move_on_at(end):
                    await self._replied(waiter)
        finally:
            self._slots.release()
        if waiter.reply is not None:
            return waiter.reply
        if self.lost or not (waiter.late or self._time() >= end):
            raise Lost(
                self.lost or f"no sign of life for {waiter.ticks * self._tick_s:g} s", sent=waiter.sent
            )
        raise Lost(f"no answer within {timeout:.3g} s", sent=waiter.sent)

    async def _replied(self, waiter: Waiter) -> None:
        """Wait until there is a reply, or none is waited for any more."""
        assert waiter.event is not None
        try:
            await waiter.event.wait()
        except trio.Cancelled:
            if waiter.reply is not None and waiter.orphan is not None:  # answered in the same moment
                waiter.orphan(self, waiter.reply)
                waiter.reply = None
            raise
        finally:
            waiter.event = None
            if waiter.reply is None and not self.lost:
                self._abandon(waiter)

    def post(self, request: m.ClientRequest, orphan: Orphan | None = None, end: float = math.inf) -> Waiter:
        """Queue a request without waiting; nothing happens if the connection is lost.

        Args:
            end: time at which the reply's waiter stops waiting, by trio's clock.

        Raises:
            TooLarge: the request is over a limit of the wire.
            Lost: the connection is gone.
        """
        if self.lost or self._finishing:
            raise Lost(self.lost or "the connection was closed here", sent=False)
        number, chunks = self._protocol.request(request)
        waiter = Waiter(number, chunks, orphan, type(request) in REPEATABLE, end)
        self._waiters[number] = waiter
        self._outbox.append(waiter)
        if len(self._outbox) > 1 or self._writing or self._rest or not self._send_now(waiter):
            self._wake.set()
        self._asked.set()
        return waiter

    def _send_now(self, waiter: Waiter) -> bool:
        """Give the only frame that is queued to the socket; whether that took all of it. An error is the writer's."""
        if self._socket is None:
            return False
        data = b"".join(waiter.chunks)
        if self._tls is not None:
            data = self._tls.encrypt(data)
        try:
            taken = os.write(self._socket.fileno(), data)
        except OSError:
            if self._tls is None:
                return False
            taken = 0  # an encrypted record has to be sent next
        self._outbox.clear()
        waiter.sent = True
        waiter.chunks = []
        self._rest = memoryview(data)[taken:]
        return taken == len(data)

    def _abandon(self, waiter: Waiter) -> None:
        """Take a request without a waiter back if it is still here."""
        if not waiter.sent:
            waiter.withdrawn = True
            self._waiters.pop(waiter.number, None)
            self._protocol.withdraw(waiter.number)

    def _fail(self, cause: str) -> None:
        if self.lost:
            return
        self.lost = cause
        self._scope.cancel()
        waiters, self._waiters = self._waiters, {}
        self._outbox.clear()
        for waiter in waiters.values():
            if waiter.event is not None:
                waiter.event.set()

    async def _guard(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run one of the two tasks; its end, by any cause, ends the connection with its reason."""
        try:
            await task()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as exc:
            self._fail(f"the connection broke: {reason_of(exc)}")
        except PeerError as exc:
            self._fail(f"not the protocol: {exc}")
        except QuorumqError as exc:
            self._fail(str(exc))

    async def _write(self) -> None:
        while True:
            self._wake = trio.Event()
            while self._outbox or self._rest:
                chunks: list[bytes | memoryview] = []
                rest, self._rest = self._rest, b""
                size = len(rest)
                while self._outbox and size < WRITE_BYTES:
                    waiter = self._outbox.popleft()
                    if not waiter.withdrawn:
                        waiter.sent = True
                        chunks += waiter.chunks
                        size += sum(map(len, waiter.chunks))
                        waiter.chunks = []
                if self._tls is not None:
                    chunks = [self._tls.encrypt(b"".join(chunks))]
                self._writing = True
                await self._stream.send_all(b"".join((rest, *chunks)))
                self._writing = False
            if self._finishing:
                break
            await self._wake.wait()
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            self.close()

    async def _watch(self) -> None:
        quiet = pinged = 0  # ticks without a byte, and since a sign of life was asked for
        while True:
            if not self._waiters:
                self._asked = trio.Event()
                await self._asked.wait()
            self._has_received = False
            await self._tick()
            if self._has_received or self._finishing or not self._waiters:
                quiet = pinged = 0
                continue
            quiet += 1
            has_retryable = False
            for waiter in self._waiters.values():
                waiter.ticks += 1
                has_retryable = has_retryable or (waiter.repeatable and waiter.event is not None)
            if pinged:
                pinged += 1
            elif quiet >= (PING_TICKS if has_retryable else PATIENT_PING_TICKS):
                self.post(m.ReleaseRequest(()))
                pinged = 1
            if pinged > SILENT_TICKS:
                self.silent = True
                self._send_elsewhere()
            if pinged > LOST_TICKS:
                self._fail(f"no sign of life for {quiet * self._tick_s:g} s")

    async def _tick(self) -> None:
        """Let a tick pass. Whose time is over meanwhile hears of it at that moment: a deadline for each would cost more
        than all else that is done for a request here."""
        remaining = self._tick_s
        while remaining > 0:
            now = self._time()
            ends = [it.end for it in self._waiters.values() if it.event is not None and not it.late]
            pause = max(0.0, min(remaining, min(ends, default=math.inf) - now))
            await trio.sleep(pause)
            remaining -= pause
            now = self._time()
            for waiter in self._waiters.values():
                if waiter.end <= now and waiter.event is not None:
                    waiter.late = True
                    waiter.event.set()

    def _send_elsewhere(self) -> None:
        """Wake those that have waited in vain for long enough and may ask another node."""
        for waiter in self._waiters.values():
            if waiter.repeatable and waiter.event is not None and waiter.ticks > SILENT_TICKS:
                waiter.event.set()

    async def _read(self) -> None:
        socket = self._socket
        read_size = RECEIVE_BYTES
        while True:
            if socket is None:
                data: bytes | bytearray = await self._stream.receive_some(RECEIVE_BYTES)
            else:
                await trio.lowlevel.wait_readable(socket)
                try:
                    data = os.read(socket.fileno(), read_size)
                except BlockingIOError:
                    continue
            self._has_received = True
            self.silent = False
            if not data:
                self._protocol.close()
                self._fail(f"node {self.node} closed the connection")
                return
            read = len(data)
            if self._tls is not None:
                data = self._tls.decrypt(data)
            for number, reply in self._protocol.receive(data):
                waiter = self._waiters.pop(number, None)
                if waiter is None:
                    if isinstance(reply, m.MetadataReply) and not number:
                        self.on_members(reply)
                    continue
                if waiter.event is not None:
                    waiter.reply = reply
                    waiter.event.set()
                elif self._finishing:
                    self.late.append(reply)
                elif waiter.orphan is not None:
                    waiter.orphan(self, reply)
            read_size = RECEIVE_BYTES if read < RECEIVE_BYTES else self._wanted()

    def _wanted(self) -> int:
        """Return the number of bytes to ask for: all that is missing of a large reply, within reason."""
        return min(max(self._protocol.missing_bytes, RECEIVE_BYTES), RECEIVE_BYTES_MAX)


async def open_connection(
    address: str,
    *,
    dial: Dial,
    cluster_id: str,
    wall_ms: int,
    timeout: float,
    token: str = "",
    on_behalf: str = "",
) -> Connection:
    """Dial a node and say HELLO.

    Args:
        cluster_id: must be the node's; "" takes any.
        wall_ms: the client's time of day, in milliseconds since 1970.
        token: proof of the client's identity; "" if nodes do not ask.
        on_behalf: name of the client for which a gateway asks; "" for the client itself.

    Raises:
        Lost: no answer at all or in time, not the protocol, or a node that has too many clients; ``sent`` is False.
        UsageError: the node refused HELLO: another cluster, no common version, not allowed.
    """
    protocol = ClientProtocol(cluster_id, token, on_behalf)
    stream: trio.abc.Stream | None = None
    done = False
    try:
        with trio.move_on_after(timeout):
            try:
                stream = await dial(address)
            except UsageError as exc:  # an address from the nodes, which this client cannot mend
                raise Lost(str(exc), sent=False) from exc
            await stream.send_all(protocol.hello(wall_ms))
            while protocol.welcome is None:
                data = await stream.receive_some(RECEIVE_BYTES)
                if not data:
                    hint = plain_hint(isinstance(stream, TlsStream))
                    raise Lost(f"the connection was closed before HELLO was answered{hint}", sent=False)
                protocol.receive(data)
            done = True
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
        raise Lost(reason_of(exc), sent=False) from exc
    except PeerError as exc:
        raise Lost(f"not the protocol: {exc}{plain_hint(isinstance(stream, TlsStream))}", sent=False) from exc
    except Unanswered as exc:  # it has no room for another client
        raise Lost(str(exc), sent=False) from exc
    finally:
        if not done and stream is not None:
            await trio.aclose_forcefully(stream)
    if stream is None:
        raise Lost(f"no connection within {timeout:.3g} s", sent=False)
    if not done:
        text = "it accepts connections, so the node is frozen, or another program has its port"
        raise Lost(f"no answer to HELLO within {timeout:.3g} s: {text}", sent=False)
    return Connection(address, stream, protocol)


def reason_of(exc: BaseException) -> str:
    """Describe an error of a socket in a few words: the system's text, without the numbers that Python adds."""
    cause: BaseException = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(reason_of(item) for item in cause.exceptions))
    if isinstance(cause, ssl.SSLError | ssl.CertificateError):
        return tls_reason_of(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause) or type(cause).__name__
