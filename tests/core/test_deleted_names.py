"""Registers of deleted names: packed, 52 bytes each, and as good as before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.deleted_names import PAGES, DeletedNames, entries_of, key_of
from quorumq.core.cluster.members import first_layout
from quorumq.core.cluster.topics import closed
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.messages.records import DeletedNoted, DeletedPage, GroupPut, TopicPut
from quorumq.core.recovery import resync
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.types import STAMP_ZERO, Group, Layout, Limit, Now, Stamp, Topic, topic_id
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.network import noted, wipe
from tests.core.steps import check_failed

NODES = ("a", "b", "c")
SYNC_S = 2.0


def topic_of(name: str, deletions: int, made: int) -> Topic:
    """Return the register of a topic of these nodes."""
    stamp, replicas = Stamp(made, "a"), (NODES,)
    return Topic(topic_id(name, 3, deletions), name, 3, replicas, 5, stamp, deletions=deletions, made=stamp)


def gone(name: str, deletions: int = 0, made: int = 1, proposed: int = 0) -> Topic:
    return closed(topic_of(name, deletions, made)._replace(proposed=proposed))


def group_gone(topic: Topic, name: str, generation: int = 1) -> Group:
    return Group(topic.id, name, generation, buried=generation, made=Stamp(3, "b"))


def filled(names: DeletedNames, topics: int, start: int = 0) -> None:
    """Put registers of deleted topics into the table, page by page."""
    by_index: dict[int, list[bytes]] = {}
    for number in range(start, start + topics):
        entry = names.pack(gone(f"topic-{number}"))
        assert entry is not None
        by_index.setdefault(names.index_of(entry[:32]), []).append(entry)
    for index, entries in by_index.items():
        names.put(index, entries)


# ------------------------------------------------------------------------ the table


@given(
    st.text("abc", min_size=1, max_size=200), st.integers(0, limits.NUMBERS_END - 1),
    st.integers(1, limits.STAMPS_END - 1),
    st.sampled_from(("", *NODES)), st.integers(1, limits.PARTITIONS_MAX), st.booleans(),
)  # fmt: skip
def test_a_register_is_unpacked_as_it_was(
    name: str, number: int, time: int, node: str, proposed: int, is_topic: bool
) -> None:
    names = DeletedNames(NODES, b"key")
    made = Stamp(time, node) if node else STAMP_ZERO
    register: Topic | Group = (
        gone(name, number, proposed=proposed)._replace(made=made)
        if is_topic
        else Group(b"t" * 16, name, max(1, number), buried=max(1, number), made=made)
    )
    entry = names.pack(register)
    assert entry is not None
    assert len(entry) == limits.DELETED_BYTES <= 64
    assert names.unpack(entry, name) == register
    assert names.is_sound(entry)


def test_a_register_of_a_node_that_is_not_in_the_list_is_not_packed() -> None:
    assert DeletedNames(("a",), b"").pack(gone("t")._replace(made=Stamp(1, "z"))) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from("pr")), max_size=30))
def test_the_table_is_a_mapping_with_sums(steps: list[tuple[int, int, str]]) -> None:
    names, model = DeletedNames(NODES, b"key"), dict[str, Topic]()
    for number, deletions, step in steps:
        name = f"t{number}"
        if step == "p":
            model[name] = gone(name, deletions)
            entry = names.pack(model[name])
            assert entry is not None
            names.put(names.index_of(entry[:32]), [entry])
        else:
            model.pop(name, None)
            names.remove(key_of(b"", name))
    names.check()
    assert len(names) == names.topics == len(model)
    for name in (f"t{number}" for number in range(31)):
        entry = names.find(key_of(b"", name))
        assert (names.unpack(entry, name) if entry else None) == model.get(name)


def test_many_put_at_once_are_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.core.cluster.deleted_names.INSERTED_MAX", 2)
    many, single = DeletedNames(NODES, b"key"), DeletedNames(NODES, b"key")
    entries = [
        e
        for e in map(many.pack, (gone(f"t{n}", n % 3) for n in range(3000)))
        if e and many.index_of(e[:32]) == 5
    ]
    assert len(entries) > 4
    many.put(5, entries)
    for entry in reversed(entries):
        single.put(5, [entry])
    assert many.page(5) == single.page(5)
    assert many.sums == single.sums
    assert many.topics == single.topics == len(entries)


def test_groups_of_a_topic_are_found_page_by_page_and_dropped_with_it() -> None:
    names = DeletedNames(NODES, b"key")
    ours, other = topic_of("t", 0, 1), topic_of("u", 0, 1)
    filled(names, 100)
    for topic in (ours, other):
        for number in range(300):
            entry = names.pack(group_gone(topic, f"g{number}"))
            assert entry is not None
            names.put(names.index_of(entry[:32]), [entry])
    pages, index = [], 0
    while index < PAGES:
        packed, index = names.of_topic(ours.id, index, 20)
        pages.append(packed)
    assert len(pages) > 10
    assert {it[:32] for it in entries_of(b"".join(pages))} == {
        key_of(ours.id, f"g{number}") for number in range(300)
    }
    names.drop(ours.id)
    names.check()
    assert (names.topics, names.groups) == (100, {other.id: 300})
    assert names.of_topic(ours.id, 0, 20) == (b"", PAGES)


# ------------------------------------------------------------------------ pages in the journal


def test_a_page_is_loaded_whole_and_a_later_one_wins() -> None:
    names = DeletedNames(NODES, b"key")
    filled(names, 2000)
    pages = [names.save(index, index)[0] for index in range(PAGES)]
    again = DeletedNames(NODES, b"key")
    for page in pages:
        again.load(page)
    again.check()
    assert (again.sums, again.topics) == (names.sums, 2000)
    later = names.pack(gone("topic-7", deletions=1))
    assert later is not None
    index = names.index_of(later[:32])
    names.put(index, [later])
    record, replaced = names.save(index, 1000)
    assert replaced == (index,)
    for order in (
        (record, pages[index]),
        (pages[index], record),
    ):  # a crash before the end of the older one
        both = DeletedNames(NODES, b"key")
        for page in order:
            both.load(page)
        both.check()
        assert both.find(later[:32]) == later
        assert sorted(both.save(index, 2000)[1]) == [index, 1000], "both go with the next one"


def test_with_another_secret_all_pages_are_written_anew() -> None:
    names = DeletedNames(NODES, b"key")
    filled(names, 500)
    pages = [names.save(index, index)[0] for index in range(PAGES)]
    other = DeletedNames(NODES, b"other")
    for page in pages:
        other.load(page)
    other.check()
    assert other.topics == 500
    number, replaced = 1000, ()
    while (index := other.due()) is not None:
        assert replaced == (), "the old pages stay until all are written"
        _, replaced = other.save(index, number)
        number += 1
    assert number == 1000 + PAGES
    assert sorted(replaced) == list(range(PAGES))


def test_a_million_names_cost_64_bytes_each_and_one_page_a_step() -> None:
    """The costs are proportional, so twenty thousand do: bytes of a name, and of one step."""
    names = DeletedNames(NODES, b"key")
    filled(names, 20_000)
    held = sum(
        len(names.page(index)) + 33 + 8 for index in range(PAGES)
    )  # an object, and its index in the list
    assert held <= 64 * 20_000
    record, _ = names.save(3, 1)
    assert len(record.packed) < 2 * 52 * 20_000 / PAGES
    assert list(names.records()) == [], "a snapshot repeats nothing of them"


# ------------------------------------------------------------------------ a node's catalogue


def packing(**settings: object) -> Cluster:
    """A cluster whose nodes pack every deleted register at once."""
    return Cluster(**{"deleted_unpacked": 0, "sync_interval": SYNC_S, **settings})  # type: ignore[arg-type]


def made(cluster: Cluster, name: str, node: str = "a") -> Topic:
    reply = cluster.ask(node, m.CreateTopic(name), of=m.TopicReply)
    return reply.topic


def deleted(cluster: Cluster, name: str, node: str = "a") -> Topic:
    topic = made(cluster, name, node)
    assert not isinstance(cluster.ask(node, m.DeleteTopic(name, topic.id)), m.Failed)
    return topic


def unpacked_in(cluster: Cluster) -> set[str]:
    return {name for core in cluster.nodes.values() for _, name in core.catalogue.unpacked}


def counts(cluster: Cluster) -> list[tuple[int, int]]:
    return [
        (core.catalogue.deleted.topics, sum(core.catalogue.deleted.groups.values()))
        for core in cluster.nodes.values()
    ]


def agreed(cluster: Cluster) -> bool:
    return len({core.catalogue.sums.root() for core in cluster.nodes.values()}) == 1


def test_the_longest_deleted_are_packed_and_the_last_ones_stay() -> None:
    cluster = packing(deleted_unpacked=3)
    for number in range(12):
        deleted(cluster, f"t{number}")
    for core in cluster.nodes.values():
        assert len(core.catalogue.unpacked) <= 3
        assert core.catalogue.names_used()[4] == 12
        assert "t11" in core.catalogue.names
        assert "t0" not in core.catalogue.names
        assert core.catalogue.deleted.topics >= 9
    assert agreed(cluster)


def test_a_topic_whose_partitions_were_moved_is_not_packed() -> None:
    """DELETE has to reach the sets of all its layouts, and the register alone has them."""
    catalogue = Catalogue("a", b"key", first_layout(NODES))
    topic = topic_of("t", 0, 1)
    moved = closed(topic._replace(layout=Layout(topic.id, 2, Stamp(2, "a"), ())))
    for register in (moved, gone("u")):
        catalogue.take_topic(register)
    while (bucket := catalogue.crowded(0)) is not None:
        catalogue.pack(bucket)
    catalogue.check()
    assert catalogue.crowded(0) is None
    assert (catalogue.unpackable, catalogue.unpacked) == ({(b"", "t"): None}, {})
    assert catalogue.register_named("t") == moved
    assert catalogue.names_used()[4] == 2
    catalogue.take_topic(topic_of("t", 1, 3))
    catalogue.check()
    assert catalogue.unpackable == {}


def test_a_packed_name_is_a_deleted_one_for_every_request() -> None:
    cluster = packing()
    topic = deleted(cluster, "t")
    assert cluster.nodes["b"].catalogue.topics == {}
    check_failed(
        cluster.ask("b", m.Metadata(("t",))), None, "topic 't' was deleted: `quorumq topics create t`"
    )
    session = cluster.ask("c", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert isinstance(cluster.ask("c", m.Publish(cluster.batch(topic, session, 0, [b"x"]))), m.Failed)
    assert isinstance(cluster.ask("c", m.DeleteTopic("t", topic.id)), m.TopicReply), (
        "again, as it was unknown"
    )
    again = made(cluster, "t", "c")
    assert (again.deletions, again.id) == (1, topic_id("t", 3, 1))
    assert counts(cluster) == [(0, 0)] * 3
    cluster.ask("b", m.DeleteTopic("t", again.id))
    assert made(cluster, "t").deletions == 2, "the count goes on"
    for core in cluster.nodes.values():
        core.catalogue.check()


def test_a_node_that_slept_brings_no_packed_topic_back() -> None:
    cluster = packing()
    topic = made(cluster, "t")
    cluster.ask("a", m.SetGroup("t", "g"))
    cluster.kill("c")
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    assert "t" not in cluster.nodes["a"].catalogue.names
    cluster.start("c")
    assert cluster.nodes["c"].catalogue.topic_named("t") is not None, "it has not tampered"
    cluster.advance(3 * SYNC_S)
    assert all(
        core.catalogue.topic_named("t") is None and not core.replicas for core in cluster.nodes.values()
    )
    assert agreed(cluster)
    assert counts(cluster) == [(1, 0)] * 3


def test_a_node_that_slept_learns_of_a_packed_topic_when_it_uses_it() -> None:
    """Without anti-entropy: the others do not know the topic's id, get its register, and answer with the deletion."""
    cluster = packing()
    topic = made(cluster, "t")
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    session = cluster.ask("c", m.OpenSession()).producer_id  # type: ignore[union-attr]
    check_failed(cluster.ask("c", m.Publish(cluster.batch(topic, session, 0, [b"x"]))), Code.NOT_FOUND)
    assert cluster.nodes["c"].catalogue.topic_named("t") is None


