"""`quorumq groups`: create, rewind, delete, describe and list groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from quorumq.cli.common import (
    Where,
    cluster,
    cluster_options,
    confirmed,
    duration,
    local_time,
    print_json,
    print_table,
    say,
    say_none,
    shown,
    tell,
    yes_option,
)
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorumq.client import Backlog, Group, GroupConsumer


WHERE = (
    "earliest, latest, a time as 2026-11-21T08:00 (of this machine's zone, unless it has one), or how long ago, as 90m "
    "or 2d."
)
DRY_RUN_S = 60.0
"""Most seconds for which the messages of a rewind are counted."""
MINUTE_S = 60.0
"""Seconds over which nodes count. The counts are shown for each second."""


def moment(value: str) -> Any:
    """Parse the beginning of a group that a person gave: earliest, latest, a time of day, or how long ago."""
    if value in ("earliest", "latest"):
        return value
    try:
        return datetime.fromisoformat(value).astimezone()  # without a zone: this machine's
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=duration(value))
    except (click.BadParameter, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no place to begin: say earliest, latest, a time such as 2026-11-21T08:00, or how long "
            "ago, as 90m or 2d"
        ) from None


def groups_arguments(command: Any) -> Any:
    """Add TOPIC and GROUP...; the command gets ``topic`` and ``names``."""
    names = click.argument("names", nargs=-1, required=True, metavar="GROUP...")
    return click.argument("topic")(names(command))


@click.group()
def groups() -> None:
    """Create, rewind, delete, describe and list groups.

    A group reads a topic on its own: it gets every message, and its consumers share them. Its first consumer makes it,
    unless the topic has --no-auto-create-groups, or `create` does.
    """


@groups.command()
@groups_arguments
@click.option(
    "--from", "start", type=moment, default="earliest", show_default=True, metavar="WHERE", help=WHERE
)
@cluster_options
async def create(topic: str, names: tuple[str, ...], start: Any, where: Where, as_json: bool) -> None:
    """Create groups of TOPIC before they have consumers.

    If a group exists, it stays as it is: `rewind` moves it. A time is compared with the time at which a message was
    published, by its producer's clock; latest is now.
    """
    async with cluster(where) as client:
        for name in names:
            show(topic, await client.create_group(topic, name, start=start), as_json)


@groups.command()
@click.argument("topic")
@click.argument("group")
@click.option("--to", "start", required=True, type=moment, metavar="WHERE", help=WHERE)
@click.option("--dry-run", is_flag=True, help="Only say how many messages would be delivered.")
@cluster_options
async def rewind(topic: str, group: str, start: Any, dry_run: bool, where: Where, as_json: bool) -> None:
    """Have a group read TOPIC again from another time, backwards or forwards.

    All messages published from then on are delivered again, acked and dead ones included, if the topic still has
    them: messages that all groups have settled are kept for the topic's retention. Earlier messages are not delivered
    any more, but their dead letters stay. Other groups do not notice.

    Consumers need not be stopped: messages in their hands cannot be acked any more, and are delivered again when their
    hold is over.

    After exit code 75 (too few replicas answered) run it again.
    """
    async with cluster(where) as client:
        if dry_run:
            count = await client.count_rewind(topic, group, start, within=DRY_RUN_S)
            states = ", ".join(f"{number:,} {state}" for state, number in sorted(count.states.items()))
            most = "" if count.complete else "at least "
            text = f"{most}{plural(count.messages, 'message')} would be delivered"
            fields = {"topic": topic, "group": group, **count._asdict(), "dry_run": True}
            tell(f"{text}: {states}" if states else text, fields, as_json)
            return
        moved = await client.rewind(topic, group, start)
        if start == "latest":  # its generation begins where it did, and what it had before is skipped
            show(topic, moved, as_json, f"{group} of {topic} goes on with what is published from now on")
            return
        show(topic, moved, as_json)
        if not as_json and not (await client.topic(topic)).retention_s:
            say(f"{topic} has no retention: messages that all its groups had settled are gone", err=True)


@groups.command()
@groups_arguments
@cluster_options
async def pause(topic: str, names: tuple[str, ...], where: Where, as_json: bool) -> None:
    """Pause groups of TOPIC: their consumers get nothing more until `quorumq groups resume`.

    Consumers need not be stopped: they wait, and can finish the messages in their hands. Messages neither expire nor
    become dead letters by themselves meanwhile. The dead letters of the group can be read.

    After exit code 75 (too few replicas answered) run it again.
    """
    await _set_paused(topic, names, where, as_json, paused=True)


@groups.command()
@groups_arguments
@cluster_options
async def resume(topic: str, names: tuple[str, ...], where: Where, as_json: bool) -> None:
    """Resume paused groups of TOPIC: their consumers go on by themselves.

    After exit code 75 (too few replicas answered) run it again.
    """
    await _set_paused(topic, names, where, as_json, paused=False)


@groups.command()
@groups_arguments
@click.option("--per-second", type=float, metavar="N", help="Messages a second, of all consumers together.")
@click.option(
    "--burst",
    type=click.IntRange(1),
    metavar="N",
    help="Messages at once after a quiet time; default: a tenth of N.",
)
@click.option("--off", is_flag=True, help="End the limit.")
@cluster_options
async def limit(
    topic: str,
    names: tuple[str, ...],
    per_second: float | None,
    burst: int | None,
    off: bool,
    where: Where,
    as_json: bool,
) -> None:
    """Limit the messages that groups of TOPIC get in a second, as for calls of a service that bears no more.

    Each delivery counts, also if it is a redelivery. Consumers need not be stopped: they wait. If a node is cut off or
    loses messages of others, up to half as many more may be delivered (docs/registers.md, LIMIT).

    After exit code 75 (too few replicas answered) run it again.
    """
    if (per_second is None) is not off or (off and burst is not None):
        raise click.UsageError("give --per-second N, perhaps with --burst N; or --off")
    async with cluster(where) as client:
        for name in names:
            group = await client.limit_group(topic, name, per_second, burst=burst)
            show(topic, group, as_json, f"{name} of {topic}: {limit_text(group) or 'no limit'}")


def limit_text(group: Group) -> str:
    """Describe the limit of a group in words; "" if there is none."""
    limit = group.limited
    if limit is None:
        return ""
    return f"at most {limit.per_second:,g} a second, {plural(limit.burst, 'message')} at once"


async def _set_paused(
    topic: str, names: tuple[str, ...], where: Where, as_json: bool, *, paused: bool
) -> None:
    async with cluster(where) as client:
        for name in names:
            group = await (client.pause_group if paused else client.resume_group)(topic, name)
            tell(f"{name} of {topic}: {'paused' if paused else 'resumed'}", fields_of(topic, group), as_json)


@groups.command()
@groups_arguments
@yes_option
@cluster_options
async def delete(topic: str, names: tuple[str, ...], yes: bool, where: Where, as_json: bool) -> None:
    """Delete groups of TOPIC, with their dead letters.

    For good: their consumers end with an error, and none makes the group again. Messages that only these groups kept
    are deleted, too. A group that `create` makes later under the name is a new one.

    After exit code 75 (too few replicas answered) run it again with --yes.
    """
    async with cluster(where) as client:
        if not yes:
            from quorumq.client.base.context import check_group

            known = await client.metadata(topic)
            for name in names:
                check_group(known, topic, name)
            await confirmed(f"delete {', '.join(names)} of {topic} with all dead letters?")
        for name in names:
            group = await client.delete_group(topic, name)
            tell(f"{name} of {topic}: deleted", {**fields_of(topic, group), "deleted": True}, as_json)


@groups.command()
@click.argument("topic")
@click.argument("group")
@cluster_options
async def describe(topic: str, group: str, where: Where, as_json: bool) -> None:
    """Show the backlog of GROUP in each partition of TOPIC, and its consumers.

    It has the numbers of messages that are ready, held by consumers, delayed and dead letters, and the age of the
    oldest one that is not settled. Every node is asked for the counts of its replicas.

    Then it has the messages delivered and settled (acked or rejected) a second, and the consumers that asked for any,
    each over the last minute: name and version as the consumer gives them, its client, and its machine. --json has
    the counts of the minute.
    """
    async with cluster(where) as client:
        backlog = await client.backlog(topic, group)
        registers = (await client.metadata(topic)).groups
        paused = any(register.name == group and register.paused for register in registers)
        limits = [limit_text(register) for register in registers if register.name == group]
        if as_json:
            parts = [{**part._asdict(), "consumers": listed(part.consumers)} for part in backlog.partitions]
            whole = {**backlog._asdict(), "partitions": parts, "consumers": listed(backlog.consumers)}
            rates = [limit_json(register) for register in registers if register.name == group]
            print_json(
                {"topic": topic, "group": group, "paused": paused, "limit": (*rates, None)[0], **whole}
            )
        else:
            if paused:
                say(f"{group} is paused: `quorumq groups resume {topic} {group}`")
            if any(limits):
                say(f"{group} gets {limits[0]}: `quorumq groups limit {topic} {group} --off` ends that")
            _print_backlog(backlog)


@groups.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@cluster_options
async def backlog(topics: tuple[str, ...], where: Where, as_json: bool) -> None:
    """Show the backlog of every group, of all topics or of the named ones.

    The counts are as `quorumq groups describe` has them, of all partitions together, and consumers are those that asked
    for messages within the last minute. A group is shown without counts if no replica of a partition of it answered.
    """
    async with cluster(where) as client:
        backlogs = await client.backlogs(*topics)
    rows: list[tuple[object, ...]] = []
    for (topic, group), one in backlogs.items():
        if as_json:
            fields = {} if one is None else {**one._asdict(), "consumers": listed(one.consumers)}
            fields.pop("partitions", None)
            print_json({"topic": topic, "group": group, "answered": one is not None, **fields})
        elif one is None:
            rows.append((topic, group, "no answer", *[""] * 6))
        else:
            age = "" if one.oldest is None else timedelta(seconds=round(one.oldest))
            counts = [f"{count:,}" for count in one[:4]]
            rows.append((topic, group, *counts, age, per_s(one.settled), len(one.consumers)))
    if rows:
        heads = (
            "topic",
            "group",
            ">ready",
            ">held",
            ">delayed",
            ">dead",
            ">oldest",
            ">settled/s",
            ">consumers",
        )
        print_table(heads, rows)
    elif not as_json:
        say_none("groups", "the first consumer makes one, or `quorumq groups create`")


@groups.command("list")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@cluster_options
async def list_groups(topics: tuple[str, ...], where: Where, as_json: bool) -> None:
    """List groups, of all topics or of the named ones.

    Each line has the time from which the group reads, in this machine's time of day, and since when; --json has the
    generation as well. `quorumq status` has the numbers of messages. If a node has just started, it may not know of a
    group for a moment.
    """
    async with cluster(where) as client:
        known = await client.metadata(*topics)
        names = {topic.id: topic.name for topic in known.topics}
        lines = [fields_of(names[group.topic], group) for group in known.groups]
        lines.sort(key=lambda line: (line["topic"], line["group"]))
        if as_json:
            for line in lines:
                print_json(line)
        elif lines:
            _print(lines)
        else:
            say_none("groups", "the first consumer makes one, or `quorumq groups create`")


def fields_of(topic: str, group: Group) -> dict[str, Any]:
    """Return a group's register for JSON."""
    from quorumq.core.values.types import made_ms

    return {
        "topic": topic,
        "group": group.name,
        "generation": group.generation,
        "from_ms": group.from_ms,
        "latest": bool(group.latest),
        "since_ms": made_ms(group.made) if group.made.time else None,
        "paused": group.paused,
        "limit": limit_json(group),
    }


