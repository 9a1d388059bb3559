"""Frames on many connections at once are one step of the core; a frame alone waits for no other."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
import trustme

from quorumq.core.messages.effects import Event, Unsent
from quorumq.node import inflow, turns
from quorumq.node.inflow import Inflow
from quorumq.node.intake import Intake
from quorumq.node.tls import TlsTransport
from quorumq.node.transport import RECEIVE_BYTES, ConnectionLost, SocketTransport, Transport
from quorumq.node.turns import Turns
from quorumq.wire.frames import encode_frame
from tests.patience import PATIENCE_S


def frame(number: int) -> bytes:
    return b"".join(encode_frame(b"%d" % number, [b"body"]))


class Intake_:
    """No bound on begun frames."""

    def begun(self, connection: object, size: int, *, anew: bool = False) -> None:
        pass


class End:
    """One connection: takes frames as events, at most ``most`` before it has to rest."""

    def __init__(self, world: World, transport: Transport) -> None:
        self.closed = False
        self.world = world
        self.most = 1_000_000
        self.reads = trio.Event()  # whether it is its turn
        self.reads.set()
        self.rested = 0
        self.ended: Exception | None = None
        self.inflow = Inflow(world.turns, world.intake, transport, self, 1.0)
        self.transport = transport

    def take(self, events: list[Event]) -> bool:
        while (frame := self.inflow.reader.next_frame()) is not None:
            events.append(Unsent(int(bytes(frame.header))))
            self.most -= 1
            if not self.most:
                return False
        return True

    def may_read(self) -> bool:
        return self.reads.is_set()

    async def rest(self) -> None:
        self.rested += 1
        await self.reads.wait()
        self.most = 1_000_000
        await trio.sleep(0.1)

    def give_up(self, reason: str) -> None:
        raise AssertionError(reason)

    async def run(self) -> None:
        try:
            await self.inflow.serve(self.world.feed, self.take)
        except Exception as error:
            self.ended = error
            self.close()

    def close(self) -> None:
        self.closed = True
        self.inflow.release()
        self.transport.close()


class World:
    """Connections over real sockets, and the steps that their frames became."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.steps: list[list[int]] = []
        self.turns = Turns(self.feed)
        self.intake: Intake = Intake_()  # type: ignore[assignment]
        self.answers: End | None = None  # answers at once when a frame is served
        self.woken: trio.Event | None = None  # by the next frame

    def feed(self, *events: Event) -> None:
        if self.answers is not None:
            self.answers.transport.send_some([memoryview(b"!")])
        if self.woken is not None:
            self.woken.set()
        self.steps.append([event.key for event in events])  # type: ignore[union-attr]

    def connect(self) -> tuple[socket.socket, End]:
        ours, theirs = socket.socketpair()
        end = End(self, SocketTransport(theirs))
        self.nursery.start_soon(end.run)
        return ours, end


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        new_world = World(nursery)
        nursery.start_soon(new_world.turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield new_world
        nursery.cancel_scope.cancel()


async def test_early_frames_stay_in_the_socket_and_those_of_ended_connections_are_dropped() -> None:
    async with world() as here:
        (ours, end), (others, other), (third, _) = [here.connect() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        end.reads, other.reads = trio.Event(), trio.Event()
        for sock, number in ((ours, 1), (others, 2), (third, 3)):
            sock.sendall(frame(number))
        await served(here, 1)
        assert [step for step in here.steps if step] == [[3]]
        assert end.inflow.reader.pending_bytes == 0, "it is unread"
        others.close()
        end.reads.set()
        other.reads.set()
        await served(here, 2)
        await trio.sleep(0.2)
        assert sorted(key for step in here.steps for key in step) == [1, 3]
        assert isinstance(other.ended, ConnectionLost)


async def served(here: World, frames: int) -> None:
    """Wait until ``frames`` are received."""
    while sum(map(len, here.steps)) < frames:
        await trio.sleep(0.01)


async def test_frames_on_many_connections_at_once_are_one_step() -> None:
    async with world() as here:
        pairs = [here.connect() for _ in range(50)]
        await trio.testing.wait_all_tasks_blocked()
        for number, (ours, _) in enumerate(pairs):
            ours.send(frame(number))
        await served(here, 50)
        assert [sorted(step) for step in here.steps] == [list(range(50))]
        pairs[0][1].close()
        pairs[7][0].send(frame(99))
        await served(here, 51)
        assert here.steps[1:] == [[99]]


async def test_half_a_frame_is_waited_for_alone_and_keeps_no_one() -> None:
    async with world() as here:
        (slow, end), (other, _) = here.connect(), here.connect()
        await trio.testing.wait_all_tasks_blocked()
        slow.send(frame(1)[:9])
        other.send(frame(2))
        await served(here, 1)
        slow.send(frame(1)[9:])
        await served(here, 2)
        slow.send(frame(3))
        other.send(frame(4))
        await served(here, 4)
        assert here.steps == [[2], [1], here.steps[2]]
        assert sorted(here.steps[2]) == [3, 4], "it takes turns with the others again"
        slow.send(frame(5)[:9])
        await trio.sleep(3.0)
        assert "did not come on" in str(end.ended)


class Asked(SocketTransport):
    """Notes each request, and whether the caller waits for it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.asked: list[tuple[str, int]] = []

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        self.asked.append(("waits", most))
        return await super().receive(most)

    def receive_now(self, most: int = RECEIVE_BYTES) -> bytes | None:
        self.asked.append(("now", most))
        return super().receive_now(most)


def send_whole(sock: socket.socket, data: bytes) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(data))
    assert sock.send(data) == len(data), "the system's buffer is too small for this test"


def asked_of(here: World) -> tuple[socket.socket, Asked]:
    """A connection that may send large frames, and notes requests."""
    ours, theirs = socket.socketpair()
    transport = Asked(theirs)
    end = End(here, transport)
    end.inflow.reader.open_up()
    here.nursery.start_soon(end.run)
    return ours, transport


LARGE = b"".join(encode_frame(b"5", [bytes(180_000)]))
REST = len(LARGE) - RECEIVE_BYTES


@pytest.mark.parametrize("turn_bytes", [REST + 1, REST - 1], ids=["in its turn", "by its task"])
async def test_the_rest_of_a_large_frame_is_asked_for_at_once(
    turn_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the turn in which it began, unless others have used that up. A turn for each 64 KiB cost a third of what a
    batch takes to be published."""
    monkeypatch.setattr(turns, "TURN_BYTES", turn_bytes)
    async with world() as here:
        ours, transport = asked_of(here)
        for count in (1, 2):  # the second turn has a share of its own
            transport.asked.clear()
            send_whole(ours, LARGE)
            await served(here, count)
            rest = [("now", REST)] if turn_bytes > REST else [("waits", REST), ("now", REST)]
            assert transport.asked == [("now", RECEIVE_BYTES), *rest]


async def test_a_larger_frame_is_received_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflow, "RECEIVE_BYTES_MAX", RECEIVE_BYTES + 1)
    for turn_bytes in (len(LARGE), 0):
        monkeypatch.setattr(turns, "TURN_BYTES", turn_bytes)
        async with world() as here:
            ours, transport = asked_of(here)
            send_whole(ours, LARGE)
            await served(here, 1)
            assert max(most for _, most in transport.asked) == RECEIVE_BYTES + 1


async def test_a_client_resting_after_a_large_frame_takes_no_turn() -> None:
    async with world() as here:
        ours, end = here.connect()
        end.inflow.reader.open_up()
        end.most = 1
        send_whole(ours, LARGE)
        await served(here, 1)
        ours.send(frame(6))
        await served(here, 2)
        assert (here.steps, end.rested) == ([[5], [6]], 1)


@pytest.mark.parametrize("cut", [5, 14, 17])
async def test_a_connection_that_is_hung_up_on_while_it_is_read_ends_alone(cut: int) -> None:
    """An answer that is sent at once may find the connection closed: in the middle of a batch of requests, too."""
    async with world() as here:
        ours, theirs = socket.socketpair()
        transport = Asked(theirs)
        end = End(here, transport)
        here.nursery.start_soon(end.run)
        other, _ = here.connect()
        await trio.testing.wait_all_tasks_blocked()
        take = end.take

        def closes(events: list[Event]) -> bool:
            went_on = take(events)
            end.close()
            return went_on

        end.inflow._take = closes
        ours.send(frame(1) + frame(2)[:cut])
        other.send(frame(3))
        await served(here, 2)
        other.send(frame(4))
        await served(here, 3)
        assert end.closed
        assert len(transport.asked) == 1, "nothing more of it is read"


async def test_a_turn_takes_no_more_frames_of_a_connection_than_came_and_a_cut_one() -> None:
    small = b"".join(frame(1000 + number) for number in range(4000))
    within = RECEIVE_BYTES // len(frame(1000))
    async with world() as here:
        ours, end = here.connect()
        end.inflow.reader.open_up()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(small))
        assert ours.send(small) == len(small) > RECEIVE_BYTES, (
            "the system's buffer is too small for this test"
        )
        await served(here, 4000)
        assert max(map(len, here.steps)) <= within + 1


