"""The first frame on every connection; how a node is let in, and how the members of a cluster change."""

from __future__ import annotations

from typing import Final, NamedTuple

from quorumq.core.values.types import ClusterLayout, Incarnation, Machines, NodeId

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

    ``nodes`` is a digest of the node list that the cluster was made with; a client leaves ``cluster_id`` empty to take
    any. A node with an empty directory that asks to be let in leaves ``nodes`` empty.
    ``versions`` are the lowest and highest protocol versions the sender speaks; ``token`` is a client's proof of
    identity, which only the node's shell reads, and so is ``on_behalf``. ``layouts`` are those of the
    cluster and of topics that were moved, of a node that is trusted, the first `LAYOUT_MARKS_MAX` by topic id.
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
    address: str = ""  # address that clients would get, of a node that asks to be let in


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
    """The answer to a node's HELLO: show that you know the cluster's secret. ``nonce`` has 16 bytes.

    ``node`` is the answering node, for a node that asks to be let in and dials an address.
    """

    nonce: bytes
    node: NodeId = ""


class Proof(NamedTuple):
    """The dialler's answer to `Challenge`, and the other side's answer to that, which repeats ``nonce``.

    ``digest`` is keyed with the secret, over all that was said on the connection (wire/proofs.py).
    """

    nonce: bytes
    digest: bytes


class Admitted(NamedTuple):
    """The answer to the HELLO of a node that asks to be let in, once it is a member: what a directory begins with."""

    nodes: tuple[NodeId, ...]  # that the cluster was made with
    hold_time_max: float
    machines: Machines
    layout: ClusterLayout


class PutCluster(NamedTuple):
    """Take over a layout of the cluster that was chosen. Answered with PutReply once durable, if in a round."""

    round: int
    layout: ClusterLayout


class ChangeMembers(NamedTuple):
    """Have a node be a member of the cluster, or change its addresses; or have it leave.

    ``change`` is "add"; "drain": no new partition is placed on it; "move-voter": its voter's slot goes to the member
    ``to``, or to any if that is empty; "raise-voters": ``voters`` members are voters, and no node is named; or
    "remove": it is no member any more. Only "add" has an address and a machine; a member keeps its peer address and
    machine if none is named. With ``layout``, the number of the one that its client knows, it changes no later one.
    """

    change: str
    node: NodeId
    address: str = ""  # "host:port" for clients
    peer_address: str = ""  # for the other nodes, if that differs
    machine: str = ""
    dry_run: bool = False  # check it, and change nothing
    to: NodeId = ""
    voters: int = 0
    layout: int | None = None


class ChangeMembersReply(NamedTuple):
    """A majority of the voters has this layout of the cluster, in which the change was made, or a later one."""

    layout: ClusterLayout
