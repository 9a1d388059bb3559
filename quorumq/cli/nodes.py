"""`quorumq nodes`: list the members of a cluster, add nodes to it, and have nodes leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumq.cli.common import (
    Where,
    cluster,
    cluster_options,
    confirmed,
    print_json,
    print_table,
    tell,
    yes_option,
)
from quorumq.core.values.types import MEMBERS_MAX

if TYPE_CHECKING:
    from quorumq.cli.moves import Move
    from quorumq.core.messages import MetadataReply


F = TypeVar("F", bound=Callable[..., Any])


def address_options(command: F) -> F:
    """Add the options that describe a node that is added."""
    address = "Where clients and the other nodes reach the new node."
    peer_address = "Where the other nodes do, if that differs."
    machine = "Its machine, if nodes of this cluster share machines."
    command = click.option("--machine", default="", metavar="NAME", help=machine)(command)
    command = click.option("--peer-address", default="", metavar="HOST:PORT", help=peer_address)(command)
    return click.option("--address", required=True, metavar="HOST:PORT", help=address)(command)


@click.group()
def nodes() -> None:
    """List the members of a cluster, add nodes to it, and have nodes leave.

    docs/operations.md, "Growing" and "Nodes that leave", has the steps.
    """


@nodes.command()
@click.argument("node", metavar="NODE")
@address_options
@click.option("--dry-run", is_flag=True, help="Say what would be added, and add nothing.")
@cluster_options
async def add(node: str, dry_run: bool, where: Where, as_json: bool, **location: Any) -> None:
    """Have a node be a member of the cluster, or give a member another address.

    It returns once a majority of the voters know it. The node itself begins when it runs with an empty directory and
    `join` in its configuration. Repeating the command changes nothing more.
    """
    address = location["address"]
    async with cluster(where) as client:
        known = await client.metadata()
        there = node in [info.node for info in known.nodes]
        layout = await client.add_node(node, **location, dry_run=dry_run)
        if dry_run:
            outcome = "would get this address" if there else "would be added"
            tell(
                f"{node} at {address}: {outcome}",
                {"node": node, "address": address, "outcome": outcome},
                as_json,
            )
            return
        outcome = "is a member" if there else "was added"
        fields = {"node": node, "address": address, "layout": layout.number, "outcome": outcome}
        following = "" if there else "; start it with an empty directory and join = [...] in its file"
        tell(f"{node} at {address}: {outcome} (layout {layout.number}){following}", fields, as_json)


dead_option = click.option(
    "--dead", is_flag=True, help="NODE is gone for good: give up the messages that it alone had."
)


@nodes.command()
@click.argument("node", metavar="NODE")
@click.option("--to", default="", metavar="NODE", help="Node that gets all that it can have; any by default.")
@dead_option
@click.option("--dry-run", is_flag=True, help="Print the moves that it takes, and change nothing.")
@cluster_options
async def drain(node: str, to: str, dead: bool, dry_run: bool, where: Where, as_json: bool) -> None:
    """Move all partitions off a node, while messages flow, and then the settings that it keeps as a voter.

    No new partition is placed on it from then on. It ends once the others have all payload, and names the partitions
    that it waits for. If the node is dead for good, it ends with --dead. It may be interrupted, and goes on if it is
    repeated. `nodes add` with the node's address takes it back into use.
    """
    from quorumq.cli.moves import begin_drain, carry_out, leaver, move_voter, off

    async with cluster(where) as client:
        plan = off(node, to)
        known = await begin_drain(client, node, plan, dry_run=dry_run)
        if dry_run:
            for move in plan(known):
                tell_plan(move, as_json)
            if leaver(known, node).voter:
                tell(f"would move settings from {node}", {"source": node, "outcome": "would move"}, as_json)
            return
        moved = await carry_out(client, plan, as_json, node, dead=dead)
        await move_voter(client, node, to, as_json)
        fields = {"node": node, "moved": moved, "outcome": "drained"}
        tell(
            f"{node}: drained, nothing is left on it; `quorumq nodes remove {node}` ends its membership",
            fields,
            as_json,
        )


@nodes.command()
@click.argument("node", metavar="NODE")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@cluster_options
async def remove(node: str, dry_run: bool, where: Where, as_json: bool) -> None:
    """End the membership of a drained node.

    The others refuse it by name from then on: stop it. If the node still has a partition, payload that is not copied,
    or settings, the command fails. Another machine may get the name later, unless the node was one of the first.
    """
    from quorumq.cli.moves import check_removal

    async with cluster(where) as client:
        if dry_run:
            check_removal(await client.metadata(), node)
            tell(f"would remove {node}", {"node": node, "outcome": "would be removed"}, as_json)
            return
        layout = await client.remove_node(node)
        fields = {"node": node, "layout": layout.number, "outcome": "is no member"}
        tell(f"{node}: is no member (layout {layout.number})", fields, as_json)


def tell_plan(move: Move, as_json: bool) -> None:
    tell(f"would move {move}", {**move._asdict(), "outcome": "would move"}, as_json)


@nodes.command()
@click.argument("node", metavar="NODE")
@click.argument("by", metavar="BY")
@address_options
@dead_option
@click.option("--dry-run", is_flag=True, help="Print the moves that it takes, and change nothing.")
@cluster_options
async def replace(
    node: str, by: str, dead: bool, dry_run: bool, where: Where, as_json: bool, **location: Any
) -> None:
    """Add the node BY, move everything of NODE there, and remove NODE: `add`, `drain` and `remove` in one.

    If it was interrupted, it goes on when it is repeated.
    """
    from quorumq.cli import moves

    async with cluster(where) as client:
        if dry_run:
            known = await moves.check_replacement(client, node, by)
            await client.add_node(by, **location, dry_run=True)
            for move in moves.planned(moves.off(node, by, location["machine"]), known):
                tell_plan(move, as_json)
            if moves.leaver(known, node).voter:
                fields = {"source": node, "to": by, "outcome": "would move"}
                tell(f"would move settings from {node} to {by}", fields, as_json)
            return
        moved = await moves.replace(client, node, by, as_json=as_json, dead=dead, **location)
        tell(
            f"{node}: replaced by {by}",
            {"node": node, "by": by, "moved": moved, "outcome": "replaced"},
            as_json,
        )


@nodes.command()
@click.option(
    "--count", type=click.IntRange(1, MEMBERS_MAX), help="Number of voters that there are to be: 3 or 5."
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@yes_option
@cluster_options
async def voters(count: int | None, dry_run: bool, yes: bool, where: Where, as_json: bool) -> None:
    """List the voters, who keep the settings of topics and groups; with --count, have more nodes be voters.

    Of five voters two may be away, of three one. It cannot be undone, so it asks first. It ends once the new voters
    know all settings, and names those that it waits for. It may be interrupted and repeated.
    """
    from quorumq.cli.moves import until_they_vote

    async with cluster(where) as client:
        known = await client.metadata()
        there = [info for info in known.nodes if info.voter]
        if count is None:
            show(known._replace(nodes=tuple(there)), as_json)
            return
        await client.raise_voters(count, dry_run=True)
        more = count - len(there)
        if dry_run:
            fields = {"voters": [info.node for info in there], "more": more, "outcome": "would be raised"}
            tell(
                f"{', '.join(info.node for info in there)} are voters, {more} more would be", fields, as_json
            )
            return
        if more and not yes:
            await confirmed(f"have {count} voters, instead of {len(there)}, for good?")
        names = await until_they_vote(lambda: client.raise_voters(count), as_json)
        names = names or [info.node for info in there]
        tell(f"{', '.join(names)} are voters", {"voters": names, "outcome": "raised"}, as_json)


@nodes.command("list")
@cluster_options
async def list_nodes(where: Where, as_json: bool) -> None:
    """List the members: which are voters, which are connected, and how many replicas each has.

    Voters keep the settings of topics and groups. Counts of messages are in `quorumq status`.
    """
    async with cluster(where) as client:
        show(await client.metadata(), as_json)


def show(known: MetadataReply, as_json: bool) -> None:
    from quorumq.cli.moves import placements
    from quorumq.core.values.types import MemberState

    replicas = Counter(node for topic in known.topics for members in topic.replicas for node in members)
    leaving = Counter(
        node for topic in known.topics for placement in placements(topic) for node in placement.sources
    )
    rows = [
        {
            "node": info.node,
            "address": info.address,
            "machine": info.machine,
            "voter": info.voter,
            "state": MemberState(info.state).name.lower(),
            "up": info.up,
            "replicas": replicas[info.node],
            "leaving": leaving[info.node],
        }
        for info in known.nodes
    ]
    if as_json:
        for row in rows:
            print_json({**row, "layout": known.layout})
        return
    print_table(
        ("node", "address", "machine", "voter", "state", "up", ">replicas", ">leaving"),
        [
            tuple(("yes" if value else "no") if isinstance(value, bool) else value for value in row.values())
            for row in rows
        ],
    )
