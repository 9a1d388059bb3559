"""The schema of a history: every field, every kind of line, and a check of lines.

`python -m quorumq.history` prints it; docs/history.md has the rules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from quorumq.history.values import parse_owner, parse_producer_id

VERSION: Final = 1
"""The version of this schema; the first line of every writer (kind ``settings``) names it."""

Row = dict[str, Any]
"""One line as a mapping of field names to plain values."""


class HistoryError(ValueError):
    """A line that is not of this schema. The text names the file, the line, the field and its value."""


class Field(NamedTuple):
    """One field: its format and its meaning."""

    shape: str  # a key of _SHAPES
    meaning: str


class KindOf(NamedTuple):
    """One kind of line: its writers, the fields it must and may have, and its meaning.

    ``outcomes`` lists the values of ``outcome``; empty if anything goes.
    """

    writers: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    outcomes: tuple[str, ...]
    meaning: str


COMMON: Final[dict[str, Field]] = {
    "run": Field("text", "name of the run, in any number of files"),
    "who": Field("who", "writer: `node:<id>`, `client:<name>` or `sim`"),
    "at": Field("number", "seconds by the writer's monotonic clock, or simulated"),
    "wall_ms": Field("integer", "the writer's time of day, ms since 1970"),
    "within": Field("number", "error of `at` in seconds, either way"),
    "kind": Field("text", "one of the kinds below"),
}
"""Fields of every line."""

FIELDS: Final[dict[str, Field]] = {
    "asked": Field("number", "time of the request: the FETCH, first PEEK or FIND-NAME, on the clock of `at`"),
    "attempt": Field("integer", "1 for the first delivery to the group, by the cluster's count"),
    "burst": Field("integer", "messages that a limited group may get at once; 0 for a tenth of `per_second`"),
    "clock": Field("text", "clock of `at`: `mono` or `simulated`"),
    "complete": Field("flag", "true if enough replicas were asked"),
    "buried": Field("integer", "generation of the group's last deletion"),
    "crcs": Field("text", "CRC-32C of each record, 8 hex digits a message, in order"),
    "defaults": Field("object", "settings of a new topic that a CREATE does not name"),
    "delay": Field("number", "seconds until a message is due"),
    "detail": Field("text", "more, for people"),
    "fault": Field("text", "`crash`, `partition`, `heal` …"),
    "from_ms": Field("integer", "beginning of a generation: it reads batches published from then on"),
    "generation": Field("integer", "number of changes of the group's register"),
    "group": Field("text", "the group's name"),
    "history": Field("integer", "version of this schema"),
    "hold_time": Field("number", "seconds asked for"),
    "incarnation": Field("integer", "number of this start of the node, from 1"),
    "interrupted": Field("flag", "given back as interrupted: no attempt, up to 10 times"),
    "into": Field("object", "`topic`, `partition` and `spans` of outputs; `index` if an input has several"),
    "latest": Field("text", "of a group from latest: `skipping` or `begun`"),
    "layout": Field("integer", "number of the layout in which a partition's slots last changed"),
    "links": Field("links", "directed pairs [from, to] of node ids and client names"),
    "messages": Field("integer", "number of messages"),
    "n": Field("integer", "number of earlier redrives"),
    "nodes": Field("texts", "node ids and client names concerned"),
    "op": Field("integer", "number of a request, for its `invoke` and its outcomes"),
    "outcome": Field("text", "`invoke` when the request is sent, later its result"),
    "owner": Field("owner", "owner of the hold: `node.n.nonce#time@node`, numbers in hex but for n"),
    "partition": Field("integer", "number of the partition"),
    "phase": Field("text", "part of the run that begins here"),
    "published_ms": Field("integer", "time of the batch by its producer's time of day"),
    "reason": Field("text", "why"),
    "retries": Field("integer", "`op` of the first try that this `invoke` repeats"),
    "paused": Field("flag", "true to pause a group, false to resume it"),
    "per_second": Field("number", "deliveries a second to which a group is limited; 0 for no limit"),
    "rewind": Field("flag", "true to rewind an existing group"),
    "seconds": Field("number", "duration"),
    "settings": Field("object", "options of the run, of the node or client, or of a topic"),
    "spans": Field("spans", "messages: [producer id, start, stop) each, producer id as `node.n.nonce.k`"),
    "start": Field("text", "beginning of the group: `earliest`, `latest` or `time`"),
    "state": Field("text", "`ready`, `held`, `delayed`, `dead`, `acked`, `skipped` or `purged`"),
    "token": Field("token", "fencing token, as text that sorts like it"),
    "topic": Field("text", "name of the topic; `#` and the number of its deletions before, if any"),
    "ttl": Field("number", "seconds until a published message expires"),
    "until": Field("number", "deadline of a delivery, or of a hold, on the clock of `at`"),
    "via": Field("text", "the node that was asked"),
}
"""Fields that some kinds have."""


def _kind(writers: str, required: str, optional: str, outcomes: str, meaning: str) -> KindOf:
    """Return a kind whose names are given as words."""
    must, may = tuple(required.split()), tuple(optional.split())
    return KindOf(tuple(writers.split()), must, may, tuple(outcomes.split()), meaning)


_MESSAGES: Final = "topic partition spans"
_DELIVERED: Final = "topic partition group generation n spans owner"
_CALL: Final = "invoke ok unknown fail"
_SETTLED: Final = "invoke ok hold-lost already-settled stale-generation unknown fail"

KINDS: Final[dict[str, KindOf]] = {
    "settings": _kind("node client sim", "history settings", "clock detail", "",
        "First line of every writer: the schema's version, and options."),
    "phase": _kind("sim", "phase", "seconds detail", "",
        "A part of the run begins: `faults`, `healed`, `drained`, `end`."),
    "fault": _kind("sim", "fault", "nodes links seconds detail", "",
        "A fault begins or ends."),
    "start": _kind("node", "incarnation", "detail outcome", "fresh restored quarantine",
        "The node started on an empty directory, with the holds of a clean stop, or into quarantine."),
    "stop": _kind("node", "incarnation", "reason detail", "",
        "The node stopped cleanly, or has to."),
    "crash": _kind("node sim", "", "incarnation nodes detail", "",
        "The node was killed; what was not durable may be lost."),
    "publish": _kind("client", _MESSAGES + " op outcome", "crcs published_ms delay ttl retries asked via detail", _CALL,
        "PUBLISH. `fail`: nothing is stored by this try. `crcs` and `retries` stand in the `invoke`."),
    "derive": _kind("client", _MESSAGES + " group into", "crcs detail", "",
        "One output of each of these messages of `group` is published, in the order of `into`."),
    "store": _kind("node", _MESSAGES, "detail", "",
        "These messages are durable on this node, by STORE, anti-entropy or at a start."),
    "hold_won": _kind("node", _DELIVERED, "token attempt op until", "",
        "This coordinator won these messages and writes them to the client. Without `until` another node holds them."),
    "hold_lost": _kind("node", "topic partition group spans owner", "reason", "",
        "This coordinator gave up a HOLD round, or what it won, and released it."),
    "expire": _kind("node", "topic partition group spans", "n attempt", "",
        "Holds ran out at this replica, and an attempt was counted."),
    "deliver": _kind("client", _DELIVERED + " token attempt until asked", "crcs op via detail", "",
        "The application gets messages, with these `crcs`."),
    "ack": _kind("client", _DELIVERED + " op outcome", "via detail",
        "invoke acked acked_after_expiry acked_unproven already-settled stale-generation unknown fail",
        "ACK and its verdict (docs/protocol.md, ACK)."),
    "reject": _kind("client", _DELIVERED + " op outcome", "delay interrupted via detail", _SETTLED,
        "REJECT with a delay."),
    "dead_letter": _kind("client node", _DELIVERED + " outcome", "op reason via detail", _SETTLED,
        "REJECT to the dead letters. By a node: a message ran out of deliveries or time, durable here; it is a dead "
        "letter for good if a majority says so."),
    "extend": _kind("client", _DELIVERED + " op outcome", "hold_time until via detail", _SETTLED,
        "EXTEND. With `ok`, `until` is the new deadline."),
    "claim": _kind("client", _DELIVERED + " op outcome", "hold_time until via detail", _SETTLED,
        "EXTEND for longer than any hold, or of a claim. With `ok`, `until` is the new deadline."),
    "leave": _kind("client", _DELIVERED + " op", "via detail", "",
        "LEAVE: the application never gets these."),
    "release": _kind("node", "topic partition group spans owner", "reason", "",
        "A delivery is given back: the reply never began (`reason`), or by LEAVE (`left`) or REJECT (`rejected`). "
        "The hold may be over from now on."),
    "redrive": _kind("client", "topic partition group generation n spans op outcome", "via detail",
        "invoke ok already-settled unknown fail",
        "REDRIVE of dead letters listed at `n`."),
    "purge": _kind("client", "topic partition group op outcome", "spans messages via detail",
        "invoke ok named unknown fail",
        "PURGE of a group's backlog, or of its dead letters if its name ends in `!dead`. If it names `spans`, the "
        "outcome is `named`, not `ok`."),
    "set_group": _kind("client", "topic group op outcome", "start from_ms rewind generation via detail", _CALL,
        "A group is created, or rewound. With `ok`, `generation` and `from_ms` are its present ones."),
    "fetch": _kind("client", "topic group op outcome", "partition start messages via detail", _CALL,
        "First FETCH of a client for the group: it may make the group. With `ok`, `messages` came."),
    "delete_group": _kind("client", "topic group op outcome", "generation via detail", _CALL,
        "A group is deleted. With `ok`, lower generations are void."),
    "pause_group": _kind("client", "topic group op outcome paused", "via detail", _CALL,
        "A group is paused, or resumed."),
    "limit_group": _kind("client", "topic group op outcome per_second burst", "via detail", _CALL,
        "Deliveries to a group are limited, or no more: `per_second` is 0 then."),
    "register": _kind("node", "topic group generation from_ms", "buried latest detail", "",
        "The node has this register of the group. If `buried` is its generation, the group has no reader."),
    "list": _kind("client node sim", "topic partition group state spans",
        "n generation complete reason asked via detail", "",
        "A listing (PEEK) showed these messages in this state. Its end is a line with no `spans`, with `asked`, and "
        "with the requested `state` or `all`."),
    "set_topic": _kind("client", "topic op outcome", "settings defaults via detail", _CALL,
        "CREATE or ALTER of a topic. The `invoke` has the request's `settings`, and `defaults`."),
    "set_labels": _kind("client", "topic op outcome", "settings via detail", _CALL,
        "Labels of a topic are changed. `settings`, in the `invoke`, has the new text of each, null to remove it."),
    "labels": _kind("client", "topic op outcome", "settings via detail", _CALL,
        "Labels of a topic are read. With `ok`, `settings` has the text of each."),
    "delete_topic": _kind("client", "topic op outcome", "via detail", _CALL,
        "DELETE of a topic, for good."),
    "topic": _kind("node", "topic settings", "detail", "",
        "The node has this register of the topic."),
    "layout": _kind("node", "topic partition layout nodes", "detail", "",
        "The node has it durably that `nodes` are the partition's replica set, as of this layout. Only partitions that "
        "were moved have such lines."),
    "truncated": _kind("node client sim", "detail", "", "",
        "The writer reached its limit: later lines are missing."),
}  # fmt: skip
"""Every kind of line."""


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_spans(value: object) -> bool:
    if not isinstance(value, list):
        return False
    for item in value:
        if not (isinstance(item, list) and len(item) == 3 and _is_int(item[1]) and _is_int(item[2])):
            return False
        if not (0 <= item[1] < item[2] and _parses(parse_producer_id, item[0])):
            return False
    return True


def _parses(parse: Callable[[str], object], value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) > 21 and value[20] == "@" and value[:20].isdigit()


def _is_who(value: object) -> bool:
    if not isinstance(value, str):
        return False
    role, colon, name = value.partition(":")
    return value == "sim" or (role in ("node", "client") and colon == ":" and bool(name))


def _is_links(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) for end in pair)
        for pair in value
    )


_SHAPES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "texts": (
        lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value),
        "a list of texts",
    ),
    "integer": (_is_int, "an integer"),
    "number": (_is_number, "a finite number"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "spans": (_is_spans, 'a list of ["node.n.nonce.k", start, stop] with 0 <= start < stop'),
    "owner": (lambda value: _parses(parse_owner, value), '"node.n.nonce#time@node"'),
    "token": (_is_token, '20 digits, "@" and a node id'),
    "who": (_is_who, '"node:<id>", "client:<name>" or "sim"'),
    "links": (_is_links, "a list of [from, to]"),
}


def check_row(row: Mapping[str, object]) -> str:
    """Return the error of a line, or "".

    Fields that this schema does not know are let through: a later version may add some.
    """
    for name, field in COMMON.items():
        if name not in row:
            return f"field {name!r} is missing: {field.meaning}"
    kind = row["kind"]
    spec = KINDS.get(kind) if isinstance(kind, str) else None
    if spec is None:
        return f"kind is {kind!r}: it must be one of {', '.join(KINDS)}"
    for name in spec.required:
        if name not in row:
            return f"field {name!r} is missing from a {kind!r} line: {FIELDS[name].meaning}"
    for name, value in row.items():
        known = COMMON.get(name) or FIELDS.get(name)
        if known is None:
            continue
        if name not in COMMON and name not in spec.required and name not in spec.optional:
            return f"a {kind!r} line has no field {name!r}"
        test, shape = _SHAPES[known.shape]
        if not test(value):
            return f"{name} is {_shown(value)}: it must be {shape}"
    if spec.outcomes and "outcome" in row and row["outcome"] not in spec.outcomes:
        return (
            f"outcome of a {kind!r} line is {row['outcome']!r}: it must be one of {', '.join(spec.outcomes)}"
        )
    role = str(row["who"]).partition(":")[0]
    if role not in spec.writers:
        return f"{row['who']!r} wrote a {kind!r} line: only {' and '.join(spec.writers)} do"
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
