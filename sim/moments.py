"""The worst moment for something to happen.

Some failures take several steps, one right behind the other, of which faults and operators at random times hardly
ever do two. What is done here follows what was just seen, after pauses drawn from a stream of its own: nothing that
could not happen at random. `Options.moments` is the share of the moments that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumq.core.messages import AlterTopicReply
from quorumq.core.types import Receipt
from sim.clients.operator import Operator
from sim.clients.producer import Producer
from sim.clients.surroundings import Surroundings
from sim.fault_plan import Fault


class Moments:
    """What follows a cut, or a late ACK.

    Args:
        around: the run's clients' surroundings.
        operators: of whom the first creates the topic.
        producers: of the run.
        inflict: carries out a fault.
    """

    def __init__(
        self,
        around: Surroundings,
        operators: list[Operator],
        producers: list[Producer],
        inflict: Callable[[Fault], None],
    ) -> None:
        self.around = around
        self.operators = operators
        self.producers = producers
        self.inflict = inflict
        self.world = around.world
        self.topics = around.topics
        self.options = around.options
        self.rng = around.world.stream("moments")

    @property
    def is_now(self) -> bool:
        """Whether this moment is used."""
        return (
            not self.world.healed
            and bool(self.options.moments)
            and self.rng.random() < self.options.moments
            and self.topics.created
        )

    def on_late_ack(self, receipt: Receipt) -> None:
        """A delivery that had run out was acked, and another one may be live.

        A replica is started again, hears of that one's hold from the others, and the group is rewound: none of that
        makes the message free before the hold runs out.
        """
        if not self.is_now or self.topics.is_over(receipt.partition.topic):
            return
        rng, world = self.rng, self.world
        name = rng.choice(self.options.node_names)
        fault = Fault(world.time, "kill", (name,), round(0.02 + 0.2 * rng.random(), 4))
        world.after(0.05 * rng.random(), self.inflict, fault)
        if receipt.group in self.around.groups:
            world.saw("a node was started again, and a group rewound, after a late ACK")
            operator = rng.choice(self.operators)
            world.after(
                0.4 * rng.random(),
                lambda _, __: operator.set_group(receipt.group, "earliest", 0, rewind=True),
            )

    def on_cut(self, fault: Fault) -> None:
        """Nodes are cut off from each other: the topic grows on one side, which the other has not heard of.

        As soon as that is confirmed, the other side rewinds or creates a group, or deletes the topic, and producers
        publish to what was added.
        """
        sides = [
            [name for name in dict.fromkeys(pair[at] for pair in fault.links) if name in self.around.machines]
            for at in (0, 1)
        ]
        if not (all(sides) and self.is_now):
            return
        rng, operators, groups = self.rng, self.operators, self.around.groups
        rng.shuffle(sides)
        here, there = (rng.choice(side) for side in sides)
        operator, other = rng.choice(operators), rng.choice(operators)
        named = {"partitions": operator.partitions + 1}

        def then(answer: Any, _: Any) -> None:
            if self.world.healed or not isinstance(answer, AlterTopicReply):
                return
            self.world.saw("a topic grew on one side of a cut")
            for producer in self.producers:
                producer.on_grown(answer.topic)
            what = rng.choice(("rewind", "rewind", "delete", "create"))
            if what == "rewind":
                other.set_group(rng.choice(groups), "earliest", 0, rewind=True, node=there)
            elif what == "create" and self.options.late_group:
                other.set_group(groups[-1], "latest", 0, rewind=False, node=there)
            elif what == "delete":
                operators[0].delete_now(there)

        operator.later(0.02 + 0.3 * rng.random(), lambda _, __: operator.alter_to(named, here, then))
