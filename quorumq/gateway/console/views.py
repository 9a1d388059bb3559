"""Contents of the console's pages: results of the client's calls, arranged for templates."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from contextlib import suppress
from typing import Any, Final, cast

import trio

from quorumq.client import Client, DeadLetterKind, Match, MessageId, QuorumqError
from quorumq.client.admin.peek import Which
from quorumq.client.base.names import source_of
from quorumq.core import messages as m
from quorumq.core.values.errors import Unauthorized
from quorumq.core.values.limits import COUNTED_TEXT_MAX
from quorumq.core.values.printable import plural, printable
from quorumq.core.values.types import Limit
from quorumq.gateway.console.health import DOWN, OLD_S, ago, health_of, warning_of
from quorumq.gateway.jsonapi.operations import SEARCHED_BYTES_MAX
from quorumq.gateway.jsonapi.shapes import BYTES_MAX, dead_letter_of, header_of
from quorumq.gateway.shares import pace
from quorumq.node.problems import move_lines, problems

STATES: Final = ("ready", "held", "delayed", "dead", "acked", "all")
SHOWN: Final = 25
GROUPS: Final = 300
"""Groups on one page."""
UNREAD: Final = 30
KINDS: Final = 50
LOOK_AT: Final = 20_000
PAYLOAD_CHARS: Final = 4_000
SHOWN_CHARS: Final = 4 * PAYLOAD_CHARS
"""Characters of a payload with its indentation, or its escapes."""
HOURS: Final = 48
RATE: Final = 10
"""Messages a second that the forms of redrives propose."""
STATUS_S: Final = 3.0


async def overview(client: Client, pattern: str, *, ask_nodes: bool) -> dict[str, Any]:
    """Return health, and the work of each group of the topics that match; of the first ones if they are many.

    Args:
        ask_nodes: the user may ask nodes for their own problems.
    """
    known = await client.metadata(*([pattern] if pattern else ()))
    names, groups = some_topics(known)
    backlogs = await client.backlogs(*names) if names else {}
    paused = paused_of(known)
    limits = limits_of(known)
    rows = [
        {
            "topic": topic,
            "group": group,
            "work": work,
            "paused": (topic, group) in paused,
            "limit": limits.get((topic, group)),
        }
        for (topic, group), work in backlogs.items()
    ]
    read = {group.topic for group in known.groups}
    unread = sorted(topic.name for topic in known.topics if topic.id not in read)[:UNREAD]
    nodes = [(info.node, info.up) for info in known.nodes]
    down = {name for name, up in nodes if not up}
    reports = [row for row in await reports_of(client, known) if row["node"] not in down] if ask_nodes else []
    return {
        "rows": rows,
        "unread": unread,
        "health": health_of(nodes, backlogs, paused, problems(reports, [])),
        "nodes": nodes,
        "cluster": known.cluster_id,
        "pattern": pattern,
        "left_out": len(known.groups) - groups,
        "command": command("groups", "backlog", *([pattern] if pattern else ())),
    }


def some_topics(known: m.MetadataReply) -> tuple[list[str], int]:
    """Return the first topics with groups, up to `GROUPS` groups and one topic at least, and the number of groups."""
    counts = Counter(group.topic for group in known.groups)
    names: list[str] = []
    groups = 0
    for topic in sorted(known.topics, key=lambda topic: topic.name):
        if names and groups + counts[topic.id] > GROUPS:
            break
        if counts[topic.id]:
            names.append(topic.name)
            groups += counts[topic.id]
    return names, groups


def limits_of(known: m.MetadataReply) -> dict[tuple[str, str], Limit]:
    """Return the limits of groups, by topic and group."""
    names = {topic.id: topic.name for topic in known.topics}
    limited = [(group, group.limited) for group in known.groups if group.topic in names]
    return {(names[group.topic], group.name): limit for group, limit in limited if limit is not None}


def paused_of(known: m.MetadataReply) -> set[tuple[str, str]]:
    """Return the topics and groups that are paused."""
    names = {topic.id: topic.name for topic in known.topics}
    return {
        (names[group.topic], group.name) for group in known.groups if group.paused and group.topic in names
    }


async def group(
    client: Client, topic: str, name: str, which: str, key: str, header: str, text: str
) -> dict[str, Any]:
    """Return a group's work and consumers, and its messages of one state."""
    work = await client.backlog(topic, name)
    known = await client.metadata(topic)
    paused = (topic, name) in paused_of(known)
    search = await client.search(
        topic, name, cast("Which", which), key=key, header=header, text=text, limit=SHOWN, look_at=LOOK_AT,
        max_bytes=BYTES_MAX, look_at_bytes=SEARCHED_BYTES_MAX, pace=pace,
    )  # fmt: skip
    options = {"which": which, "key": key or None, "header": header or None, "text": text or None}
    limit = limits_of(known).get((topic, name))
    readers = plural(len(work.consumers), "consumer")
    return {
        "work": work,
        "warning": warning_of(topic, name, work, is_paused=paused),
        "calm": f"{readers}, and no message waits for more than {ago(OLD_S)}.",
        "search": search,
        "messages": [shown(match) for match in search.matches],
        "states": STATES,
        "paused": paused,
        "limit": limit,
        "set_limit": command(
            "groups", "limit", topic, name, per_second=f"{limit.per_second:g}" if limit else RATE
        ),
        "pause": command("groups", "resume" if paused else "pause", topic, name),
        "command": command("peek", topic, group=name, **options),
        "describe": command("groups", "describe", topic, name),
    }


