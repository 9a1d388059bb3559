"""One line in the log for each change of topics, groups and dead letters, with the client that asks for it.

The line is written when the answer is known, and has it. Lines of changes, ``change``, are never held back, so that no
client can keep another client's out of the log. If a request was refused, it changes nothing: its line,
``change_refused``, has a limit for each client (node/logs.py). If it repeats the present state, it has no line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.messages.effects import Event, Gone, Request
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Topic

WHAT: Final[dict[type, str]] = {
    m.CreateTopic: "topic created",
    m.AlterTopic: "topic altered",
    m.LabelsRequest: "labels changed",
    m.DeleteTopic: "topic deleted",
    m.MovePartition: "partition moved",
    m.SetGroup: "group created",
    m.DeleteGroup: "group deleted",
    m.PauseGroup: "group paused",
    m.LimitGroup: "group limited",
    m.PurgeRequest: "messages purged",
    m.RedriveRequest: "dead letters redriven",
    m.DeclareSurvivors: "survivors declared",
    m.ChangeMembers: "members changed",
}
"""Words of the log for each kind of request."""

UNDER_WAY_MAX: Final = 4_096
"""Most requests that wait for their answers. If there are more, the oldest get their lines before their answers."""

REFUSED: Final = frozenset(set(Code) - {Code.OUTCOME_UNKNOWN, Code.TOO_FEW_REPLICAS})
"""Codes of answers: if an answer has one of them, nothing was changed."""


class Caller(Protocol):
    """Client that asked.

    Attributes:
        name: name for the log.
        whose: name or address of the client.
    """

    name: str
    whose: str


class Changes:
    """Writes the lines."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._under_way: dict[int, tuple[str, dict[str, Any]]] = {}  # by key: which client, and facts

    def noticed(self, events: Iterable[Event], callers: Mapping[int, Caller], catalogue: Catalogue) -> None:
        """Note events that the core is about to get. ``callers`` are by the keys of requests."""
        for event in events:
            if isinstance(event, Request) and type(event.request) in WHAT:
                if is_there(event.request, catalogue):
                    continue
                if len(self._under_way) >= UNDER_WAY_MAX:
                    self._ended(next(iter(self._under_way)), "unknown: too many are under way")
                caller = callers.get(event.key)
                name, whose = (caller.name, caller.whose) if caller is not None else ("", "")
                self._under_way[event.key] = (whose, fields_of(event.request, name))
            elif isinstance(event, Gone):
                self._ended(event.key, "unknown: the client has gone")

    def _ended(self, key: int, outcome: str) -> None:
        _, fields = self._under_way.pop(key, ("", {}))
        if fields:
            self._log.info("change", **fields, outcome=outcome)

    def answered(self, key: int, reply: m.ClientReply) -> None:
        if isinstance(reply, m.Failed) and reply.code in REFUSED:
            whose, fields = self._under_way.pop(key, ("", {}))
            if fields:
                self._log.warning("change_refused", **fields, outcome=reply.code, limited_by=whose)
        else:
            self._ended(key, reply.code if isinstance(reply, m.Failed) else "ok")

    def adopted(self, topics: deque[Topic]) -> None:
        """Write a line for each topic whose layout this node has adopted, and take these topics out."""
        while topics:
            topic = topics.popleft()
            number, placements = topic.layout_number, topic.layout.placements if topic.layout else ()
            fields: dict[str, Any] = {"client": "", "topic": topic.name, "layout": number}
            for placement in placements:
                if placement.epoch == number:
                    fields |= {"partition": placement.partition, "replicas": ", ".join(placement.nodes)}
            self._log.info("change", what="layout adopted", **fields, outcome="ok")

    def refused(self, request: Any, who: Caller, code: str) -> None:
        """Note that a request was refused before it reached the core."""
        if type(request) in WHAT and not (isinstance(request, m.LabelsRequest) and not request.changes):
            self._log.warning(
                "change_refused", **fields_of(request, who.name), outcome=code, limited_by=who.whose
            )


def is_there(request: Any, catalogue: Catalogue) -> bool:
    """Return True if a request changes nothing: it reads, or asks for the present state, as clients may repeatedly."""
    match request:
        case m.CreateTopic():
            return catalogue.topic_named(request.name) is not None
        case m.LabelsRequest():
            return not request.changes
        case m.SetGroup():
            topic = catalogue.topic_named(request.topic)
            return not request.rewind and topic is not None and catalogue.reads(topic.id, request.group)
        case m.ChangeMembers() | m.MovePartition():
            return request.dry_run
    return False


def fields_of(request: Any, who: str) -> dict[str, Any]:
    """Return the fields of the line for a request: the client, the change, and its topic, group and partition."""
    change = "group rewound" if isinstance(request, m.SetGroup) and request.rewind else WHAT[type(request)]
    if isinstance(request, m.PauseGroup) and not request.paused:
        change = "group resumed"
    elif isinstance(request, m.LimitGroup) and not request.per_second:
        change = "group not limited"
    values: dict[str, Any] = {"client": who, "what": change}
    if isinstance(request, m.DeclareSurvivors):
        values["survivors"] = ", ".join(request.survivors)
        return values
    if isinstance(request, m.ChangeMembers):
        fields = {"change": request.change, "node": request.node, "address": request.address}
        return {"client": who, "what": change, **fields}
    values["topic"] = request.name if hasattr(request, "name") else request.topic
    for name in ("group", "partition", "source", "to"):
        if hasattr(request, name):
            values[name] = getattr(request, name)
    return values
