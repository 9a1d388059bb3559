"""`quorumq topics`: create, list, change and delete topics."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumq.cli.common import (
    Where,
    cluster,
    cluster_options,
    confirmed,
    duration,
    durations,
    print_json,
    print_table,
    say,
    say_none,
    tell,
    yes_option,
)
from quorumq.core.cluster.topics import ON_EXPIRY
from quorumq.core.values import limits
from quorumq.core.values.errors import StorageFull, UsageError
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.core.messages import MetadataReply
    from quorumq.core.values.types import Topic

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def topics() -> None:
    """Create, list, change and delete topics.

    The nodes of a partition are chosen when it is made. If nodes change, `quorumq partitions` moves its replicas.
    """


def settings_options(command: F) -> F:
    """Add an option for each setting of a topic; those that are not given are None."""
    for option in (
        click.option(
            "--auto-create-groups/--no-auto-create-groups",
            default=None,
            help="Whether the first consumer of a group creates it. Without, a mistyped name is refused, where it "
            "would keep every message; `quorumq groups create` makes groups. [default: it does]",
        ),
        click.option(
            "--on-expiry",
            type=click.Choice(ON_EXPIRY),
            help="What becomes of a message whose TTL is over: a dead letter, or it is dropped. [default: dead-letter]",
        ),
        click.option(
            "--backoff",
            type=durations,
            metavar="TIME,...",
            help="How long a rejected message waits where the reject does not say, attempt by attempt; the last one "
            "repeats. As 1s,10s,5m, or none. [default: none]",
        ),
        click.option(
            "--ttl",
            type=duration,
            metavar="TIME",
            help="A message that nobody has acked after so long expires, see --on-expiry; 0 is never. [default: 0]",
        ),
        click.option(
            "--retention",
            type=duration,
            metavar="TIME",
            help="Keep a message's payload for so long after the last group is done with it, as 7d or 90m. "
            "[default: 0]",
        ),
        click.option(
            "--max-deliveries",
            type=click.IntRange(1, 1_000_000),
            help=f"A message not acked after so many is a dead letter. [default: {limits.MAX_DELIVERIES_DEFAULT}]",
        ),
        click.option(
            "--partitions",
            type=click.IntRange(1, limits.PARTITIONS_MAX),
            help="How many partitions; more spread a topic over more nodes, and they never become fewer. [default: 1]",
        ),
    ):
        command = option(command)
    return command


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--rf",
    type=click.IntRange(1, 9),
    help="Replicas of each partition, an odd number. [default: 3, or as many as there are nodes for]",
)
@settings_options
@cluster_options
async def create(
    names: tuple[str, ...], rf: int | None, where: Where, as_json: bool, **settings: Any
) -> None:
    """Create topics.

    If a topic exists, the given settings must agree with it, and all others stay. If one differs, the command is
    refused with exit code 64; `quorumq topics set` changes it.
    """
    async with cluster(where) as client:
        for name in names:
            show(await client.create_topic(name, rf=rf, **settings), as_json)


@topics.command("set")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@settings_options
@cluster_options
async def change(names: tuple[str, ...], where: Where, as_json: bool, **settings: Any) -> None:
    """Change settings of topics that exist.

    Only the given settings change. If two operators change one setting, the last one wins, on every node. More
    partitions may be made while messages flow; these stay in their partition.
    """
    async with cluster(where) as client:
        for name in names:
            show(await client.alter_topic(name, **settings), as_json)


@topics.command()
@click.argument("name")
@click.option(
    "--rf", type=click.IntRange(1, 9), required=True, help="Replicas of each partition, an odd number."
)
@click.option("--dry-run", is_flag=True, help="Say what would be added, and change nothing.")
@click.option("--wait", is_flag=True, help="Show the progress until all replicas are there.")
@cluster_options
async def alter(name: str, rf: int, dry_run: bool, wait: bool, where: Where, as_json: bool) -> None:
    """Raise the replication factor of a topic, while messages flow.

    It returns once a majority of the nodes know the number. Then other nodes copy the messages of each partition, and
    get a replica once they have them. With --wait it returns when all have, and may be broken off: the raise goes on.
    Repeating the command changes nothing more; until replicas are added, a lower number takes it back.
    """
    from quorumq.cli.moves import placing
    from quorumq.cli.partitions import followed
    from quorumq.core.cluster.raising import check_raise, check_space
    from quorumq.core.messages import AlterTopic

    async with cluster(where) as client:
        if dry_run:
            (topic,), known = (await client.metadata(name)).topics, await client.metadata()
            if problem := check_raise(AlterTopic(name, rf=rf), topic, *placing(known)):
                raise UsageError(problem)
            full = {info.node: info.full for info in known.nodes if info.full}
            if problem := check_space(topic, rf, *placing(known), full):
                raise StorageFull(problem)
            adds = to_be_added(topic, rf)
            fields = {"topic": name, "rf": rf, "adds": adds, "outcome": "would be raised"}
            tell(f"{name}: {plural(adds, 'replica')} would be added", fields, as_json)
            return
        topic = await client.alter_topic(name, rf=rf)
        if wait:
            topic = await followed(client, where, topic, is_raised)
        show(topic, as_json)


def to_be_added(topic: Topic, rf: int) -> int:
    """Return the number of replicas that the partitions of a topic lack if it is to have ``rf`` of each."""
    return sum(max(0, rf - len(members)) for members in topic.replicas)


def is_raised(topic: Topic) -> bool:
    """Return True if each partition has its replicas, and each of these votes."""
    placements = topic.layout.placements if topic.layout is not None else ()
    return not to_be_added(topic, topic.target_rf) and not any(each.before for each in placements)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@cluster_options
async def delete(names: tuple[str, ...], yes: bool, where: Where, as_json: bool) -> None:
    """Delete topics, with their messages, groups and dead letters.

    For good: a topic made later under the same name is another one, and receipts of the old one do nothing to it.
    """
    async with cluster(where) as client:
        if not yes:
            for name in names:
                await client.topic(name)
            await confirmed(f"delete {', '.join(names)} with all messages?")
        for name in names:
            topic = await client.delete_topic(name)
            tell(f"{name}: deleted", {"topic": name, "id": topic.id.hex(), "deleted": True}, as_json)


@topics.command()
@click.argument("name")
@click.argument("texts", nargs=-1, metavar="[LABEL=TEXT]...")
@click.option("--remove", multiple=True, metavar="LABEL", help="Remove a label. May be given several times.")
@cluster_options
async def label(
    name: str, texts: tuple[str, ...], remove: tuple[str, ...], where: Where, as_json: bool
) -> None:
    """Show the labels of a topic, after changing those that are given.

    Labels are small texts for people and programs, at most 64 of 1 KiB; nodes do not read them. If two operators change
    one label, the last one wins. `quorumq topics label jobs owner=billing --remove team`
    """
    changes: dict[str, str | None] = dict.fromkeys(remove)
    for given in texts:
        key, equals, text = given.partition("=")
        if not equals:
            raise UsageError(f"{given!r} is no label: give LABEL=TEXT, or --remove LABEL")
        if key in changes:
            raise UsageError(f"label {key!r} is given twice")
        changes[key] = text
    async with cluster(where) as client:
        labels = await (client.set_labels(name, changes) if changes else client.labels(name))
    if as_json:
        print_json({"topic": name, "labels": labels})
    elif labels:
        print_table(("label", "text"), list(labels.items()))
    else:
        say(f"{name} has no labels", err=True)


def show(topic: Topic, as_json: bool) -> None:
    """Print one line about a topic that was made or changed."""
    fewest = min(map(len, topic.replicas))
    text = f"{topic.name}: {plural(topic.partitions, 'partition')}, each on {plural(fewest, 'node')}"
    text += f", and soon on {topic.target_rf}" if fewest < topic.target_rf else ""
    tell(f"{text}; {settings_of(topic)}", fields_of(topic), as_json)


def settings_of(topic: Topic) -> str:
    """Return a topic's settings in words: the limit of deliveries, and others if they differ from the default."""
    parts = [plural(topic.max_deliveries, "delivery", "deliveries")]
    parts += [f"retention {_time(topic.retention_s)}"] if topic.retention_s else []
    parts += [f"ttl {_time(topic.ttl_s)}"] if topic.ttl_s else []
    parts += [f"backoff {', '.join(map(_time, topic.backoff))}"] if topic.backoff else []
    parts += [] if topic.auto_create_groups else ["no groups by a fetch"]
    parts += ["expired messages dropped"] if topic.on_expiry == "drop" else []
    return " · ".join(parts)


