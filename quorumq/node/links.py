"""Our own connection to each peer: dialled, greeted, kept, dialled again.

This node sends everything to a peer over the connection that it dialled, replies included; the peer sends over the one
that the peer dialled. So a link is between two incarnations, and when it breaks, nothing of it is taken over: the
protocol repeats all that matters.

A link's queue is bounded by bytes. If a message does not fit, it is dropped and counted, which the protocol takes as it
takes any lost message. If the link waited instead, one slow peer could stop this node.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from quorumq.core.messages import VERSIONS, Admitted, Challenge, Failed, Proof, RemoteFetchReply, Welcome
from quorumq.core.messages.effects import HelloRefused, LinkDown, LinkUp, Unposted
from quorumq.core.values.errors import PeerError, UsageError
from quorumq.core.values.types import NodeId
from quorumq.node.node import Node
from quorumq.node.tls import Certificates
from quorumq.node.transport import ConnectionLost, Outflow, Transport, connect
from quorumq.wire.address import split_address
from quorumq.wire.codec import Message, decode_message, encode_message
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, PREFIX_BYTES, FrameReader
from quorumq.wire.proofs import DIALLER, LISTENER, Handshake, fresh_nonce

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
DIAL_TIMEOUT_S: Final = 2.0
PEER_USER_TIMEOUT_S: Final = 10.0

Dial = Callable[[NodeId], Awaitable[Transport]]


async def dial_address(address: str, certificates: Certificates | None = None) -> Transport:
    """Connect to a node at an address."""
    transport = await connect(*split_address(address), DIAL_TIMEOUT_S, PEER_USER_TIMEOUT_S)
    return transport if certificates is None else certificates.dialled(transport)


def dial_from(address_of: Callable[[NodeId], str], certificates: Certificates | None = None) -> Dial:
    """Return the function with which a node dials its peers, by their addresses."""

    async def dial(peer: NodeId) -> Transport:
        return await dial_address(address_of(peer), certificates)

    return dial


class PeerLink:
    """One connection that this node dialled to a peer, after HELLO."""

    def __init__(self, node: Node, peer: NodeId, out: Outflow) -> None:
        self._node = node
        self._most = node.config.link_bytes_max
        self.peer = peer
        self.out = out
        self.flush = out.flush
        self._answers: deque[tuple[int, RemoteFetchReply]] = (
            deque()
        )  # offset in the stream at which each begins

    @property
    def waiting(self) -> int:
        return self.out.waiting

    def has_capacity(self) -> bool:
        return self.out.waiting < self._most

    def send(self, chunks: list[bytes | memoryview], answer: RemoteFetchReply | None = None) -> bool:
        size = sum(map(len, chunks))
        if self.out.waiting and self.out.waiting + size > self._most:
            return False
        if answer is not None:
            while self._answers and self._answers[0][0] < self.out.sent:
                self._answers.popleft()
            self._answers.append((self.out.sent + self.out.waiting, answer))
        self.out.put(chunks)
        return True

    def never_begun(self) -> list[RemoteFetchReply]:
        """Return the answers without a byte sent. Called when the link has ended, so none is sent later."""
        return [answer for begins, answer in self._answers if begins >= self.out.sent]


def address_of(node: Node, peer: NodeId) -> str:
    """Return the address at which a node dials a peer: by its ``peers``, the members' list, then its ``nodes``."""
    config, member = node.config, node.core.catalogue.cluster.member(peer)
    listed = (member.peer_address or member.address) if member is not None else ""
    return config.peers.get(peer) or listed or config.nodes[peer]


async def keep_link(node: Node, peer: NodeId, dial: Dial, rng: random.Random, nursery: trio.Nursery) -> None:
    """Keep a link to ``peer``: dial, greet, wait for it to break, dial again. Runs until cancelled."""
    pause = BACKOFF_MIN_S
    problem = ""
    while True:
        try:
            transport = await dial(peer)
            try:
                problem = await _run_link(node, peer, transport, nursery, problem)
            finally:
                transport.close()
            if not problem:
                pause = BACKOFF_MIN_S
        except (OSError, ConnectionLost, PeerError, UsageError) as error:
            if str(error) != problem:  # once for each new reason, not once for each attempt
                problem = str(error)
                node.log.info("peer_unreachable", peer=peer, reason=problem or type(error).__name__)
        await node.pause_dialling(peer, pause * rng.uniform(0.5, 1.0))
        pause = min(BACKOFF_MAX_S, 2 * pause)


