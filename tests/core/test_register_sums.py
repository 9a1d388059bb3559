"""Anti-entropy of registers: sums of digests, and only differences travel."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.deleted_names import DeletedNames
from quorumq.core.cluster.members import first_layout
from quorumq.core.cluster.register_sums import RegisterSums
from quorumq.core.cluster.topics import closed
from quorumq.core.values.types import Group, Latest, Pause, Stamp, Topic, topic_id
from quorumq.wire.codec import encode_message
from tests.core.cluster import Cluster

SYNC_S = 2.0


def topic_of(name: str, deletions: int, made: int, rf: int = 3) -> Topic:
    """A register of a name; its content depends on all of these."""
    stamp = Stamp(made, "a")
    return Topic(
        topic_id(name, rf, deletions), name, rf, (("a", "b", "c"),), 5, stamp, deletions=deletions, made=stamp
    )


class Counting(Cluster):
    """Counts the registers and bytes of anti-entropy of registers."""

    def __init__(self) -> None:
        super().__init__(sync_interval=SYNC_S)
        self.registers = 0
        self.bytes: Counter[str] = Counter()
        self.deaf = False
        self.drop = self.count

    def count(self, sender: str, to: str, message: object) -> bool:
        kind = type(message).__name__
        if kind in ("SyncRegisters", "SyncTopics"):
            self.bytes[kind] += sum(map(len, encode_message(message)))  # type: ignore[arg-type]
        if isinstance(message, m.SyncTopics):
            self.registers += len(message.topics) + len(message.groups)
        return self.deaf and isinstance(message, m.PutTopic | m.PutGroup) and to == "c" != sender

    def counted(self, seconds: float) -> tuple[int, int]:
        """Registers and bytes that nodes send in that time."""
        self.registers = 0
        self.bytes.clear()
        self.advance(seconds)
        return self.registers, self.bytes.total()


def filled(names: int) -> Counting:
    """A cluster with a topic that has deleted groups, and deleted topics; half of them each."""
    cluster = Counting()
    topic = cluster.topic()
    for number in range(names // 2):
        cluster.ask("a", m.SetGroup("jobs", f"g{number}"))
        cluster.ask("b", m.DeleteGroup("jobs", f"g{number}"))
        made = cluster.topic(f"t{number}")
        cluster.ask("c", m.DeleteTopic(made.name, made.id))
    assert topic.name == "jobs"
    cluster.advance(2 * SYNC_S)
    return cluster


def test_no_register_is_sent_between_nodes_that_agree() -> None:
    cluster = filled(40)
    registers, cost = cluster.counted(10 * SYNC_S)
    assert registers == 0
    assert cost <= 6 * 14 * 64, "one small frame to each peer, each time"


def test_a_register_that_one_node_missed_comes_with_those_of_its_bucket_alone() -> None:
    cluster = filled(60)
    cluster.deaf = True
    cluster.ask("a", m.SetGroup("jobs", "new"))
    cluster.ask("b", m.AlterTopic("jobs", ttl_s=60))
    registers, _ = cluster.counted(3 * SYNC_S)
    groups = [core.catalogue.groups for core in cluster.nodes.values()]
    assert groups[0] == groups[1] == groups[2]
    assert len({core.catalogue.register_named("jobs") for core in cluster.nodes.values()}) == 1
    assert 2 <= registers <= 30, "of 61, some from two peers"
    assert cluster.counted(3 * SYNC_S)[0] == 0


NAMES = st.sampled_from(("t", "u"))
REGISTERS = st.one_of(
    st.builds(topic_of, NAMES, st.integers(0, 2), st.integers(1, 3), st.sampled_from((1, 3))),
    st.builds(lambda *args: closed(topic_of(*args)), NAMES, st.integers(0, 2), st.integers(1, 3)),
    st.builds(
        lambda name, deletions, group, generation, buried: Group(
            topic_id(name, 3, deletions), group, generation, 0, min(buried, generation)
        ),
        NAMES,
        st.integers(0, 2),
        st.sampled_from(("g", "h")),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)


@given(st.lists(REGISTERS, max_size=12))
def test_sums_that_are_kept_are_those_computed_anew(registers: list[Topic | Group]) -> None:
    catalogue = Catalogue("a", b"key", first_layout(("a", "b", "c")))
    for register in registers:
        if isinstance(register, Topic):
            merged = catalogue.take_topic(register)
            for topic in list(catalogue.topics) if merged is not None else ():
                if catalogue.is_deleted(topic):
                    catalogue.drop_groups(topic)
        else:
            catalogue.take_group(register)
        catalogue.check()
    twin = Catalogue("b", b"key", first_layout(("a", "b", "c")))
    for topic in reversed(catalogue.registers()):
        twin.take_topic(topic)
    for group in reversed(catalogue.all_groups()):
        twin.take_group(group)
    assert twin.sums.root() == catalogue.sums.root(), "whatever the order"
    assert twin.sums.differing(catalogue.sums.all()) == []


def test_a_number_of_another_type_is_the_same_content() -> None:
    one, other = RegisterSums(DeletedNames((), b"key")), RegisterSums(DeletedNames((), b"key"))
    one.replace(None, topic_of("t", 0, 1)._replace(ttl_s=60, backoff=(1, 2)))
    other.replace(None, topic_of("t", 0, 1)._replace(ttl_s=60.0, backoff=(1.0, 2.0)))
    assert one.root() == other.root()


def test_every_field_of_a_register_is_in_its_digest() -> None:
    """One that is left out would not travel."""
    group = Group(topic_id("t", 3, 0), "g", 3, 7, 2)
    topic = topic_of("t", 0, 1)
    others = (
        Group(
            group.topic, group.name, 4, 8, 3, Latest.BEGUN, Stamp(1, "a"), Pause(2, Stamp(1, "a"), on=True)
        ),
        closed(topic_of("t", 0, 2)._replace(proposed=4)),
    )
    for one, other in zip((group, topic), others, strict=True):
        for field in one._fields:
            sums = RegisterSums(DeletedNames((), b"key"))
            sums.replace(None, one)
            if field in ("topic", "name", "id"):  # these name it
                continue
            changed = one._replace(**{field: getattr(other, field)})
            if changed != one:
                before = sums.root()
                sums.replace(one, changed)
                assert sums.root() != before, field


def test_the_key_decides_about_locations_and_digests() -> None:
    topics = [topic_of(f"t{number}", 0, 1) for number in range(20)]
    sums = [RegisterSums(DeletedNames((), key)) for key in (b"one", b"two")]
    for each in sums:
        each.replace(None, topics[0])
    assert sums[0].root() != sums[1].root()
    locations = [[each.bucket_of(topic) for topic in topics] for each in sums]
    assert locations[0] != locations[1]