async def dead(client: Client, topic: str, name: str) -> dict[str, Any]:
    """Return a group's dead letters by kind of failure."""
    topic, name = source_of(topic, name)
    counts = await client.count_dead_letters(topic, name)
    return {
        "kinds": [
            {
                "kind": kind,
                "versions": sorted(kind.versions.items(), key=lambda pair: -pair[1])[:5],
                "bars": bars(kind),
                "text": kind.message + "…" * (len(kind.message) >= COUNTED_TEXT_MAX),
                "redrive": command(
                    "deadletters", "redrive", topic, group=name, fingerprint=kind.fingerprint,
                    error_class=kind.error_class, reason=kind.reason, rate=RATE,
                ),
            }
            for kind in counts.kinds[:KINDS]
        ],
        "more": max(0, len(counts.kinds) - KINDS),
        "rate": RATE,
        "total": sum(kind.messages for kind in counts.kinds),
        "complete": counts.complete,
        "command": command("deadletters", "count", topic, group=name),
        "redrive_all": command("deadletters", "redrive", topic, group=name, all=True, rate=RATE),
        "purge": command("deadletters", "purge", topic, group=name),
    }  # fmt: skip


def bars(kind: DeadLetterKind) -> list[tuple[int, int, str]]:
    """Return place, height (of 20) and text of each bar: deaths of each hour up to the last one."""
    last = max(kind.hours)
    most = max(kind.hours.values())
    return [
        (HOURS - 1 - (last - hour), max(2, round(20 * count / most)), f"{count} in one hour")
        for hour, count in sorted(kind.hours.items())
        if last - hour < HOURS
    ]


async def message(client: Client, topic: str, text: str) -> dict[str, Any]:
    life = await client.show(topic, text, body=True)
    groups: dict[str, list[Any]] = {}
    for replica in life.replicas:
        for seen in replica.groups:
            groups.setdefault(seen.group, []).append((replica.node, seen))
    return {
        "life": life,
        "groups": sorted(groups.items()),
        "body": None if life.body is None else contents(life.body),
        "command": command("show", topic, str(life.id)),
    }


async def reports_of(client: Client, known: m.MetadataReply) -> list[dict[str, Any]]:
    """Ask all nodes at once for their own state; return it with ``node``, ``address``, ``up``, and ``error``."""

    async def ask(info: m.NodeInfo) -> dict[str, Any]:
        row: dict[str, Any] = {"node": info.node, "address": info.address, "error": ""}
        only = client.context.nodes.addresses_of((info.node,))
        request = m.StatusRequest()  # its first page: the others have partitions
        try:
            status, _ = await client.context.ask(
                request, f"status of {info.node}", STATUS_S, writes=False, only=only
            )
        except QuorumqError as failure:
            refuses = isinstance(failure, Unauthorized)
            return {**row, "up": False, "error": str(failure), "refuses": refuses}
        return {**row, "up": True, **status}

    rows: dict[str, dict[str, Any]] = {}

    async def look(info: m.NodeInfo) -> None:
        rows[info.node] = await ask(info)

    async with trio.open_nursery() as nursery:
        for info in known.nodes:
            nursery.start_soon(look, info)
    return [rows[info.node] for info in known.nodes]


