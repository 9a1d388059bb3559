"""`quorumq purge`: settle a group's backlog, or its dead letters, unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumq.cli.common import (
    Where,
    cluster_options,
    confirmed,
    group_option,
    json_option,
    plural,
    print_json,
    run_with,
)

if TYPE_CHECKING:
    from quorumq.client import Client


@click.command()
@click.argument("topic")
@group_option
@click.option("--dead", is_flag=True, help="Purge the group's dead letters, not its backlog.")
@click.option("--partition", type=click.IntRange(0), help="Only this partition.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
@json_option
def purge(
    topic: str,
    group: str,
    dead: bool,
    partition: int | None,
    yes: bool,
    where: Where,
    as_json: bool,
) -> None:
    """Settle what a group has not read of TOPIC, so that it is never delivered to it.

    It asks first, with the number of messages, unless --yes is given. What is delivered at the moment may still be
    acked, and what is published meanwhile may stay. Other groups are not concerned. A message that is purged comes
    back only if the group is rewound.

    After exit code 75 (too few replicas answered) run it again: it does the rest.
    """
    purge_group(where, topic, group, dead, partition, not yes, as_json)


def purge_group(
    where: Where,
    topic: str,
    group: str,
    dead: bool,
    partition: int | None,
    ask: bool,
    as_json: bool,
) -> None:
    """Purge a backlog or dead letters, having asked with their number if that is wanted."""

    async def make(client: Client) -> None:
        from quorumq.client.groups import is_dead, names_of

        (name,), whose = names_of((topic,), group)
        if dead and not is_dead(whose):
            whose += "!dead"
        what = "dead letter" if is_dead(whose) else "message"
        source = whose.removesuffix("!dead")
        if ask:
            count = 0
            async for found in client.peek(name, whose, "all", partition=partition, complete=True):
                if found.peeked.state in ("ready", "held", "delayed"):
                    count += found.peeked.span.size
            await confirmed(f"purge {plural(count, what)} of {name} for {source}?")
        count = await client.purge(name, whose, partition=partition)
        if as_json:
            print_json({"topic": name, "group": whose, "purged": count})
        else:
            click.echo(f"purged {plural(count, what)}")

    run_with(where, make)
