"""Plans of several moves of partitions, and their carrying out: for `nodes drain` and `partitions balance`.

A plan is made anew from METADATA after each round, so a command that is interrupted, or runs beside another one,
goes on from the present layout.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from quorumq.cli.common import print_json, say
from quorumq.client import Client
from quorumq.core.cluster.topics import rendezvous, replica_set
from quorumq.core.messages import MetadataReply, NodeInfo
from quorumq.core.values.errors import Conflict, QuorumqError, StorageFull, Transient, UsageError
from quorumq.core.values.types import ClusterLayout, Machines, MemberState, Topic

PAUSE: Final = 8.0
"""Pause after moves, in times of their duration. If slots moved without pauses, all requests would be slow."""

PAUSE_MAX_S: Final = 3.0
"""Longest such pause in seconds, if moves are slow."""

AGAIN_S: Final = 1.0
"""Seconds before moves that could not be made now are tried again, and between looks at payload being copied."""


IDLE_TOGETHER_MAX: Final = 8
"""Most partitions that move at once while no client uses them. Those of one topic go in one layout."""

IDLE_TOPICS_MAX: Final = 4
"""Most topics of such partitions."""

LOOK_S: Final = 10.0
"""Seconds between looks at what clients use."""


class Move(NamedTuple):
    """One slot of a partition goes from one node to another. If ``to`` is empty, a source is given up."""

    topic: str
    partition: int
    source: str
    to: str

    def __str__(self) -> str:
        to = f" to {self.to}" if self.to else ""
        return f"{self.topic}/{self.partition} from {self.source}{to}"


Plan = Callable[[MetadataReply], list[Move]]


def placing(known: MetadataReply) -> tuple[tuple[str, ...], Machines]:
    """Return the nodes that partitions may be placed on, and the machines of all, if machines are named."""
    joined = tuple(info.node for info in known.nodes if info.state == MemberState.JOINED)
    return joined, tuple((info.node, info.machine) for info in known.nodes if info.machine)


def off(node: str, to: str = "", machine: str = "") -> Plan:
    """Return the plan that moves every partition off a node, each to the node with space that ranks first for it.

    Args:
        node: id of the node that is left.
        to: id of the node that gets all that it can have; if empty, no node is preferred.
        machine: machine of that node, if it is not a member yet and machines are named.
    """

    def plan(known: MetadataReply) -> list[Move]:
        joined, machines = placing(known)
        on, full = dict(machines), [info.node for info in known.nodes if info.full]
        if to and to not in [info.node for info in known.nodes]:
            joined, on[to] = (*joined, to), machine or to
        moves: list[Move] = []
        for topic in known.topics:
            for number, members in enumerate(topic.replicas):
                if node not in members:
                    continue
                taken = [on.get(other, other) for other in members if other != node]
                others = [it for it in joined if it not in members and on.get(it, it) not in taken]
                if not others:
                    raise UsageError(
                        f"{topic.name}/{number} is on {', '.join(members)}, and no other node is left for it: add one"
                    )
                able = [it for it in others if it not in full] or others
                first = to if to in others else rendezvous(able, topic.id, number)[0]
                moves.append(Move(topic.name, number, node, first))
        return moves

    return plan


def balanced(known: MetadataReply) -> list[Move]:
    """Return the moves after which each partition is where it would be placed today, and no more."""
    joined, machines = placing(known)
    on = dict(machines)
    moves: list[Move] = []
    for topic in known.topics:
        for number, members in enumerate(topic.replicas):
            best = replica_set(
                joined, tuple(it for it in machines if it[0] in joined), len(members), topic.id, number
            )
            leaving = [node for node in members if node not in best]
            coming = [node for node in best if node not in members]
            beside = {on.get(node, node): node for node in leaving}
            pairs = [(beside[on.get(node, node)], node) for node in coming if on.get(node, node) in beside]
            others = [node for node in leaving if node not in dict(pairs)]
            rest = [node for node in coming if node not in [to for _, to in pairs]]
            pairs += zip(others, rest, strict=False)
            moves += [Move(topic.name, number, source, to) for source, to in pairs]
    return moves


def planned(plan: Plan, known: MetadataReply) -> list[Move]:
    """Return the moves of a plan.

    Raises:
        StorageFull: a node that would get a partition takes no messages now. Names it, and the remedy.
    """
    moves = plan(known)
    full = {info.node: info.full for info in known.nodes if info.full}
    for move in moves:
        if move.to in full:
            raise StorageFull(f"{move} cannot be made: {full[move.to]}")
    return moves


def copying(known: MetadataReply, node: str) -> list[str]:
    """Return the partitions whose payload a node still keeps for others, or copies; of any node if it is empty."""
    return [
        f"{topic.name}/{placement.partition}"
        for topic in known.topics
        for placement in placements(topic)
        if (node in (*placement.sources, *placement.learners) if node else placement.sources)
    ]


def kept_by(known: MetadataReply, node: str) -> list[Move]:
    """Return the partitions that a node that is dead for good would have to copy, as moves to no node."""
    return [
        Move(topic.name, placement.partition, node, "")
        for topic in known.topics
        for placement in placements(topic)
        if node in placement.sources
    ]


def placements(topic: Topic) -> Sequence[Any]:
    """Return the partitions of a topic that were moved."""
    return topic.layout.placements if topic.layout is not None else ()


def leaver(known: MetadataReply, node: str) -> NodeInfo:
    """Return the member of this id, which may leave the cluster.

    Raises:
        UsageError: it is no member.
    """
    info = next((each for each in known.nodes if each.node == node), None)
    if info is None:
        names = ", ".join(each.node for each in known.nodes)
        raise UsageError(f"there is no node {node!r}: {names} are members")
    return info


def check_removal(known: MetadataReply, node: str) -> None:
    """Check if a node can be removed, as far as METADATA shows.

    Raises:
        UsageError: it is no member, in use, or keeps something.
    """
    info = leaver(known, node)
    kept = [
        f"{topic.name}/{at}" for topic in known.topics for at, it in enumerate(topic.replicas) if node in it
    ]
    kept += [*copying(known, node), *(["settings"] if info.voter else [])]
    if info.state == MemberState.JOINED or kept:
        has = f"keeps {', '.join(kept[:5])}" if kept else "is in use"
        raise UsageError(f"node {node} {has}: `quorumq nodes drain {node}` comes first")


class Activity:
    """Partitions that clients use, by looks at the nodes.

    Attributes:
        idle: partitions in which nothing changed between the last two looks, by topic and number.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.idle: dict[tuple[str, int], None] = {}
        self._rows: dict[tuple[str, int], dict[str, object]] = {}
        self._at = -math.inf

    async def look(self, known: MetadataReply) -> None:
        """Look again if the last time was long ago. The first time are two looks, a second apart."""
        if trio.current_time() < self._at + LOOK_S:
            return
        if not self._rows:
            self._rows = await self._look(known)
            await trio.sleep(AGAIN_S)
        rows = await self._look(known)
        self.idle = {partition: None for partition, row in rows.items() if row == self._rows.get(partition)}
        self._rows, self._at = rows, trio.current_time()

    async def _look(self, known: MetadataReply) -> dict[tuple[str, int], dict[str, object]]:
        """Return what each node that answers has of each partition, without ages."""
        rows: dict[tuple[str, int], dict[str, object]] = {}
        for node in [info.node for info in known.nodes if info.up]:
            with suppress(QuorumqError):  # the others have partitions, too
                status: Any = await self.client.status(node, timeout=LOOK_S / 5)
                for row in status["partitions"]:
                    rows.setdefault((row["topic"], row["partition"]), {})[node] = without_ages(row)
        return rows

    def together(self, moves: Sequence[Move]) -> list[Move]:
        """Return the first of these moves, with the next ones that are made at once with it.

        Why not several of partitions in use: while a slot is new its clients wait, and they would all wait at once.
        """
        count, topics = 0, dict[str, None]()
        for move in moves[:IDLE_TOGETHER_MAX]:
            topics[move.topic] = None
            is_used = bool(move.to) and (move.topic, move.partition) not in self.idle
            if is_used or len(topics) > IDLE_TOPICS_MAX:
                break
            count += 1
        return list(moves[: max(1, count)])


