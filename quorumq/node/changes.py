"""Who changed what: one line in the log for each change of topics, groups and dead letters that a client asks for.

The line comes with the answer, and has it. What a client may not do is there, too, as it was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from quorumq.core import messages as m
from quorumq.core.effects import Event, Gone, Request

WHAT: Final[dict[type, str]] = {
    m.CreateTopic: "topic created",
    m.AlterTopic: "topic altered",
    m.DeleteTopic: "topic deleted",
    m.SetGroup: "group created",
    m.DeleteGroup: "group deleted",
    m.PurgeRequest: "messages purged",
    m.RedriveRequest: "dead letters redriven",
    m.DeclareSurvivors: "survivors declared",
}
"""What each request asks for."""

UNDER_WAY_MAX: Final = 4_096
"""The oldest are forgotten: their lines are missing then."""


class Named(Protocol):
    """Who asked."""

    name: str


class Changes:
    """Writes the lines."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._under_way: dict[int, dict[str, Any]] = {}

    def noticed(self, events: Iterable[Event], askers: Mapping[int, Named]) -> None:
        """Events for the core have come. ``askers`` are by the keys of requests."""
        for event in events:
            if isinstance(event, Request) and type(event.request) in WHAT:
                if len(self._under_way) >= UNDER_WAY_MAX:
                    del self._under_way[next(iter(self._under_way))]
                asker = askers.get(event.key)
                self._under_way[event.key] = facts_of(event.request, asker.name if asker is not None else "")
            elif isinstance(event, Gone) and event.key in self._under_way:
                self._log.info(
                    "change", **self._under_way.pop(event.key), outcome="unknown: the client has gone"
                )

    def answered(self, key: int, reply: m.ClientReply) -> None:
        """A request has its answer."""
        facts = self._under_way.pop(key, None)
        if facts is not None:
            self._log.info("change", **facts, outcome=reply.code if isinstance(reply, m.Failed) else "ok")

    def refused(self, request: Any, who: str, code: str) -> None:
        """A request was refused before the core heard of it."""
        if type(request) in WHAT:
            self._log.warning("change", **facts_of(request, who), outcome=code)


def facts_of(request: Any, who: str) -> dict[str, Any]:
    """What the line says of a request: who, what, and of what."""
    what = "group rewound" if isinstance(request, m.SetGroup) and request.rewind else WHAT[type(request)]
    facts: dict[str, Any] = {"client": who, "what": what}
    if isinstance(request, m.DeclareSurvivors):
        facts["survivors"] = ", ".join(request.survivors)
        return facts
    facts["topic"] = request.name if hasattr(request, "name") else request.topic
    for name in ("group", "partition"):
        if hasattr(request, name):
            facts[name] = getattr(request, name)
    return facts
