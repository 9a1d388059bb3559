"""The worst moment for something to happen.

Some failures take several steps, one right behind the other, and faults and operators at random times hardly
ever do two of them. The actions here follow a sighting, after pauses drawn from a stream of their own: nothing that
could not happen at random. `Options.targeted_faults` is the share of such moments that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumq.core.messages import OpenSession, OpenSessionReply, TopicReply
from quorumq.core.values.types import PartitionId, ProducerId, Receipt, Topic
from quorumq.wire.batch import Message, build_batch
from sim.clients.operator import Operator
from sim.clients.producer import Producer
from sim.clients.surroundings import Surroundings
from sim.fault_plan import Fault, Inflict
from sim.machine import cores_of
from sim.step_limits import STEP_S
from sim.world import EPOCH_MS


class TargetedFaults:
    """Actions that follow a cut, a deletion or a late ACK; and cuts that are made for them."""

    def __init__(
        self,
        around: Surroundings,
        operators: list[Operator],
        producers: list[Producer],
        inflict: Inflict,
    ) -> None:
        self.around = around
        self.operators = operators
        self.producers = producers
        self.inflict = inflict
        self.world = around.world
        self.topics = around.topics
        self.options = around.options
        self.rng = around.world.stream("moments")
        self.cut: Fault | None = None  # a cut of our own

    @property
    def is_used(self) -> bool:
        """Return True if this moment is used, if there is something to use it for."""
        return (
            not self.world.healed
            and bool(self.options.targeted_faults)
            and self.rng.random() < self.options.targeted_faults
        )

    @property
    def is_now(self) -> bool:
        """Return True if this moment is used, and the topic is there."""
        return self.is_used and self.topics.created

    def on_late_ack(self, receipt: Receipt) -> None:
        """Follow a late ACK: a delivery that had run out was acked, and another one may be live.

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
        """Let the topic grow on one side of a cut, not known to be dead on the other side.

        Once that is confirmed, the other side rewinds or creates a group, or deletes the topic, and producers
        publish to the new partitions.
        """
        sides = [
            [name for name in dict.fromkeys(pair[at] for pair in fault.links) if name in self.around.machines]
            for at in (0, 1)
        ]
        if fault is self.cut or not (all(sides) and self.is_now):
            return
        rng, operators, groups = self.rng, self.operators, self.around.groups
        rng.shuffle(sides)
        here, there = (rng.choice(side) for side in sides)
        operator, other = rng.choice(operators), rng.choice(operators)
        named = {"partitions": operator.partitions + 1}

        def then(answer: Any, _: Any) -> None:
            if self.world.healed or not isinstance(answer, TopicReply):
                return
            self.world.saw("a topic grew on one side of a cut")
            for producer in self.producers:
                producer.on_grown(answer.topic)
            action = rng.choice(("rewind", "rewind", "delete", "create"))
            if action == "rewind":
                other.set_group(rng.choice(groups), "earliest", 0, rewind=True, node=there)
            elif action == "create" and self.options.late_group:
                other.set_group(groups[-1], "latest", 0, rewind=False, node=there)
            elif action == "delete":
                operators[0].delete_now(there)

        operator.later(0.02 + 0.3 * rng.random(), operator.alter_to, named, here, then)

    def on_steps(self, name: str, asked: list[tuple[Any, int]]) -> None:
        """Follow a part of these requests at a node: a client leaves before the next one, the node dies, or is cut off.

        The rest follows within milliseconds, in which a fault at a random time hardly ever is.
        """
        rng, world = self.rng, self.world
        if not asked or rng.random() >= 0.15:
            return
        action, at = rng.choice(("leave", "leave", "leave", "kill", "cut")), rng.random() * STEP_S
        if action == "leave":
            world.after(at / 10, self.around.machines[name].break_off, *rng.choice(asked))
        elif action == "kill":
            world.after(
                at, self.inflict, Fault(world.time, "kill", (name,), round(0.02 + 0.2 * rng.random(), 4))
            )
        elif self.options.nodes > 1:
            world.after(at, self.cut_off, [name], 0.1 + self.options.request_timeout * rng.random())

    # ------------------------------------------------------- cuts that are made for what is done

    def begin(self) -> None:
        """Plan an action, in some runs, on one side of a cut that the other, which matters, cannot hear."""
        rng, options = self.rng, self.options
        acts = [self.delete_beside] if options.deletions else []
        acts += [self.change_cut_off] if options.alter else []
        acts += [self.rewind_beside] if options.rewind else []
        acts += [self.redrive_cut_off] if options.redrive and options.dead_readers else []
        if acts and options.nodes > 1 and rng.random() < options.targeted_faults:
            self.world.at(rng.uniform(0.2, 0.7) * options.fault_time, self.act, rng.choice(acts))

    def act(self, action: Callable[[Topic], None], _: object = None) -> None:
        """Do it as soon as the topic is there."""
        topic = self.topics.current
        if self.world.healed or self.topics.gone:
            return
        if topic is None or not self.topics.created:
            self.world.after(0.1, self.act, action)
        else:
            action(topic)

    def cut_off(self, names: list[str], seconds: float) -> None:
        """Cut nodes off from all others, in both directions."""
        rest = [name for name in self.options.node_names if name not in names]
        pairs = [(one, two) for one in names for two in rest]
        links = (*pairs, *((two, one) for one, two in pairs))
        self.cut = Fault(self.world.time, "partition", (), round(seconds, 4), 0.0, links)
        self.inflict(self.cut)

    def beside(self, topic: Topic) -> tuple[str, str]:
        """Cut off just enough replicas of a partition; return a node among the others, and one of these replicas."""
        rng = self.rng
        members = rng.choice(topic.replicas)
        there = rng.sample(members, len(members) // 2 + 1)
        self.cut_off(there, 0.3 + rng.random() * self.options.request_timeout)
        rest = [name for name in self.options.node_names if name not in there]
        return rng.choice(rest or there), there[0]

    def delete_beside(self, topic: Topic) -> None:
        """Delete the topic among the others; once that is confirmed, the replicas are to take a message."""
        here, there = self.beside(topic)

        def then(publish: Callable[[], None]) -> None:
            def on_deleted(_: object, __: object) -> None:
                if not self.world.healed and self.topics.is_over(topic.id):
                    self.world.saw("a topic was published to on the other side of a cut after its deletion")
                    publish()

            self.topics.when_deleted.append(lambda: self.world.after(0.001, on_deleted))

        self.to_publish(topic, there, then)
        self.operators[0].delete_now(here)

    def rewind_beside(self, topic: Topic) -> None:
        """Rewind a group among the others; the replicas take another message, which consumers there ask for."""
        here, there = self.beside(topic)
        group = self.rng.choice(self.around.groups)
        self.rng.choice(self.operators).set_group(group, "earliest", 0, rewind=True, node=here)
        self.to_publish(topic, there, lambda publish: publish())

    def to_publish(self, topic: Topic, node: str, then: Callable[[Callable[[], None]], None]) -> None:
        """Open a session through ``node``; ``then(publish)`` may publish a message to each partition through it."""
        operator = self.rng.choice(self.operators)

        def opened(answer: Any, _: Any) -> None:
            if isinstance(answer, OpenSessionReply):
                then(lambda: publish(answer.producer_id))

        def publish(producer_id: ProducerId) -> None:
            made = EPOCH_MS + int(self.world.time * 1000)
            for number in range(topic.partitions):
                batch = build_batch(PartitionId(topic.id, number), producer_id, 0, made, [Message(b"beside")])
                operator.send_batch(batch, node, 0, lambda answer, _: None)

        operator.ask(node, OpenSession(), operator.timeout, opened)

    def redrive_cut_off(self, topic: Topic) -> None:
        """Cut a replica off while dead letters are redriven; their reader through it goes on."""
        rng = self.rng
        number = rng.randrange(topic.partitions)
        self.cut_off([rng.choice(topic.replicas[number])], 0.1 + self.options.request_timeout * rng.random())
        for operator in self.operators:
            operator.look(number, self.around.groups[0])

    def change_cut_off(self, topic: Topic) -> None:
        """Cut off the node whose clock is last, change the topic, and change it there again as soon as the cut ends."""
        rng = self.rng
        up = [(core.state.clock.value, name) for name, core in cores_of(self.around.machines).items()]
        if len(up) < 2:
            return
        last = min(up)[1]
        self.cut_off([last], 0.1 + self.options.request_timeout * rng.random())
        assert self.cut is not None
        first, again = (rng.choice(self.operators) for _ in range(2))
        first.alter_to(first.values(["max_deliveries"]), max(up)[1])

        def change(_: object, __: object) -> None:
            current = self.topics.current
            if not self.world.healed and current is not None and current.id not in self.topics.deleted:
                again.alter_to(again.values(["max_deliveries"]), last)

        self.world.after(self.cut.seconds, change)

    def on_deleted(self) -> None:
        """Kill nodes after a deletion is confirmed, before they have dropped the topic."""
        if not self.is_used:
            return
        rng = self.rng
        names = rng.sample(self.options.node_names, rng.randint(1, (self.options.nodes + 1) // 2))
        for name in sorted(names):
            fault = Fault(self.world.time, "kill", (name,), round(0.02 + 0.2 * rng.random(), 4))
            self.world.after(0.05 * rng.random(), self.inflict, fault)
            self.world.saw("a node was killed as soon as a topic was deleted")