async def test_a_resting_connection_is_not_read_and_loses_nothing() -> None:
    async with world() as here:
        (busy, end), (other, _) = here.connect(), here.connect()
        await trio.testing.wait_all_tasks_blocked()
        end.most = 2
        busy.send(b"".join(map(frame, range(5))))
        await served(here, 2)
        other.send(frame(9))
        await served(here, 3)
        assert here.steps == [[0, 1], [9]]
        await served(here, 6)
        assert (here.steps[2:], end.rested) == ([[2, 3, 4]], 1)


async def test_an_invalid_frame_or_a_disconnect_ends_one_connection() -> None:
    async with world() as here:
        pairs = [here.connect() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        pairs[0][0].send(b"GET / HTTP/1.1")
        pairs[1][0].close()
        pairs[2][0].send(frame(1))
        await served(here, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert "HTTP" in str(pairs[0][1].ended)
        assert isinstance(pairs[1][1].ended, ConnectionLost)
        assert pairs[2][1].ended is None
        pairs[2][0].send(frame(2))
        await served(here, 2)


async def test_a_connection_that_is_hung_up_on_takes_no_turn() -> None:
    async with world() as here:
        (ours, end), (other, _) = here.connect(), here.connect()
        await trio.testing.wait_all_tasks_blocked()
        end.close()
        await trio.testing.wait_all_tasks_blocked()
        assert ours.recv(1) == b""
        again, _ = here.connect()  # its socket may have the same number
        await trio.testing.wait_all_tasks_blocked()
        again.send(frame(2))
        other.send(frame(3))
        await served(here, 2)
        assert sorted(key for step in here.steps for key in step) == [2, 3]


async def test_connections_with_tls_take_turns_and_keep_nothing_decrypted() -> None:
    authority = trustme.CA()
    ours_is, theirs_is = (ssl.create_default_context(purpose) for purpose in ssl.Purpose)
    authority.configure_trust(ours_is)
    authority.issue_cert("a.test").configure_cert(theirs_is)
    async with world() as here:
        ours, theirs = socket.socketpair()
        ours_is.check_hostname = False
        client = TlsTransport(SocketTransport(ours), ours_is, server_side=False)
        end = End(here, TlsTransport(SocketTransport(theirs), theirs_is, server_side=True))
        here.nursery.start_soon(client.receive)
        frames = b"".join(map(frame, range(2000)))
        here.nursery.start_soon(end.inflow.next_frame)  # the receiver does the handshake
        with trio.fail_after(PATIENCE_S):
            await client.wait_sendable()
        client.send_some([memoryview(frame(0))])
        await trio.testing.wait_all_tasks_blocked()
        here.nursery.start_soon(end.run)
        assert client.send_some([memoryview(frames)]) == len(frames)
        await served(here, 2000)
        assert [key for step in here.steps for key in step] == list(range(2000))
        await trio.testing.wait_all_tasks_blocked()
        client.send_some([memoryview(frame(7))])
        await served(here, 2001)
        assert end.ended is None


class Loop(trio.abc.Instrument):
    """Counts the turns of trio's loop."""

    turns = 0

    def after_io_wait(self, timeout: float) -> None:
        self.turns += 1


def pinged(ours: socket.socket, frames: int) -> None:
    """In a thread: send one frame after the other, each when the one before it was served."""
    ours.settimeout(PATIENCE_S)
    for number in range(frames):
        ours.sendall(frame(number))
        assert ours.recv(1) == b"!"


def in_real_time(work: Callable[[World, Loop], Awaitable[None]]) -> None:
    """Run ``work`` beside a world that answers each frame, and waits for its sockets in trio's place."""
    loop = Loop()

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                here = World(nursery)
                here.turns.waits_here = True
                nursery.start_soon(here.turns.run)
                await trio.testing.wait_all_tasks_blocked()
                await work(here, loop)
                nursery.cancel_scope.cancel()

    trio.run(main, instruments=[loop])


def test_messages_are_read_without_a_turn_of_the_loop_where_nothing_else_happens() -> None:
    async def work(here: World, loop: Loop) -> None:
        ours, end = here.connect()
        here.answers = end
        await trio.testing.wait_all_tasks_blocked()
        before = loop.turns
        await trio.to_thread.run_sync(pinged, ours, 300)
        assert here.steps == [[number] for number in range(300)]
        assert loop.turns - before < 30

    in_real_time(work)


def test_trio_goes_on_while_messages_come_and_where_none_does() -> None:
    """Sockets that trio waits for, tasks that a message wakes, deadlines, and calls from threads."""

    async def work(here: World, loop: Loop) -> None:
        ours, end = here.connect()
        here.answers = end
        one, other = trio.socket.socketpair()
        naps = 0
        woken = trio.Event()
        here.woken = woken

        async def nap() -> None:
            nonlocal naps
            while True:
                await trio.sleep(0.001)
                naps += 1

        async def echo() -> None:
            while True:
                await other.send(await other.recv(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(nap)
            nursery.start_soon(echo)
            nursery.start_soon(trio.to_thread.run_sync, pinged, ours, 300)
            await woken.wait()  # by a message
            for _ in range(50):
                await one.send(b"x")
                assert await one.recv(1) == b"x"
            while len(here.steps) < 300:
                await trio.sleep(0.001)
            before = naps
            await trio.sleep(0.1)
            assert naps > before, "and where nobody says anything"
            nursery.cancel_scope.cancel()
        one.close()
        other.close()

    in_real_time(work)


def test_a_bug_in_a_turn_ends_the_run_as_it_does_elsewhere() -> None:
    async def work(here: World, loop: Loop) -> None:
        ours, _ = here.connect()
        await trio.testing.wait_all_tasks_blocked()
        here.steps = None  # type: ignore[assignment]
        await trio.to_thread.run_sync(ours.send, frame(1))
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        in_real_time(work)
    assert caught.group_contains(AttributeError)


@pytest.mark.parametrize("here", [False, True])
def test_calls_from_a_thread_run_on_the_running_loop(here: bool) -> None:
    async def main() -> None:
        turns = Turns(lambda *events: None)
        turns.waits_here = here
        called: list[threading.Thread] = []
        assert not turns.call_soon(lambda: None), "nobody would"
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(100):
                assert await trio.to_thread.run_sync(
                    turns.call_soon, lambda: called.append(threading.current_thread())
                )
            assert await trio.to_thread.run_sync(turns.call_soon, done.set)
            with trio.fail_after(PATIENCE_S):
                await done.wait()
            assert turns.call_soon(lambda: called.append(threading.current_thread()))
            nursery.cancel_scope.cancel()
        assert called == [threading.main_thread()] * 101, "the last one when it ended"
        assert not turns.call_soon(lambda: None)

    trio.run(main)
