"""Common part of requests that read as a group: its register has to be at a majority of each replica set first."""

from __future__ import annotations

from quorumq.core.messages import Failed, Fetch
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.registration import register
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Latest, Now, PartitionId, Topic


class GroupReader(Coordinator):
    """A coordinator that reads partitions as a group.

    Args:
        request: request with the group, and its beginning if it has to be made.

    Attributes:
        register_name: group whose register is needed: for a dead-letter group, its source.
        unsure: topics, or rounds of sub-fetches, in which it may have made the group: then no failure says that nothing
            was done.
        unregistered: True if too few replicas are trusted to have it registered now.
        hinted: True if the answer says that suspects wait.
    """

    __slots__ = (
        "awaited",
        "hinted",
        "park_until",
        "partitions",
        "register_name",
        "request",
        "unregistered",
        "unsure",
        "won_bytes",
        "won_messages",
    )  # fmt: skip

    def __init__(self, key: int, request: Fetch, partitions: tuple[PartitionId, ...], now: Now) -> None:
        super().__init__(key)
        self.request = request
        self.partitions = partitions
        self.park_until = now.mono + min(request.max_wait, request.hold_time / 10)
        self.register_name = request.group.removesuffix(DEAD_SUFFIX)
        self.unregistered = False
        self.hinted = False
        self.won_messages = 0
        self.won_bytes = 0
        self.unsure: dict[bytes | int, None] = {}
        self.awaited: dict[bytes, None] = {}  # topics in which the group is being registered for this request

    @property
    def cost(self) -> int:
        return len(self.partitions)

    def concerns(self, topic: bytes) -> bool:
        return any(partition.topic == topic for partition in self.partitions)

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.quit_topic(
            context, topic, Failed(Code.NOT_FOUND, f"topic {topic.name!r} was deleted"), now
        )

    def reads(self, topic: bytes, group: str) -> bool:
        return self.register_name == group and self.concerns(topic)

    def on_group_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        why = context.catalogue.no_group(topic.name, self.register_name)
        if topic.id in self.unsure:  # it may have made the group that was deleted
            why = why._replace(code=Code.OUTCOME_UNKNOWN)
        return self.quit_topic(context, topic, why, now)

    def quit_topic(self, context: Context, topic: Topic, why: Failed, now: Now) -> list[Effect]:
        """End with ``topic``: answer with messages won in others; if none can be won, say why."""
        raise NotImplementedError

    def advance(self, context: Context, now: Now) -> list[Effect]:
        """Go on, because the group is registered, or cannot be."""
        raise NotImplementedError

    def unregistered_partitions(self, context: Context) -> list[PartitionId]:
        """Return the partitions in which no majority of the replica set is known to have the group's register."""
        registered, name = context.catalogue.registered_groups, self.register_name
        return [partition for partition in self.partitions if (partition, name) not in registered]

    def is_unbegun(self, context: Context) -> bool:
        """Return True if an empty answer would say too much: its group may not be made, or begun, in some partition."""
        groups = [
            context.catalogue.group(it.topic, self.register_name)
            for it in self.unregistered_partitions(context)
        ]
        return self.unregistered and any(it is None or it.latest == Latest.SKIPPING for it in groups)

    def register(self, context: Context, new: list[PartitionId], now: Now) -> list[Effect]:
        """Have the group registered in these partitions, in a limited number of topics at a time (`on_registered`)."""
        effects: list[Effect] = []
        numbers_of: dict[bytes, list[int]] = {}
        for partition in new:
            numbers_of.setdefault(partition.topic, []).append(partition.number)
        latest = self.request.start == "latest"
        chosen = list(numbers_of.items())[: limits.GROUPS_MADE_PER_STEP]
        self.awaited.update(dict.fromkeys([topic for topic, _ in chosen]))
        for topic, numbers in chosen:
            if context.catalogue.group(topic, self.register_name) is None:
                self.unsure[topic] = None
            effects += register(
                context, self.key, topic, self.register_name, tuple(numbers), now, latest=latest
            )
        return effects

    def fail(
        self, context: Context, code: str, detail: str, needed: int = 0, answered: int = 0
    ) -> list[Effect]:
        unknown = self.unsure and code == Code.TOO_FEW_REPLICAS
        return super().fail(context, Code.OUTCOME_UNKNOWN if unknown else code, detail, needed, answered)

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        self.awaited.pop(topic, None)
        if self.done or self.awaited:
            return []
        new = self.unregistered_partitions(context)
        if not new and self.cost > limits.CHEAP:  # many requests may wait for this answer
            context.state.at(now.mono, ("advance", self.key))
            return []
        return self.register(context, new, now) if new else self.advance(context, now)

    def on_unregistered(
        self, context: Context, topic: bytes, problem: Failed | None, now: Now
    ) -> list[Effect]:
        """Take note that the group could not be registered for ``topic``.

        Args:
            problem: reason; None if no majority can take the register in now. Then no node can deliver for the group,
                and the request goes on without messages of this topic.
        """
        self.awaited.pop(topic, None)
        if self.done:
            return []
        if problem is not None and problem.code != Code.OUTCOME_UNKNOWN:
            self.unsure.pop(topic, None)
        if problem is None:
            self.unregistered = True
            return self.advance(context, now) if not self.awaited else []
        if problem.code == Code.NOT_FOUND:
            return self.quit_topic(context, context.catalogue.topics[topic], problem, now)
        return self.fail(context, *problem[:4])
