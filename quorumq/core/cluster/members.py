"""Members of the cluster, as one node knows them (docs/layouts.md, MEMBERS).

The voters, who keep the registers, are the nodes that the cluster was made with, or five of these, until a voter's slot
goes to another member, or members are added to them. All members keep replicas and serve clients. A member's number is
its place in the list, and no other member ever gets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
    PartitionId,
    ReplicaSlot,
    Stamp,
    Topic,
    Value,
)

NODE_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
MACHINE_CHARS_MAX = 64

VOTERS_MAX: Final = 5
"""Voters of a cluster: two may be lost. More would have each change of a setting wait for more nodes."""

VOTERS: Final = PartitionId(bytes(16), 0)
"""Stands for the voters where a node's slots are named by partition."""


def first_layout(nodes: Iterable[NodeId], machines: Machines = ()) -> ClusterLayout:
    """Return layout 0: the nodes that the cluster was made with. Their addresses are in each node's configuration.

    Of more than five nodes five are voters, on as many machines as there are. Each node finds the same five.
    """
    on = dict(machines)
    members = tuple(Member(node, machine=on.get(node, "")) for node in nodes)
    others, voters = sorted(member.node for member in members), list[NodeId]()
    while len(members) > VOTERS_MAX > len(voters):
        voters += apart(others, machines)[: VOTERS_MAX - len(voters)]
        others = [node for node in others if node not in voters]
    return ClusterLayout(0, STAMP_ZERO, members, len(members), tuple(ReplicaSlot(node, 0) for node in voters))


def apart(nodes: Iterable[NodeId], machines: Machines) -> list[NodeId]:
    """Return the first of these nodes on each machine."""
    on, first = dict(machines), dict[str, NodeId]()
    for node in nodes:
        first.setdefault(on.get(node, node), node)
    return list(first.values())