@pytest.mark.parametrize("late", [GroupPut, m.PutGroup])
def test_a_late_register_of_a_packed_group_makes_no_group(late: object) -> None:
    cluster = packing()
    topic = made(cluster, "t")
    group = cluster.ask("a", m.SetGroup("t", "g")).group  # type: ignore[union-attr]
    cluster.ask("b", m.DeleteGroup("t", "g"))
    assert counts(cluster) == [(0, 1)] * 3
    core = cluster.nodes["b"]
    if late is GroupPut:
        cluster.journals["b"].append(GroupPut(group))
        cluster.crash("b")
        core = cluster.nodes["b"]
    else:
        cluster.send("a", "b", m.PutGroup(0, group))
        cluster.run()
    assert core.catalogue.is_group_deleted(topic.id, "g")
    assert core.catalogue.groups == {}
    again = cluster.ask("b", m.SetGroup("t", "g"), of=m.GroupReply)
    assert (again.group.generation, again.group.buried) == (2, 1)
    assert counts(cluster) == [(0, 0)] * 3


def test_a_packed_name_comes_to_a_node_that_missed_it_and_ends_what_it_has() -> None:
    """b and c pack the group; a has only a view of it, from a HOLD, or only an undecided instance."""
    cluster = packing()
    topic = made(cluster, "t")
    view = cluster.nodes["a"].replicas[next(iter(cluster.nodes["a"].replicas))].views.named("g")
    assert not view.name.endswith("!dead")
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    cluster.ask("b", m.SetGroup("t", "g"))
    cluster.ask("b", m.DeleteGroup("t", "g"))
    deleted(cluster, "u", "b")
    assert counts(cluster) == [(0, 0), (1, 1), (1, 1)]
    cluster.hear_all(4 * SYNC_S)
    assert counts(cluster) == [(1, 1)] * 3
    assert agreed(cluster)
    (replica,) = cluster.nodes["a"].replicas.values()
    assert "g" not in replica.views.groups, "it ends, as no client reads a deleted group"
    assert replica.views.is_deleted("g")
    assert topic.id in cluster.nodes["a"].catalogue.topics


