"""Client that changes and reads labels of the topic, through any node."""

from __future__ import annotations

from typing import Any

from quorumq.core.cluster.labels import last_change
from quorumq.core.messages import LabelChange, LabelsReply, LabelsRequest
from sim.clients.calls import Caller
from sim.clients.client import Answer, outcome_of

NAMES = ("owner", "team")


class Labeller(Caller):
    """Changes labels to texts that are written once, and reads them; also once all is healed."""

    def begin(self, _: object = None, __: object = None) -> None:
        topic = self.topics.current
        if topic is not None:
            changes: dict[str, str | None] = {}
            op = self.next_op()
            if self.rng.random() < 0.5:
                for name in NAMES:
                    if self.rng.random() < 0.6:
                        changes[name] = f"{self.name}.{op}" if self.rng.random() < 0.8 else None
            self.ask_for(self.topics.names[topic.id], changes, op)
        self.later(self.rng.random() * 0.6, self.begin)

    def ask_for(self, topic: str, changes: dict[str, str | None], op: int) -> None:
        """Send one request, once, and write its lines."""
        kind, node = "set_labels" if changes else "labels", self.node()
        request = LabelsRequest("jobs", tuple(LabelChange(name, text) for name, text in changes.items()))
        if changes:
            known = self.shown("jobs", node)
            if known is None:
                return
            (seen,) = known.topics
            request = request._replace(id=seen.id, seen=last_change(seen.labels))
        asked = {"settings": changes} if changes else {}
        self.world.note(self.who, kind, topic=topic, op=op, outcome="invoke", via=node, **asked)

        def then(answer: Answer, _: Any) -> None:
            outcome = outcome_of(answer, LabelsReply)
            if changes and not self.is_over(op):
                outcome = "unknown"
            fields: dict[str, Any] = {}
            if isinstance(answer, LabelsReply):
                self.world.saw("labels were changed" if changes else "labels were read")
                fields = {} if changes else {"settings": dict(answer.labels)}
            self.world.note(self.who, kind, topic=topic, op=op, outcome=outcome, **fields)
            if outcome == "unknown" and changes:  # it may be at some nodes only
                for pause in (0.0, 0.02, 0.05):
                    self.later(pause, lambda: self.ask_for(topic, {}, self.next_op()))

        self.ask(node, request, 2 * self.timeout, then, op)
