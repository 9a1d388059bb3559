"""A node's reading of bytes of a client or a peer, up to its core: its own code, without sockets."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from types import SimpleNamespace
from typing import Any

from quorumq.core.messages import Failed
from quorumq.core.values.errors import PeerError
from quorumq.core.values.types import Now
from quorumq.node.changes import Changes
from quorumq.node.connections import CLIENT_REQUESTS, PEER_MESSAGES, Inbound
from quorumq.node.logs import make_log
from quorumq.node.producers import ProducerClocks
from quorumq.node.readers import Readers
from quorumq.node.shares import Shares
from quorumq.wire.codec import UnknownMessage, decode_message, encode_message
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, Frame, FrameReader
from tests.fuzz.draw import KEYS

ROLES = ("stranger", "client", "peer")


class Taking(Inbound):
    """A client's connection that only takes requests; ``refusals`` counts those that it answered itself."""

    def __init__(self) -> None:
        nothing: Any = None
        log = make_log("json", "error", "a", StringIO())
        node: Any = SimpleNamespace(
            keys=KEYS,
            readers=Readers(),
            clock=lambda: Now(0.0, 0),
            config=SimpleNamespace(stall_timeout=1.0),
            core=SimpleNamespace(catalogue=None, replicas={}),
            trace=SimpleNamespace(on=False),
            driver=nothing,
            turns=nothing,
            intake=nothing,
            changes=Changes(log),
            producer_clocks=ProducerClocks(log),
            shares=Shares(lambda: 0.0),
        )
        super().__init__(node, nothing, "127.0.0.1:1", nothing, {}, Counter())
        self.refusals = 0

    def _admit(self, number: int, weight: int, counted: Any = None) -> int:
        assert weight >= 0
        return 1

    def _answer(self, number: int, refusal: Failed) -> None:
        assert encode_message(refusal, request=number)
        self.refusals += 1


def take(frame: Frame, role: str) -> str:
    """Give a node one frame; return the outcome, in a word.

    Raises:
        PeerError: it hangs up.
    """
    if role == "client":
        taking = Taking()
        event: Any = taking._take(frame)
        if event is None:
            return "refused" if taking.refusals else "skipped"
        assert type(event.request) in CLIENT_REQUESTS
        return "request"
    try:
        message = decode_message(frame).message
    except UnknownMessage:
        return "skipped"
    return "message" if type(message) in PEER_MESSAGES else "of another kind"


def read(data: bytes, role: str, chunk: int) -> str:
    """Feed ``data`` in chunks, as a socket does; return the last frame's outcome, or that the node hung up."""
    reader = FrameReader(HANDSHAKE_BYTES_MAX) if role == "stranger" else FrameReader()
    outcome = "nothing"
    try:
        for at in range(0, len(data), chunk):
            reader.feed(data[at : at + chunk])
            for frame in reader:
                outcome = take(frame, role)
            assert reader.pending_bytes <= len(data)
        reader.close()
    except PeerError:
        return "hung up"
    return outcome