def test_packed_names_outlive_a_restart_a_snapshot_and_a_resync() -> None:
    cluster = packing()
    topic = made(cluster, "t")
    for name in ("g", "h"):
        cluster.ask("a", m.SetGroup("t", name))
        cluster.ask("a", m.DeleteGroup("t", name))
    for number in range(5):
        deleted(cluster, f"u{number}")
    cluster.ask("a", m.SetGroup("t", "h"))
    assert counts(cluster) == [(5, 1)] * 3
    cluster.crash("c")
    assert counts(cluster)[2] == (5, 1), "the journal"
    pages = [
        it
        for it in cluster.journals["c"]
        if isinstance(it, DeletedPage) and it.number not in cluster.dropped["c"]
    ]
    snapshot = cluster.nodes["c"].snapshot(cluster.now)
    assert not any(isinstance(it, TopicPut) and it.topic.deleted for it in snapshot), "pages have them"
    cluster.journals["c"] = [*snapshot, *pages]
    cluster.crash("c")
    assert counts(cluster)[2] == (5, 1), "a snapshot"
    wipe(cluster, "c", 5)
    assert counts(cluster)[2] == (5, 1), "a resync"
    assert any(isinstance(it, DeletedNoted) for it in cluster.journals["c"])
    assert agreed(cluster)
    cluster.crash("c")
    assert counts(cluster)[2] == (5, 1), "what a resync brought"
    assert cluster.nodes["c"].catalogue.group(topic.id, "h").generation == 2  # type: ignore[union-attr]
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    assert counts(cluster) == [(6, 0)] * 3, "groups go with their topic"
    cluster.crash("c")
    assert counts(cluster)[2] == (6, 0), "also those that an older page has"


