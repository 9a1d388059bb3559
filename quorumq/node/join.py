"""A node with an empty directory asks a running cluster to let it in, and waits until an operator adds it.

It dials the addresses of ``join`` in turn, says HELLO without a node list, and shows that it knows the secret. If the
other node knows it as a member, it answers with all that a directory begins with (docs/layouts.md, MEMBERS).
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import trio

from quorumq.core.messages import VERSIONS, Admitted, Failed, Hello, Welcome
from quorumq.core.messages.records import ClusterMade, ClusterPut, JournalRecord, Started
from quorumq.core.values.errors import Code, PeerError, UsageError
from quorumq.core.values.types import ClusterLayout, Incarnation
from quorumq.node.config import ServeConfig
from quorumq.node.links import greet
from quorumq.node.transport import ConnectionLost, Outflow, Transport
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, FrameReader

JOIN_AGAIN_S: Final = 1.0
"""Seconds between rounds of questions."""


class NotAdmitted(Exception):
    """The directory is empty, and the node has to be let in before it can begin."""


class Loud:
    """A node that has not begun: nothing forbids it to send."""

    silent = False


async def wait_to_join(
    config: ServeConfig,
    dial: Callable[[str], Awaitable[Transport]],
    log: Any,
    seen_from: Sequence[socket.socket],
) -> Admitted | str | None:
    """Ask like `ask_to_join`; return None if a signal comes first.

    Args:
        seen_from: listening sockets, if probes are to be answered when they ask meanwhile. They stay open.
    """
    admitted: Admitted | str | None = None
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def wait_for_signal() -> None:
                async for number in signals:
                    log.info("stop_asked", signal=signal.Signals(number).name)
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(wait_for_signal)
            if seen_from:
                from quorumq.node.http import HttpServer  # with its imports: only if it is used

                nursery.start_soon(HttpServer(None).run, [sock.dup() for sock in seen_from])
            admitted = await ask_to_join(config, dial, log)
            nursery.cancel_scope.cancel()
    return admitted


async def ask_to_join(
    config: ServeConfig, dial: Callable[[str], Awaitable[Transport]], log: Any
) -> Admitted | str:
    """Ask until this node is a member, and return that answer. If the cluster refuses it, return the reason."""
    said: dict[str, str] = {}
    while True:
        for address in config.join:
            try:
                answer = await ask_one(config, address, dial)
            except (OSError, ConnectionLost, PeerError) as error:
                reason = str(error) or type(error).__name__
            else:
                if isinstance(answer, Admitted):
                    log.info("admitted", by=address, layout=answer.layout.number)
                    return answer
                if answer.code != Code.NOT_STORED:
                    return f"the node at {address} does not let this one in: {answer.detail}"
                reason = answer.detail
            if said.get(address) != reason:  # once for each new reason, not once for each attempt
                said[address] = reason
                log.warning("waits_to_join", address=address, reason=reason)
        await trio.sleep(JOIN_AGAIN_S)


async def ask_one(
    config: ServeConfig, address: str, dial: Callable[[str], Awaitable[Transport]]
) -> Admitted | Failed:
    """Ask the node at one address."""
    hello = Hello(
        versions=VERSIONS,
        cluster_id=config.cluster_id,
        nodes=b"",
        hold_time_max=0.0,
        node=config.node,
        incarnation=Incarnation(0, 0),
        directory=0,
        wall_ms=0,
        stamp=0,
        address=config.advertise or config.listen,
    )
    transport = await dial(address)
    answer: Welcome | Admitted | Failed | None = None
    problem: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            out = Outflow(transport, nursery, config.stall_timeout, Loud(), lambda reason: transport.close())
            reader, frame = FrameReader(HANDSHAKE_BYTES_MAX), encode_message(hello)
            shows = bool(config.tls_ca)
            with trio.move_on_after(config.hello_timeout):
                try:
                    answer = await greet(
                        frame, "", transport, reader, out, config.secrets[0], shows_name=shows
                    )
                except (ConnectionLost, PeerError) as error:
                    problem = error
            out.drop()
            nursery.cancel_scope.cancel()
    finally:
        transport.close()
    if problem is not None:
        raise problem
    if isinstance(answer, Admitted | Failed):
        return answer
    raise PeerError(f"the node at {address} did not answer within {config.hello_timeout:g} s")


def cluster_of(
    config: ServeConfig, replayed: Iterable[JournalRecord], admitted: Admitted | None
) -> tuple[ClusterMade | None, ClusterLayout | None]:
    """Return how the cluster was made, and its layout if one was chosen: as the journal or the cluster says.

    Args:
        replayed: records of the journal.

    Raises:
        NotAdmitted: neither has it, and the node is to be let in.
        UsageError: the node is to be let in, and its directory is of a cluster that was made with it.
    """
    records = list(replayed)
    made = next((record for record in records if isinstance(record, ClusterMade)), None)
    layouts = [record.layout for record in records if isinstance(record, ClusterPut)]
    if config.join and made is not None and not layouts:
        if any(isinstance(record, Started) for record in records):
            raise UsageError(
                f"the data directory is of a cluster that was made with {', '.join(made.nodes)}, and `join` needs an "
                "empty one: give an empty directory, or `nodes` in place of `join` to go on with this one"
            )
        made = None  # its first records were cut short
    if made is None and config.join:
        if admitted is None:
            raise NotAdmitted
        made = ClusterMade(admitted.nodes, admitted.hold_time_max, admitted.machines)
        layouts = [admitted.layout]
    return made, max(layouts, default=None)
