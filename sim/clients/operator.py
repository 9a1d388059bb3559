"""Operators: they create the topic, change and delete it; rewind groups, redrive and purge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumq.core import messages as m
from quorumq.core.messages import SETTINGS
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Span, Topic
from quorumq.history import spans_value
from sim.clients.calls import Call, Caller
from sim.clients.client import Answer, nothing_done, outcome_of, told_by
from sim.clients.surroundings import LATE_GROUP, Surroundings
from sim.machine import cores_of
from sim.world import EPOCH_MS

LIMIT_S = 4.0
"""Seconds for which a limit stands at most, and until an operator sets another one."""


class Operator(Caller):
    """Creates the topic, and deletes it; redrives dead letters, purges, and creates, rewinds and deletes groups."""

    def __init__(
        self, around: Surroundings, name: str, others: list[Operator], *, first: bool = False
    ) -> None:
        super().__init__(around, name)
        self.operators = others
        others.append(self)
        self.first = first
        self.limited_until = 0.0
        self.deletions = 0  # that are left
        if first:
            self.topics.groups_to_come = self.groups_of_jobs()
            if self.options.derive:
                self.topics.groups_to_come.append(("out", "o"))
        self.partitions = self.options.partitions  # that we heard of

    def groups_of_jobs(self) -> list[tuple[str, str]]:
        """Return the groups that are created before anything is published to the topic."""
        return [("jobs", group) for group in self.around.groups if group != LATE_GROUP]

    def begin(self, _: object = None, __: object = None) -> None:
        if self.first:
            self.create()
        else:
            self.later(0.5, self.work)

    def create(self) -> None:
        """Send one CREATE of the topic; the operator whose topic it is repeats it until it is there."""
        options = self.options
        request = m.CreateTopic(
            "jobs",
            options.rf,
            options.partitions,
            options.max_deliveries,
            retention_s=self.around.retention,
            backoff=options.backoff,
            auto_create_groups=options.auto_create_groups,
        )
        named = {name: getattr(request, name) for name in ("rf", "partitions", *SETTINGS)}
        self.set_topic(request, named, self.node(), self.on_created)

    def on_created(self, answer: Answer, _: Any) -> None:
        if not self.first or self.topics.current is not None or self.topics.gone:
            return
        if isinstance(answer, m.Failed) and answer.code == Code.CONFLICT:
            # Another client created it, or it has been changed already.
            self.ask(self.node(), m.Metadata(("jobs",)), self.timeout, self.on_created)
            return
        topic = answer.topics[0] if isinstance(answer, m.MetadataReply) else getattr(answer, "topic", None)
        if isinstance(answer, m.Failed) or topic is None or self.topics.is_over(topic.id):
            self.later(0.05 + self.rng.random() * 0.1, self.create)
            return
        self.topics.current = topic
        self.partitions = topic.partitions
        if self.topics.current.deletions:
            self.world.saw("a deleted topic was created again")
            self.create_group()
            return
        if self.options.derive:
            self.create_outputs()
        else:
            self.create_group()
        self.later(0.5, self.work)
        if self.options.unmake:
            self.later(0.5, self.make_again)
        if self.options.late_group:
            self.later(self.rng.random() * self.options.fault_time / 2, self.create_late_group)
        self.deletions = self.options.deletions
        for _ in range(self.deletions):
            self.later(self.rng.uniform(0.2, 0.9) * self.options.fault_time, self.delete)

    def create_outputs(self) -> None:
        """Create the topic that outputs are published to, then the groups."""
        options = self.options
        retention = self.around.retention if options.guests else 0.0
        request = m.CreateTopic(
            "out", options.rf, options.output_partitions, options.max_deliveries, retention_s=retention
        )

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, m.TopicReply):
                self.topics.outputs = answer.topic
                self.create_group()
            else:
                self.later(0.05 + self.rng.random() * 0.1, self.create_outputs)

        self.ask(self.node(), request, self.timeout, then)

    def create_group(self) -> None:
        """Create the next group; what its consumers need not wait for, the producers do."""
        call: Call | None = None

        def then(answer: Answer, _: Any) -> None:
            if call is not None:
                self.came_of_group(call, answer)
            self.is_late(request, answer)
            if (
                isinstance(answer, m.GroupReply)
                and not self.topics.is_over(answer.group.topic)
                and asked in self.topics.groups_to_come
            ):
                self.topics.groups_to_come.remove(asked)
            if self.topics.groups_to_come:
                self.later(0.02, self.create_group)

        if self.topics.groups_to_come and self.topics.current is not None:
            asked, node = self.topics.groups_to_come[-1], self.node()
            request = self.as_seen(m.SetGroup(*asked), asked[0], node)
            if request is None:
                self.later(0.02, self.create_group)
                return
            fields = {"group": asked[1], "rewind": False}
            jobs = asked[0] == "jobs"
            if jobs:
                call = self.by_name("set_group", node, fields, topic=request.id, start="earliest", from_ms=0)
            self.ask(node, request, self.timeout, then)

    def work(self) -> None:
        """Do one round: perhaps a rewind, perhaps a purge, perhaps some redrives; then again."""
        rng, options = self.rng, self.options
        if self.world.healed or not (
            options.pause
            or options.limit
            or options.redrive
            or options.rewind
            or options.unmake
            or options.purge
            or options.alter
        ):
            return
        group = rng.choice(self.around.groups + self.around.guests)
        number = rng.randrange(self.partitions)
        if rng.random() < options.rewind:
            self.rewind(group)
        if options.pause and rng.random() < options.pause and group not in self.around.guests:
            self.pause(group)
        if (
            options.limit
            and rng.random() < options.limit
            and self.world.time >= self.limited_until
            and group not in self.around.guests
        ):
            self.limited_until = self.world.time + LIMIT_S
            self.limit(group, rng.choice((0.5, 0.5, 0.5, 3.0)), rng.choice((1, 1, 3)))
        if options.unmake and rng.random() < options.unmake and group != LATE_GROUP:
            self.unmake(group)
        if rng.random() < options.purge:
            whose = rng.choice((group, group + DEAD_SUFFIX))
            if rng.random() < 0.5:
                self.purge(number, whose, 2)
            else:
                self.purge_some(number, whose)
        if rng.random() < 0.7 and options.redrive:
            self.look(number, group)
        # Nothing is changed that is being created, nor from when a DELETE is sent until the next topic is there.
        topics = self.topics
        there = topics.created and topics.current is not None and topics.current.id not in topics.deleted
        if there and options.alter and rng.random() < options.alter:
            self.alter()
        self.later(0.15 + rng.random() * 0.5, self.work)

    # ------------------------------------------------------------------- topic

    def delete(self) -> None:
        """Delete the topic, mostly while nodes are away; sometimes twice at once, or while another creates it."""
        rng, topic, world = self.rng, self.topics.current, self.world
        if world.healed or self.topics.gone or not self.deletions:
            return
        cut = sorted({one for pair in world.blocked for one in pair if one in self.around.machines})
        down = len(cores_of(self.around.machines)) < len(self.around.machines)
        early = world.time < 0.8 * self.options.fault_time and rng.random() < 0.98
        if topic is None or (early and not cut and not down):  # it is being created again, or all are there
            self.later(0.05, self.delete)
            return
        self.delete_now(rng.choice(cut) if cut and rng.random() < 0.5 else self.node())
        other = rng.choice(self.operators)
        if rng.random() < 0.3:
            other.delete_topic(topic, self.node())
        if rng.random() < 0.3:
            other.later(rng.random() * 0.1, other.create)

    def delete_now(self, node: str) -> None:
        """Delete the topic through ``node``, unless all deletions of this run have been made."""
        if self.topics.current is not None and self.deletions:
            self.deletions -= 1
            if len(cores_of(self.around.machines)) < len(self.around.machines):
                self.world.saw("a topic was deleted while a node was down")
            self.topics.on_delete_sent(self.topics.current)
            self.delete_topic(self.topics.current, node)

    def delete_topic(self, topic: Topic, node: str) -> None:
        """Ask for it until it is certain."""
        op = self.next_op()
        common: dict[str, Any] = {"topic": self.topics.names[topic.id], "op": op}
        self.world.note(self.who, "delete_topic", **common, outcome="invoke", via=node)

        def then(answer: Answer, _: Any) -> None:
            outcome = outcome_of(answer, m.TopicReply)
            self.world.note(self.who, "delete_topic", **common, outcome=outcome)
            if outcome == "ok":
                self.topics.on_deleted(topic.id)
            elif not self.topics.is_over(topic.id):
                pause = 0.02 + self.rng.random() * 0.1
                self.later(pause, lambda: self.delete_topic(topic, self.node(node)))

        self.ask(node, m.DeleteTopic("jobs", topic.id), self.timeout, then, op)

    def on_deleted(self) -> None:
        """Create the deleted topic again, mostly."""
        self.partitions = self.options.partitions
        if not self.first or self.topics.current is None:
            return
        self.topics.current = None
        self.topics.groups_to_come = [
            *self.groups_of_jobs(),
            *(named for named in self.topics.groups_to_come if named[0] != "jobs"),
        ]
        self.topics.gone = self.rng.random() < 0.2
        if not self.topics.gone:
            self.later(self.rng.choice((0.0, 0.0, self.rng.random())), self.create)

    def alter(self) -> None:
        """Change the topic; sometimes another operator does through another node, at once or as soon as it is done."""
        rng = self.rng
        mode = rng.choice(("alone", "at once", "at once", "next", "next"))
        node = self.node()
        other, another = rng.choice(self.operators), self.node(node)
        chosen = self.some_settings()
        theirs = self.values(chosen if rng.random() < 0.6 else self.some_settings())

        def then(answer: Answer, _: Any) -> None:
            if mode == "next" and isinstance(answer, m.TopicReply) and not self.world.healed:
                other.alter_to(theirs, another)

        self.alter_to(self.values(chosen), node, then)
        if mode == "at once":
            self.world.saw("two changes of a topic at once")
            other.alter_to(theirs, another)

    def some_settings(self) -> list[str]:
        """Return names of settings that may be changed in this run."""
        rng, options = self.rng, self.options
        names = ["max_deliveries", "ttl_s", "partitions", "auto_create_groups"]
        if not self.around.keeps:
            names.append("retention_s")
        if options.backoff:
            names.append("backoff")
        return sorted(rng.sample(names, rng.choice((1, 1, 2, len(names)))))

    def values(self, names: list[str]) -> dict[str, Any]:
        """Return new values of these settings."""
        rng, options = self.rng, self.options
        drawn: dict[str, Callable[[], Any]] = {
            "auto_create_groups": lambda: rng.random() < 0.2,
            "max_deliveries": lambda: rng.randint(1, 60),
            "ttl_s": lambda: rng.choice(
                (0.0, round(rng.uniform(0.3, 4.0), 3), round(rng.uniform(20.0, 40.0), 3))
            ),
            "partitions": lambda: min(self.partitions + rng.randint(0, 2), options.partitions + 3),
            "retention_s": lambda: round(rng.uniform(0.0, 2.0), 3),
            "backoff": lambda: tuple(
                round(rng.random() * options.delay, 3) for _ in range(rng.randint(0, 3))
            ),
        }
        return {name: drawn[name]() for name in names}

    def alter_to(
        self,
        named: dict[str, Any],
        node: str,
        next_step: Callable[[Answer, Any], None] = lambda answer, _: None,
    ) -> None:
        """Send one ALTER."""

        def then(answer: Answer, bodies: Any) -> None:
            if isinstance(answer, m.TopicReply):
                self.world.saw("a change of a topic was confirmed")
                if answer.topic.partitions > self.options.partitions:
                    self.world.saw("partitions were added")
                if named.get("auto_create_groups") is False:
                    self.around.on_closed()
                self.partitions = max(self.partitions, answer.topic.partitions)
            next_step(answer, bodies)

        if named.get("auto_create_groups") is False:
            self.around.on_closing(node)
        self.set_topic(m.AlterTopic("jobs", **named), named, node, then)

    # ------------------------------------------------------------------ groups

    def create_late_group(self) -> None:
        """Create the group that reads from latest, perhaps through two nodes at once."""
        for _ in range(self.rng.choice((1, 2))):
            self.set_group(LATE_GROUP, "latest", 0, rewind=False)
        self.later(1.0, self.see_late_group)

    def see_late_group(self) -> None:
        """Create it again until it is there: the topic, or the next of its name, may not let its consumer do that."""
        if self.topics.current is not None and not self.around.reads(LATE_GROUP):
            self.set_group(LATE_GROUP, "latest", 0, rewind=False)
        self.later(1.0, self.see_late_group)

    def rewind(self, group: str) -> None:
        """Rewind a group; sometimes twice at once, through any two nodes, to other places."""
        rng = self.rng
        twice = rng.random() < 0.3
        for _ in range(2 if twice else 1):
            start = rng.choice(("earliest", "earliest", "latest", "time"))
            self.set_group(group, start, self.some_time(start), rewind=True)
        if twice:
            self.world.saw("two rewinds at once")

    def some_time(self, start: str) -> int:
        """Return the time from which a group begins, in milliseconds; 0 if it begins at no time."""
        return EPOCH_MS + int(1000 * self.world.time * self.rng.random()) if start == "time" else 0

    def set_group(self, group: str, start: str, from_ms: int, *, rewind: bool, node: str = "") -> None:
        """Send one request; again if others changed the group since. If it is unknown, it may still take effect."""
        node = node or self.node()
        request = self.as_seen(m.SetGroup("jobs", group, start, from_ms, rewind), "jobs", node)
        if request is None:
            return
        fields = {"group": group, "rewind": rewind}
        call = self.by_name("set_group", node, fields, topic=request.id, start=start, from_ms=from_ms)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, m.GroupReply):
                now = answer.group
                if rewind:
                    self.world.saw("a rewind was confirmed")
                elif group == LATE_GROUP:
                    self.world.saw("a group was created from latest")
                elif now.buried:
                    self.world.saw("a deleted group was created again")
            self.came_of_group(call, answer)
            if self.is_late(request, answer):
                self.set_group(group, start, from_ms, rewind=rewind, node=node)

        self.ask(node, request, self.timeout + self.options.request_timeout, then)

    def came_of_group(self, call: Call, answer: Answer) -> None:
        """Note the outcome of a creation, a rewind or a deletion."""
        self.answered(call, answer)
        if isinstance(answer, m.GroupReply):
            now = answer.group
            begins = {"from_ms": now.from_ms} if call.kind == "set_group" else {}
            self.came_of(call, "ok", self.topics.names[now.topic], generation=now.generation, **begins)
        else:
            self.came_of(call, "fail" if nothing_done(answer) else "unknown")

    def pause(self, group: str, *, paused: bool = True) -> None:
        """Pause a group, or resume it; a paused one is resumed soon, by any operator."""
        saw = "a group was paused" if paused else "a group was resumed"
        lasts = 1.0 if paused else 0.0
        request, fields = m.PauseGroup("jobs", group, paused), {"paused": paused}
        self.change("pause_group", request, fields, saw, lasts, lambda op: op.pause(group, paused=False))

    def limit(self, group: str, per_second: float = 0.0, burst: int = 0) -> None:
        """Limit a group, or end its limit; a limit ends soon, by any operator."""
        saw = "a group was limited" if per_second else ""
        lasts = LIMIT_S if per_second else 0.0
        request = m.LimitGroup("jobs", group, per_second, burst)
        fields = {"per_second": per_second, "burst": burst}
        self.change("limit_group", request, fields, saw, lasts, lambda op: op.limit(group))

    def change(
        self,
        kind: str,
        request: m.PauseGroup | m.LimitGroup,
        fields: dict[str, Any],
        saw: str,
        lasts: float,
        undo: Callable[[Operator], None],
    ) -> None:
        """Send a change of a group, once. If it stops deliveries, or has an unknown outcome, have it undone soon.

        Args:
            kind: kind of its lines.
            request: the change.
            fields: fields of its lines, beside the group.
            saw: sighting if it is confirmed; "" for none.
            lasts: seconds for which deliveries may be fewer, at most; 0.0 if they go on.
            undo: sends the opposite, as any operator.
        """
        node, group = self.node(), request.group
        asked = self.as_seen(request, "jobs", node)

        def undo_soon(*, reached: bool) -> None:
            stands = bool(lasts) or not reached
            if stands and not self.topics.gone:  # that of a deleted group may concern the next
                soon = 0.05 if self.world.healed else (lasts or 1.0) * self.rng.random()
                soon = min(soon, max(1.0, self.options.fault_time - self.world.time))
                self.later(soon, lambda: undo(self.rng.choice(self.operators)))

        def then(answer: Answer, _: Any) -> None:
            self.answered(call, answer)
            reached = ""
            if isinstance(answer, m.GroupReply):
                if saw:
                    self.world.saw(saw)
                reached = self.topics.names[answer.group.topic]
            self.came_of(call, "ok" if reached else "fail" if nothing_done(answer) else "unknown", reached)
            undo_soon(reached=bool(reached))

        if asked is None:
            undo_soon(reached=False)
            return
        call = self.by_name(kind, node, {"group": group, **fields}, topic=asked.id)
        self.ask(node, asked, self.timeout + self.options.request_timeout, then)

    def unmake(self, group: str) -> None:
        """Delete a group, sent once; sometimes as another operator rewinds it."""
        node = self.node()
        request = self.as_seen(m.DeleteGroup("jobs", group), "jobs", node)
        if request is None:
            return
        call = self.by_name("delete_group", node, {"group": group}, topic=request.id)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, m.GroupReply):
                self.world.saw("a group was deleted")
            self.came_of_group(call, answer)

        self.ask(node, request, self.timeout + self.options.request_timeout, then)
        if self.options.rewind and self.rng.random() < 0.3:
            self.rewind(group)

    def make_again(self) -> None:
        """Create a group that some node knows as deleted: mostly soon, and at once when all is healed."""
        rng = self.rng
        guests = self.around.guests
        for group in [*(name for _, name in self.groups_of_jobs()), *guests]:
            if self.around.lacks(group) and (self.world.healed or rng.random() < 0.4):
                starts = ("earliest", "earliest", "latest", "time")
                start = rng.choice(starts if guests else starts[:3])
                self.set_group(group, start, self.some_time(start), rewind=False)
        self.later(0.1 + rng.random() * 0.1, self.make_again)

    # ------------------------------------------------------------------- purge

    def purge_some(self, number: int, group: str) -> None:
        """List some messages, as one replica sees them, and settle some of these, or parts of them, and no others."""
        rng = self.rng

        def then(answer: Answer, _: Any) -> None:
            if not isinstance(answer, m.PeekReply) or self.world.healed:
                return
            chosen: list[Span] = []
            for item in answer.items:
                if rng.random() < 0.5:
                    start = rng.randrange(item.span.start, item.span.stop)
                    chosen.append(
                        item.span._replace(start=start, stop=rng.randint(start + 1, item.span.stop))
                    )
            if chosen:
                self.purge(number, group, 2, tuple(chosen))

        source, which = group.removesuffix(DEAD_SUFFIX), "dead" if group.endswith(DEAD_SUFFIX) else "ready"
        self.ask(self.node(), m.PeekRequest("jobs", number, source, which, (0, 0), 10), self.timeout, then)

    def purge(self, number: int, group: str, tries: int, spans: tuple[Span, ...] = ()) -> None:
        """Settle a group's open messages, or its dead letters; again if the outcome is unknown.

        If ``spans`` are named, these messages alone.
        """
        node = self.node()
        request = self.as_seen(m.PurgeRequest("jobs", number, group, spans), "jobs", node)
        if request is None:
            return
        named = {"spans": spans_value(spans)} if spans else {}
        fields = {"partition": number, "group": group, **named}
        call = self.by_name("purge", node, fields, topic=request.id)

        def then(answer: Answer, _: Any) -> None:
            self.answered(call, answer)
            if isinstance(answer, m.PurgeReply):
                reached = self.reached(call)  # the answer does not say
                self.came_of(call, "ok" if reached else "unknown", reached, messages=answer.messages)
                if answer.messages:
                    event = (
                        "dead letters were purged" if group.endswith(DEAD_SUFFIX) else "a backlog was purged"
                    )
                    self.world.saw(f"{event} by name" if spans else event)
                return
            self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            if tries > 1 and not self.world.healed:
                self.later(0.1, self.purge, number, group, tries - 1, spans)

        self.ask(node, request, 2 * self.timeout, then)

    # ------------------------------------------------------------------ redrive

    def look(self, number: int, group: str) -> None:
        """List some dead letters, as one replica or as a majority sees them, and redrive some."""
        rng = self.rng
        node = self.node()

        def then(answer: Answer, _: Any) -> None:
            if not isinstance(answer, m.PeekReply) or self.world.healed:
                return
            chosen = [item for item in answer.items if rng.random() < self.options.redrive]
            for life in sorted({item.record[:2] for item in chosen}):
                entries = tuple(m.SpanRecord(x.span, x.record) for x in chosen if x.record[:2] == life)
                self.redrive(number, group, entries, node)
                if rng.random() < 0.3:  # done twice, by any operator, it is done once
                    again = rng.choice(self.operators).redrive
                    self.later(rng.random(), again, number, group, entries, node)
                if rng.random() < self.options.purge:  # or purged at the same time
                    spans = tuple(item.span for item in chosen) if rng.random() < 0.5 else ()
                    self.purge(number, group + DEAD_SUFFIX, 1, spans)

        ask = m.PeekRequest("jobs", number, group, "dead", (0, 0), 50, complete=rng.random() < 0.5)
        self.ask(node, ask, self.timeout, then)

    def redrive(self, number: int, group: str, entries: tuple[m.SpanRecord, ...], tried: str) -> None:
        """Ask for another life for these dead letters, all at the same redrive number."""
        node = self.node(tried)
        op = self.next_op()
        n, generation = entries[0].record.n, entries[0].record.generation
        topic = self.topics.published_to[entries[0].span.producer_id]
        common: dict[str, Any] = {
            "topic": topic, "partition": number, "group": group, "generation": generation, "n": n, "op": op,
        }  # fmt: skip
        spans = spans_value([item.span for item in entries])
        self.world.note(self.who, "redrive", **common, spans=spans, outcome="invoke", via=node)

        def then(answer: Answer, _: Any) -> None:
            if not isinstance(answer, m.SettleReply):
                outcome = outcome_of(answer, m.SettleReply)
                self.world.note(self.who, "redrive", **common, spans=spans, outcome=outcome)
                return
            for verdict in answer.verdicts:
                outcome, extra = told_by(verdict)
                if outcome == "ok" and n >= 1:
                    self.world.saw("a redrive of a redrive")
                if outcome == Code.ALREADY_SETTLED:
                    self.world.saw("a redrive came too late")
                here = spans_value((verdict.span,))
                self.world.note(self.who, "redrive", **common, spans=here, outcome=outcome, **extra)

        self.ask(node, m.RedriveRequest("jobs", number, group, entries), self.timeout, then, op)
