"""Requests by the name of the topic: each may reach any topic that has it, unless it names what its client saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from quorumq.client.base.sight import as_seen
from quorumq.core import messages as m
from quorumq.core.node.status import metadata
from quorumq.core.values.errors import Code
from sim.clients.client import Answer, Client, nothing_done
from sim.clients.surroundings import Surroundings
from sim.machine import cores_of
from sim.topics import label_of

ALL = "*"


class Call(NamedTuple):
    """A request that names the topic by its name: it may reach any topic of that name."""

    kind: str  # kind of its lines
    fields: dict[str, Any]  # that its lines share
    asked: dict[str, Any]  # those of its ``invoke``
    # The oldest topic that it may reach by the time it is sent, as the number of deletions of the name before.
    first: int
    rf: int  # replication factor of the topics that it may reach; 0: any
    # Its number in the lines of each topic that it may reach, by the topic's name in the history.
    ops: dict[str, int]


class Caller(Client):
    """Asks for things by the name of the topic, and writes down which topics that may have reached."""

    def __init__(self, around: Surroundings, name: str) -> None:
        super().__init__(around, name)
        self.calls: list[Call] = []  # that may still reach a topic that is created later
        # Numbers in refusals of creations, by the topic's id and the group, or b"" and the topic's name.
        self.refused_at: dict[tuple[bytes | None, str], int] = {}

    def shown(self, name: str, node: str) -> m.MetadataReply | None:
        """Return what this node, or else another, says of the topic of that name, or ALL; None if none knows it."""
        cores, now = cores_of(self.around.machines), self.clock.now(self.world.time)
        for core in (cores.get(node), *cores.values()):
            reply = metadata(core.context, m.Metadata((name,)), now) if core is not None else None
            if isinstance(reply, m.MetadataReply) and (reply.topics or name == ALL):
                return reply
        return None

    def as_seen(self, request: Any, name: str, node: str) -> Any:
        """Return a change with what the client library names before it asks ``node``; None if it sees no such topic.

        So a copy that arrives late undoes nothing.
        """
        known = self.shown(name, node)
        if known is None:
            return None
        (topic,) = known.topics
        request = as_seen(request, topic, known.groups)
        if isinstance(request, m.SetGroup) and not request.rewind:
            return request._replace(generation=self.refused_at.get((topic.id, request.group), 0))
        return request

    def is_late(self, request: Any, answer: Answer) -> bool:
        """Return True if the answer says that others changed it since it was seen; a creation is to name the number."""
        if not isinstance(answer, m.Failed) or answer.code != Code.STALE_GENERATION:
            return False
        if isinstance(request, m.CreateTopic):
            self.refused_at[(b"", request.name)] = answer.number
        elif isinstance(request, m.SetGroup):
            self.refused_at[(request.id, request.group)] = answer.number
        return True

    def set_topic(
        self,
        request: m.CreateTopic | m.AlterTopic,
        named: dict[str, Any],
        node: str,
        then: Callable[[Answer, Any], None],
        defaults: dict[str, Any] | None = None,
    ) -> None:
        """Note one CREATE or ALTER, and send it; again if others changed the topic since it was seen.

        If its outcome is unknown, it may still take effect.
        """
        implied: dict[str, Any] = {"defaults": defaults} if defaults else {}
        if isinstance(request, m.CreateTopic):
            asked = request._replace(deletions=self.refused_at.get((b"", request.name), 0))
            call = self.by_name("set_topic", node, {}, request.rf, settings=named, **implied)
        else:
            asked = self.as_seen(request, request.name, node)
            if asked is None:
                return
            call = self.by_name("set_topic", node, {}, topic=asked.seen.id, settings=named)

        def on_answer(answer: Answer, bodies: Any) -> None:
            self.answered(call, answer)
            if isinstance(answer, m.TopicReply):
                self.topics.on_topic(answer.topic)
                self.came_of(call, "ok", self.topics.names[answer.topic.id])
            else:
                self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            if self.is_late(request, answer):
                self.set_topic(request, named, node, then, defaults)
            else:
                then(answer, bodies)

        self.ask(node, asked, self.timeout, on_answer)

    def by_name(
        self, kind: str, node: str, fields: dict[str, Any], rf: int = 0, *, topic: bytes = b"", **asked: Any
    ) -> Call:
        """Note that a request names the topic by its name: an ``invoke`` for each topic that it may reach.

        Args:
            topic: id that it names as well, if it does: it reaches no other.
        """
        call = Call(kind, fields, {**asked, "via": node}, self.topics.newest, rf, {})
        if topic:
            self.invoke(call, self.topics.names[topic])
            return call
        self.calls.append(call)
        for deletions in range(self.topics.lives):
            self.reaches(call, deletions)
        return call

    def reaches(self, call: Call, deletions: int) -> None:
        """Note that the request may reach the topic after ``deletions`` deletions."""
        for rf in self.topics.rfs:
            if call.rf in (0, rf):
                self.invoke(call, label_of("jobs", rf, deletions, self.options))

    def invoke(self, call: Call, label: str) -> None:
        """Note one topic that the request may reach."""
        call.ops[label] = self.next_op()
        common = {"topic": label, **call.fields, "op": call.ops[label]}
        self.world.note(self.who, call.kind, **common, **call.asked, outcome="invoke")

    def came_of(self, call: Call, outcome: str, reached: str = "", **extra: Any) -> None:
        """Note the outcome: in the topic that the answer names, or in any that it may have reached."""
        for label, op in call.ops.items():
            if label == reached or not reached:
                common = {"topic": label, **call.fields, "op": op}
                self.world.note(self.who, call.kind, **common, **extra, outcome=outcome)

    def answered(self, call: Call, answer: Answer) -> None:
        """Note that the request was answered, if ``answer`` is one: it reaches no topic that is created later."""
        if answer is not None and call in self.calls:
            self.calls.remove(call)

    def reached(self, call: Call) -> str:
        """Return the topic that the request has reached, if only one can have the name; else ""."""
        certain = len(call.ops) == 1 or (call.first == self.topics.lives - 1 and len(self.topics.rfs) == 1)
        return list(call.ops)[-1] if certain else ""

    def on_another(self, deletions: int) -> None:
        """Note that there may be another topic of the name from now on."""
        for call in self.calls:
            self.reaches(call, deletions)
