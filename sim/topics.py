"""Knowledge of the topics of a run: a name may have several, one after the other, or in dispute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumq.core.values.types import PartitionId, ProducerId, Receipt, Span, Topic, topic_id
from quorumq.history import owner_text, spans_value
from sim.options import Options
from sim.world import SimError

TOPIC = "jobs"
OUTPUTS = "out"


def label_of(name: str, rf: int, deletions: int, options: Options) -> str:
    """Return a topic's name in the history: a name may have several, one after the other, or in dispute."""
    return (
        name
        + (f"#{deletions}" if deletions else "")
        + (f"/rf{rf}" if options.rf != rf and name == "jobs" else "")
    )


class Registers:
    """First register of each topic, as it was seen, and its observer."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, int], tuple[bytes, int, str]] = {}
        self.born: dict[bytes, int] = {}

    def seen(self, who: str, topic: Topic) -> None:
        """Note that a node has this register, or an answer has it.

        Raises:
            SimError: there was another one.
        """
        of = (topic.name, topic.deletions)
        known_id, rf, first = self.first.setdefault(of, (topic.id, topic.rf, who))
        if known_id != topic.id:
            raise SimError(
                f"{who} has topic {of} with RF {topic.rf}, {first} had it with RF {rf}: one is never to be served"
            )
        born = self.born.setdefault(topic.id, topic.born) if topic.born else 0
        if born != topic.born:
            raise SimError(f"{who} has topic {of} born with {topic.born} partitions, not {born}")


class Topics:
    """Answers that clients got about topics so far.

    Attributes:
        names: name in the history of each topic that there may be (docs/history.md).
        current: the topic of the name, once it is created; None while it is not there.
        outputs: topic that outputs are published to, once it is created; None while it is not there.
        gone: True if the topic was deleted for good.
        groups_to_come: (topic, group) of those that are not there yet.
        when_another: called when another topic of the name may be created, with the number of deletions before it.
        when_deleted: called when a client learns that the topic is deleted.
    """

    def __init__(self, options: Options) -> None:
        self.derives = bool(options.derive)
        self.rfs = (options.rf, options.rival_rf) if options.rival_rf else (options.rf,)
        self.names = {topic_id(OUTPUTS, options.rf): OUTPUTS}
        self.after = dict.fromkeys(self.names, 0)  # number of deletions of the name before each
        for deletions in range(options.deletions + 1):
            for rf in self.rfs:
                id_ = topic_id(TOPIC, rf, deletions)
                self.names[id_], self.after[id_] = label_of(TOPIC, rf, deletions, options), deletions
        self.lives = 1  # number of topics of the name by now, one after the other
        self.confirmed: dict[bytes, int] = {}  # number of partitions that each topic has for certain
        self.registers = Registers()
        self.newest = 0  # number of deletions of the name before the newest that is there for certain
        self.deleted: dict[bytes, bool] = {}  # topics with a sent DELETE: True for those certainly deleted
        self.published_to: dict[ProducerId, str] = {}
        # Confirmed outputs: the batch in which each was first.
        self.confirmed_outputs: dict[tuple[PartitionId, ProducerId], dict[int, tuple[Span, ...]]] = {}
        self.current: Topic | None = None
        self.outputs: Topic | None = None
        self.gone = False
        self.groups_to_come: list[tuple[str, str]] = []
        self.when_another: list[Callable[[int], None]] = []
        self.when_deleted: list[Callable[[], None]] = []

    @property
    def created(self) -> bool:
        """Return True if the topic and its groups are there: messages published then are for all of them."""
        outputs = self.outputs is not None or not self.derives
        return self.current is not None and not self.groups_to_come and outputs

    def name_of(self, partition: PartitionId) -> str:
        """Return the name of a partition's topic."""
        return self.names[partition.topic]

    def location(self, partition: PartitionId) -> dict[str, Any]:
        """Return the fields of a line of the history that is about a partition."""
        return {"topic": self.names[partition.topic], "partition": partition.number}

    def described(self, receipt: Receipt, spans: tuple[Span, ...] | None = None) -> dict[str, Any]:
        """Return the fields of a line of the history that a receipt gives."""
        return {
            **self.location(receipt.partition),
            "group": receipt.group,
            "generation": receipt.generation,
            "n": receipt.n,
            "spans": spans_value(spans if spans is not None else (receipt.span,)),
            "owner": owner_text(receipt.owner),
        }

    def is_over(self, topic: bytes) -> bool:
        """Return True if this topic is deleted for certain."""
        return self.deleted.get(topic, False)

    def on_delete_sent(self, topic: Topic) -> None:
        """Note that there may be another topic of the name from now on, which a request by name may reach."""
        self.deleted.setdefault(topic.id, False)
        if topic.deletions + 1 == self.lives:
            self.lives += 1
            for tell in self.when_another:
                tell(topic.deletions + 1)

    def on_deleted(self, topic: bytes) -> None:
        """Note that a client learned that this topic is deleted."""
        if not self.is_over(topic):
            self.deleted[topic] = True
            for tell in self.when_deleted:
                tell()

    def on_topic(self, topic: Topic) -> None:
        """Note that a client learned that the topic is there."""
        self.newest = max(self.newest, topic.deletions)
        self.confirmed[topic.id] = max(topic.partitions, self.confirmed.get(topic.id, 0))
        for older in self.deleted:
            if self.after[older] < topic.deletions:  # it has taken their place
                self.on_deleted(older)
