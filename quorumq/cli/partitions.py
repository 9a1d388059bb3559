"""`quorumq partitions`: move replicas of partitions from one node to another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from quorumq.cli.common import Where, cluster, cluster_options, tell
from quorumq.cli.status import cluster_report
from quorumq.core.values.errors import NotFound, UsageError
from quorumq.node.problems import move_lines

if TYPE_CHECKING:
    from quorumq.client import Client
    from quorumq.core.values.types import Topic

WAIT_S: Final = 2.0
"""Seconds between looks at a move: nodes count the messages to copy that often."""

NUMBER_DIGITS_MAX: Final = 9


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
@click.option(
    "--wait", is_flag=True, help="Show the progress until the old node keeps its payload no longer."
)
@cluster_options
async def move(
    partition: str, source: str, to: str, dry_run: bool, wait: bool, where: Where, as_json: bool
) -> None:
    """Move one replica of a partition, while messages flow.

    It returns once a majority of the nodes know the new place. The payload follows: until the new node has all of it,
    the old one keeps its own. Repeating the command changes nothing more; moving back undoes it. With --wait it returns
    when the payload is copied, and may be broken off: the move goes on.
    """
    topic, number = named(partition)
    async with cluster(where) as client:
        (register,) = (await client.metadata(topic)).topics
        if number >= register.partitions:
            raise NotFound(
                f"there is no partition {number} of topic {topic!r}: `quorumq topics list` shows them"
            )
        register = await client.move_partition(topic, number, source, to, dry_run=dry_run)
        if dry_run:
            show(register, number, as_json, f"would move from {source} to {to}")
            return
        if wait:
            register = await followed(client, where, register, lambda it: not sources_of(it, number), number)
        show(register, number, as_json, f"moved from {source} to {to}")


async def followed(
    client: Client,
    where: Where,
    register: Topic,
    is_over: Callable[[Topic], bool],
    number: int | None = None,
) -> Topic:
    """Return a topic once a change of its replicas is over; each change of its progress is a line.

    Args:
        register: the topic, as of the layout that the change began with.
        is_over: says if it is over.
        number: the partition that it is about; None for all.
    """
    import trio

    shown: list[str] = []
    newest = register
    while newest.layout_number < register.layout_number or not is_over(newest):
        report = await trio.to_thread.run_sync(
            partial(cluster_report, where.addresses), abandon_on_cancel=True
        )
        lines = move_lines(report["nodes"], register.name, number)
        for line in lines if lines != shown else ():
            click.echo(line, err=True)
        shown = lines
        await trio.sleep(WAIT_S)
        topics = (await client.metadata(register.name)).topics
        if not topics or topics[0].id != register.id:
            raise NotFound(f"topic {register.name!r} was deleted while its replicas were copied")
        newest = topics[0]
    return newest


def sources_of(topic: Topic, number: int) -> tuple[str, ...]:
    """Return the nodes that left a partition and keep their payload."""
    placement = topic.placement(number)
    return placement.sources if placement is not None else ()


@partitions.command()
@click.option("--dry-run", is_flag=True, help="Print the moves that it takes, and move nothing.")
@cluster_options
async def balance(dry_run: bool, where: Where, as_json: bool) -> None:
    """Move partitions to the nodes that they would be placed on today, while messages flow.

    Only nodes that were added or drained since cause moves; no machine gets two replicas of a partition. It may be
    interrupted, and goes on if it is repeated.
    """
    from quorumq.cli.moves import balanced, carry_out, planned

    async with cluster(where) as client:
        if dry_run:
            for it in planned(balanced, await client.metadata()):
                tell(f"would move {it}", {**it._asdict(), "outcome": "would move"}, as_json)
            return
        moved = await carry_out(client, balanced, as_json)
        tell(f"balanced: {moved} replicas moved", {"moved": moved, "outcome": "balanced"}, as_json)


def named(partition: str) -> tuple[str, int]:
    """Return the topic and the number in TOPIC/P."""
    topic, slash, number = partition.rpartition("/")
    is_number = number.isascii() and number.isdecimal() and len(number) <= NUMBER_DIGITS_MAX
    if not slash or not topic or not is_number:
        raise UsageError(f"the partition is {partition[:100]!r}: it must be TOPIC/NUMBER, as in jobs/0")
    return topic, int(number)


def show(topic: Topic, number: int, as_json: bool, outcome: str) -> None:
    sources = sources_of(topic, number)
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
