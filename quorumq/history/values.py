"""Names and values of a history: written as text, and read back."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from quorumq.core.messages import SETTINGS, AlterTopic, CreateTopic
from quorumq.core.values.types import (
    NODES_MAX,
    Group,
    Incarnation,
    Owner,
    ProducerId,
    Span,
    Stamp,
    Topic,
    topic_id,
)

LABEL_DELETIONS_MAX: Final = 1000
"""Most earlier deletions of a topic's name that its label counts; beyond that the label has the topic's id."""


def label_after(name: str, deletions: int) -> str:
    """Return the label of a topic whose name was deleted ``deletions`` times before.

    It serves if no more is known of the topic; else `topic_label` does.
    """
    return f"{name}#{deletions}" if deletions else name


@functools.lru_cache(maxsize=1000)
def topic_label(topic: bytes, name: str) -> str:
    """Return the label of a topic, by its id: all writers use the same.

    The id says how often the name had been deleted before (docs/protocol.md, section 1, "topic"), and a delivery or a
    receipt, which have no more than id and name, need nothing else.
    """
    for deletions in range(LABEL_DELETIONS_MAX):
        for rf in range(1, NODES_MAX, 2):
            if topic == topic_id(name, rf, deletions):
                return label_after(name, deletions)
    return f"{name}#{topic.hex()}"


def settings_value(source: Topic | CreateTopic | AlterTopic) -> dict[str, object]:
    """Return the settings that a register has or a request names; times have a point, from all writers."""
    result: dict[str, object] = {}
    for name in ("partitions", *SETTINGS):
        value = getattr(source, name)
        if value is not None and name == "auto_create_groups":
            result[name] = int(value)
        elif value is not None:
            exact = name in ("partitions", "max_deliveries", "on_expiry")
            result[name] = (
                value if exact else [float(it) for it in value] if name == "backoff" else float(value)
            )
    return result


def layout_values(topic: Topic) -> list[dict[str, object]]:
    """Return the fields of the `layout` lines of a register: one for each partition that was ever moved."""
    placements = topic.layout.placements if topic.layout is not None else ()
    return [
        {"partition": each.partition, "layout": each.epoch, "nodes": list(each.nodes)} for each in placements
    ]


def register_value(group: Group) -> dict[str, object]:
    """Return the fields of a group in a `register` line: its deletion, and creation since, only if there was one."""
    more: dict[str, object] = {"buried": group.buried} if group.buried else {}
    if group.latest:
        more["latest"] = group.latest.name.lower()
    return {"group": group.name, "generation": group.generation, "from_ms": group.from_ms, **more}


def producer_id_text(producer_id: ProducerId) -> str:
    """Return a producer id as it is written: ``node.n.nonce.k``, the nonce in hex. Node ids have no dot."""
    return f"{producer_id.node}.{producer_id.n}.{producer_id.nonce:x}.{producer_id.k}"


def parse_producer_id(text: str) -> ProducerId:
    """Return the inverse of `producer_id_text`; ValueError if it is none."""
    node, n, nonce, k = text.split(".")
    return ProducerId(node, int(n), int(nonce, 16), int(k))


def owner_text(owner: Owner) -> str:
    """Return an owner as it is written: ``node.n.nonce#time@node``, nonce and time in hex."""
    (n, nonce), ballot = owner.incarnation, owner.ballot
    return f"{owner.node}.{n}.{nonce:x}#{ballot.time:x}@{ballot.node}"


def parse_owner(text: str) -> Owner:
    """Return the inverse of `owner_text`; ValueError if it is none."""
    who, ballot = text.split("#")
    node, n, nonce = who.split(".")
    at, by = ballot.split("@")
    return Owner(node, Incarnation(int(n), int(nonce, 16)), Stamp(int(at, 16), by))


def token_text(ballot: Stamp) -> str:
    """Return a fencing token: 20 digits, ``@`` and the node id, so that texts sort as tokens do."""
    return f"{ballot.time:020d}@{ballot.node}"


def spans_value(spans: Iterable[Span]) -> list[list[object]]:
    return [[producer_id_text(span.producer_id), span.start, span.stop] for span in spans]
