"""durability = "os": what of it waits for no fsync (docs/protocol.md, G1 and PUBLISH)."""

from __future__ import annotations

import pytest

from quorumq.core.effects import Effect, Persist
from quorumq.core.messages import (
    AckRequest,
    AlterTopic,
    OpenSession,
    Publish,
    PublishReply,
    PurgeRequest,
    RejectRequest,
)
from quorumq.core.records import BatchStored
from quorumq.core.types import Letter, Stamp, Topic
from tests.core.cluster import Cluster
from tests.core.test_cluster_smoke import fetch, receipts

LETTER = Letter(Stamp(0, ""), "rejected")


class Watched(Cluster):
    """Notes every Persist whose effects wait, by what it waits for."""

    def __init__(self) -> None:
        self.hasty: list[Persist] = []
        self.synced: list[Persist] = []
        super().__init__()

    def carry_out(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist) and effect.then:
                (self.synced if effect.sync else self.hasty).append(effect)
        super().carry_out(name, effects)


def publish(cluster: Cluster, topic: Topic, count: int = 4, through: str = "a") -> Publish:
    origin = cluster.ask(through, OpenSession()).origin  # type: ignore[union-attr]
    asked = Publish(cluster.batch(topic, origin, 0, [b"x"] * count))
    assert isinstance(cluster.ask(through, asked), PublishReply)
    return asked


def test_only_what_stores_batches_of_such_a_topic_waits_for_no_fsync() -> None:
    cluster = Watched()
    topic = cluster.topic(durability="os")
    cluster.synced.clear()
    publish(cluster, topic)
    assert len(cluster.hasty) == 3
    assert not any(isinstance(record, BatchStored) for each in cluster.synced for record in each.records)
    cluster.hasty.clear()
    cluster.synced.clear()

    one, two, three, four = (receipts(cluster.ask("b", fetch(most=1)))[0] for _ in range(4))
    for request in (
        AckRequest((one,)),
        RejectRequest((two,), 1.0),
        RejectRequest((three,), 0.0, LETTER),
        AckRequest((four,)),
        PurgeRequest("jobs", 0, "g"),
    ):
        cluster.ask("c", request)
    assert not cluster.hasty, "tombstones, delays and registers are fsynced before anybody hears of them"
    assert len(cluster.synced) > 10


def test_a_retry_waits_no_longer_than_what_it_repeats() -> None:
    cluster = Watched()
    asked = publish(cluster, cluster.topic(durability="os"))
    cluster.hasty.clear()
    cluster.synced.clear()
    assert isinstance(cluster.ask("b", asked), PublishReply)
    assert [each.records for each in cluster.hasty] == [(), (), ()]
    assert not cluster.synced


@pytest.mark.parametrize("then", ["fsync", "os"])
def test_an_altered_setting_counts_for_what_is_published_from_then_on(then: str) -> None:
    cluster = Watched()
    topic = cluster.topic(durability="os" if then == "fsync" else "fsync")
    first = publish(cluster, topic)
    cluster.ask("a", AlterTopic("jobs", durability=then))
    cluster.hasty.clear()
    cluster.synced.clear()
    publish(cluster, topic, through="c")
    assert len(cluster.hasty) == (0 if then == "fsync" else 3)
    cluster.hasty.clear()
    cluster.synced.clear()
    assert isinstance(
        cluster.ask("b", first), PublishReply
    )  # once "fsync", a retry hears of what is on the disk
    assert [each.records for each in (cluster.synced if then == "fsync" else cluster.hasty)] == [()] * 3
