"""Admission of connections by address, and of requests to the core: whole, signed, allowed, within quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.messages import CloseSession, Hello, Publish
from quorumq.core.values.types import DERIVED, NAMED
from quorumq.node.clients import Credentials
from quorumq.node.config import ServeConfig
from quorumq.node.quotas import Begun
from quorumq.wire.codec import open_request
from quorumq.wire.hello import PROBE
from quorumq.wire.receipts import check_session
from quorumq.wire.requests import check_request

ListensFor = Literal["all", "clients", "peers"]
"""Kinds of connection that may say HELLO at an address."""


OPERATOR_SLOTS: Final = 8
"""Connections beyond ``connections_max`` that are left for operators, who may have to mend a full table."""


def is_operator(credentials: Credentials | None, software: str) -> bool:
    """Return True for a client that may look and mend when others have taken all connections.

    Args:
        credentials: credentials of the client, any right of `admin` will do; None if the node does not ask for them.
        software: as HELLO named it; without credentials that of `quorumq status` is believed.
    """
    return software == PROBE if credentials is None else bool(credentials.client.admin)


def wrong_listener(config: ServeConfig, listens_for: ListensFor, hello: Hello) -> str:
    """Return why this listener refuses a connection with this HELLO; "" if it accepts it."""
    if listens_for == "clients" and hello.node:
        at = config.dialled.get(config.node, config.peer_listen)
        return f"node {config.node} speaks with nodes at {at} only: give `peers` to node {hello.node}, too"
    if hello.on_behalf and not config.clients_file:
        return (
            f"node {config.node} has no clients file, and so no client {hello.on_behalf!r} to ask for: give it one, or "
            "start the gateway without"
        )
    if listens_for == "peers" and not hello.node:
        return f"only nodes come in here: node {config.node} serves clients at {config.advertised}"
    return ""


def admitted(
    message: Any,
    size: int,
    keys: Mapping[int, bytes],
    credentials: Credentials | None,
    catalogue: Catalogue,
    new_producer_ids: Begun,
) -> Any:
    """Check a request and return it as the core is to carry it out.

    Args:
        credentials: credentials of the client; None if the node does not ask for them.

    Raises:
        BadFields, TooLarge, BadReceipt: it is not as it has to be.
        Unauthorized: the client lacks a right to it.
        Busy, TooLarge: it is beyond a quota of the client.
    """
    if credentials is not None:
        credentials.begin(message, size)
    check_request(message)
    if isinstance(message, Publish):
        for section in message.batch.header.spans:
            if section.producer_id.node not in (DERIVED, NAMED):  # else any client may have the id
                check_session(section.producer_id, message.signature, keys=keys)
    elif isinstance(message, CloseSession):
        check_session(message.producer_id, message.signature, keys=keys)
    request = open_request(message, keys=keys)
    return request if credentials is None else credentials.check(request, catalogue, new_producer_ids)
