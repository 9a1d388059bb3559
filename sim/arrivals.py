"""Groups made by a FETCH: several consumers begin at once, through any nodes, an operator perhaps beside them.

The worst time for a fault is while a group is being made: a node is cut off between its question to the others and its
write, which take a round trip each; or a topic grows on nodes that do not know the group.
"""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import OpenSession, OpenSessionReply, TopicReply
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from quorumq.wire.batch import Message, build_batch
from sim.clients.guest import MISTYPED, Guest
from sim.clients.operator import Operator
from sim.clients.surroundings import Surroundings
from sim.fault_plan import Fault, Inflict
from sim.world import EPOCH_MS

Links = tuple[tuple[str, str], ...]


class Arrivals:
    """Has the guests of a run begin."""

    def __init__(
        self,
        around: Surroundings,
        guests: list[Guest],
        operators: list[Operator],
        inflict: Inflict,
    ) -> None:
        self.around = around
        self.world = around.world
        self.topics = around.topics
        self.options = around.options
        self.operators = operators
        self.inflict = inflict
        self.rng = around.world.stream("arrivals")
        self.guests = [guest for guest in guests if guest.group not in MISTYPED]
        self.mistyped = [guest for guest in guests if guest.group in MISTYPED]
        if self.mistyped:
            around.on_closing = self.on_closing
            around.on_closed = self.on_closed
        self.lagging = ""  # a node that is not to hear of a change
        self.lags_until = 0.0

    def begin(self) -> None:
        """Plan when each group is made."""
        for group in dict.fromkeys(guest.group for guest in self.guests):
            at = self.rng.uniform(0.15, 0.9) * self.options.fault_time
            self.world.at(at, self.arrive, group)

    def arrive(self, group: str, _: object = None) -> None:
        """Begin the consumers of a group, as soon as the topic is there."""
        world, rng, options = self.world, self.rng, self.options
        if not self.topics.created and not self.topics.gone:
            world.after(0.1, self.arrive, group)
            return
        guests = [guest for guest in self.guests if guest.group == group]
        operator = rng.choice(self.operators)
        how = rng.choice(("together", "together", "created", "created", "one by one", "grown"))
        if how == "grown" and options.alter and not world.healed and options.nodes > options.rf:
            self.grow_beside(guests)
            return
        within = 0.0 if how == "one by one" else rng.choice((0.0, 1.0, 4.0)) * options.latency
        pause = 0.5 * rng.random() if how == "one by one" else 0.0
        unlucky = rng.randrange(len(guests) + 1)  # one at most, so that the registers of the others last
        for number, guest in enumerate(guests):
            world.after(number * pause + rng.random() * within, self.join, guest, number == unlucky)
        if how == "created" or not options.auto_create_groups:
            start = rng.choice(("earliest", "earliest", "latest", "time"))
            for _ in range(rng.choice((1, 1, 2))):
                wait = rng.random() * rng.choice((within, within, 1.0))
                world.after(wait, self.create, operator, (group, start, unlucky == len(guests)))
        self.publish(list(options.node_names), self.topics.current)
        if rng.random() < 0.5:  # messages published before then are those that stand
            world.after(rng.uniform(0.2, 1.5), self.create, operator, (group, "earliest", False))
        if not world.healed:
            world.saw("a group came with a FETCH")

    def join(self, guest: Guest, unlucky: bool) -> None:
        """Begin one consumer; if it is unlucky, a fault meets its node before the group is made."""
        node = guest.node()
        guest.join(node)
        if unlucky:
            self.hit(node)

    def create(self, operator: Operator, asked: tuple[str, str, bool]) -> None:
        """Create the group, even if it is there, as an operator does."""
        group, start, unlucky = asked
        node = operator.node()
        operator.set_group(group, start, operator.some_time(start), rewind=False, node=node)
        if unlucky:
            self.hit(node)

    def hit(self, node: str) -> None:
        """Freeze a node, or cut it off in one direction or both, within the time of some messages."""
        rng, options = self.rng, self.options
        if options.nodes == 1 or self.world.healed:
            return
        seconds = round(rng.choice((0.3, 1.0)) * (0.3 + options.request_timeout), 4)
        others = [name for name in options.node_names if name != node]
        if rng.random() < 0.3:
            others = rng.sample(others, rng.randint(1, len(others)))
        out: Links = tuple((node, name) for name in others)
        back: Links = tuple((name, node) for name in others)
        links = rng.choice((out, out, back, out + back))
        fault = Fault(self.world.time, "partition", (), seconds, 0.0, links)
        if rng.random() < 0.6:
            fault = Fault(self.world.time, "freeze", (node,), seconds)
        one_way = options.latency + options.distance
        self.world.after(rng.uniform(0.5, 4.0) * one_way, self.inflict, fault)

    def publish(self, nodes: list[str], topic: Topic | None) -> None:
        """Publish some messages through these nodes, one after the other, and give up those that fail."""
        rng = self.rng
        operator = rng.choice(self.operators)
        if topic is None or self.world.healed:
            return

        def opened(answer: Any, _: Any) -> None:
            if isinstance(answer, OpenSessionReply):
                for seq, at in enumerate(sorted(rng.random() for _ in range(12))):
                    operator.later(0.5 * at, send, answer.producer_id, seq)

        def send(producer_id: ProducerId, seq: int) -> None:
            made = EPOCH_MS + int(1000 * self.world.time)
            partition = PartitionId(topic.id, seq % topic.partitions)
            batch = build_batch(partition, producer_id, seq // topic.partitions, made, [Message(b"%d" % seq)])
            operator.send_batch(batch, rng.choice(nodes), 0, lambda answer, _: None)

        operator.ask(rng.choice(nodes), OpenSession(), operator.timeout, opened)

    def on_closing(self, node: str) -> None:
        """Cut another node off while a topic is changed to make no groups by itself."""
        others = [name for name in self.options.node_names if name != node]
        if not others or not self.mistyped or self.world.healed:
            return
        self.lagging = self.rng.choice(others)
        links = tuple((name, self.lagging) for name in self.options.node_names if name != self.lagging)
        seconds = round(20 * (self.options.latency + self.options.distance) + 4 * self.options.fsync, 4)
        self.lags_until = self.world.time + seconds
        self.inflict(Fault(self.world.time, "partition", (), seconds, 0.0, links))

    def on_closed(self) -> None:
        """Ask for a mistyped group once the topic makes no groups any more, perhaps at a node without that news."""
        if self.mistyped and not self.world.healed:
            guest = self.mistyped.pop()
            self.world.saw("a group was asked for when its topic had been told to make none")
            wait = max(0.0, self.lags_until - self.world.time) + 0.001
            self.world.after(wait, lambda _, __: guest.join(self.lagging or guest.node()))

    def grow_beside(self, guests: list[Guest]) -> None:
        """Cut off just enough replicas of a partition: the group begins there, and the topic grows elsewhere."""
        topic, rng = self.topics.current, self.rng
        if topic is None:
            return
        members = rng.choice(topic.replicas)
        there = rng.sample(members, len(members) // 2 + 1)
        rest = [name for name in self.options.node_names if name not in there]
        pairs = tuple((one, two) for one in there for two in rest)
        seconds = round(0.6 + rng.random() * 2 * self.options.request_timeout, 4)
        links = (*pairs, *((two, one) for one, two in pairs))
        self.inflict(Fault(self.world.time, "partition", (), seconds, 0.0, links))
        self.publish(there, topic)  # so that its first FETCH brings something

        def visit(guest: Guest, _: object) -> None:
            guest.join(rng.choice(there))

        for guest in guests:
            self.world.after(0.1, visit, guest)
        operator, here = rng.choice(self.operators), rng.choice(rest)

        def then(answer: Any, _: Any) -> None:
            if isinstance(answer, TopicReply):
                self.world.saw("a topic grew where nobody had heard of a group")
                self.publish(rest, answer.topic)

        named = {"partitions": operator.partitions + 1}
        operator.later(0.3 + 0.2 * rng.random(), operator.alter_to, named, here, then)
