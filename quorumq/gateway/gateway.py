"""The parts that all requests of one gateway share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from quorumq.client import Client, connect
from quorumq.gateway.accesskeys import read_keys
from quorumq.gateway.admission import Admissions
from quorumq.gateway.identity import Identities, User
from quorumq.gateway.requests import Bodies, Turns
from quorumq.gateway.settings import Settings
from quorumq.gateway.users import Connecting, UserClients
from quorumq.node.clients import Clients

TIMEOUT_S: Final = 20.0
"""Seconds for a request to the cluster: SDKs wait for 60."""

CONNECT_S: Final = 5.0
"""Seconds to reach a node when a user asks first."""

REREAD_S: Final = 0.5
"""Seconds between two looks at the clients file, as nodes have them."""

log = logging.getLogger("quorumq.gateway")


@dataclass(eq=False)
class Gateway:
    """The parts that all requests of one gateway share. Made by `running`.

    Attributes:
        identities: finds out who asks.
        turns: turns of users in long requests.
        admissions: requests that are begun, and those that wait for that.
        stopping: set when the gateway begins to stop: requests that wait for messages are answered without.
    """

    settings: Settings
    identities: Identities
    clients: UserClients
    nursery: trio.Nursery
    bodies: Bodies = field(default_factory=Bodies)
    turns: Turns = field(default_factory=Turns)
    admissions: Admissions = field(default_factory=Admissions)
    stopping: trio.Event = field(default_factory=trio.Event)

    def client(self, user: User) -> AbstractAsyncContextManager[Client]:
        """Give a user's client for one request: see `UserClients.of`."""
        return self.clients.of(user)


class _Log:
    """Log of `Clients`, which has events with fields."""

    def info(self, event: str, **fields: Any) -> None:
        log.info("%s %s", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        log.error("%s %s", event, fields)


@asynccontextmanager
async def running(settings: Settings, connecting: Connecting | None = None) -> AsyncIterator[Gateway]:
    """Run the tasks of a gateway for the length of an ``async with``.

    Args:
        connecting: connects to the cluster for a user; by the settings if None.

    Raises:
        UsageError: the clients file or the file of keys cannot be used.
    """
    clients = Clients(settings.clients_file, _Log()) if settings.clients_file else None
    keys = read_keys(settings.keys_file) if settings.keys_file else ()
    async with trio.open_nursery() as nursery:
        users = UserClients(nursery, connecting or partial(connect_for, settings))
        nursery.start_soon(users.close_idle)
        if clients is not None:
            nursery.start_soon(_reread, clients)
        gateway = Gateway(settings, Identities(clients, keys), users, nursery)
        nursery.start_soon(gateway.admissions.run)
        yield gateway
        await users.close()
        nursery.cancel_scope.cancel()


async def _reread(clients: Clients) -> None:
    while True:
        await trio.sleep(REREAD_S)
        clients.refresh()


@asynccontextmanager
async def connect_for(settings: Settings, user: User) -> AsyncIterator[Client]:
    """Connect to the cluster for a user, who is named to the nodes."""
    async with connect(
        settings.nodes,
        timeout=CONNECT_S,
        token=settings.token,
        tls_ca=settings.tls_ca,
        on_behalf=user.name,
    ) as client:
        client.timeout = TIMEOUT_S
        yield client