async def _run_link(
    node: Node, peer: NodeId, transport: Transport, nursery: trio.Nursery, problem: str
) -> str:
    """Greet and stay until the connection ends.

    Args:
        problem: the last reason that was logged.

    Returns:
        The reason for which the peer does not accept our HELLO, or "" if it did.
    """
    reader = FrameReader(HANDSHAKE_BYTES_MAX)
    out = Outflow(
        transport, nursery, node.config.stall_timeout, node.driver, lambda reason: transport.close()
    )
    with trio.move_on_after(node.config.hello_timeout) as waiting:
        hello = encode_message(node.core.hello(node.clock()))
        shows = bool(node.config.tls_ca)
        answer = await greet(hello, peer, transport, reader, out, node.secret, shows_name=shows)
    if waiting.cancelled_caught:
        raise PeerError(f"{peer} did not answer HELLO within {node.config.hello_timeout:g} s")
    if isinstance(answer, Failed):
        if answer.detail != problem:
            node.log.warning("peer_refuses", peer=peer, code=answer.code, detail=answer.detail)
        node.feed(HelloRefused(peer, answer.code, answer.detail, answer.needed))
        return answer.detail or answer.code
    if isinstance(answer, Admitted):
        raise PeerError(f"{peer} answers as if this node had asked to be let in")
    if answer.node != peer:
        raise PeerError(f"node {answer.node!r} answers at the address of {peer!r}: check `nodes`")
    version = answer.version
    lowest, highest = VERSIONS
    if not lowest <= version <= highest:
        raise PeerError(f"{peer} answers HELLO in version {version}; {lowest} to {highest} were offered")
    if node.failed is not None or node.silent:
        return problem
    link = PeerLink(node, peer, out)
    node.links[peer] = link
    node.log.info("link_up", peer=peer, incarnation=answer.incarnation.n, version=version)
    node.feed(
        LinkUp(peer, answer.incarnation, answer.stamp, answer.seen, answer.position, answer.position_by)
    )
    reason = "the peer closed the connection"
    try:
        if await transport.receive():
            reason = f"{peer} said something on a connection that only we speak on"
    except ConnectionLost as lost:
        reason = str(lost)
    finally:
        out.drop()
        if node.links.get(peer) is link:
            del node.links[peer]
        if node.failed is None and not node.silent:
            node.log.info("link_down", peer=peer, reason=reason)
            node.feed(*map(Unposted, link.never_begun()), LinkDown(peer))
    return ""


async def greet(
    hello: list[bytes | memoryview],
    peer: NodeId,
    transport: Transport,
    reader: FrameReader,
    out: Outflow,
    secret: bytes,
    *,
    shows_name: bool,
) -> Welcome | Admitted | Failed:
    """Say HELLO, and show that we know the cluster's secret. If a peer does not show it too, it is not trusted.

    Args:
        peer: id of the node that was dialled; "" for the one that answers.
        shows_name: True if the node's certificate has to have its id.

    Raises:
        PeerError: the other side did not show it, or answered otherwise than the protocol has it.
    """
    out.put(hello)
    out.flush()
    challenge = await _answer(transport, reader)
    if not peer and isinstance(challenge, Challenge):
        peer = challenge.node
    if not peer and isinstance(challenge, Failed):
        return challenge  # its reason is all that it says: it did not give its id
    if shows_name and peer not in transport.names:
        shown = ", ".join(sorted(transport.names)) or "nobody"
        raise PeerError(f"{peer} shows the certificate of {shown}: a node's has its id as a DNS name")
    if isinstance(challenge, Failed):
        return challenge
    if not isinstance(challenge, Challenge):
        raise PeerError(f"{peer} answers HELLO with {type(challenge).__name__}, not Challenge")
    header = bytes(memoryview(hello[0])[PREFIX_BYTES:])
    said = Handshake(header, peer, challenge.nonce, fresh_nonce())
    out.put(encode_message(Proof(said.answer, said.prove(secret, DIALLER))))
    out.flush()
    proof = await _answer(transport, reader)
    if isinstance(proof, Failed):
        return proof
    if not isinstance(proof, Proof) or said.proven(proof.digest, (secret,), LISTENER) is None:
        raise PeerError(
            f"{peer} does not show that it knows the cluster's secret: check the address and `secret`"
        )
    answer = await _answer(transport, reader)
    if isinstance(answer, Welcome | Admitted | Failed):
        return answer
    raise PeerError(f"HELLO was answered with {type(answer).__name__}")


async def _answer(transport: Transport, reader: FrameReader) -> Message:
    """Return the next message of the peer that is greeted."""
    while True:
        frame = reader.next_frame()
        if frame is not None:
            return decode_message(frame).message
        data = await transport.receive()
        if not data:
            reader.close()
            raise ConnectionLost("closed in answer to HELLO")
        reader.feed(data)
