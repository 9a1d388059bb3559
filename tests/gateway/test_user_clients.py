"""Clients of the cluster that a gateway keeps for its users: shared, bounded, and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from quorumq.core.values.errors import Busy, TooFewReplicas, Unauthorized
from quorumq.gateway import users
from quorumq.gateway.gateway import running
from quorumq.gateway.identity import User
from quorumq.gateway.settings import Settings
from quorumq.gateway.users import UserClients
from quorumq.testing import cluster


async def test_clients_of_users_are_shared_bounded_and_closed_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "CLIENTS_MAX", 2)
    monkeypatch.setattr(users, "LANES", 1)
    monkeypatch.setattr(users, "REQUESTS_MAX", 3)
    opened: list[str] = []
    is_open: list[str] = []
    nodes = cluster(1)

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        opened.append(user.name)
        is_open.append(user.name)
        async with nodes.connect() as client:
            yield client
        is_open.remove(user.name)

    async with nodes, trio.open_nursery() as nursery:
        clients = UserClients(nursery, connecting)
        nursery.start_soon(clients.close_idle)
        async with clients.of(User("a")) as one, clients.of(User("a")) as two, clients.of(User("b")):
            assert one is two
            with pytest.raises(Busy, match="2 clients have requests"):
                async with clients.of(User("c")):
                    pass
            async with clients.of(User("a")):
                with pytest.raises(Busy, match="3 requests of client 'a'"):
                    async with clients.of(User("a")):
                        pass
        async with clients.of(User("c")):
            pass
        async with clients.of(User("b")):
            pass
        assert opened == ["a", "b", "c"], "the one that was idle for longest made room"
        await trio.testing.wait_all_tasks_blocked()
        assert is_open == ["b", "c"]
        await trio.sleep(2 * users.IDLE_S)
        async with clients.of(User("b")):
            pass
        assert opened == ["a", "b", "c", "b"]
        nursery.cancel_scope.cancel()


async def test_a_user_with_many_requests_has_several_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "LANES", 2)
    monkeypatch.setattr(users, "REQUESTS_MAX", 2)
    nodes = cluster(1)
    async with nodes, trio.open_nursery() as nursery:
        clients = UserClients(nursery, lambda user: nodes.connect())
        async with AsyncExitStack() as stack:
            four = [await stack.enter_async_context(clients.of(User("a"))) for _ in range(4)]
            assert [one is four[0] for one in four] == [True, True, False, False]
            assert four[2] is four[3]
            with pytest.raises(Busy, match="4 requests of client 'a'"):
                await stack.enter_async_context(clients.of(User("a")))
        nursery.cancel_scope.cancel()


async def test_requests_that_wait_for_the_same_connection_fail_with_it_and_not_one_after_another() -> None:
    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        await trio.sleep(5)
        raise TooFewReplicas("no node answers")
        yield

    failures: list[Exception] = []

    async def ask(clients: UserClients) -> None:
        try:
            async with clients.of(User("a")):
                pass
        except TooFewReplicas as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        clients = UserClients(nursery, connecting)
        began = trio.current_time()
        async with trio.open_nursery() as asking:
            for _ in range(20):
                asking.start_soon(ask, clients)
        assert trio.current_time() - began == 5
        assert len(set(map(id, failures))) == 20, "each has an exception of its own"
        nursery.cancel_scope.cancel()


async def test_a_failure_to_connect_is_the_requests_own_and_the_next_one_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has it once: a wrong token of the gateway was seen by its users alone, as a right that they lacked."""
    attempts: list[None] = []
    nodes = cluster(1)

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        attempts.append(None)
        if len(attempts) < 3:
            raise Unauthorized("not yet")
        async with nodes.connect() as client:
            yield client

    async with nodes, trio.open_nursery() as nursery:
        clients = UserClients(nursery, connecting)
        for _ in range(2):
            with pytest.raises(Unauthorized):
                async with clients.of(User("a")):
                    pass
        assert [record.getMessage() for record in caplog.records] == ["no connection for 'a': not yet"]
        async with clients.of(User("a")) as client:
            assert not (await client.metadata()).topics
        nursery.cancel_scope.cancel()


async def test_clients_have_time_to_end_with_their_gateway() -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        yield user.name
        await trio.sleep(users.CLOSE_S / 2 if user.name == "a" else 60)
        ended.append(user.name)

    async with running(Settings(nodes=("a:1",)), connecting) as gateway:
        for name in ("a", "b"):
            async with gateway.client(User(name)):
                pass
        began = trio.current_time()
    assert (ended, trio.current_time() - began) == (["a"], users.CLOSE_S)


async def test_a_client_that_ends_is_logged_made_anew_and_has_time(caplog: pytest.LogCaptureFixture) -> None:
    made: list[User] = []
    broken = trio.Event()

    async def breaks() -> None:
        await broken.wait()
        raise TooFewReplicas("no node answers")

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[int]:
        if user.name:  # and not the gateway itself
            made.append(user)
        async with trio.open_nursery() as nursery:
            if made == [User("a")]:
                nursery.start_soon(breaks)
            yield len(made)
        await trio.sleep(users.CLOSE_S / 2)

    async with running(Settings(nodes=("a:1",)), connecting) as gateway:
        for number in (1, 2):
            async with gateway.client(User("a")) as client:
                assert client == number
            broken.set()
            await trio.testing.wait_all_tasks_blocked()
        assert ["the client of 'a' ended with" in line for line in caplog.messages] == [True]
        began = trio.current_time()
    assert trio.current_time() - began == users.CLOSE_S / 2


async def test_a_client_that_fails_ends_no_other_one() -> None:
    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        yield user.name
        if user.name == "a":
            raise OSError("a bug, or a file that is gone")

    async with trio.open_nursery() as nursery:
        clients = UserClients(nursery, connecting)
        async with clients.of(User("a")), clients.of(User("b")):
            pass
        for key in [*clients._slots]:
            clients._close(key)
        await trio.testing.wait_all_tasks_blocked()
        async with clients.of(User("b")) as client:
            assert client == "b"
        nursery.cancel_scope.cancel()
