"""A gateway and a node with a clients file, in this process and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, NamedTuple, cast

import trio

from quorumq.gateway.accesskeys import new_keys_file, read_keys, secret_access_key
from quorumq.gateway.gateway import Gateway, connect_for, running
from quorumq.gateway.identity import User
from quorumq.gateway.settings import Settings
from quorumq.gateway.sqs.app import SqsApp
from quorumq.node.clients import Entry, new_token, write_clients
from sim.shell.network import LineStream
from tests.gateway.sdk import Sdk
from tests.node.memory import world

GATE, GATE_ENTRY = new_token("gate")
SHOP, SHOP_ENTRY = new_token("shop")
ENTRIES = {
    "gate": Entry(GATE_ENTRY, on_behalf=("shop", "rival", "cleaner")),
    "cleaner": Entry(new_token("cleaner")[1], admin=("shop-*",)),
    "shop": Entry(SHOP_ENTRY, publish=("shop-*",), consume=(("shop-*", "*"),), admin=("shop-*",)),
    "rival": Entry(
        new_token("rival")[1],
        publish=("rival-*",),
        consume=(("rival-*", "*"),),
        admin=("rival-*",),
        requests_per_s=20.0,
    ),
    "boss": Entry(new_token("boss")[1], publish=("*",), consume=(("*", "*"),), admin=("*",)),
}


class Guarded(NamedTuple):
    """A node with a clients file, and a gateway beside it."""

    nodes: Any
    gateway: Gateway
    app: SqsApp
    keys: tuple[bytes, ...]
    path: Path

    def sdk(self, name: str, app: Any = None, token: str = "") -> Sdk:
        """An SDK with the access key of a client, for SQS alone or a whole application."""
        token = token or ENTRIES[name].token
        return Sdk(app or self.app, name, secret_access_key(self.keys[0], name, token))


@asynccontextmanager
async def guarded(tmp_path: Path, entries: dict[str, Entry] = ENTRIES) -> AsyncIterator[Guarded]:
    path, keys = tmp_path / "clients.toml", tmp_path / "gateway.keys"
    write_clients(path, entries)
    new_keys_file(keys)
    async with world("a", clients_file=str(path)) as nodes:

        async def dial(address: str) -> trio.abc.Stream:
            # Tasks of the node have a context of their own, as in their own process.
            return LineStream(cast("Any", Context().run(nodes.connect, "a")))

        def connecting(user: User) -> Any:
            return connect_for(settings, user, dial)

        settings = Settings(nodes=("a:1",), clients_file=str(path), keys_file=str(keys), token=GATE)
        settings.check()
        async with running(settings, connecting) as gateway:
            yield Guarded(nodes, gateway, SqsApp(gateway), read_keys(keys), path)
