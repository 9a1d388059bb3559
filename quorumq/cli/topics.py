"""`quorumq topics`: create and list topics."""

from __future__ import annotations

import click

from quorumq.cli.common import Duration, Durations, console, json_option, nodes_option, plural, print_json
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
    type=click.IntRange(1, 9),
    help="Replicas of each partition, an odd number. [default: 3, or as many as there are nodes for]",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, limits.PARTITIONS_MAX),
    help="How many partitions; more spread a topic over more nodes. [default: 1]",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(1, 1_000_000),
    help=f"A message not acked after so many is a dead letter. [default: {limits.MAX_DELIVERIES_DEFAULT}]",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os"]),
    help="fsync: on disk before OK; os: trust the page cache of a majority. [default: fsync]",
)
@click.option(
    "--retention",
    type=Duration(),
    metavar="TIME",
    help="Keep a message's payload for so long after the last group is done with it, as 7d or 90m. [default: 0]",
)
@click.option(
    "--ttl",
    type=Duration(),
    metavar="TIME",
    help="A message that nobody has acked after so long is a dead letter; 0 is never. [default: 0]",
)
@click.option(
    "--backoff",
    type=Durations(),
    metavar="TIME,...",
    help="How long a rejected message waits where the reject does not say, attempt by attempt; the last one "
    "repeats. As 1s,10s,5m. [default: none]",
)
@nodes_option
@json_option
def create(
    names: tuple[str, ...],
    rf: int | None,
    partitions: int | None,
    max_deliveries: int | None,
    durability: str | None,
    retention: float | None,
    ttl: float | None,
    backoff: tuple[float, ...] | None,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create topics, or change the settings of those that exist.

    Creating a topic twice is creating it once: of one that exists, what is not given stays as it is. Replicas are
    chosen once and for all; a topic that exists with another --rf is refused with exit code 64.
    """
    from quorumq.cli.probe import ask_any
    from quorumq.core.messages import CreateTopic, Metadata, MetadataReply, TopicCreated

    known = ask_any(nodes, Metadata())
    assert isinstance(known, MetadataReply), known
    existing = {topic.name: topic for topic in known.topics}
    room = min(3, len(known.nodes))
    for name in names:
        old = existing.get(name)
        request = CreateTopic(
            name,
            rf or (old.rf if old else room if room % 2 else room - 1),
            partitions or (old.partitions if old else 1),
            max_deliveries or (old.max_deliveries if old else limits.MAX_DELIVERIES_DEFAULT),
            durability or (old.durability if old else "fsync"),
            retention_s=retention if retention is not None else old.retention_s if old else 0.0,
            ttl_s=ttl if ttl is not None else old.ttl_s if old else 0.0,
            backoff=backoff if backoff is not None else old.backoff if old else (),
        )
        reply = ask_any(nodes, request)
        assert isinstance(reply, TopicCreated), reply
        topic = reply.topic
        if as_json:
            print_json(facts_of(topic))
        else:
            click.echo(
                f"{topic.name}: {plural(topic.partitions, 'partition')}, each on {plural(topic.rf, 'node')}"
            )


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
        "retention_s": topic.retention_s,
        "ttl_s": topic.ttl_s,
        "backoff": list(topic.backoff),
    }
