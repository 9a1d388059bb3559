"""Requests that name the topic by its name: each may reach any topic that has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from quorumq.core.messages import AlterTopic, CreateTopic, TopicReply
from sim.clients.client import Answer, Client, nothing_done
from sim.clients.surroundings import Surroundings
from sim.topics import label_of


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

    def set_topic(
        self,
        request: CreateTopic | AlterTopic,
        named: dict[str, Any],
        node: str,
        then: Callable[[Answer, Any], None],
        defaults: dict[str, Any] | None = None,
    ) -> None:
        """Note one CREATE or ALTER, sent once: if it is unknown, it may still come about."""
        implied = {"defaults": defaults} if defaults else {}
        rf = request.rf if isinstance(request, CreateTopic) else 0
        call = self.by_name("set_topic", node, {}, rf, settings=named, **implied)

        def on_answer(answer: Answer, bodies: Any) -> None:
            self.answered(call, answer)
            if isinstance(answer, TopicReply):
                self.topics.on_topic(answer.topic)
                self.came_of(call, "ok", self.topics.names[answer.topic.id])
            else:
                self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            then(answer, bodies)

        self.ask(node, request, self.timeout, on_answer)

    def by_name(self, kind: str, node: str, fields: dict[str, Any], rf: int = 0, **asked: Any) -> Call:
        """Note that a request names the topic by its name: an ``invoke`` for each topic that it may reach."""
        call = Call(kind, fields, {**asked, "via": node}, self.topics.newest, rf, {})
        self.calls.append(call)
        for deletions in range(self.topics.lives):
            self.reaches(call, deletions)
        return call

    def reaches(self, call: Call, deletions: int) -> None:
        """Note that the request may reach the topic that comes after ``deletions`` deletions."""
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
        if answer is not None:
            self.calls.remove(call)

    def reached(self, call: Call) -> str:
        """Return the topic that the request has reached, if only one can have the name; else ""."""
        certain = len(call.ops) == 1 or (call.first == self.topics.lives - 1 and len(self.topics.rfs) == 1)
        return list(call.ops)[-1] if certain else ""

    def on_another(self, deletions: int) -> None:
        """Note that there may be another topic of the name from now on."""
        for call in self.calls:
            self.reaches(call, deletions)