def limit_json(group: Group) -> dict[str, Any] | None:
    """Return a group's limit for JSON; None if there is none."""
    limit = group.limited
    return {"per_second": limit.per_second, "burst": limit.burst} if limit is not None else None


def beginning(line: dict[str, Any]) -> str:
    """Describe the beginning of a group in words."""
    if line["latest"]:
        return "what was published after it was made"
    return (
        f"what was published from {local_time(line['from_ms'])} on"
        if line["from_ms"]
        else "the oldest message"
    )


def show(topic: str, group: Group, as_json: bool, text: str = "") -> None:
    """Print one line about a group that was made, moved or limited; ``text``, or else its beginning."""
    line = fields_of(topic, group)
    tell(text or f"{group.name} of {topic} begins with {beginning(line)}", line, as_json)


def _print_backlog(backlog: Backlog) -> None:
    waiting, reading = [], []
    for part in (*backlog.partitions, ("all", *backlog[:5], *backlog[6:])):
        name, *counts, oldest, delivered, settled, consumers, suspects, dying, dropped = part
        age = "" if oldest is None else timedelta(seconds=round(oldest))
        waiting.append((name, *(f"{count:,}" for count in counts), age))
        names = ", ".join(dict.fromkeys(shown(consumer.name.encode()) or "?" for consumer in consumers))
        few = (f"{count:,}" for count in (suspects, dying, dropped))
        reading.append((name, *few, per_s(delivered), per_s(settled), names or "nobody"))
    print_table((">partition", ">ready", ">held", ">delayed", ">dead", ">oldest"), waiting)
    print_table(
        (">partition", ">suspects", ">dying", ">dropped", ">delivered/s", ">settled/s", "read by"), reading
    )
    if backlog.consumers:
        who = [
            (*(shown(text.encode()) for text in texts), per_s(count)) for *texts, count in backlog.consumers
        ]
        print_table(("consumer", "version", "client", "machine", ">delivered/s"), who)


def per_s(count: int) -> str:
    """Format a count of one minute for each second of it."""
    return f"{count / MINUTE_S:,.1f}"


def listed(consumers: Iterable[GroupConsumer]) -> list[dict[str, Any]]:
    """Return consumers for JSON."""
    return [consumer._asdict() for consumer in consumers]


def _print(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        begins = local_time(line["from_ms"])[:19] if line["from_ms"] else "the oldest message"
        begins = "what came after it" if line["latest"] else begins
        since = local_time(line["since_ms"])[:19] if line["since_ms"] else "the start"
        state = "paused" if line["paused"] else ""
        if line["limit"] is not None:
            state += f"{', ' if state else ''}{line['limit']['per_second']:,g} a second"
        rows.append((line["topic"], line["group"], begins, since, state))
    print_table(("topic", "group", "|begins with", "|since", "|"), rows)