def _time(seconds: float) -> str:
    """Return a time as options take it: in the largest unit that divides it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


@topics.command("list")
@cluster_options
async def list_topics(where: Where, as_json: bool) -> None:
    """List topics with their settings, replicas and groups.

    Counts of messages are in `quorumq status`. If a node has just started, it may not know of a topic for a moment.
    """
    async with cluster(where) as client:
        _list(await client.metadata(), as_json)


def _list(reply: MetadataReply, as_json: bool) -> None:
    groups: dict[bytes, list[str]] = {}
    for group in reply.groups:
        groups.setdefault(group.topic, []).append(group.name)
    topics = sorted(reply.topics, key=attrgetter("name"))
    if as_json:
        for topic in topics:
            print_json({**fields_of(topic), "groups": groups.get(topic.id, [])})
        return
    if not topics:
        say_none("topics", "`quorumq topics create NAME` makes one")
        return
    rows = []
    for topic in topics:
        homes = ", ".join(sorted({node for replicas in topic.replicas for node in replicas}))
        readers = ", ".join(groups.get(topic.id, []))
        rows.append((topic.name, topic.partitions, topic.target_rf, settings_of(topic), homes, readers))
    print_table(("topic", ">partitions", ">rf", "settings", "nodes", "groups"), rows)


def fields_of(topic: Topic) -> dict[str, object]:
    """Return a topic's register for JSON."""
    return {
        "topic": topic.name,
        "id": topic.id.hex(),
        "rf": topic.target_rf,
        "partitions": topic.partitions,
        "replicas": [list(nodes) for nodes in topic.replicas],
        "max_deliveries": topic.max_deliveries,
        "retention_s": topic.retention_s,
        "ttl_s": topic.ttl_s,
        "backoff": list(topic.backoff),
        "auto_create_groups": topic.auto_create_groups,
        "on_expiry": topic.on_expiry,
    }
