"""`quorumq topics`: create and list topics."""

from __future__ import annotations

import click

from quorumq.cli.common import console, json_option, nodes_option, print_json
from quorumq.core import limits


@click.group()
def topics() -> None:
    """Create and list topics.

    A topic's partitions and the nodes that keep them are chosen once, when it is created.
    """


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--rf",
    default=3,
    show_default=True,
    type=click.IntRange(1, 9),
    help="Replicas of each partition, an odd number.",
)
@click.option(
    "--partitions",
    default=1,
    show_default=True,
    type=click.IntRange(1, limits.PARTITIONS_MAX),
    help="How many partitions; more spread a topic over more nodes.",
)
@click.option(
    "--max-deliveries",
    default=limits.MAX_DELIVERIES_DEFAULT,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="After so many deliveries without an ack a message becomes a dead letter.",
)
@click.option(
    "--durability",
    default="fsync",
    show_default=True,
    type=click.Choice(["fsync", "os"]),
    help="fsync: on disk before OK; os: trust the page cache of a majority of machines.",
)
@nodes_option
@json_option
def create(
    names: tuple[str, ...],
    rf: int,
    partitions: int,
    max_deliveries: int,
    durability: str,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create topics, or change the settings of those that exist.

    Creating a topic twice is creating it once. Replicas and partitions stay as they were chosen first; a topic
    that exists with another --rf is refused with exit code 64.
    """
    from quorumq.cli.probe import ask_any
    from quorumq.core.messages import CreateTopic, TopicCreated

    for name in names:
        reply = ask_any(nodes, CreateTopic(name, rf, partitions, max_deliveries, durability))
        assert isinstance(reply, TopicCreated), reply
        topic = reply.topic
        if as_json:
            print_json(facts_of(topic))
        else:
            count = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
            click.echo(f"{topic.name}: {count}, each on {topic.rf} of the nodes")


@topics.command("list")
@nodes_option
@json_option
def list_topics(nodes: tuple[str, ...], as_json: bool) -> None:
    """List topics with their settings, replicas and groups.

    Counts of messages are in `quorumq status`. A node that has just started may not know of a topic for a moment.
    """
    from quorumq.cli.probe import ask_any
    from quorumq.core.messages import Metadata, MetadataReply

    reply = ask_any(nodes, Metadata())
    assert isinstance(reply, MetadataReply), reply
    groups: dict[bytes, list[str]] = {}
    for group in reply.groups:
        groups.setdefault(group.topic, []).append(group.name)
    if as_json:
        for topic in reply.topics:
            print_json({**facts_of(topic), "groups": groups.get(topic.id, [])})
        return
    if not reply.topics:
        click.echo("no topics yet: `quorumq topics create NAME` makes one", err=True)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in ("topic", "partitions", "rf", "max deliveries", "durability", "nodes", "groups"):
        table.add_column(
            column, justify="right" if column in ("partitions", "rf", "max deliveries") else "left"
        )
    for topic in reply.topics:
        homes = sorted({node for replicas in topic.replicas for node in replicas})
        table.add_row(
            escape(topic.name), str(topic.partitions), str(topic.rf), str(topic.max_deliveries),
            topic.durability, ", ".join(homes), escape(", ".join(groups.get(topic.id, []))),
        )  # fmt: skip
    console().print(table)


def facts_of(topic: object) -> dict[str, object]:
    """A topic's register for JSON."""
    from quorumq.core.types import Topic

    assert isinstance(topic, Topic)
    return {
        "topic": topic.name,
        "id": topic.id.hex(),
        "rf": topic.rf,
        "partitions": topic.partitions,
        "replicas": [list(nodes) for nodes in topic.replicas],
        "max_deliveries": topic.max_deliveries,
        "durability": topic.durability,
    }