def without_ages(value: Any) -> Any:
    """Return a value of a status without its ages, which change by themselves."""
    if not isinstance(value, dict):
        return value
    return {name: without_ages(each) for name, each in value.items() if not name.endswith("_s")}


async def made_together(client: Client, moves: Sequence[Move]) -> list[QuorumqError | None]:
    """Make moves at once. Returns the error of each, or None."""
    errors: list[QuorumqError | None] = [None] * len(moves)

    async def make(at: int, move: Move) -> None:
        try:
            if move.to:
                await client.move_partition(*move)
            else:
                await client.give_up_source(*move[:3])
        except QuorumqError as error:
            errors[at] = error

    async with trio.open_nursery() as nursery:
        for at, move in enumerate(moves):
            nursery.start_soon(make, at, move)
    return errors


async def check_replacement(client: Client, node: str, by: str) -> MetadataReply:
    """Return the metadata of the cluster, if one node can be replaced by another, or was.

    Raises:
        UsageError: the node that is to leave is no member, or the other one.
    """
    if node == by:
        raise UsageError(f"node {node!r} cannot be replaced by itself: give the id of another one")
    metadata = await client.metadata()
    known = [info.node for info in metadata.nodes]
    if node in known or by not in known:
        leaver(metadata, node)
    return metadata


