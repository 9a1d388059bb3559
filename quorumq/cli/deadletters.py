# quorumq/cli/deadletters.py: what died, why, and back to life.
#
# A thousand dead letters are rarely a thousand problems. The fingerprint that came with each letter brings equal
# failures together, so what is listed is problems, each with a count and a few ids to look at.
"""`quorumq deadletters`: list and redrive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from quorumq.cli.common import (
    cluster,
    console,
    group_option,
    json_option,
    nodes_option,
    plural,
    print_json,
    shown,
)

if TYPE_CHECKING:
    from quorumq.client import Client, Peek

SAMPLES: Final = 3


class Wanted(NamedTuple):
    """Which dead letters are meant."""

    topic: str
    group: str
    error_class: str | None
    fingerprint: str | None
    partition: int | None


def _filters(command: Any) -> Any:
    options = (
        click.option(
            "--error-class", metavar="NAME", help="Only those that failed with this class of error."
        ),
        click.option("--fingerprint", metavar="HEX", help="Only those with this fingerprint (see the list)."),
        click.option("--partition", type=click.IntRange(0), help="Only this partition."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def deadletters() -> None:
    """List dead letters, and redrive them.

    A message becomes a dead letter of a group when a consumer rejects it for good, or when it has been delivered
    too often without an ack. It stays where it is, with the history of its failure, until it is redriven or purged;
    other groups are not concerned.
    """


@deadletters.command("list")
@click.argument("topic")
@group_option
@_filters
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Show at most so many lines."
)
@click.option("--each", is_flag=True, help="One line for each dead letter, not for each kind of failure.")
@nodes_option
@json_option
def list_letters(
    topic: str,
    group: str,
    error_class: str | None,
    fingerprint: str | None,
    partition: int | None,
    limit: int,
    each: bool,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the dead letters of TOPIC for a group, equal failures together.

    Each line is a kind of failure: how many messages died of it, its fingerprint, the error, when the last died, and
    the ids of some of them. It is the view of one replica, which may be a moment behind the others. With --each and
    --json every dead letter comes with its whole history.
    """
    import trio

    trio.run(_list, nodes, Wanted(topic, group, error_class, fingerprint, partition), limit, each, as_json)


