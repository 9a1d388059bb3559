"""The first frame on every connection."""

from __future__ import annotations

from typing import Final, NamedTuple

from quorumq.core.values.types import Incarnation, NodeId

VERSIONS: Final = (1, 1)
"""The lowest and highest version of the protocol that this software speaks."""

RELEASE: Final = "0.1.0"
"""The version of this software, as pyproject.toml has it."""


class LayoutMark(NamedTuple):
    """An adopted layout of a topic, by its number and a digest of its content."""

    topic: bytes
    number: int
    digest: bytes


class Hello(NamedTuple):
    """HELLO from a node or a client (``node`` is "" then, and so are incarnation and directory).

    ``nodes`` is a digest of the configured node list; a client leaves ``cluster_id`` empty to take any.
    ``versions`` are the lowest and highest protocol versions the sender speaks; ``token`` is a client's proof of
    identity, which only the node's shell reads, and so is ``on_behalf``. ``layouts`` are those of topics that were
    moved, of a node that is trusted, the first `LAYOUT_MARKS_MAX` by topic id.
    """

    versions: tuple[int, int]
    cluster_id: str
    nodes: bytes
    hold_time_max: float
    node: NodeId
    incarnation: Incarnation
    directory: int
    wall_ms: int
    stamp: int
    software: str = ""
    token: str = ""  # token of a client, if nodes have a clients file
    on_behalf: str = ""  # name of the client for which a gateway, whose token it is, asks; "" for itself
    layouts: tuple[LayoutMark, ...] = ()


class Welcome(NamedTuple):
    """HELLO accepted. ``seen``: the dialler's last starts that were durable here before, the newest last."""

    version: int
    cluster_id: str
    node: NodeId
    incarnation: Incarnation
    directory: int
    wall_ms: int
    stamp: int
    seen: tuple[Incarnation, ...]
    software: str = ""
    position: int = 0  # position of the dialler's directory, by its last report, and the reporting start
    position_by: int = 0


class Challenge(NamedTuple):
    """The answer to a node's HELLO: show that you know the cluster's secret. ``nonce`` has 16 bytes."""

    nonce: bytes


class Proof(NamedTuple):
    """The dialler's answer to `Challenge`, and the other side's answer to that, which repeats ``nonce``.

    ``digest`` is keyed with the secret, over all that was said on the connection (wire/proofs.py).
    """

    nonce: bytes
    digest: bytes
