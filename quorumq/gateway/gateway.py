"""The parts that all requests of one gateway share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from quorumq.client import Client, connect
from quorumq.client.transport.connection import Dial, dial_tcp, dial_tls
from quorumq.core.values.errors import QuorumqError, TooFewReplicas, UnknownToken
from quorumq.gateway.accesskeys import Keys
from quorumq.gateway.identity import ANYBODY, Identities, User
from quorumq.gateway.requests import Bodies
from quorumq.gateway.settings import Settings
from quorumq.gateway.shares import Shares
from quorumq.gateway.users import Connecting, UserClients
from quorumq.node.clients import Clients

TIMEOUT_S: Final = 20.0
"""Seconds for a request to the cluster: SDKs wait for 60."""

CONNECT_S: Final = 5.0
"""Seconds to reach a node when a user asks first."""

REREAD_S: Final = 0.5
"""Seconds between two looks at the files of clients and of keys, as nodes have them."""

ASK_S: Final = 5.0
"""Seconds between two questions to a node whether it answers, and knows the gateway's token."""

REFUSED: Final = "the nodes do not know the token of this gateway"

log = logging.getLogger("quorumq.gateway")


@dataclass(eq=False)
class Gateway:
    """The parts that all requests of one gateway share. Made by `running`.

    Attributes:
        identities: finds out who asks.
        shares: shares of processor time by user.
        refused: why a node refuses the gateway itself; "" if none did when it was asked last.
        unreachable: why no node answers; "" if one did when it was asked last.
        stopping: set when the gateway begins to stop: requests that wait for messages are answered without.
    """

    settings: Settings
    identities: Identities
    clients: UserClients
    nursery: trio.Nursery
    shares: Shares
    bodies: Bodies = field(default_factory=Bodies)
    refused: str = ""
    unreachable: str = ""
    stopping: trio.Event = field(default_factory=trio.Event)

    def client(self, user: User) -> AbstractAsyncContextManager[Client]:
        """Give a user's client for one request: see `UserClients.of`."""
        return self.clients.of(user)

    async def keep_asking(self, connecting: Connecting) -> None:
        """Ask nodes now and then whether they answer, and know the gateway's token. Runs until cancelled."""
        while True:
            refused, unreachable = self.refused, ""
            try:
                async with connecting(ANYBODY):
                    refused = ""
            except UnknownToken as error:
                refused = str(error)
            except TooFewReplicas as error:
                unreachable = "no node answers"
                if not self.unreachable:
                    log.warning("%s: %s", unreachable, error)
            except QuorumqError:  # a node answered
                pass
            self.unreachable = unreachable
            if refused != self.refused:
                failing = f"{REFUSED}, and each request fails: {refused}"
                log.error("%s", failing if refused else "the nodes know the token of this gateway again")
                self.refused = refused
            await trio.sleep(ASK_S)


class Events:
    """Log for parts of nodes, whose lines are events with fields."""

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
        UsageError: a file of the settings cannot be used.
    """
    clients = Clients(settings.clients_file, Events()) if settings.clients_file else None
    keys = Keys(settings.keys_file, Events())
    shares = Shares()
    dial = dial_tls(settings.tls_ca) if settings.tls_ca else dial_tcp

    def client_of(user: User) -> AbstractAsyncContextManager[Client]:
        # Tasks of its connections to nodes work for the user; those of an open gateway work for all.
        shares.pay(user if user.name else None)
        return connect_for(settings, user, dial) if connecting is None else connecting(user)

    async with trio.open_nursery() as nursery:
        users = UserClients(nursery, client_of)
        nursery.start_soon(users.close_idle)
        if clients is not None:
            nursery.start_soon(_reread, clients, keys)
        trio.lowlevel.add_instrument(shares)
        try:
            gateway = Gateway(settings, Identities(clients, keys), users, nursery, shares)
            nursery.start_soon(gateway.keep_asking, client_of)
            yield gateway
        finally:
            trio.lowlevel.remove_instrument(shares)
        await users.close()
        nursery.cancel_scope.cancel()


async def _reread(clients: Clients, keys: Keys) -> None:
    while True:
        await trio.sleep(REREAD_S)
        clients.refresh()
        keys.refresh()


@asynccontextmanager
async def connect_for(settings: Settings, user: User, dial: Dial) -> AsyncIterator[Client]:
    """Connect to the cluster for a user, who is named to the nodes."""
    async with connect(
        settings.nodes,
        timeout=CONNECT_S,
        token=settings.token,
        on_behalf=user.name,
        dial=dial,
    ) as client:
        client.timeout = TIMEOUT_S
        yield client