async def nodes(client: Client) -> dict[str, Any]:
    """Return each node's knowledge of itself, its peers and its moves."""
    known = await client.metadata()
    rows = await reports_of(client, known)
    return {
        "rows": rows,
        "names": [info.node for info in known.nodes],
        "problems": sorted(problems(rows, []), key=lambda text: DOWN not in text),
        "moves": move_lines(rows),
        "command": command("status"),
    }


async def publish(client: Client, topic: str, original: str) -> dict[str, Any]:
    """Return the fields of a message to publish, those of ``original`` if it is an id."""
    fields = {"topic": topic, "key": "", "headers": "", "payload": "", "problem": ""}
    if original:
        life = await client.show(topic, original, body=True)
        if life.body is None:
            raise QuorumqError(f"no replica has the payload of {original} any more")
        payload, key = bytes(life.body.payload or b""), bytes(life.body.key or b"")
        for field, value in (("payload", payload), ("key", key)):
            try:
                fields[field] = value.decode()
            except UnicodeDecodeError:
                fields["problem"] += f"The {field} is no text, and cannot be edited here. "
        headers = {name: header_of(value) for name, value in life.body.headers.items()}
        fields["headers"] = json.dumps(headers, ensure_ascii=False) if headers else ""
    return {
        "fields": fields,
        "original": original,
        "command": command("publish", topic or "TOPIC", "PAYLOAD"),
    }


def shown(match: Match) -> dict[str, Any]:
    """Return one message for a page."""
    peeked = match.peek.peeked
    return {
        "id": match.id,
        "state": peeked.state,
        "attempts": peeked.attempts,
        "remaining": peeked.remaining,
        "owner": peeked.owner.node if peeked.owner is not None else "",
        "published_ms": match.published_ms,
        "death": dead_letter_of(peeked.record),
        **contents(match.message),
    }


def contents(parts: Any) -> dict[str, Any]:
    """Return key, headers and payload as text that no terminal or page obeys: JSON indented, other bytes escaped."""
    payload = bytes(parts.payload or b"")
    try:
        text = payload.decode()
        cut = len(text) > PAYLOAD_CHARS
        with suppress(ValueError, RecursionError):
            text = text if cut else indented(text)
    except UnicodeDecodeError:
        text, cut = repr(payload[:PAYLOAD_CHARS])[2:-1], len(payload) > PAYLOAD_CHARS
    key = None if parts.key is None else printable(bytes(parts.key).decode(errors="backslashreplace"))
    return {
        "key": key,
        "headers": {
            printable(name): printable(str(header_of(value))) for name, value in parts.headers.items()
        },
        "payload": printable(text[:SHOWN_CHARS]),
        "cut": cut or len(text) > SHOWN_CHARS,
        "bytes": len(payload),
    }


def indented(text: str) -> str:
    """Return a JSON text with indentation.

    Raises:
        ValueError: it is none, or Python would write it as another one: with other digits, or without a name.
    """

    def number(digits: str) -> float:
        if repr(float(digits)) != digits:
            raise ValueError(digits)
        return float(digits)

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    value = json.loads(text, parse_float=number, object_pairs_hook=mapping)
    return json.dumps(value, indent=2, ensure_ascii=False)


def ids_of(text: str) -> list[str]:
    """Return the ids in a field of a form; ValueError if one is none."""
    return [str(MessageId.parse(word)) for word in text.split()]


def command(*words: str, **options: str | int | bool | None) -> str:
    """Return the command line of `quorumq` that does the same as a button, quoted for a shell.

    Args:
        words: command and arguments.
        options: options of the command by name, without those that are None or False; True is one without a value.
    """
    parts = ["quorumq", *words]
    for name, value in options.items():
        if value is None or value is False:
            continue
        parts.append("--" + name.replace("_", "-"))
        if value is not True:
            parts.append(str(value))
    return shlex.join(parts)
