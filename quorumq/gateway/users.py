"""Connections to the cluster by user, opened when a user asks first and closed when it has not asked for a while."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from quorumq.client import Client
from quorumq.client.base.message import again
from quorumq.core.values.errors import Busy, QuorumqError
from quorumq.gateway.identity import User

CLIENTS_MAX: Final = 100
"""Clients of the cluster at once. Each may have 9 connections to each node, of `connections_per_address`."""

LANES: Final = 10
"""Clients of one user at most: requests that wait for messages take up a client's connections."""

IDLE_S: Final = 60.0
"""Seconds after its last request for which a user's connections are kept."""

CLOSE_S: Final = 2.0
"""Seconds for clients to give back, at the end of a gateway, what nodes have for long polls that were answered."""

REQUESTS_MAX: Final = 100
"""Requests of one client under way at once, those that wait for messages included."""

Connecting = Callable[[User], AbstractAsyncContextManager[Client]]

log = logging.getLogger("quorumq.gateway")


@dataclass(eq=False)
class Slot:
    """One client of a user."""

    client: Client | None = None
    failure: QuorumqError | None = None  # error of the last attempt to connect
    failures: int = 0  # attempts that failed
    requests: int = 0
    used: float = 0.0  # time of the last request, by trio's clock
    opening: trio.Lock = field(default_factory=trio.Lock)
    closing: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)


class UserClients:
    """Clients of the cluster by user."""

    def __init__(self, nursery: trio.Nursery, connecting: Connecting) -> None:
        self._nursery = nursery
        self._connecting = connecting
        self._slots: dict[tuple[User, int], Slot] = {}  # by user, and lane of it

    @asynccontextmanager
    async def of(self, user: User) -> AsyncIterator[Client]:
        """Give the client of a user for one request.

        Raises:
            Busy: the user, or all users together, have too many requests under way.
            TooFewReplicas: no node answers.
            Unauthorized: the nodes refuse the gateway or the user.
        """
        slot = self._slot(user)
        slot.requests += 1
        try:
            yield slot.client or await self._open(user, slot)
        finally:
            slot.requests -= 1
            slot.used = trio.current_time()

    def _slot(self, user: User) -> Slot:
        """Return the first client of a user that has room for a request; a new one if none has."""
        for lane in range(LANES):
            slot = self._slots.get((user, lane))
            if slot is None:
                return self._new_slot(user, lane)
            if slot.requests < REQUESTS_MAX:
                return slot
        raise Busy(
            f"{LANES * REQUESTS_MAX} requests of client {user.name!r} are under way at this gateway: wait for some of "
            "them",
            delay=1.0,
        )

    async def _open(self, user: User, slot: Slot) -> Client:
        """Connect. Requests received meanwhile wait for the same attempt, and fail with it."""
        before = slot.failures
        async with slot.opening:
            if slot.client is None:
                if slot.failure is not None and slot.failures > before:
                    raise again(slot.failure)
                try:
                    await self._nursery.start(self._keep, user, slot)
                except QuorumqError as error:
                    if str(error) != str(slot.failure):
                        log.warning("no connection%s: %s", f" for {user.name!r}" if user.name else "", error)
                    slot.failure = error
                    slot.failures += 1
                    raise
            assert slot.client is not None
            return slot.client

    def _new_slot(self, user: User, lane: int) -> Slot:
        if len(self._slots) >= CLIENTS_MAX:
            idle = [(slot.used, key) for key, slot in self._slots.items() if not slot.requests]
            if not idle:
                raise Busy(
                    f"{CLIENTS_MAX} clients have requests under way at this gateway: try again", delay=1.0
                )
            self._close(min(idle)[1])
        slot = self._slots[(user, lane)] = Slot()
        return slot

    def _close(self, key: tuple[User, int]) -> None:
        self._slots.pop(key).closing.set()

    async def _keep(self, user: User, slot: Slot, *, task_status: trio.TaskStatus[None]) -> None:
        ready = False
        slot.ended = trio.Event()
        try:
            async with self._connecting(user) as slot.client:
                ready = True
                task_status.started()
                await slot.closing.wait()
        except Exception as error:
            if not ready:
                raise
            expected = isinstance(error, QuorumqError)
            whose = f" of {user.name!r}" if user.name else ""
            log.warning("the client%s ended with %s", whose, error, exc_info=not expected)
        finally:
            slot.client = None
            slot.ended.set()

    async def close(self) -> None:
        """Close all clients, within `CLOSE_S`."""
        slots = [*self._slots.values()]
        for key in [*self._slots]:
            self._close(key)
        with trio.move_on_after(CLOSE_S):
            for slot in slots:
                async with slot.opening:
                    if slot.client is not None:
                        await slot.ended.wait()

    async def close_idle(self) -> None:
        """Close the clients of users that have not asked for a while. Runs until cancelled."""
        while True:
            await trio.sleep(IDLE_S / 4)
            before = trio.current_time() - IDLE_S
            for key in [key for key, slot in self._slots.items() if not slot.requests and slot.used < before]:
                self._close(key)