async def begin_drain(client: Client, node: str, plan: Plan, *, dry_run: bool = False) -> MetadataReply:
    """Have no new partition placed on a node, if all that it has can go elsewhere by the plan.

    Args:
        dry_run: check if it can be done, and change nothing.

    Returns:
        The metadata of the cluster.

    Raises:
        UsageError: it is no member, or has something that can go nowhere. Nothing was changed.
        StorageFull: a node that would get a partition takes no messages now. Nothing was changed.
    """
    known = await client.metadata()
    leaver(known, node)
    planned(plan, known)
    await client.drain_node(node, dry_run=dry_run)
    return known


async def replace(
    client: Client, node: str, by: str, address: str, as_json: bool, *, dead: bool = False, **location: Any
) -> int:
    """Add a node, move all that another one keeps there, and end the membership of the other one.

    Args:
        node: id of the node that leaves.
        by: id of the node that is added.
        address: address of that node.
        dead: the node that leaves is gone for good: messages that it alone had are given up.
        location: machine and peer address of the added node, as `Client.add_node` takes them.

    Returns:
        Count of moves.

    Raises:
        UsageError: the node that is to leave is no member, or the other one, or has something that can go nowhere.
    """
    known = await check_replacement(client, node, by)
    planned(off(node, by, location.get("machine", "")), known)
    await client.add_node(by, address, **location)
    moved = 0
    if node in [info.node for info in known.nodes]:
        plan = off(node, by)
        await begin_drain(client, node, plan)
        moved = await carry_out(client, plan, as_json, node, dead=dead)
        await move_voter(client, node, by, as_json)
        await client.remove_node(node)
    return moved


async def until_they_vote(change: Callable[[], Awaitable[ClusterLayout]], as_json: bool) -> list[str]:
    """Change the voters, again until the new ones vote, and return all. If not ``as_json``, print its waits."""
    said = ""
    while True:
        try:
            return [slot.node for slot in (await change()).slots]
        except (Conflict, Transient) as error:
            if str(error) != said and not as_json:
                say(str(error), err=True)
            said = str(error)
            await trio.sleep(AGAIN_S)


async def move_voter(client: Client, node: str, to: str, as_json: bool) -> None:
    """Have another member keep the settings that a node keeps, if it is a voter; ask again until that member votes.

    Args:
        node: the node that is left.
        to: id of the node that takes over. The cluster chooses if it is empty, or if that node or another one on its
            machine is a voter already.
        as_json: print an object once it is done, and no words.
    """
    metadata = await client.metadata()
    known, on = leaver(metadata, node), {info.node: info.machine or info.node for info in metadata.nodes}
    taken = [on[info.node] for info in metadata.nodes if info.voter and info.node != node]
    by = "" if on.get(to) in taken else to
    voters = await until_they_vote(lambda: client.move_voter(node, by), as_json)
    if known.voter and as_json:
        print_json({"source": node, "voters": voters, "outcome": "moved"})
    elif known.voter:
        say(f"settings move from {node}: {', '.join(voters)} keep them", err=True)


async def carry_out(client: Client, plan: Plan, as_json: bool, node: str = "", *, dead: bool = False) -> int:
    """Make the moves of a plan until none is left and the payload is copied.

    Args:
        node: the node that is left; empty for several.
        dead: that node is gone for good: messages that it alone had are given up.

    Returns:
        Count of moves.

    Raises:
        StorageFull: a node that is to get a partition takes no messages now. Earlier moves stay.
        UsageError: a move was refused twice, or nothing is left to move to. Earlier moves stay.
    """
    made, said = 0, ""
    refused: dict[Move, None] = {}
    activity = Activity(client)
    while True:
        known = await client.metadata()
        moves, waits = planned(plan, known), copying(known, node)
        if not moves and not waits:
            return made
        why = f"waits until the payload of {', '.join(waits[:5])} is copied" if not moves else ""
        if why:
            why += "".join(f"; {info.full}" for info in known.nodes if info.full and info.node != node)
        if why and not dead and node in [info.node for info in known.nodes if not info.up]:
            why += f"; {node} is away: if it is gone for good, --dead gives up the messages that it alone had"
        if dead and not moves and (moves := kept_by(known, node)):
            why = ""
        while moves:
            await activity.look(known)
            began = trio.current_time()
            batch = activity.together(moves)
            errors = await made_together(client, batch)
            for move, error in zip(batch, errors, strict=True):
                moves = moves[1:]
                if error is not None:
                    if not isinstance(error, (Conflict, Transient, UsageError)):
                        raise error
                    if isinstance(error, UsageError) and move in refused:
                        raise error
                    refused[move] = (
                        None  # another command may have moved the partition since the plan was made
                    )
                    why = f"{move}: {error}"
                    continue
                made += bool(move.to)
                outcome = "moved" if move.to else "given up"
                if as_json:
                    print_json({**move._asdict(), "outcome": outcome})
                else:
                    say(f"{move}: {outcome}, {len(moves)} more in this round", err=True)
            if None in errors:
                await trio.sleep(min(PAUSE * (trio.current_time() - began), PAUSE_MAX_S))
        if why and why != said and not as_json:
            say(why, err=True)
        said = why
        if why:
            await trio.sleep(AGAIN_S)
