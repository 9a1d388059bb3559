"""Others who create the topic, as they want it, and the judge of what came of that.

Which creation of a name wins is decided once (docs/protocol.md, "settings"). So one register of a name is ever seen,
at any node and in any answer, until it is deleted, then another one. What was answered `conflict` is in none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumq.core.messages import CreateTopic, Failed, TopicCreated
from quorumq.core.topics import SETTINGS
from quorumq.core.types import Topic
from sim.schedule import LOSSES
from sim.workload import Answer, Operator
from sim.world import SimError

if TYPE_CHECKING:
    from sim.cluster import Cluster


class Registers:
    """What was seen of the first register of each topic, and by whom."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, int], tuple[bytes, int, str]] = {}
        self.born: dict[bytes, int] = {}

    def seen(self, who: str, topic: Topic) -> None:
        """A node has this register, or an answer has it.

        Raises:
            SimError: there was another one.
        """
        of = (topic.name, topic.deletions)
        found, rf, first = self.first.setdefault(of, (topic.id, topic.rf, who))
        if found != topic.id:
            raise SimError(
                f"{who} has topic {of} with RF {topic.rf}, {first} had it with RF {rf}: one is never to be served"
            )
        born = self.born.setdefault(topic.id, topic.born) if topic.born else 0
        if born != topic.born:
            raise SimError(f"{who} has topic {of} born with {topic.born} partitions, not {born}")


class Rival(Operator):
    """Creates the topic again and again, with other replication, partitions and settings, through any nodes.

    Args:
        cluster: its surroundings.
        name: its name.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name, first=False)
        lossy = any(fault.kind in LOSSES for fault in cluster.schedule.faults)
        # What it creates may be the topic, and one replica alone does not survive the loss of its disk.
        self.fragile = self.options.rival_rf == 1 and (lossy or self.options.durability == "os")

    def begin(self, _: object = None, __: object = None) -> None:
        self.later(self.rng.choice((0.0, 0.05, 0.5)) * self.rng.random(), self.compete)

    def compete(self, _: object = None, __: object = None) -> None:
        """One creation; then another some time later."""
        if self.world.healed:
            return
        rng, options = self.rng, self.options
        operator = self.cluster.operator
        other = options.rival_rf and rng.random() < 0.5
        if other and self.fragile and (options.deletions or not operator.created):
            other = False
        request = CreateTopic(
            "jobs",
            options.rival_rf if other else options.rf,
            rng.randint(1, options.partitions + 2),
            rng.randint(1, 9),
            options.durability,
            retention_s=self.cluster.retention,
            ttl_s=rng.choice((0.0, 0.0, 30.0)),
            backoff=options.backoff if rng.random() < 0.5 else (),
        )
        values = {"rf": request.rf} | {name: getattr(request, name) for name in ("partitions", *SETTINGS)}
        left: list[str] = []
        if options.implicit and rng.random() < 0.5:
            request = CreateTopic("jobs", request.rf, implicit=True)
            values = {name: getattr(request, name) for name in values}
            left = [name for name in values if name != "rf"]
        elif rng.random() < 0.3:
            left = rng.sample(SETTINGS, 2)
            request = request._replace(unnamed=tuple(left))
        named = {name: value for name, value in values.items() if name not in left}
        defaults = {name: values[name] for name in left}

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, Failed) and answer.code == "conflict":
                self.world.saw("a creation was answered conflict")
            elif isinstance(answer, TopicCreated) and answer.topic.rf != options.rf:
                self.world.saw("a rival's creation was chosen")

        self.set_topic(request, named, self.node(), then, defaults)
        self.later(rng.choice((0.05, 0.3, 1.5)) * rng.random(), self.compete)
