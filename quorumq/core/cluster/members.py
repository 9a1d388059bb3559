"""Members of the cluster, as one node knows them (docs/protocol.md, MEMBERS).

The voters, who keep the registers, are the nodes that the cluster was made with. Later members keep replicas and serve
clients. A member's number is its place in the list, and no other member ever gets it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.values.addresses import split_address
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import (
    MEMBERS_MAX,
    NODES_MAX,
    STAMP_ZERO,
    ClusterLayout,
    Layout,
    Machines,
    Member,
    MemberState,
    NodeId,
    Stamp,
    Topic,
    Value,
)

NODE_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
MACHINE_CHARS_MAX = 64


def first_layout(nodes: Iterable[NodeId], machines: Machines = ()) -> ClusterLayout:
    """Return layout 0: the nodes that the cluster was made with. Their addresses are in each node's configuration."""
    on = dict(machines)
    members = tuple(Member(node, machine=on.get(node, "")) for node in nodes)
    return ClusterLayout(0, STAMP_ZERO, members, len(members))


class Members:
    """The newest cluster layout that a node knows, and what follows from it.

    Attributes:
        layout: the layout.
        names: node of each number, also of members that were removed; vectors of incarnations go by it.
        present: nodes that are members, by number, the voters first.
        voters: nodes that keep the registers.
        joined: members on which new partitions are placed.
        gone: nodes that were removed, and are no member under another number.
        over: these with their machines; empty while no node was ever added.
    """

    __slots__ = ("gone", "joined", "layout", "names", "over", "present", "voters")

    def __init__(self, layout: ClusterLayout) -> None:
        self.layout = layout
        self.names: tuple[NodeId, ...] = tuple(member.node for member in layout.members)
        here = [member for member in layout.members if member.state != MemberState.REMOVED]
        self.present: tuple[NodeId, ...] = tuple(member.node for member in here)
        self.voters: tuple[NodeId, ...] = self.present[: layout.voters]
        joined = [member for member in here if member.state == MemberState.JOINED]
        self.joined: tuple[NodeId, ...] = tuple(member.node for member in joined)
        self.over: Machines = tuple((it.node, it.machine) for it in joined) if layout.number else ()
        self.gone: tuple[NodeId, ...] = tuple(node for node in self.names if node not in self.present)

    def member(self, node: NodeId) -> Member | None:
        """Return the member of that name, the present one if there is one; None if there never was any."""
        named = [member for member in self.layout.members if member.node == node]
        return named[-1] if named else None

    def is_member(self, node: NodeId) -> bool:
        """Return True if a node is a member now."""
        return node in self.present

    @property
    def machines(self) -> Machines:
        """Return the machine of each member, if machines are named."""
        named = [it for it in self.layout.members if it.machine and it.state != MemberState.REMOVED]
        return tuple(sorted((it.node, it.machine) for it in named))

    @property
    def placing(self) -> tuple[tuple[NodeId, ...], Machines]:
        """Return the members on which new partitions are placed, and their machines, if machines are named."""
        return self.joined, tuple(it for it in self.machines if it[0] in self.joined)

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert self.names[: self.layout.voters] == self.voters, "a voter was removed"
        assert len(dict.fromkeys(self.present)) == len(self.present), "two members have one name"


Addresses = Iterable[tuple[NodeId, str]]
"""Addresses by node, as a configuration has them."""


def address_of(member: Member, me: NodeId, addresses: Addresses) -> str:
    """Return a member's address for clients: the layout's, and our own (``me``) as our configuration says."""
    known = dict(addresses).get(member.node, "")
    return known if member.node == me and known else member.address or known


def addressed(layout: ClusterLayout, addresses: Addresses, peer_addresses: Addresses) -> ClusterLayout:
    """Return the layout with the addresses that this node's configuration has for members without one.

    Why: a node that is added has no configuration with the others' addresses.
    """
    known, dialled = dict(addresses), dict(peer_addresses)
    members = [
        member
        if member.address
        else member._replace(address=known.get(member.node, ""), peer_address=dialled.get(member.node, ""))
        for member in layout.members
    ]
    return layout._replace(members=tuple(members))


def with_member(layout: ClusterLayout, member: Member, made: Stamp) -> ClusterLayout:
    """Return the next layout, in which ``member`` is a new member, or the present one of its name is changed."""
    members = list(layout.members)
    at = next((at for at, it in enumerate(members) if is_present(it, member.node)), None)
    if at is None:
        members.append(member)
    else:
        members[at] = member
    return layout._replace(number=layout.number + 1, made=made, members=tuple(members))


