"""`quorumq partitions`: move replicas of partitions from one node to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumq.cli.common import Where, cluster, cluster_options, tell
from quorumq.core.values.errors import NotFound, UsageError

if TYPE_CHECKING:
    from quorumq.core.values.types import Topic


@click.group()
def partitions() -> None:
    """Move replicas of partitions from one node to another.

    docs/operations.md, "Moving a partition", has the steps.
    """


@partitions.command()
@click.argument("partition", metavar="TOPIC/P")
@click.option("--from", "source", required=True, metavar="NODE", help="The node whose replica moves.")
@click.option("--to", required=True, metavar="NODE", help="The node that gets it.")
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and move nothing.")
@cluster_options
async def move(partition: str, source: str, to: str, dry_run: bool, where: Where, as_json: bool) -> None:
    """Move one replica of a partition, while messages flow.

    It returns once a majority of the nodes know the new place. The payload follows: until the new node has all of it,
    the old one keeps its own. Repeating the command changes nothing more; moving back undoes it.
    """
    topic, number = named(partition)
    async with cluster(where) as client:
        (register,) = (await client.metadata(topic)).topics
        if number >= register.partitions:
            raise NotFound(
                f"there is no partition {number} of topic {topic!r}: `quorumq topics list` shows them"
            )
        if dry_run:
            show(register, number, as_json, f"would move from {source} to {to}")
            return
        show(
            await client.move_partition(topic, number, source, to),
            number,
            as_json,
            f"moved from {source} to {to}",
        )


@partitions.command()
@click.option("--dry-run", is_flag=True, help="Print the moves that it takes, and move nothing.")
@cluster_options
async def balance(dry_run: bool, where: Where, as_json: bool) -> None:
    """Move partitions to where they would be placed today, while messages flow.

    It takes as many moves as the nodes that were added or drained since ask for, and no more; no machine gets two
    replicas of a partition. Breaking it off keeps what was moved; repeating it goes on.
    """
    from quorumq.cli.moves import balanced, carry_out

    async with cluster(where) as client:
        if dry_run:
            for planned in balanced(await client.metadata()):
                tell(f"would move {planned}", {**planned._asdict(), "outcome": "would move"}, as_json)
            return
        moved = await carry_out(client, balanced, as_json)
        tell(f"balanced: {moved} replicas moved", {"moved": moved, "outcome": "balanced"}, as_json)


def named(partition: str) -> tuple[str, int]:
    """Return the topic and the number in TOPIC/P."""
    topic, slash, number = partition.rpartition("/")
    if not slash or not topic or not number.isdecimal():
        raise UsageError(f"the partition is {partition!r}: it must be TOPIC/NUMBER, as in jobs/0")
    return topic, int(number)


def show(topic: Topic, number: int, as_json: bool, outcome: str) -> None:
    """Print one line about a partition."""
    placement = topic.placement(number)
    sources = placement.sources if placement is not None else ()
    keeping = f"; {', '.join(sources)} keep their payload until it is copied" if sources else ""
    fields = {
        "topic": topic.name,
        "partition": number,
        "replicas": list(topic.replicas[number]),
        "sources": list(sources),
        "epoch": topic.epoch_of(number),
        "outcome": outcome,
    }
    tell(
        f"{topic.name}/{number}: {outcome}, on {', '.join(topic.replicas[number])}{keeping}", fields, as_json
    )