@deadletters.command()
@click.argument("topic")
@group_option
@_filters
@click.option("--limit", type=click.IntRange(1), help="Redrive at most so many, the oldest first.")
@click.option("--all", "everything", is_flag=True, help="Redrive all of them; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@nodes_option
@json_option
def redrive(
    topic: str,
    group: str,
    error_class: str | None,
    fingerprint: str | None,
    partition: int | None,
    limit: int | None,
    everything: bool,
    yes: bool,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make dead letters of TOPIC available to the group again.

    Choose which by their error class, fingerprint or partition, by --limit, or take --all, which asks before it acts
    unless --yes is given. A redriven message starts anew, with all its deliveries before it. Redriving twice is
    redriving once, so after exit code 75 (too few replicas answered) run it again.
    """
    if not (error_class or fingerprint or limit or everything or partition is not None):
        raise click.UsageError(
            "say which dead letters: --error-class, --fingerprint, --partition, --limit, or --all for all of them"
        )
    import trio

    wanted = Wanted(topic, group, error_class, fingerprint, partition)
    trio.run(_redrive, nodes, wanted, limit, everything and not yes, as_json)


async def _letters(client: Client, wanted: Wanted) -> AsyncIterator[Peek]:
    """The dead letters that are meant, oldest first within each partition."""
    async for found in client.peek(wanted.topic, wanted.group, "dead", partition=wanted.partition):
        letter = found.peeked.record.letter
        if letter is None:
            continue
        if wanted.error_class is not None and letter.error_class != wanted.error_class:
            continue
        if wanted.fingerprint is not None and letter.fingerprint != wanted.fingerprint:
            continue
        yield found


async def _list(nodes: tuple[str, ...], wanted: Wanted, limit: int, each: bool, as_json: bool) -> None:
    async with cluster(nodes) as client:
        known = await client.metadata(wanted.topic)
        topic_id = known.topics[0].id
        lines = await (
            _each(client, wanted, topic_id, limit + 1) if each else _kinds(client, wanted, topic_id)
        )
    if as_json:
        for line in lines[:limit]:
            print_json(line)
        return
    if not lines:
        groups = [found.name for found in known.groups]
        has = f"it has {', '.join(groups)}" if groups else "it has none yet"
        why = (
            ""
            if wanted.group in groups
            else f": there is no group {wanted.group!r} of {wanted.topic!r}, {has}"
        )
        click.echo(f"no dead letters{why}", err=True)
        return
    _print(lines[:limit], each)
    if len(lines) > limit:
        click.echo(f"there are more; --limit {2 * limit} shows more of them", err=True)


async def _each(client: Client, wanted: Wanted, topic_id: bytes, most: int) -> list[dict[str, Any]]:
    from quorumq.cli.peek import letter_fields

    lines: list[dict[str, Any]] = []
    async for found in _letters(client, wanted):
        fields = letter_fields(found.peeked.record.letter)
        for name in found.ids(topic_id):
            if len(lines) == most:
                return lines
            lines.append(
                {"id": str(name), "partition": found.partition, "n": found.peeked.record.n, **fields}
            )
    return lines


async def _kinds(client: Client, wanted: Wanted, topic_id: bytes) -> list[dict[str, Any]]:
    """Dead letters by fingerprint, the most frequent first; those without one by their reason."""
    kinds: dict[tuple[str, str, str], dict[str, Any]] = {}
    async for found in _letters(client, wanted):
        letter = found.peeked.record.letter
        assert letter is not None
        key = (letter.fingerprint, letter.error_class, "" if letter.fingerprint else letter.reason)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = {
                "count": 0,
                "fingerprint": letter.fingerprint,
                "reason": letter.reason,
                "error_class": letter.error_class,
                "message": letter.message,
                "first_died_ms": letter.died_ms,
                "last_died_ms": letter.died_ms,
                "samples": [],
            }
        kind["count"] += found.peeked.span.size
        kind["first_died_ms"] = min(kind["first_died_ms"], letter.died_ms)
        kind["last_died_ms"] = max(kind["last_died_ms"], letter.died_ms)
        room = SAMPLES - len(kind["samples"])
        kind["samples"] += [str(name) for name in found.ids(topic_id)[:room]]
    return sorted(kinds.values(), key=lambda kind: -kind["count"])


async def _redrive(
    nodes: tuple[str, ...], wanted: Wanted, limit: int | None, ask: bool, as_json: bool
) -> None:
    async with cluster(nodes) as client:
        chosen: list[Peek] = []
        count = 0
        async for found in _letters(client, wanted):
            span, record = found.peeked.span, found.peeked.record
            if limit is not None and count + span.size > limit:
                span = span._replace(stop=span.start + limit - count)
                if span.start == span.stop:
                    break
            count += span.size
            # The letter stays where it is: what is redriven is named by generation and n.
            chosen.append(
                found._replace(peeked=found.peeked._replace(span=span, record=record._replace(letter=None)))
            )
        if ask and count:
            question = f"redrive all {plural(count, 'dead letter')} of {wanted.topic} for {wanted.group}?"
            click.confirm(question, abort=True, err=True)
        done = await client.redrive(wanted.topic, wanted.group, chosen)
    already = sum(span.size for span, _ in done.refused)
    if as_json:
        line = {"topic": wanted.topic, "group": wanted.group, "chosen": count}
        print_json({**line, "redriven": done.messages, "already": already})
        return
    click.echo(f"redriven {plural(done.messages, 'message')}" if count else "no dead letters to redrive")
    if already:
        click.echo(f"{plural(already, 'message')} had been redriven, purged or acked meanwhile", err=True)


def _print(lines: list[dict[str, Any]], each: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    def died(ms: int) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms else ""

    def error(line: dict[str, Any]) -> str:
        first = line["message"].strip().splitlines()[0] if line["message"].strip() else ""
        cause = ": ".join(part for part in (line["error_class"], first) if part) or line["reason"]
        return escape(shown(cause.encode(), 80))

    table = Table()
    if each:
        for column in ("id", "attempts", "error", "died"):
            table.add_column(column, overflow="fold", justify="right" if column == "attempts" else "left")
        for line in lines:
            table.add_row(line["id"], str(line["attempts"]), error(line), died(line["died_ms"]))
    else:
        for column in ("count", "fingerprint", "error", "last died", "such as"):
            table.add_column(
                column,
                overflow="fold",
                no_wrap=column == "such as",
                justify="right" if column == "count" else "left",
            )
        for line in lines:
            samples = "\n".join(line["samples"])
            table.add_row(
                f"{line['count']:,}", line["fingerprint"], error(line), died(line["last_died_ms"]), samples
            )
    console().print(table)
