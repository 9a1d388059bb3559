"""`quorumq nodes`: list the members of a cluster, and add nodes to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from quorumq.cli.common import Where, cluster, cluster_options, print_json, print_table, tell

if TYPE_CHECKING:
    from quorumq.core.messages import MetadataReply


@click.group()
def nodes() -> None:
    """List the members of a cluster, and add nodes to it.

    docs/operations.md, "Growing", has the steps.
    """


@nodes.command()
@click.argument("node", metavar="NODE")
@click.option(
    "--address", required=True, metavar="HOST:PORT", help="Where clients and the other nodes reach it."
)
@click.option(
    "--peer-address", default="", metavar="HOST:PORT", help="Where the other nodes do, if that differs."
)
@click.option(
    "--machine", default="", metavar="NAME", help="Its machine, if nodes of this cluster share machines."
)
@click.option("--dry-run", is_flag=True, help="Say what would be added, and add nothing.")
@cluster_options
async def add(
    node: str, address: str, peer_address: str, machine: str, dry_run: bool, where: Where, as_json: bool
) -> None:
    """Have a node be a member of the cluster, or give a member another address.

    It returns once a majority of the voters, the nodes that the cluster was made with, know it. The node itself begins
    when it runs with an empty directory and `join` in its configuration. Repeating the command changes nothing more.
    """
    async with cluster(where) as client:
        known = await client.metadata()
        there = node in [info.node for info in known.nodes]
        if dry_run:
            outcome = "would get this address" if there else "would be added"
            tell(
                f"{node} at {address}: {outcome}",
                {"node": node, "address": address, "outcome": outcome},
                as_json,
            )
            return
        layout = await client.add_node(node, address, peer_address=peer_address, machine=machine)
        outcome = "is a member" if there else "was added"
        fields = {"node": node, "address": address, "layout": layout.number, "outcome": outcome}
        following = "" if there else "; start it with an empty directory and join = [...] in its file"
        tell(f"{node} at {address}: {outcome} (layout {layout.number}){following}", fields, as_json)


@nodes.command("list")
@cluster_options
async def list_nodes(where: Where, as_json: bool) -> None:
    """List the members: which are voters, which answer, and how many replicas each has.

    Voters keep the settings of topics and groups. Counts of messages are in `quorumq status`.
    """
    async with cluster(where) as client:
        show(await client.metadata(), as_json)


def show(known: MetadataReply, as_json: bool) -> None:
    """Print the members."""
    from quorumq.core.values.types import MemberState

    replicas = Counter(node for topic in known.topics for members in topic.replicas for node in members)
    leaving = Counter(
        node
        for topic in known.topics
        for placement in (topic.layout.placements if topic.layout is not None else ())
        for node in placement.sources
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