def check_leaving(change: str, node: NodeId, known: Members, topics: Iterable[Topic]) -> str:
    """Return why a node cannot be drained or removed (``change``), or ""."""
    member = known.member(node)
    if member is None:
        return f"there is no node {node[:50]!r}: {', '.join(known.present)} are members"
    if member.state == MemberState.REMOVED:
        return "" if change == "remove" else f"node {node} was removed already"
    if node in known.voters:
        return (
            f"node {node} is a voter: settings of topics and groups are kept on {', '.join(known.voters)}, which the "
            "cluster was made with. To replace its machine, give another one the same id and an empty directory"
        )
    if change == "drain":
        return ""
    if member.state == MemberState.JOINED:
        return f"node {node} is in use: `quorumq nodes drain {node}` moves its partitions away first"
    kept = [where for topic in topics for where in kept_on(node, topic)]
    if kept:
        more = f" and {len(kept) - 5} more" if len(kept) > 5 else ""
        return (
            f"node {node} still keeps {', '.join(kept[:5])}{more}: `quorumq nodes drain {node}` moves its partitions "
            "away, and ends once their payload is copied"
        )
    return ""


def nodes_of(value: Value) -> list[NodeId]:
    """Return the nodes on which a value of an instance places partitions, or leaves payload."""
    if isinstance(value, Topic):
        return [node for members in value.replicas for node in members]
    if isinstance(value, Layout):
        return [node for it in value.placements for node in (*it.nodes, *it.sources, *it.learners)]
    return []


def kept_on(node: NodeId, topic: Topic) -> list[str]:
    """Return the partitions of a topic that a node has, may get, or keeps the payload of."""
    names: list[str] = []
    for number in range(topic.all_partitions):
        placement = topic.placement(number)
        sets = [*topic.replicas[number : number + 1]]
        if placement is not None:
            sets += [placement.sources, placement.learners]
        if number >= topic.partitions:
            sets.append(tuple(each for each, _ in topic.over))
        if any(node in each for each in sets):
            names.append(f"{topic.name}/{number}")
    for placement in topic.next_layout.placements if topic.next_layout is not None else ():
        if node in (*placement.nodes, *placement.sources, *placement.learners):
            names.append(f"{topic.name}/{placement.partition}")
    return list(dict.fromkeys(names))


def is_present(member: Member, node: NodeId) -> bool:
    """Return True if this is the present member of that name."""
    return member.node == node and member.state != MemberState.REMOVED


def check_member(member: Member, known: Members) -> str:
    """Return the error in a node that is to be a member, or ""."""
    node = member.node
    if not 1 <= len(node) <= 32 or not NODE_CHARS.issuperset(node):
        return f"node id {node[:50]!r}: must be 1 to 32 characters of a-z, 0-9 and '-'"
    try:
        split_address(member.address)
        if member.peer_address:
            split_address(member.peer_address, name="peer address")
    except UsageError as error:
        return str(error)
    if len(member.machine) > MACHINE_CHARS_MAX or not (member.machine.isprintable() or not member.machine):
        return f"machine is {member.machine[:80]!r}: it must be at most 64 letters that can be printed"
    if bool(member.machine) != bool(known.machines):
        have = ", ".join(f"{each} on {machine}" for each, machine in known.machines) or "none is named"
        return (
            f"machine is {member.machine!r}: every node has one if nodes share machines, and no node has one if not "
            f"(here: {have}), so that no machine gets two replicas of a partition"
        )
    old = known.member(node)
    if old is not None and old.state != MemberState.REMOVED and old.machine != member.machine:
        return (
            f"machine is {member.machine!r}: {node} is a member on {old.machine!r}, which its replicas were placed by; "
            "add a node of another name there"
        )
    for other in known.layout.members:
        if other.node != node and other.state != MemberState.REMOVED:
            theirs = {other.address, other.peer_address} - {""}
            if taken := sorted(theirs & {member.address, member.peer_address}):
                return f"address is {taken[0]!r}: that is {other.node}'s"
    if known.is_member(node):
        return ""
    if len(known.present) >= NODES_MAX:
        return f"this cluster has {len(known.present)} nodes, and no cluster has more than {NODES_MAX}"
    if len(known.names) >= MEMBERS_MAX:
        return f"this cluster had {len(known.names)} nodes in its life, and no number is left for another one"
    return ""


def outdated(known: Members, me: NodeId, addresses: Addresses) -> str:
    """Return how the nodes of a configuration file differ from the members, in words; "" if no node was ever added."""
    file = dict(addresses)
    if not known.layout.number or file.keys() <= {me}:
        return ""
    there = {it.node: it.address for it in known.layout.members if it.state != MemberState.REMOVED}
    parts = [f"it lacks {node} = {address!r}" for node, address in there.items() if node not in file]
    parts += [f"it has {node}, which is no member" for node in file if node not in there]
    parts += [
        f"it has {node} = {file[node]!r}, and the members' list {address!r}"
        for node, address in there.items()
        if node != me and file.get(node, address) != address
    ]
    return "; ".join(parts)