def test_new_partitions_hear_of_packed_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.core.requests.registers.GROUPS_PER_CHUNK", 1)
    monkeypatch.setattr("quorumq.core.requests.finding.GROUPS_PER_CHUNK", 1)
    cluster = packing()
    made(cluster, "t")
    for name in ("g", "h", "i"):
        cluster.ask("a", m.SetGroup("t", name))
        cluster.ask("a", m.DeleteGroup("t", name))
    cluster.ask("a", m.SetGroup("t", "alive"))
    put = noted(cluster, lambda sender, to, message: isinstance(message, m.PutTopic))
    grown = cluster.ask("b", m.AlterTopic("t", partitions=2)).topic  # type: ignore[union-attr]
    carried = {entry[:32] for it in put for entry in entries_of(it.packed)}
    assert carried == {key_of(grown.id, name) for name in ("g", "h", "i")}
    assert {group.name for it in put for group in it.groups} == {"alive"}


def test_the_count_of_partitions_outlives_packing() -> None:
    """DELETE asks which partitions were proposed, and a packed register says so, entry by its name."""
    cluster = packing()
    topic = made(cluster, "t")
    cluster.ask("a", m.AlterTopic("t", partitions=3))
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    register = cluster.nodes["b"].catalogue.register_named("t")
    assert register is not None
    assert (register.all_partitions, register.deleted) == (3, True)
    asked = noted(cluster, lambda *message: True)
    made(cluster, "t", "c")
    sent_packed = [it for message in asked for it in getattr(message, "topics", ()) if it.id == topic.id]
    assert sent_packed
    assert all(it.all_partitions == 3 for it in sent_packed)


