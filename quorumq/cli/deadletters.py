"""Dead letters: listed by problem, shown, redriven and purged.

A thousand dead letters are rarely a thousand problems. The fingerprint of each brings equal
failures together, so the list has problems, each with a count and a few ids to look at.

A redrive lists and redrives page by page, by message id: a redriven message that dies again meanwhile is behind it,
so one run redrives a message once. Killed and run again, it finds the rest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from quorumq.cli.common import (
    Where,
    check_missed,
    cluster,
    cluster_options,
    confirmed,
    group_option,
    ids_option,
    local_time,
    parsed,
    partition_option,
    print_json,
    print_table,
    say,
    shown,
    tell,
    yes_option,
)
from quorumq.cli.peek import body_fields, print_body
from quorumq.cli.purge import purge_group, there
from quorumq.core.values.errors import QuorumqError
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.client import Client, MessageId, Peek
    from quorumq.client.admin.selection import Selection
    from quorumq.core.messages import MetadataReply

SAMPLES: Final = 3
COUNT_S: Final = 60.0
"""Most seconds for which dead letters are counted."""


def _filters(command: Any) -> Any:
    """Add options that choose dead letters; the command gets them by the names that `Selection` has."""
    for option in (
        ids_option(
            "Only this message; may be given several times. One that is no dead letter of the group is named, and the "
            "exit code is 66."
        ),
        partition_option,
        click.option("--fingerprint", metavar="HEX", help="Only those with this fingerprint (see the list)."),
        click.option(
            "--error-class", metavar="NAME", help="Only those that failed with this class of error."
        ),
        click.option("--reason", metavar="TEXT", help="Only those that died for this reason."),
    ):
        command = option(command)
    return command


@click.group()
def deadletters() -> None:
    """List, redrive and purge dead letters.

    A message becomes a dead letter of a group if a consumer rejects it for good, if it is delivered too often without
    an ack, or if it expires and the topic does not drop it. It is kept, with the history of its failure, until it is
    redriven or purged. Other groups are not concerned. `quorumq consume TOPIC --group GROUP!dead` reads them.
    """


@deadletters.command("list")
@click.argument("topic")
@group_option
@_filters
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Show at most so many lines."
)
@click.option("--each", is_flag=True, help="One line for each dead letter, not for each kind of failure.")
@cluster_options
async def list_dead_letters(
    topic: str, group: str, limit: int, each: bool, where: Where, as_json: bool, **filters: Any
) -> None:
    """List the dead letters of TOPIC for a group, equal failures together.

    Each line is a kind of failure: how many messages died of it, its fingerprint, the error, when the last died, and
    with --json the ids of some of them. If a majority of the replicas has a dead letter, it is listed. With --each and
    --json every dead letter has its whole history.
    """
    from quorumq.client.base.context import topic_of

    query = _selection(topic, group, **filters)
    missed: dict[MessageId, str] = {}
    async with cluster(where) as client:
        known = await client.metadata(query.topic)
        topic_id = topic_of(known, query.topic).id
        lines = await (
            _each(client, query, topic_id, limit + 1, missed)
            if each
            else _kinds(client, query, topic_id, missed)
        )
        for line in lines[:limit] if each else ():
            with suppress(QuorumqError):  # settled meanwhile, or no node that has it answers
                life = await client.show(query.topic, line["id"], body=True)
                line |= {} if life.body is None else body_fields(life.body)
    if as_json:
        for line in lines[:limit]:
            print_json(line)
    elif lines:
        _print(lines[:limit], each)
        if len(lines) > limit:
            say(f"there are more; --limit {2 * limit} shows more of them", err=True)
    elif not missed:
        say_none(query.topic, query.group, known)
    check_missed([*missed.values()])


def say_none(topic: str, group: str, known: MetadataReply) -> None:
    """Say that a group has no dead letters, or that the topic has no such group."""
    from quorumq.wire.hints import meant

    groups = [each.name for each in known.groups]
    has = f"it has {', '.join(groups)}" if groups else "it has none yet"
    why = (
        ""
        if group in groups
        else f": there is no group {group!r} of {topic!r}, {has}; {meant(group, groups)}"
    )
    say(f"no dead letters{why.rstrip('; ')}", err=True)


@deadletters.command("count")
@click.argument("topic")
@group_option
@cluster_options
async def count_dead_letters(topic: str, group: str, where: Where, as_json: bool) -> None:
    """Count the dead letters of TOPIC for a group by kind of failure.

    As `quorumq deadletters list`, and quick for a million, because the nodes count. It is the view of one replica of
    each partition. --json has the counts by version of the consumer and by hour of death (hours since 1970) as well.
    """
    from quorumq.client.base.names import source_of

    topic, group = source_of(topic, group)
    async with cluster(where) as client:
        counts = await client.count_dead_letters(topic, group, within=COUNT_S)
        known = await client.metadata(topic)
    lines = [{**kind._asdict(), "samples": [str(name) for name in kind.samples]} for kind in counts.kinds]
    if as_json:
        for line in lines:
            print_json(line)
    elif lines:
        _print([{**line, "count": line["messages"]} for line in lines], False)
    else:
        say_none(topic, group, known)
    if not counts.complete:
        say(f"counted for {COUNT_S:.0f} s: there are more", err=True)


@deadletters.command()
@click.argument("topic", required=False)
@click.option("--group", metavar="NAME", help="The group whose dead letters they are.")
@_filters
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Redrive what a plan says, at its rates; it names topics and groups itself.",
)
@click.option("--limit", type=click.IntRange(1), help="Redrive at most so many, the oldest first.")
@click.option("--all", "everything", is_flag=True, help="Redrive all of them; asks first.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Redrive at most so many messages a second."
)
@yes_option
@cluster_options
async def redrive(
    topic: str | None,
    group: str | None,
    plan: Path | None,
    limit: int | None,
    everything: bool,
    dry_run: bool,
    rate: float | None,
    yes: bool,
    where: Where,
    as_json: bool,
    **filters: Any,
) -> None:
    """Make dead letters of TOPIC available to the group again.

    Choose which by their id, error class, fingerprint, reason or partition, by --limit, or take --all, which asks
    before it acts unless --yes is given. A redriven message starts anew, with all its deliveries before it.

    If a dead letter is redriven twice, also by two operators at once, it is redriven once. After Ctrl-C, or exit code
    75 (too few replicas answered), run it again: it goes on with the rest.

    With --plan FILE, the plan of `python -m quorumq.spark deadletters`, TOPIC and --group are left out. A message that
    was redriven, acked or purged since the plan was made is left alone and counted, so it can be run again.
    """
    chosen_by = [value for value in (*filters.values(), limit) if value not in (None, ())]
    if plan is not None:
        if topic or group or chosen_by or everything:
            raise click.UsageError(
                "a plan says which dead letters: beside --plan give only --rate and --dry-run"
            )
        from quorumq.cli.plans import carry_out

        await carry_out(where, plan, rate, dry_run, as_json)
        return
    if not topic or not group:
        raise click.UsageError("give TOPIC and --group, or --plan FILE")
    if not (chosen_by or everything):
        raise click.UsageError(
            "say which dead letters: --id, --error-class, --fingerprint, --reason, --partition, --limit, or --all for "
            "all of them"
        )
    from quorumq.client.admin.selection import redriven
    from quorumq.client.base.context import check_group

    query = _selection(topic, group, **filters)
    ask = everything and not yes
    about = {"topic": query.topic, "group": query.group}
    chosen = done = already = 0
    missed: dict[MessageId, str] = {}
    async with cluster(where) as client:
        check_group(await client.metadata(query.topic), query.topic, query.group)
        if dry_run or ask:
            async for item in _chosen(client, query, limit, missed):
                chosen += item.peeked.span.size
        if dry_run:
            text = f"{plural(chosen, 'dead letter')} would be redriven"
            tell(text, {**about, "chosen": chosen, "dry_run": True}, as_json)
            check_missed([*missed.values()])
            return
        if ask and chosen:
            question = f"redrive all {plural(chosen, 'dead letter')} of {query.topic} for {query.group}?"
            await confirmed(question)
        items = _chosen(client, query, limit, missed)
        try:
            async for now, before in redriven(client, query.topic, query.group, items, rate=rate):
                done += now
                already += before
        except BaseException:
            say(f"redriven {plural(done, 'message')} so far; run it again to go on", err=True)
            raise
    chosen = done + already
    text = f"redriven {plural(done, 'message')}" if chosen else f"no dead letters to redrive{_of_what(query)}"
    tell(text, {**about, "chosen": chosen, "redriven": done, "already": already}, as_json)
    if already and not as_json:
        say(f"{plural(already, 'message')} had been redriven, purged or acked meanwhile", err=True)
    check_missed([*missed.values()])


@deadletters.command()
@click.argument("topic")
@group_option
@_filters
@yes_option
@cluster_options
async def purge(
    topic: str,
    group: str,
    error_class: str | None,
    fingerprint: str | None,
    reason: str | None,
    yes: bool,
    **options: Any,
) -> None:
    """Purge dead letters of TOPIC for a group: all of them, or some by kind, partition or id.

    It asks first, with their number, unless --yes is given. To look at each before, read them with `quorumq consume`
    as group GROUP!dead: there an ack purges. After exit code 75 (too few replicas answered) run it again: it does the
    rest.
    """
    if error_class is None and fingerprint is None and reason is None:
        from quorumq.client.base.names import source_of

        topic, group = source_of(topic, group)
        await purge_group(topic=topic, group=f"{group}!dead", yes=yes, **options)
        return
    from quorumq.client.admin.selection import REDRIVE_MESSAGES, chunked
    from quorumq.client.base.context import check_group

    where, as_json = options.pop("where"), options.pop("as_json")
    kind: dict[str, Any] = {"error_class": error_class, "fingerprint": fingerprint, "reason": reason}
    query = _selection(topic, group, **kind, **options)
    missed: dict[MessageId, str] = {}
    async with cluster(where) as client:
        known = await client.metadata(query.topic)
        check_group(known, query.topic, query.group)
        count = 0
        if not yes:
            async for item in _dead_letters(client, query, missed):
                count += item.peeked.span.size
            if count:
                await confirmed(f"purge {plural(count, 'dead letter')} of {query.topic} for {query.group}?")
        done = 0
        if yes or count:
            async for items in chunked(_dead_letters(client, query, missed), REDRIVE_MESSAGES):
                names = [name for item in items for name in item.ids(known.topics[0].id)]
                done += await client.purge(query.topic, f"{query.group}!dead", ids=names)
    about = {"topic": query.topic, "group": f"{query.group}!dead", "purged": done}
    text = f"purged {plural(done, 'dead letter')}" if done else f"no dead letters to purge{_of_what(query)}"
    tell(text, about, as_json)
    check_missed([*missed.values()])


async def _dead_letters(
    client: Client, query: Selection, missed: dict[MessageId, str]
) -> AsyncGenerator[Peek, None]:
    """Yield the chosen dead letters, in the order of partitions and ids. If an id is none, note it in ``missed``."""
    from quorumq.client.admin.selection import chosen

    if query.ids:
        named = await there(client, query.topic, f"{query.group}!dead", parsed(query.ids), missed)
        for peek in named.values():
            if query.matches(peek):
                yield peek
        return
    async for peek in chosen(client, query):
        yield peek


def _of_what(query: Selection) -> str:
    """Return the filters of a choice that nothing fits, with the command that lists all; "" if it has none."""
    filters = {"error class": query.error_class, "fingerprint": query.fingerprint, "reason": query.reason}
    chosen = " and ".join(f"{name} {text}" for name, text in filters.items() if text is not None)
    return (
        f" with {chosen}: see `quorumq deadletters list {query.topic} --group {query.group}`"
        if chosen
        else ""
    )


def _selection(topic: str, group: str, *, ids: tuple[str, ...], **filters: Any) -> Selection:
    """Return a choice of the topic and group that keep the records: g!dead and TOPIC.deadletters mean the same here."""
    from quorumq.client.admin.selection import Selection
    from quorumq.client.base.names import source_of

    return Selection(*source_of(topic, group), **filters, ids=ids or None)


async def _each(
    client: Client, query: Selection, topic_id: bytes, most: int, missed: dict[MessageId, str]
) -> list[dict[str, Any]]:
    from quorumq.cli.peek import death_fields

    lines: list[dict[str, Any]] = []
    async for peek in _dead_letters(client, query, missed):
        fields = death_fields(peek.peeked.record.death)
        for name in peek.ids(topic_id):
            if len(lines) == most:
                return lines
            lines.append({"id": str(name), "partition": peek.partition, "n": peek.peeked.record.n, **fields})
    return lines


async def _kinds(
    client: Client, query: Selection, topic_id: bytes, missed: dict[MessageId, str]
) -> list[dict[str, Any]]:
    """Count dead letters by fingerprint, or by reason if they have none. The most frequent kind is first."""
    kinds: dict[tuple[str, str, str], dict[str, Any]] = {}
    async for peek in _dead_letters(client, query, missed):
        death = peek.peeked.record.death
        assert death is not None
        key = (death.fingerprint, death.error_class, "" if death.fingerprint else death.reason)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = {
                "count": 0,
                "fingerprint": death.fingerprint,
                "reason": death.reason,
                "error_class": death.error_class,
                "message": death.message,
                "first_died_ms": death.died_ms,
                "last_died_ms": death.died_ms,
                "samples": [],
            }
        kind["count"] += peek.peeked.span.size
        kind["first_died_ms"] = min(kind["first_died_ms"], death.died_ms)
        kind["last_died_ms"] = max(kind["last_died_ms"], death.died_ms)
        capacity = SAMPLES - len(kind["samples"])
        kind["samples"] += [str(name) for name in peek.ids(topic_id)[:capacity]]
    return sorted(kinds.values(), key=lambda kind: -kind["count"])


async def _chosen(
    client: Client, query: Selection, limit: int | None, missed: dict[MessageId, str]
) -> AsyncGenerator[Peek, None]:
    """Yield the dead letters to redrive. If there is a limit, these are ``limit`` of those published first."""
    from quorumq.client.admin.selection import bare

    candidates: list[tuple[int, Peek]] = []
    async for item in _dead_letters(client, query, missed):
        if limit is None:
            yield item
            continue
        death = item.peeked.record.death
        candidates.append((death.published_ms if death is not None else 0, bare(item)))
        if len(candidates) > 2 * limit + 1000:
            candidates = _oldest(candidates, limit)
    for _, item in _oldest(candidates, limit or 0):
        yield item


def _oldest(candidates: list[tuple[int, Peek]], limit: int) -> list[tuple[int, Peek]]:
    """Return ``limit`` of the messages, those published first; the last span is cut."""
    from quorumq.client.admin.selection import first

    kept: list[tuple[int, Peek]] = []
    for published, item in sorted(candidates, key=lambda pair: pair[0]):
        if limit <= 0:
            break
        kept.append((published, first(item, limit)))
        limit -= kept[-1][1].peeked.span.size
    return kept


def _print(lines: list[dict[str, Any]], each: bool) -> None:
    def died(ms: int) -> str:
        return local_time(ms)[:19] if ms else ""

    def error(line: dict[str, Any], width: int) -> str:
        first = line["message"].strip().splitlines()[0] if line["message"].strip() else ""
        cause = ": ".join(part for part in (line["error_class"], first) if part) or line["reason"]
        return shown(cause.encode(), width)

    if each:  # an id alone takes most of a line
        for line in lines:
            attempts = plural(line["attempts"], "failed attempt")
            if line.get("interruptions"):
                attempts += f", {line['interruptions']} interrupted"
            say(f"{line['id']}\n    {died(line['died_ms'])}  {attempts}")
            say(f"    {error(line, 76)}")
            if "headers" in line:
                print_body(line)
        return
    rows = [
        (f"{line['count']:,}", line["fingerprint"], error(line, 80), died(line["last_died_ms"]))
        for line in lines
    ]
    print_table((">count", "|fingerprint", "error", "|last died"), rows)
