"""The schema of a history: every field, every kind of line, and a check of lines.

docs/history.md is compared with these tables by a test, both ways.
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
    "run": Field("text", "name of the run; lines of one run belong together, whatever file they are in"),
    "who": Field("who", "who wrote the line: `node:<id>`, `client:<name>` or `sim`"),
    "at": Field("number", "seconds: the writer's monotonic clock, or simulated time"),
    "wall_ms": Field("integer", "the writer's time of day, milliseconds since 1970"),
    "within": Field("number", "uncertainty of `at` in seconds, either way; 0 in the simulator"),
    "kind": Field("text", "which of the kinds below"),
}
"""Fields of every line."""

FIELDS: Final[dict[str, Field]] = {
    "asked": Field(
        "number",
        "when the FETCH, first PEEK or question for the id of a name that this answers was sent, on the clock of `at`",
    ),
    "attempt": Field("integer", "1 for the first delivery of a message to the group, by the cluster's count"),
    "clock": Field("text", "what `at` is: `mono` or `simulated`"),
    "complete": Field("flag", "whether every replica that must be asked was"),
    "buried": Field("integer", "the generation of a group's last deletion"),
    "crcs": Field("text", "CRC-32C of each record's bytes, 8 hex digits per message, in order of the spans"),
    "defaults": Field("object", "settings that a CREATE does not name, and that the topic gets if it is new"),
    "delay": Field("number", "seconds until a message is due: published, or rejected"),
    "detail": Field("text", "anything more, for people"),
    "fault": Field("text", "what was done to the run, as `crash`, `partition`, `heal` …"),
    "from_ms": Field(
        "integer", "where a generation begins: it reads batches published at or after this time"
    ),
    "generation": Field("integer", "the group's generation: how often its register was changed"),
    "group": Field("text", "the group's name"),
    "history": Field("integer", "version of this schema"),
    "hold_time": Field("number", "seconds asked for"),
    "incarnation": Field("integer", "which start of the node this is, counted from 1"),
    "interrupted": Field(
        "flag", "of a delivery that is given back as interrupted: it counts as no attempt, up to 10 times"
    ),
    "into": Field(
        "object", "`topic`, `partition` and `spans` of outputs; `index` where an input has several"
    ),
    "latest": Field(
        "text", "of a group that begins with what is published from now on: `skipping` or `begun`"
    ),
    "links": Field("links", "directed pairs [from, to] of node ids and client names"),
    "messages": Field("integer", "how many messages"),
    "n": Field("integer", "the redrive number: how often the message was redriven before"),
    "nodes": Field("texts", "node ids and client names that it concerns"),
    "op": Field("integer", "the writer's number for one request: an `invoke` and its outcome share it"),
    "outcome": Field("text", "`invoke` when the request is sent, later what came of it"),
    "owner": Field("owner", "whose hold: `node.n.nonce#time@node`, numbers in hex but for n"),
    "partition": Field("integer", "the partition's number"),
    "phase": Field("text", "a part of the run that begins here"),
    "published_ms": Field("integer", "when the batch was made, by its producer's time of day"),
    "reason": Field("text", "why"),
    "retries": Field("integer", "the `op` of the first try of what this `invoke` sends again"),
    "paused": Field("flag", "true to pause a group, false to resume it"),
    "rewind": Field("flag", "whether a group that is there is to be rewound"),
    "seconds": Field("number", "how long it lasts"),
    "settings": Field("object", "options of the run, of the node or client, or of a topic"),
    "spans": Field(
        "spans", "messages: a list of [producer id, start, stop), producer id as `node.n.nonce.k`"
    ),
    "start": Field("text", "where a group is to begin: `earliest`, `latest` or `time`"),
    "state": Field(
        "text", "what a listing shows: `ready`, `held`, `delayed`, `dead`, `acked`, `skipped`, `purged`"
    ),
    "token": Field("token", "the fencing token, as text that sorts like it"),
    "topic": Field(
        "text", "the topic's name; `#` and how often it was deleted before come behind it, if it was"
    ),
    "ttl": Field("number", "seconds after which a published message expires"),
    "until": Field(
        "number",
        "the deadline of a delivery, or of a hold, on the clock of `at`; work after it may not be alone",
    ),
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
        "The first line of every writer: the schema's version and the options it runs with."),
    "phase": _kind("sim", "phase", "seconds detail", "",
        "A part of the run begins: `faults`, `healed`, `drained`, `end`."),
    "fault": _kind("sim", "fault", "nodes links seconds detail", "",
        "Something was done to the cluster, or undone."),
    "start": _kind("node", "incarnation", "detail outcome", "fresh restored quarantine",
        "The node started: on an empty directory, with the holds of a clean stop, or into quarantine."),
    "stop": _kind("node", "incarnation", "reason detail", "",
        "The node stopped cleanly, or says why it must."),
    "crash": _kind("node sim", "", "incarnation nodes detail", "",
        "The node was killed; what was not durable may be lost."),
    "publish": _kind("client", _MESSAGES + " op outcome", "crcs published_ms delay ttl retries asked via detail", _CALL,
        "PUBLISH. `fail`: nothing is stored by this try. `unknown`: it may be. `crcs` stands in the `invoke`, and in "
        "that of a retry `retries`: it names the same `spans`."),
    "derive": _kind("client", _MESSAGES + " group into", "crcs detail", "",
        "One output of each of these messages, as `group` got them, is published; `into` names them in order."),
    "store": _kind("node", _MESSAGES, "detail", "",
        "These messages are durable on this node, by STORE or by anti-entropy, or found at a start."),
    "hold_won": _kind("node", _DELIVERED, "token attempt op until", "",
        "This coordinator won these messages and began to write them to the client. Without `until` another node "
        "holds them for it."),
    "hold_lost": _kind("node", "topic partition group spans owner", "reason", "",
        "This coordinator gave up a HOLD round, or what it won, and released it."),
    "expire": _kind("node", "topic partition group spans", "n attempt", "",
        "Holds ran out at this replica, and an attempt was counted."),
    "deliver": _kind("client", _DELIVERED + " token attempt until asked", "crcs op via detail", "",
        "Messages were handed to the application. `crcs` are of the bytes that it got."),
    "ack": _kind("client", _DELIVERED + " op outcome", "via detail",
        "invoke acked acked_after_expiry acked_unproven already-settled stale-generation unknown fail",
        "ACK and its verdict (docs/protocol.md, ACK)."),
    "reject": _kind("client", _DELIVERED + " op outcome", "delay interrupted via detail", _SETTLED,
        "REJECT with a delay: deliver it again later."),
    "dead_letter": _kind("client node", _DELIVERED + " outcome", "op reason via detail", _SETTLED,
        "REJECT to the dead letters. By a node: a message ran out of deliveries or time, and that is durable here; "
        "where a majority says so, it is a dead letter for good."),
    "extend": _kind("client", _DELIVERED + " op outcome", "hold_time until via detail", _SETTLED,
        "EXTEND. With `ok`, `until` is the new deadline."),
    "claim": _kind("client", _DELIVERED + " op outcome", "hold_time until via detail", _SETTLED,
        "EXTEND for longer than any hold, or of what was claimed so. With `ok`, `until` is the new deadline."),
    "leave": _kind("client", _DELIVERED + " op", "via detail", "",
        "LEAVE: these were never handed to the application and never will be."),
    "release": _kind("node", "topic partition group spans owner", "reason", "",
        "What was delivered is given back: the reply was never begun (`reason` says why), or a client asks this node "
        "to, by LEAVE (`left`) or REJECT (`rejected`). The hold may be over from now on."),
    "redrive": _kind("client", "topic partition group generation n spans op outcome", "via detail",
        "invoke ok already-settled unknown fail",
        "REDRIVE of dead letters that were listed at redrive number `n`."),
    "purge": _kind("client", "topic partition group op outcome", "spans messages via detail",
        "invoke ok named unknown fail",
        "PURGE of a group's backlog, or of its dead letters where the group's name ends in `!dead`; only of `spans`, "
        "where these are named: then the outcome is `named`, not `ok`."),
    "set_group": _kind("client", "topic group op outcome", "start from_ms rewind generation via detail", _CALL,
        "A group is created, or rewound. With `ok`, `generation` and `from_ms` are what it is now."),
    "fetch": _kind("client", "topic group op outcome", "partition start messages via detail", _CALL,
        "FETCH by a client that has had nothing of the group yet: it may make the group. With `ok`, `messages` came."),
    "delete_group": _kind("client", "topic group op outcome", "generation via detail", _CALL,
        "A group is deleted. With `ok`, what has a generation below this one is void."),
    "pause_group": _kind("client", "topic group op outcome paused", "via detail", _CALL,
        "A group is paused, or resumed."),
    "register": _kind("node", "topic group generation from_ms", "buried latest detail", "",
        "The node has this of the group: which generation is current, and where that begins. `buried` is the "
        "generation of its last deletion; where it is that of the register, nobody reads the group."),
    "list": _kind("client node sim", "topic partition group state spans",
        "n generation complete reason asked via detail", "",
        "A listing (PEEK) showed these messages in this state. One that came to its end says so with no `spans`, "
        "`asked` and, as `state`, what it was to show: that or `all`. It says what was there at its time, and nothing "
        "of what came later."),
    "set_topic": _kind("client", "topic op outcome", "settings defaults via detail", _CALL,
        "CREATE or ALTER of a topic. `settings`, in the `invoke`, are those that the request names, `defaults` "
        "what it leaves to the node."),
    "set_labels": _kind("client", "topic op outcome", "settings via detail", _CALL,
        "Labels of a topic are changed. `settings`, in the `invoke`, has the new text of each, null to remove it."),
    "labels": _kind("client", "topic op outcome", "settings via detail", _CALL,
        "Labels of a topic are read. With `ok`, `settings` has the text of each."),
    "delete_topic": _kind("client", "topic op outcome", "via detail", _CALL,
        "DELETE of a topic, for good. What is created later under its name is another topic."),
    "topic": _kind("node", "topic settings", "detail", "",
        "The node has this register of the topic."),
    "truncated": _kind("node client sim", "detail", "", "",
        "The writer reached its limit: what comes after is not here."),
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
