"""One question to one node, over one short-lived connection.

`quorumq status` and LocalCluster want to know how each node is, one by one, and "it does not answer" is
as good an answer as any. The client library does the opposite: it goes to another node when one does not
answer. So this speaks the wire itself, with a blocking socket and a deadline.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

from quorumq.core.messages import ClientRequest, Failed, StatusReply, StatusRequest, Welcome
from quorumq.core.values.errors import PeerError, QuorumqError
from quorumq.wire.address import split_address
from quorumq.wire.codec import Message, decode_message, encode_message, error_of
from quorumq.wire.frames import FrameReader
from quorumq.wire.hello import PROBE, client_hello, own_token
from quorumq.wire.tls import client_context, own_ca, plain_hint, reason_of


class Unreachable(QuorumqError):
    """No node answers at an address, or not in time."""

    code = "unreachable"
    exit_code = 69


def ask(address: str, *requests: ClientRequest, timeout: float = 2.0) -> list[Message]:
    """Send HELLO to one node, then each of ``requests`` in turn.

    Args:
        requests: requests to send after HELLO; if there are none, only HELLO is answered.
        timeout: seconds for everything together.

    Returns:
        The Welcome, then one reply for each request.

    Raises:
        Unreachable: nothing answered there, or not in time.
        QuorumqError: the error that the node named; `PeerError` if the other side is not quorumq.
    """
    end = time.monotonic() + timeout
    target = split_address(address)
    hello = client_hello(PROBE, int(time.time() * 1000), token=own_token())
    try:
        with _connected(target, timeout) as sock:
            reader = FrameReader()
            return [
                _one(sock, reader, request, number, end)
                for number, request in enumerate((hello, *requests), 1)
            ]
    except TimeoutError:
        raise Unreachable(f"{address}: no answer within {timeout:g} s") from None
    except PeerError as error:
        raise PeerError(f"{address}: not the protocol: {error}{plain_hint(bool(own_ca()))}") from None
    except OSError as error:
        raise Unreachable(f"{address}: {reason_of(error)}") from None


def _connected(target: tuple[str, int], timeout: float) -> socket.socket:
    """Return a connection, in TLS if the environment names authorities."""
    sock = socket.create_connection(target, timeout)
    ca = own_ca()
    if not ca:
        return sock
    try:
        return client_context(ca).wrap_socket(sock, server_hostname=target[0])
    except BaseException:
        sock.close()
        raise


def _one(sock: socket.socket, reader: FrameReader, request: Any, number: int, end: float) -> Message:
    sock.sendall(b"".join(encode_message(request, request=number)))
    while True:
        frame = reader.next_frame()
        if frame is not None:
            reply = decode_message(frame).message
            if isinstance(reply, Failed):
                raise error_of(reply)
            return reply
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        sock.settimeout(remaining)
        data = sock.recv(1 << 20)
        if not data:
            raise OSError(f"it closed the connection{plain_hint(bool(own_ca()))}")
        reader.feed(data)


def status_of(address: str, timeout: float = 2.0) -> dict[str, Any]:
    """Return a node's own status (docs/operations.md), and ``wall_ms``, its time of day.

    Raises:
        Unreachable, PeerError: raised like by `ask`.
    """
    welcome, reply = ask(address, StatusRequest(), timeout=timeout)
    if not isinstance(welcome, Welcome) or not isinstance(reply, StatusReply):
        raise PeerError(f"{address} answered with {type(reply).__name__}, not with its status")
    fields = whole_status(address, reply, timeout)
    return {**fields, "address": address, "wall_ms": welcome.wall_ms, "software": welcome.software}


def whole_status(address: str, reply: StatusReply, timeout: float) -> dict[str, Any]:
    """Return the facts of a status, all pages of them: ``timeout`` seconds for each answer.

    Raises:
        Unreachable, PeerError: raised like by `ask`.
    """
    fields = reply.fields
    while reply.more is not None:
        _, reply = ask(address, StatusRequest(reply.more), timeout=timeout)  # type: ignore[assignment]
        if not isinstance(reply, StatusReply):
            raise PeerError(f"{address} answered with {type(reply).__name__}, not with its status")
        fields = reply.joined_to(fields)
    return fields


def no_node(addresses: Sequence[str], causes: Iterable[str]) -> Unreachable:
    """Make the error for a cluster without a node that answers at these addresses."""
    why = "; ".join(dict.fromkeys(causes))
    return Unreachable(
        f"no node answers at {', '.join(addresses)}: {why}. Give the addresses with --node or QUORUMQ_NODES, or start "
        "a cluster with `quorumq dev`"
    )
