"""`quorumq peek`: look at messages without taking them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from quorumq.cli.common import (
    Where,
    check_missed,
    cluster,
    cluster_options,
    group_option,
    ids_option,
    parsed,
    partition_option,
    print_json,
    say,
    shown,
    text_fields,
)
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.client import MessageId, Peek

PAYLOAD_CHARS: Final = 200
BASE64_CHARS: Final = 110
STATES: Final = ("ready", "held", "delayed", "acked", "dead", "skipped", "purged", "all")


@click.command()
@click.argument("topic")
@group_option
@ids_option(
    "Only this message, in whatever state it is, as a majority knows it; may be given several times. For one that "
    "nobody knows the exit code is 66."
)
@click.option(
    "--which",
    type=click.Choice(STATES),
    help="ready to deliver, held by a consumer, delayed, acked, dead letters, skipped (purged unread, or before the "
    "group's beginning), purged dead letters, or all. [default: ready]",
)
@partition_option
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Show at most so many messages."
)
@click.option(
    "--key", "of_key", metavar="TEXT", help="Only messages with this text in the key, in upper or lower case."
)
@click.option("--header", metavar="TEXT", help="The same for a header, written as NAME=VALUE.")
@click.option("--text", metavar="TEXT", help="The same for the payload.")
@click.option(
    "--look-at",
    default=10_000,
    show_default=True,
    type=click.IntRange(1),
    help="Search so many messages at most.",
)
@click.option(
    "--bodies/--no-bodies",
    default=None,
    help="Show keys, headers and payloads as well, each payload up to 200 characters; whole with --json. "
    "[default: not with --json, --complete and --id]",
)
@click.option(
    "--complete",
    is_flag=True,
    help="Ask several replicas, so that what a majority has is there; in the order of ids, without bodies.",
)
@cluster_options
async def peek(
    topic: str,
    group: str,
    ids: tuple[str, ...],
    which: str | None,
    partition: int | None,
    limit: int,
    bodies: bool | None,
    complete: bool,
    of_key: str | None,
    header: str | None,
    text: str | None,
    look_at: int,
    where: Where,
    as_json: bool,
) -> None:
    """Look at TOPIC as a group sees it, without taking anything.

    Messages are listed oldest first, partition by partition, each with its state, the number of deliveries that
    have ended without an ack, and the seconds that a hold or a delay still has to go. It is the view of one replica,
    which may be a moment behind the others, unless --complete is given. Nothing is held or counted by looking.

    Group g!dead (or TOPIC.deadletters of group g) shows the dead letters as that queue has them: ready, held or
    delayed.

    If --key, --header or --text is given, it searches: this program reads the messages one by one, and says how many
    it looked at.
    """
    if of_key or header or text:
        if ids or complete or partition is not None:
            raise click.UsageError("a search has no --id, --complete or --partition")
        options: dict[str, Any] = {"key": of_key, "header": header, "text": text, "look_at": look_at}
        await _search(where, topic, group, which or "all", limit, options, as_json)
        return
    if bodies and complete:
        raise click.UsageError("--complete has no --bodies: give one of them")
    if ids:
        if which or bodies or partition is not None:
            raise click.UsageError("--id has no --which, --partition or --bodies: `quorumq show` tells more")
        await _peek_ids(where, topic, group, parsed(ids), as_json)
        return
    from quorumq.client.base.context import topic_of
    from quorumq.client.base.names import names_of

    (topic,), group = names_of((topic,), group)
    which = which or "ready"
    bodies = not (complete or as_json) if bodies is None else bodies
    options = {"which": which, "partition": partition, "bodies": bodies, "complete": complete}
    count = 0
    async with cluster(where) as client:
        known = await client.metadata(topic)
        topic_id = topic_of(known, topic).id
        groups = [known_group.name for known_group in known.groups]
        if group.removesuffix("!dead") not in groups and not as_json:
            from quorumq.wire.hints import meant

            text = f"the node that was asked knows no group {group!r} of {topic!r}: to a new one, everything is ready"
            say(f"{text}; {meant(group, groups)}".rstrip("; "), err=True)
        async for entry in client.peek(topic, group, limit=limit + 1, **options):
            for name in entry.ids(topic_id):
                if count == limit:
                    if not as_json:
                        say(f"there are more; --limit {2 * limit} shows more of them", err=True)
                    return
                count += 1
                _print(_line(entry, name), as_json)
    if not count and not as_json:
        named = {"all": "messages", "dead": "dead letters"}.get(which, f"{which} messages")
        say(f"no {named} in {topic}", err=True)


async def _peek_ids(where: Where, topic: str, group: str, names: list[MessageId], as_json: bool) -> None:
    missed = []
    async with cluster(where) as client:
        known = await client.lookup(topic, group, names)
    for name in names:
        if name not in known:
            missed.append(f"no replica that answered knows {name}")
            continue
        _print(_line(known[name], name), as_json)
    check_missed(missed)


async def _search(
    where: Where, topic: str, group: str, which: Any, limit: int, options: dict[str, Any], as_json: bool
) -> None:
    async with cluster(where) as client:
        search = await client.search(topic, group, which, limit=limit, **options)
    for match in search.matches:
        _print({**_line(match.peek, match.id), **body_fields(match.message)}, as_json)
    of = "" if search.of is None else f" of {search.of:,}"
    say(f"looked at {search.looked_at:,}{of}", err=True)


def _line(entry: Peek, name: MessageId) -> dict[str, Any]:
    """Return one message for JSON."""
    item = entry.peeked
    line: dict[str, Any] = {
        "id": str(name),
        "partition": entry.partition,
        "state": item.state,
        "attempts": item.attempts,
        "interruptions": item.interruptions,
        "redrives": item.record.n,
        "remaining_s": round(item.remaining, 3),
        "owner": str(item.owner) if item.owner is not None else None,
    }
    if item.record.death is not None:
        line["death"] = death_fields(item.record.death)
    message = entry.bodies.get(name.seq)
    if message is not None:
        line |= {"published_ms": entry.published_ms, **body_fields(message)}
    return line


def body_fields(message: Any) -> dict[str, Any]:
    """Return the parts of a published message, for JSON."""
    headers = {name: header_value(value) for name, value in message.headers.items()}
    return {**text_fields("key", message.key), "headers": headers, **text_fields("payload", message.payload)}


def payload_lines(line: dict[str, Any]) -> list[str]:
    """Return the begin of a payload for a person: indented if it is JSON, in base64 if it is no text."""
    if "payload" not in line:
        return [f"base64 {line['payload_base64'][:BASE64_CHARS]}"]
    text = line["payload"]
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    cut = text if len(text) <= PAYLOAD_CHARS else f"{text[: PAYLOAD_CHARS - 1]}…"
    return [shown(one.encode(), PAYLOAD_CHARS) for one in cut.splitlines()] or ["(empty)"]


def print_body(line: dict[str, Any]) -> None:
    """Print key, headers and payload, indented."""
    if line.get("key") is not None:
        say(f"    key {shown(line['key'].encode())}")
    for name, value in line["headers"].items():
        say(f"    {shown(name.encode())} = {shown(str(value).encode())}")
    for text in payload_lines(line):
        say(f"    {text}")


def death_fields(death: Any) -> dict[str, Any]:
    """Return a dead letter's history for JSON."""
    fields: dict[str, Any] = death._asdict()
    fields["ballot"] = str(death.ballot)
    return fields


def header_value(value: Any) -> Any:
    """Return a header's value for JSON. If it is bytes, it becomes text, with escapes for those that are no UTF-8."""
    return bytes(value).decode(errors="backslashreplace") if isinstance(value, bytes | memoryview) else value


def _print(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(line)
        return
    parts = [line["id"], line["state"]]
    death = line.get("death")
    # The last attempt made it a dead letter, and only its `death` counts that one.
    if attempts := max(line["attempts"], death["attempts"] if death else 0):
        parts.append(plural(attempts, "failed attempt"))
    if line.get("interruptions"):
        parts.append(plural(line["interruptions"], "interrupted delivery", "interrupted deliveries"))
    if line["remaining_s"]:
        parts.append(f"for another {line['remaining_s']:.1f} s")
    if line["owner"]:
        parts.append(f"by {line['owner']}")
    if death:
        cause = " ".join(part for part in (death["error_class"], death["message"]) if part) or death["reason"]
        parts.append(shown(cause.encode()))
    say("  ".join(parts))
    if "headers" in line:
        print_body(line)