def test_a_brief_difference_sends_no_page_and_a_lasting_one_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion under way makes two nodes' buckets differ: a page of a million names has 200 kB."""
    monkeypatch.setattr("quorumq.core.node.upkeep.DELETED_PAGES_TOLD", 2)
    cluster = packing()
    for number in range(30):
        deleted(cluster, f"t{number}")
    cluster.advance(2 * SYNC_S)
    cluster.kill("c")
    for number in range(30, 40):
        deleted(cluster, f"t{number}")
    cluster.start("c")
    sent: list[int] = []
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics) and sent.append(len(message.packed)) is not None
    )
    core = cluster.nodes["a"]
    theirs = cluster.nodes["c"].catalogue

    def compared() -> list[Effect]:
        sums = m.SyncRegisters(theirs.sums.all(), theirs.deleted.key_number)
        return core.upkeep.on_registers_compared("c", sums)

    core.upkeep.differed.clear()
    assert compared() == [], "the first time"
    (sent_packed,) = compared()
    assert len(core.upkeep.differed["c"]) > 2
    assert 0 < len(entries_of(sent_packed.message.packed)) < 20, "two pages"
    other = m.SyncRegisters(theirs.sums.all(), b"another.")
    assert core.upkeep.on_registers_compared("c", other) == [], "under another key nothing can be said"
    cluster.advance(10 * SYNC_S)
    assert agreed(cluster)
    assert counts(cluster) == [(40, 0)] * 3


def test_a_full_disk_packs_nothing_and_loses_nothing() -> None:
    cluster = packing()
    deleted(cluster, "t")
    core = cluster.nodes["a"]
    topic = made(cluster, "u")
    core.state.disk_shortage = Shortage.RESERVE
    cluster.ask("b", m.DeleteTopic("u", topic.id))
    assert core.catalogue.unpacked == {(b"", "u"): None}
    core.state.disk_shortage = Shortage.NONE
    cluster.advance(2 * SYNC_S)
    assert core.catalogue.unpacked == {}
    assert counts(cluster) == [(2, 0)] * 3


def test_packed_registers_of_a_peer_get_a_page_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.core.cluster.deleted_names.UNSAVED_MAX", 8)
    cluster = packing()
    for number in range(20):
        deleted(cluster, f"t{number}")
    wipe(cluster, "c", 20 * SYNC_S)
    c = cluster.nodes["c"].catalogue
    assert c.deleted.topics == 20
    assert sum(map(len, c.deleted.unsaved.values())) <= 8
    assert sum(len(it.packed) for it in c.deleted.records()) <= 8 * limits.DELETED_BYTES  # type: ignore[union-attr]
    cluster.crash("c")
    assert counts(cluster)[2] == (20, 0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 3), st.sampled_from("tgp")), max_size=25))
