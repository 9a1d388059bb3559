"""Labels of topics (docs/registers.md, LABELS): the last writer's text stands, and no confirmed write is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.cluster.labels import merge_labels
from quorumq.core.recovery.resync import in_chunks
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.types import STAMP_ZERO, Label, Stamp, Topic
from quorumq.wire import cbor
from quorumq.wire.rights import public
from quorumq.wire.values import decode_value, encode_value
from tests.core.cluster import Cluster
from tests.core.network import SlowDisk, wipe
from tests.core.steps import check_failed

SYNC = m.SyncRegisters | m.SyncTopics


def put(cluster: Cluster, node: str, **texts: str | None) -> dict[str, str]:
    return shown(cluster.ask(node, change(**texts)))


def change(**texts: str | None) -> m.LabelsRequest:
    return m.LabelsRequest("jobs", tuple(m.LabelChange(name, text) for name, text in texts.items()))


def read(cluster: Cluster, node: str) -> dict[str, str]:
    return shown(cluster.ask(node, m.LabelsRequest("jobs")))


def shown(reply: Any) -> dict[str, str]:
    assert isinstance(reply, m.LabelsReply), reply
    return {name: text for name, text in reply.labels if text is not None}


def only_between(*pairs: str) -> Any:
    """Drop messages that do not go between two of these nodes, and all anti-entropy of registers."""
    return lambda sender, to, message: (
        sender != to and ({sender, to} != set(pairs) or isinstance(message, SYNC))
    )


def labels_of(cluster: Cluster, node: str) -> dict[str, str | None]:
    catalogue = cluster.nodes[node].catalogue
    topic = catalogue.topic_named("jobs")
    assert topic is not None
    return {label.name: label.text for label in topic.labels}


def take(cluster: Cluster, node: str, label: Label) -> None:
    """Have one node alone know a label."""
    catalogue = cluster.nodes[node].catalogue
    topic = catalogue.topic_named("jobs")
    assert topic is not None
    catalogue.take_topic(topic._replace(labels=(label,)))


def test_labels_are_set_changed_removed_and_read_through_any_node() -> None:
    cluster = Cluster()
    cluster.topic()
    assert read(cluster, "a") == {}
    assert put(cluster, "a", owner="billing", team="x") == {"owner": "billing", "team": "x"}
    assert put(cluster, "b", owner="shop") == {"owner": "shop", "team": "x"}
    assert put(cluster, "c", team=None) == {"owner": "shop"}
    assert read(cluster, "b") == {"owner": "shop"}


def test_labels_that_two_of_four_voters_have_are_not_shown_before_a_majority_has_them() -> None:
    """The other two would show older ones to the next reader."""
    cluster = Cluster(4)
    cluster.topic()
    put(cluster, "a", owner="a")
    for node in "cd":
        take(cluster, node, Label("owner", "later", Stamp(2**57, "d")))
    cluster.drop = only_between("c", "d")
    check_failed(cluster.ask("d", m.LabelsRequest("jobs"), 6.0), Code.TOO_FEW_REPLICAS)
    cluster.hear_all()
    assert read(cluster, "d") == {"owner": "later"}
    cluster.drop = only_between("a", "b")
    check_failed(cluster.ask("a", m.LabelsRequest("jobs"), 6.0), Code.TOO_FEW_REPLICAS)


def test_a_change_is_stamped_above_one_that_its_node_does_not_know() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.wall_off_ms = {"a": 3_600_000}
    cluster.drop = only_between("a", "b")
    put(cluster, "a", owner="first")
    cluster.drop = only_between("b", "c")
    cluster.submit("c", change(owner="second"))  # refused until a higher reserve is durable
    assert put(cluster, "c", owner="second") == {"owner": "second"}
    cluster.hear_all(10)
    assert {labels_of(cluster, name)["owner"] for name in "abc"} == {"second"}


@pytest.mark.parametrize("changes", [{}, {"team": "x"}], ids=["a read", "a change"])
def test_labels_that_only_some_have_are_written_before_an_answer_shows_them(changes: dict[str, str]) -> None:
    cluster = Cluster()
    cluster.topic()
    take(cluster, "a", Label("owner", "half", Stamp(1, "a")))
    cluster.drop = only_between("a", "b")
    shown = put(cluster, "b", **changes) if changes else read(cluster, "b")
    assert shown == {"owner": "half", **changes}
    cluster.drop = only_between("b", "c")
    assert read(cluster, "c") == shown, "a later read finds no older labels"


def test_a_read_shows_no_labels_that_a_loss_of_power_may_take_back() -> None:
    """They are under way at all nodes, and durable at none: two of them may start without."""
    cluster = Cluster()
    cluster.topic()
    disks = [SlowDisk(cluster, node) for node in cluster.names]
    changed = cluster.submit("a", change(team="x"))
    cluster.run()
    assert [labels_of(cluster, node) for node in "abc"] == [{"team": "x"}] * 3
    key = cluster.submit("c", m.LabelsRequest("jobs"))
    cluster.run()
    assert not {changed, key} & set(cluster.replies)
    for disk in disks:
        disk.sync()
        cluster.run()
    assert shown(cluster.replies[key]) == {"team": "x"}


def test_a_change_answers_with_its_own_text_and_not_with_one_that_is_being_written() -> None:
    """Only the read decides: a text in an answer to the write may stand at that node alone."""
    cluster = Cluster()
    cluster.topic()
    take(cluster, "a", Label("team", "theirs", Stamp(1 << 60, "a")))
    cluster.drop = lambda sender, to, message: (
        isinstance(message, SYNC)
        or (sender == "a" and isinstance(message, m.RegistersReply))  # the read hears c
        or (sender == "c" and isinstance(message, m.PutReply))  # and the write a
    )
    assert put(cluster, "b", team="x") == {"team": "x"}
    cluster.drop = only_between("b", "c")
    assert read(cluster, "c") == {"team": "x"}


def test_more_names_than_one_change_allows_still_travel() -> None:
    """Several clients at once may name more labels than each of them is allowed alone."""
    labels = tuple(Label(f"{i:05}", None, Stamp(1, "a")) for i in range(8 * limits.LABEL_NAMES_MAX))
    topic = Topic(bytes(16), "jobs", 3, (("a", "b", "c"),), 5, STAMP_ZERO, labels=labels)
    assert decode_value(Topic, cbor.load(encode_value(topic))) == topic


def test_anti_entropy_brings_labels() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.drop = only_between("a", "b")
    put(cluster, "a", owner="billing")
    assert labels_of(cluster, "c") == {}
    cluster.hear_all(10)
    assert labels_of(cluster, "c") == {"owner": "billing"}


def test_no_client_gets_labels_with_a_register_of_a_topic() -> None:
    """They may have 64 KiB, and every client asks for registers."""
    cluster = Cluster()
    topic = cluster.topic()
    put(cluster, "a", owner="billing")
    labelled = topic._replace(labels=(Label("owner", "billing", Stamp(1, "a")),))
    assert public(m.TopicReply(labelled)).topic == topic._replace(digest_key=b"")
    reply: Any = cluster.ask("a", m.Metadata(("jobs",)))
    assert public(reply._replace(topics=(labelled,))).topics == (topic._replace(digest_key=b""),)


def test_an_answer_about_registers_fits_a_frame_with_labels() -> None:
    labels = tuple(Label(f"{i:03}", "x" * 1000, Stamp(1, "a")) for i in range(limits.LABEL_NAMES_MAX))
    topic = Topic(bytes(16), "jobs", 3, (("a", "b", "c"),), 5, STAMP_ZERO, labels=labels)
    chunks = in_chunks([topic] * 100, [])
    assert sum(len(chunk.topics) for chunk in chunks) == 100
    assert max(len(encode_value(chunk)) for chunk in chunks) < 6 * limits.MIB


def test_labels_outlast_a_start_and_a_wiped_node_learns_them_before_it_votes() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.drop = only_between("a", "b")
    put(cluster, "a", owner="billing")
    cluster.drop = lambda sender, to, message: isinstance(message, SYNC)
    cluster.crash("a", 100)
    assert labels_of(cluster, "a") == {"owner": "billing"}
    wipe(cluster, "b", 100)
    assert labels_of(cluster, "b") == {"owner": "billing"}, "by the resync: nothing else is let through"


def test_labels_end_with_their_topic() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    put(cluster, "a", owner="billing")
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    for core in cluster.nodes.values():
        assert not core.catalogue.topics[topic.id].labels
    check_failed(cluster.ask("b", change(owner="x")), Code.NOT_FOUND)
    cluster.crash("a")
    cluster.topic()
    assert read(cluster, "a") == {}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ((m.LabelChange("", "x"),), "a label is named ''"),
        ((m.LabelChange("a\nb", "x"),), "printable"),
        ((m.LabelChange("a", "x"), m.LabelChange("a", None)), "twice"),
        ((m.LabelChange("a", "é" * 513),), "1026 bytes"),
    ],
)
def test_impossible_changes_are_refused_by_name(changes: tuple[m.LabelChange, ...], text: str) -> None:
    cluster = Cluster()
    cluster.topic()
    check_failed(cluster.ask("a", m.LabelsRequest("jobs", changes)), Code.USAGE, text)


def test_the_limits_of_a_topic_and_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.topic()
    most = [f"l{number}" for number in range(limits.LABELS_MAX)]
    put(cluster, "a", **dict.fromkeys(most, "x"))
    check_failed(cluster.ask("b", change(another="x")), Code.TOO_LARGE, "65 labels")
    assert put(cluster, "b", l0=None, another="x")["another"] == "x"
    for first in range(0, 160, 80):
        names = [f"gone{number}" for number in range(first, first + 80)]
        put(cluster, "a", **dict.fromkeys(names))
    names_used = cluster.ask("c", change(**dict.fromkeys([f"more{number}" for number in range(40)])))
    check_failed(names_used, None, "names of labels")
    monkeypatch.setattr(limits, "LABELS_IN_ALL_BYTES_MAX", 2000)
    check_failed(cluster.ask("a", change(l1="x" * 1000)), None, "this cluster")
    assert "l1" not in put(cluster, "a", l1=None), "what makes room is taken"


def test_too_few_nodes_say_whether_it_may_have_happened() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.drop = lambda sender, to, message: sender != to
    assert cluster.ask("a", change(owner="x"), 10).code == Code.TOO_FEW_REPLICAS  # type: ignore[union-attr]
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.PutTopic)
    assert cluster.ask("a", change(owner="x"), 10).code == Code.OUTCOME_UNKNOWN  # type: ignore[union-attr]


LABELS = st.lists(
    st.builds(
        Label,
        st.sampled_from("ab"),
        st.sampled_from([None, "x", "y"]),
        st.builds(Stamp, st.integers(1, 3), st.sampled_from("ab")),
    ),
    max_size=6,
).map(tuple)


@settings(max_examples=60)
@given(LABELS, LABELS)
def test_any_order_of_arrival_ends_alike(one: tuple[Label, ...], other: tuple[Label, ...]) -> None:
    alone: tuple[Label, ...] = ()
    for label in (*one, *other):
        alone = merge_labels(alone, (label,))
    assert alone == merge_labels(merge_labels((), other), one) == merge_labels((), (*one, *other))
    assert list(alone) == sorted({label.name: label for label in alone}.values())
