"""`quorumq purge`: settle a group's backlog, or its dead letters, unread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumq.cli.common import (
    Where,
    check_missed,
    cluster,
    cluster_options,
    confirmed,
    group_option,
    ids_option,
    parsed,
    partition_option,
    tell,
    yes_option,
)
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.client import Client, MessageId, Peek


purged_ids = ids_option(
    "Only this message; may be given several times. One that is there no more to be purged is named, and the exit code "
    "is 66."
)


@click.command()
@click.argument("topic")
@group_option
@partition_option
@purged_ids
@yes_option
@cluster_options
async def purge(**options: Any) -> None:
    """Settle a group's backlog of TOPIC unread, so that it is never delivered to that group.

    It asks first, with the number of messages, unless --yes is given. A delivered message may still be acked, and a
    message that is published meanwhile may stay. Other groups are not concerned. A purged message comes back only if
    the group is rewound. For dead letters see `quorumq deadletters purge`.

    After exit code 75 (too few replicas answered) run it again: it does the rest.
    """
    await purge_group(**options)


async def purge_group(
    *,
    where: Where,
    topic: str,
    group: str,
    partition: int | None,
    ids: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Purge a backlog or dead letters, having asked with their number unless ``yes``."""
    if ids and partition is not None:
        raise click.UsageError("--id names its partition: leave out --partition")
    async with cluster(where) as client:
        from quorumq.client.base.names import is_dead, names_of

        (name,), whose = names_of((topic,), group)
        noun = "dead letter" if is_dead(whose) else "message"
        source = whose.removesuffix("!dead")
        names = parsed(ids) if ids else None
        missed: dict[MessageId, str] = {}
        if names is not None:
            names = [*await there(client, name, whose, names, missed)]
            count = len(names)
        elif not yes:
            await client.backlog(name, source)  # a group that is not there is named before anything is asked
            count = 0
            async for entry in client.peek(name, whose, "all", partition=partition, complete=True):
                if entry.peeked.state in ("ready", "held", "delayed"):
                    count += entry.peeked.span.size
        if not yes and names != []:
            await confirmed(f"purge {plural(count, noun)} of {name} for {source}?")
        count = await client.purge(name, whose, partition=partition, ids=names)
        tell(f"purged {plural(count, noun)}", {"topic": name, "group": whose, "purged": count}, as_json)
        check_missed([*missed.values()])


async def there(
    client: Client, topic: str, group: str, names: list[MessageId], missed: dict[MessageId, str]
) -> dict[MessageId, Peek]:
    """Return the messages that can be purged. If one cannot, its state goes into ``missed``."""
    from quorumq.client.base.names import is_dead

    states = ("dead",) if is_dead(group) else ("ready", "held", "delayed")
    known = await client.lookup(topic, group, names)
    reason = f"no dead letter of {group.removesuffix('!dead')}" if is_dead(group) else f"not open for {group}"
    peeks: dict[MessageId, Peek] = {}
    for name in names:
        state = known[name].peeked.state if name in known else "not known"
        if state in states:
            peeks[name] = known[name]
        else:
            missed[name] = f"{name} is {reason}: it is {state}"
    return peeks