def test_catalogues_agree_whatever_each_has_packed(steps: list[tuple[str, int, str]]) -> None:
    """All nodes get the registers in the same order, and each packs at other times."""
    catalogues = {node: Catalogue(node, b"key", first_layout(NODES)) for node in NODES}
    topic = topic_of("kept", 0, 1)
    clock = 1
    for catalogue in catalogues.values():
        catalogue.take_topic(topic)
    for node, number, step in steps:
        clock += 1
        if step == "p":
            bucket = catalogues[node].crowded(number)
            if bucket is not None:
                catalogues[node].pack(bucket)
        for catalogue in catalogues.values():
            known = catalogue.register_named(f"t{number}")
            group = catalogue.group(topic.id, f"g{number}")
            if step == "t":
                deletions = known.deletions if known else 0
                fresh = topic_of(f"t{number}", deletions + (known is not None and known.deleted), clock)
                catalogue.take_topic(closed(known) if known and not known.deleted else fresh)
            elif step == "g":
                generation = group.generation + 1 if group else 0
                buried = 0 if group is None else group.buried if group.deleted else generation
                limit = Limit(0 if group is None else group.buried, Stamp(clock, "a"), 5.0, 1)
                catalogue.take_group(
                    Group(
                        topic.id, f"g{number}", generation, buried=buried, made=Stamp(clock, "a"), limit=limit
                    )
                )
            catalogue.check()
    assert len({catalogue.sums.root() for catalogue in catalogues.values()}) == 1
    assert len({catalogue.all_deleted() for catalogue in catalogues.values()}) == 1
    assert len({catalogue.names_used() for catalogue in catalogues.values()}) == 1
    for number in range(4):  # two forms of one register would be sent to and fro without end
        assert len({catalogue.group(topic.id, f"g{number}") for catalogue in catalogues.values()}) == 1


# ------------------------------------------------------------------------ what breaks without each rule


def serves(cluster: Cluster, node: str, topic: Topic) -> bool:
    """Return True if a node serves the topic of before its deletion."""
    catalogue = cluster.nodes[node].catalogue
    return topic.id in catalogue.topics and not catalogue.is_deleted(topic.id)


def test_a_packed_register_counts_as_it_did_before(rule: bool, without: Without) -> None:
    cluster = packing()
    topic = made(cluster, "t")
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    without(Catalogue, "_packed", lambda self, topic, name: None)
    cluster.checks = False
    cluster.send("c", "b", m.PutTopic(0, topic))  # c slept
    cluster.run()
    assert serves(cluster, "b", topic) is not rule


def test_a_packed_register_comes_in_under_the_name_known_here(rule: bool, without: Without) -> None:
    """a has a view of the group, from a HOLD, and no register."""
    without("quorumq.core.requests.packing._without_register", lambda *_: {})
    cluster = packing()
    made(cluster, "t")
    (replica,) = cluster.nodes["a"].replicas.values()
    replica.views.named("g")
    cluster.checks = False
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    cluster.ask("b", m.SetGroup("t", "g"))
    cluster.ask("b", m.DeleteGroup("t", "g"))
    cluster.hear_all(4 * SYNC_S)
    assert ("g" in replica.views.groups) is not rule


def test_a_resync_brings_packed_registers(rule: bool, without: Without) -> None:
    """a and b have packed the deletion. c is emptied, and speaks for them when an old copy of b starts."""
    without(resync, "_packed_from", lambda deleted, index: ([], 0))
    without("quorumq.core.node.upkeep.DELETED_PAGES_TOLD", 0)
    cluster = packing()
    topic = made(cluster, "t")
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    wipe(cluster, "c", 3 * SYNC_S)
    cluster.send("b", "c", m.PutTopic(0, topic))
    cluster.run()
    assert serves(cluster, "c", topic) is not rule


def test_delete_reads_the_count_of_partitions_by_name(rule: bool, without: Without) -> None:
    """All have packed the register when a and b hear of partitions, which they have to say to c in its second round."""
    without(Coordinator, "read_register", by_id_alone)
    cluster = packing()
    topic = made(cluster, "t")
    cluster.ask("a", m.DeleteTopic("t", topic.id))
    put: list[int] = []

    def tampered(sender: str, to: str, message: object) -> bool:
        for node in "ab" if isinstance(message, m.RegistersRequest) and 7 not in put else "":
            deleted_there = cluster.nodes[node].catalogue.deleted
            more = deleted_there.pack(closed(topic)._replace(proposed=7))
            assert more is not None
            deleted_there.put(deleted_there.index_of(more[:32]), [more])
        if isinstance(message, m.PutTopic):
            put.append(message.topic.all_partitions)
        return False

    cluster.drop = tampered
    made(cluster, "t", "c")
    assert (7 in put) is rule, "DELETE, which CREATE completes, goes on to them"


def by_id_alone(
    self: Coordinator, context: Context, topic: Topic, now: Now, *, groups: bool = False
) -> list[Effect]:
    opened = self.open_round(context, context.config.nodes, now)
    ask = m.RegistersRequest(opened.number, (), (topic.id,), (), "" if groups else None)
    return [Send(node, ask) for node in opened.members]