class Members:
    """The newest cluster layout that a node knows, and what follows from it.

    Attributes:
        layout: the layout.
        names: node of each number, also of members that were removed; vectors of incarnations go by it.
        present: nodes that are members, by number.
        slots: voters with the layout since which each is one.
        voters: nodes that keep the registers.
        epoch: layout in which the voters last changed. Answers about registers count in one epoch.
        first: nodes that the cluster was made with.
        joined: members on which new partitions are placed.
        drained: the other members.
        gone: nodes that were removed, and are no member under another number.
        over: these with their machines; empty while no node was ever added.
    """

    __slots__ = (
        "drained", "epoch", "first", "gone", "joined", "layout", "names", "over", "present", "slots", "voters",
    )  # fmt: skip

    def __init__(self, layout: ClusterLayout) -> None:
        self.layout = layout
        self.names: tuple[NodeId, ...] = tuple(member.node for member in layout.members)
        here = [member for member in layout.members if member.state != MemberState.REMOVED]
        self.present: tuple[NodeId, ...] = tuple(member.node for member in here)
        self.first: tuple[NodeId, ...] = self.names[: layout.voters]
        self.slots = layout.slots or tuple(ReplicaSlot(node, 0) for node in self.first)
        self.voters: tuple[NodeId, ...] = tuple(slot.node for slot in self.slots)
        self.epoch = layout.epoch
        joined = [member for member in here if member.state == MemberState.JOINED]
        self.joined: tuple[NodeId, ...] = tuple(member.node for member in joined)
        self.drained: tuple[NodeId, ...] = tuple(node for node in self.present if node not in self.joined)
        self.over: Machines = tuple((it.node, it.machine) for it in joined) if layout.number else ()
        self.gone: tuple[NodeId, ...] = tuple(node for node in self.names if node not in self.present)

    def member(self, node: NodeId) -> Member | None:
        """Return the member of that name, the present one if there is one; None if there never was any."""
        named = [member for member in self.layout.members if member.node == node]
        return named[-1] if named else None

    def is_member(self, node: NodeId) -> bool:
        return node in self.present

    @property
    def new_voters(self) -> list[NodeId]:
        """Return the voters that are new in this epoch: each learns from the voters before, and votes then."""
        return [node for node, since in self.slots if since and since == self.epoch]

    def since(self, node: NodeId) -> int:
        """Return the layout since which a node is a voter; 0 if it is none, or was from the beginning."""
        return next((slot.since for slot in self.slots if slot.node == node), 0)

    def tellers(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return the nodes from which a node learns the registers: the voters, and for a new one those before."""
        before = [slot.node for slot in self.layout.before] if node in self.new_voters else []
        return tuple(dict.fromkeys([*self.voters, *before]))

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
        assert all(node in self.present for node in self.voters), "a voter was removed"
        assert len(dict.fromkeys(self.voters)) == len(self.voters), "a node is a voter twice"
        assert len(self.layout.before) <= len(self.voters), "there are fewer voters than before"
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
    if change == "drain":
        return check_drain(node, known)
    if node in known.voters:
        return (
            f"node {node} is a voter: settings of topics and groups are kept on {', '.join(known.voters)}. `quorumq "
            f"nodes drain {node}` has another node keep them first"
        )
    if member.state == MemberState.JOINED:
        return f"node {node} is in use: `quorumq nodes drain {node}` moves its partitions away first"
    kept = [where for topic in topics for where in kept_on(node, topic, known.first)]
    if kept:
        more = f" and {len(kept) - 5} more" if len(kept) > 5 else ""
        return (
            f"node {node} still keeps {', '.join(kept[:5])}{more}: `quorumq nodes drain {node}` moves its partitions "
            "away, and ends once their payload is copied"
        )
    return ""


def check_drain(node: NodeId, known: Members) -> str:
    """Return why a node cannot be drained, or "": every voter's slot needs a member that is not drained."""
    stay = [it for it in known.joined if it != node]
    if len(stay) < len(known.voters):
        return (
            f"without {node} {len(stay)} nodes would be left ({', '.join(stay)}), and settings of topics and groups "
            f"are kept on {len(known.voters)}. Add a node first (`quorumq nodes add`)"
        )
    return check_voter(node, "", known)


def with_voter(layout: ClusterLayout, node: NodeId, to: NodeId, made: Stamp) -> ClusterLayout:
    """Return the next layout, in which the voter's slot of ``node`` is the member ``to``'s."""
    number, slots = layout.number + 1, Members(layout).slots
    moved = tuple(ReplicaSlot(to, number) if slot.node == node else slot for slot in slots)
    return layout._replace(number=number, made=made, slots=moved, before=slots, epoch=number)


def with_voters(layout: ClusterLayout, added: Iterable[NodeId], made: Stamp) -> ClusterLayout:
    """Return the next layout, in which these members are voters as well."""
    number, slots = layout.number + 1, Members(layout).slots
    more = tuple(ReplicaSlot(node, number) for node in added)
    return layout._replace(number=number, made=made, slots=slots + more, before=slots, epoch=number)


def check_count(count: int, known: Members) -> str:
    """Return why ``count`` members cannot be voters, or ""."""
    has = len(known.voters)
    if count == has:
        return ""
    if count < has:
        return (
            f"count is {count}: {', '.join(known.voters)} are voters, and they cannot become fewer. Of fewer voters "
            "a majority need not have one that knows each setting"
        )
    if count % 2 == 0 or count > VOTERS_MAX:
        return f"count is {count}: it must be odd (an even one tolerates no more failures) and at most {VOTERS_MAX}"
    able = apart(next_voters(known, ""), known.machines)
    if len(able) < count - has:
        others = ", ".join(able) or "none"
        return (
            f"count is {count}: {', '.join(known.voters)} are voters, and {others} can become one: a member that is "
            "not drained, on another machine. Add nodes first (`quorumq nodes add`)"
        )
    return ""


def next_voters(known: Members, node: NodeId) -> list[NodeId]:
    """Return the members that the voter's slot of a node may go to: no machine has two voters."""
    on = dict(known.machines)
    taken = [on.get(other, other) for other in known.voters if other != node]
    return [it for it in known.joined if it not in known.voters and on.get(it, it) not in taken]


def check_voter(node: NodeId, to: NodeId, known: Members) -> str:
    """Return why the voter's slot of ``node`` cannot go to ``to``, or to any member if that is empty; or ""."""
    if not known.is_member(node):
        return f"there is no node {node[:50]!r}: {', '.join(known.present)} are members"
    if node not in known.voters:
        return ""
    able = next_voters(known, node)
    if to in able or (able and not to):
        return ""
    if not able:
        return (
            f"no other node can keep the settings that {node} keeps: {', '.join(known.voters)} are voters, and every "
            "other member is drained, or on the machine of one. Add a node first (`quorumq nodes add`)"
        )
    return f"to is {to[:50]!r}: the settings that {node} keeps can go to {', '.join(able)}"


def nodes_of(value: Value) -> list[NodeId]:
    """Return the nodes on which a value of an instance places partitions, or leaves payload."""
    if isinstance(value, Topic):
        return [node for members in value.replicas for node in members]
    if isinstance(value, Layout):
        return [node for it in value.placements for node in (*it.nodes, *it.sources, *it.learners)]
    return []


def kept_on(node: NodeId, topic: Topic, first: tuple[NodeId, ...]) -> list[str]:
    """Return the partitions of a topic that a node has, may get, or keeps the payload of.

    Args:
        first: nodes that the cluster was made with, from which sets of its first topics are drawn.
    """
    names: list[str] = []
    for number in range(topic.all_partitions):
        placement = topic.placement(number)
        sets = [*topic.replicas[number : number + 1]]
        if placement is not None:
            sets += [placement.sources, placement.learners]
        if number >= topic.partitions:
            sets.append(tuple(each for each, _ in topic.over) or first)
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
        return f"machine is {member.machine[:80]!r}: it must be at most 64 characters that can be printed"
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
    if node in known.first:
        return f"node {node} was one of the first nodes, which every node's list names: choose another name"
    if len(known.present) >= NODES_MAX:
        return f"this cluster has {len(known.present)} nodes, and no cluster has more than {NODES_MAX}"
    if len(known.names) >= MEMBERS_MAX:
        return f"this cluster had {len(known.names)} nodes in its life, and no number is left for another one"
    return ""


def outdated(known: Members, me: NodeId, addresses: Addresses) -> str:
    """Return how the nodes of a configuration file differ from the members, in words; "" if no node was ever added.

    A file may list the first nodes alone: it needs no later member for its first contact.
    """
    file = dict(addresses)
    if not known.layout.number or file.keys() <= {me}:
        return ""
    listed = known.first if file.keys() <= {*known.first} else known.present
    there = {it.node: it.address for it in known.layout.members if it.state != MemberState.REMOVED}
    parts = [
        f"it lacks {node} = {address!r}"
        for node, address in there.items()
        if node in listed and node not in file
    ]
    parts += [f"it has {node}, which is no member" for node in file if node not in (*there, *known.first)]
    parts += [
        f"it has {node} = {file[node]!r}, and the members' list {address!r}"
        for node, address in there.items()
        if node != me and file.get(node, address) != address
    ]
    return "; ".join(parts)
