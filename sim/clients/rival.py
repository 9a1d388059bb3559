"""Other creators of the topic, with settings of their own: the winning creation of a name is decided once."""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import SETTINGS, CreateTopic, Failed, TopicReply
from quorumq.core.values.errors import Code
from sim.clients.client import Answer
from sim.clients.operator import Operator
from sim.clients.surroundings import Surroundings


class Rival(Operator):
    """Creates the topic again and again, with other replication, partitions and settings, through any nodes."""

    def __init__(self, around: Surroundings, name: str, others: list[Operator], *, lossy: bool) -> None:
        super().__init__(around, name, others)
        # The topic that it creates may win, and one replica alone does not survive the loss of its disk.
        self.fragile = self.options.rival_rf == 1 and lossy

    def begin(self, _: object = None, __: object = None) -> None:
        self.later(self.rng.choice((0.0, 0.05, 0.5)) * self.rng.random(), self.compete)

    def compete(self) -> None:
        """Create the topic once; then again some time later."""
        if self.world.healed:
            return
        rng, options = self.rng, self.options
        other = options.rival_rf and rng.random() < 0.5
        if other and self.fragile and (options.deletions or not self.topics.created):
            other = False
        request = CreateTopic(
            "jobs",
            options.rival_rf if other else options.rf,
            rng.randint(1, options.partitions + 2),
            rng.randint(1, 9),
            retention_s=self.around.retention,
            ttl_s=rng.choice((0.0, 0.0, 30.0)),
            backoff=options.backoff if rng.random() < 0.5 else (),
            auto_create_groups=options.auto_create_groups,
        )
        values = {"rf": request.rf} | {name: getattr(request, name) for name in ("partitions", *SETTINGS)}
        unnamed: list[str] = []
        if options.implicit and rng.random() < 0.5:
            request = CreateTopic("jobs", request.rf, implicit=True)
            values = {name: getattr(request, name) for name in values}
            unnamed = [name for name in values if name != "rf"]
        elif rng.random() < 0.3:
            unnamed = rng.sample(SETTINGS, 2)
            request = request._replace(unnamed=tuple(unnamed))
        named = {name: value for name, value in values.items() if name not in unnamed}
        defaults = {name: values[name] for name in unnamed}

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, Failed) and answer.code == Code.CONFLICT:
                self.world.saw("a creation was answered conflict")
            elif isinstance(answer, TopicReply) and answer.topic.rf != options.rf:
                self.world.saw("a rival's creation was chosen")

        self.set_topic(request, named, self.node(), then, defaults)
        self.later(rng.choice((0.05, 0.3, 1.5)) * rng.random(), self.compete)
