"""`quorumq export`: the contents of a data directory, line by line, also of a damaged one."""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import json
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.core import messages as m
from quorumq.core.messages.records import BatchStored, ClusterPut, DirectoryMade, RecordsMerged, TopicPut
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import Death, Now, PartitionId, Stamp
from quorumq.storage.disk import RealDisk
from quorumq.storage.journal import Journal
from quorumq.storage.offline import OfflineDirectory, ReadOnlyDisk
from quorumq.storage.records import BATCH_MOVED, BATCH_STORED, TYPE_OF
from quorumq.wire.batch import Message, build_batch
from tests.client.steps import in_a_thread
from tests.core.cluster import Cluster
from tests.core.growing import GrowingCluster
from tests.core.steps import fetch, outcomes, receipts
from tests.storage.samples import DIRECTORY, copy_out, record_headers
from tests.storage.writer import compacted, flips, frames_in, worn

DEATH = Death(Stamp(1, "a"), "rejected", "ValueError", "no", "", "", 1, 0, 0, 0, 0, "", "", "", "")


class Done(NamedTuple):
    code: int
    lines: list[dict[str, Any]]
    err: str


def export(path: Path, *arguments: str) -> Done:
    result = CliRunner().invoke(main, ["export", "--data", str(path), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr)


def write(cluster: Cluster, name: str, path: Path, segment_bytes: int = 1 << 20) -> Path:
    """A data directory with the journal that a node of the cluster has."""
    store = Journal.open(
        RealDisk(path),
        node=name,
        cluster_id="cluster",
        new_directory_id=lambda: DIRECTORY,
        segment_bytes=segment_bytes,
    )
    list(store.replayed)
    store.roll([])
    store.commit()
    written = []
    for record in cluster.journals[name]:
        if isinstance(record, DirectoryMade):
            continue
        store.append([record])
        written += [] if isinstance(record, BatchStored) else [record]
        store.commit()
        if store.should_roll:
            store.roll(list(written))
            store.commit()
    store.drop(cluster.dropped[name])
    store.commit()
    store.close()
    return path


def publish(cluster: Cluster, messages: list[Message], name: str = "jobs") -> None:
    topic = cluster.nodes["a"].topic_named(name) or cluster.topic(name)
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", m.Publish(build_batch(PartitionId(topic.id, 0), producer_id, 0, 1000, messages)))


def payloads(done: Done) -> list[str]:
    return [line["payload"] for line in done.lines]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(hold_time_max=10.0)
    publish(cluster, [Message(b"%d" % number) for number in range(6)])
    one, two, *_ = [receipts(cluster.ask("a", fetch(most=1))) for _ in range(3)]
    assert outcomes(cluster.ask("a", m.AckRequest(one))) == ["acked"]
    cluster.ask("a", m.RejectRequest(two, 0.0, DEATH))
    cluster.ask("b", m.SetGroup("jobs", "late", "latest"))
    cluster.advance(5.0)
    return cluster


def test_every_message_is_a_line_with_what_each_group_makes_of_it(cluster: Cluster, tmp_path: Path) -> None:
    done = export(write(cluster, "b", tmp_path / "b"))
    assert (done.code, payloads(done)) == (0, ["0", "1", "2", "3", "4", "5"])
    assert done.err == "6 messages of node b of cluster cluster\n"
    assert [line["groups"]["g"] for line in done.lines] == ["acked", "dead", "open", "open", "open", "open"]
    assert {line["groups"]["late"] for line in done.lines} == {"skipped"}
    first = done.lines[0]
    assert set(first) == {"id", "topic", "partition", "published_ms", "key", "headers", "payload", "groups"}
    assert (first["topic"], first["partition"], first["published_ms"]) == ("jobs", 0, 1000)
    assert len({line["id"] for line in done.lines}) == 6


def test_acked_messages_are_left_out(cluster: Cluster, tmp_path: Path) -> None:
    path = write(cluster, "a", tmp_path / "a")
    assert payloads(export(path, "--group", "g")) == ["1", "2", "3", "4", "5"]
    assert payloads(export(path, "--group", "late")) == []
    cluster.ask("a", m.PurgeRequest("jobs", 0, "g"))
    assert payloads(export(write(cluster, "a", tmp_path / "purged"), "--group", "g")) == ["1"]
    cluster.advance(60.0)
    cluster.ask("a", m.SetGroup("jobs", "g", "earliest", rewind=True))
    assert len(payloads(export(write(cluster, "a", tmp_path / "rewound"), "--group", "g"))) == 6


def test_the_program_of_the_page_publishes_each_message_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(hold_time_max=10.0)
    headers = {"text": "ü", "bytes": b"\xff\x00", "none": None}
    messages = [Message(b"one", key=b"k", headers=headers), Message(b"\xff", key=b"\xfe"), Message(b"")]
    publish(cluster, messages)
    lines = [
        json.dumps(line) for name in "ab" for line in export(write(cluster, name, tmp_path / name)).lines
    ]
    program = (Path(__file__).parents[2] / "docs" / "examples" / "republish.py").read_text()
    with in_a_thread() as client:
        monkeypatch.setattr("quorumq.client.blocking.connect", lambda addresses: nullcontext(client))
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        exec(compile(program, "docs/examples/republish.py", "exec"), {"__name__": "x"})
        received = client.fetch("jobs", "g", max_wait=5.0, min_messages=3)
        assert client.fetch("jobs", "g") == []
    assert capsys.readouterr().out == "published 3 messages\n"
    assert sorted((it.payload, it.key, it.headers) for it in received) == sorted(
        (it.payload, it.key, dict(it.headers)) for it in messages
    )


def test_keys_headers_and_payloads_of_any_bytes_come_out_as_they_were(tmp_path: Path) -> None:
    cluster = Cluster(hold_time_max=10.0)
    big = bytes(range(256)) * 3600
    headers = {"text": "ü", "bytes": b"\xff\x00", "int": -3, "float": 0.5, "bool": True, "none": None}
    publish(
        cluster,
        [Message("größe".encode(), key=b"k", headers=headers), Message(big, key=b"\xff"), Message(b"")],
    )
    done = export(write(cluster, "c", tmp_path / "c"))
    text, large, empty = done.lines
    assert (text["payload"], text["key"]) == ("größe", "k")
    assert text["headers"] == {**headers, "bytes": {"base64": base64.b64encode(b"\xff\x00").decode()}}
    assert base64.b64decode(large["payload_base64"]) == big
    assert base64.b64decode(large["key_base64"]) == b"\xff"
    assert (empty["payload"], empty["key"], empty["headers"]) == ("", None, {})


def test_topics_are_chosen_by_name_or_id_without_deleted_ones(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.ask("a", m.CreateTopic("other")).topic  # type: ignore[union-attr]
    publish(cluster, [Message(b"x")], "other")
    path = write(cluster, "a", tmp_path / "a")
    assert payloads(export(path, "--topic", "other")) == ["x"]
    assert payloads(export(path, "--topic", other.id.hex())) == ["x"]
    assert len(export(path).lines) == 7
    wrong = export(path, "--topic", "othr")
    assert (wrong.code, wrong.lines) == (66, [])
    assert "there is no topic 'othr'" in wrong.err
    assert "jobs, other" in wrong.err
    wrong = export(path, "--group", "h")
    assert wrong.code == 66
    assert "no group 'h'" in wrong.err
    cluster.ask("a", m.DeleteTopic("jobs", cluster.nodes["a"].topic_named("jobs").id))  # type: ignore[union-attr]
    path = write(cluster, "a", tmp_path / "deleted")
    assert payloads(export(path)) == ["x"]
    assert export(path, "--topic", "jobs").code == 66


def test_a_directory_of_nothing_or_in_use_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = export(empty)
    assert done.code == 64
    assert "has no journal segment" in done.err
    assert list(empty.iterdir()) == []
    assert export(tmp_path / "nowhere").code == 2
    (empty / f"{1:012d}.journal").write_bytes(b"not a journal at all")
    done = export(empty)
    assert done.code == 74
    assert "no segment begins with a record that can be read" in done.err
    path = write(cluster, "a", tmp_path / "a")
    with (path / "LOCK").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = export(path)
        assert done.code == 74
        assert "stop it first" in done.err
    assert export(path).code == 0


def test_a_node_that_wrote_nothing_but_its_start_has_no_messages(tmp_path: Path) -> None:
    done = export(write(Cluster(), "a", tmp_path))
    assert (done.code, done.lines) == (0, [])
    assert "0 messages of node a" in done.err


def test_the_directory_is_not_changed_and_may_be_read_only(cluster: Cluster, tmp_path: Path) -> None:
    path = write(cluster, "a", tmp_path / "a", 512)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
    for file in path.iterdir():
        file.chmod(0o400)
    path.chmod(0o500)
    try:
        assert len(export(path).lines) == 6
    finally:
        path.chmod(0o700)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()} == before
    (path / "LOCK").unlink()
    assert len(export(path).lines) == 6
    assert not (path / "LOCK").exists()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(data)


def segment(path: Path) -> Path:
    return max(path.glob("*.journal"), key=lambda file: file.stat().st_size)


def test_a_damaged_batch_is_read_except_for_the_damaged_message(cluster: Cluster, tmp_path: Path) -> None:
    publish(cluster, [Message(b"before"), Message(b"damaged"), Message(b"behind")])
    path = write(cluster, "a", tmp_path / "a")
    file = segment(path)
    flip(file, file.read_bytes().index(b"damaged"))
    done = export(path)
    assert done.code == 74
    assert payloads(done) == ["0", "1", "2", "3", "4", "5", "before", "behind"]
    assert "CRC-32C of the record" in done.err
    assert "1 message cannot be read. What could be read was written" in done.err


def offset_of(path: Path, kind: type) -> int:
    """Return the offset of the last record of a type in the largest segment."""
    offsets = [at for number, at in record_headers(segment(path).read_bytes()) if number == TYPE_OF[kind]]
    return offsets[-1]


def test_past_damage_everything_is_read_that_can_be(cluster: Cluster, tmp_path: Path) -> None:
    path = write(cluster, "a", tmp_path / "a")
    flip(segment(path), offset_of(path, RecordsMerged) + 3)
    done = export(path)
    assert done.code == 74
    assert payloads(done) == ["0", "1", "2", "3", "4", "5"]
    assert "is damaged at byte" in done.err
    assert "What could be read was written" in done.err


def test_a_topic_without_its_name_is_listed_by_its_id(cluster: Cluster, tmp_path: Path) -> None:
    path = write(cluster, "a", tmp_path / "a")
    topic = cluster.nodes["a"].topic_named("jobs")
    assert topic is not None
    file = segment(path)
    for number, at in record_headers(file.read_bytes()):
        if number == TYPE_OF[TopicPut]:
            flip(file, at + 3)
    done = export(path)
    assert done.code == 74
    assert {line["topic"] for line in done.lines} == {topic.id.hex()}
    assert payloads(done) == ["0", "1", "2", "3", "4", "5"]
    assert done.lines[0]["groups"]["g"] == "acked"
    assert payloads(export(path, "--topic", topic.id.hex(), "--group", "g")) == ["1", "2", "3", "4", "5"]


def test_a_sector_that_cannot_be_read_costs_the_messages_in_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cluster, [Message(b"before"), Message(b"x" * 10_000), Message(b"behind")])
    path = write(cluster, "a", tmp_path / "a")
    bad = segment(path).read_bytes().index(b"x" * 10_000) + 5_000
    read = ReadOnlyDisk.read

    def failing(self: ReadOnlyDisk, name: str, offset: int, length: int) -> bytes:
        if name == segment(path).name and offset <= bad < offset + length:
            raise OSError(errno.EIO, "Input/output error")
        return read(self, name, offset, length)

    monkeypatch.setattr(ReadOnlyDisk, "read", failing)
    done = export(path)
    assert done.code == 74
    assert payloads(done) == ["0", "1", "2", "3", "4", "5", "before", "behind"]
    assert "Input/output error" in done.err


def test_messages_of_overlapping_batches_come_once(tmp_path: Path) -> None:
    cluster = Cluster(hold_time_max=10.0)
    topic = cluster.topic()
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    first, second = (
        cluster.batch(topic, producer_id, start, [b"%d" % (start + at) for at in range(4)])
        for start in (0, 2)
    )
    for batch in (first, second):
        assert isinstance(cluster.ask("a", m.Publish(batch)), m.PublishReply)
    path = write(cluster, "a", tmp_path / "a")
    assert payloads(export(path)) == ["0", "1", "2", "3", "4", "5"]
    file = segment(path)
    flip(file, file.read_bytes().index(bytes(first.body)) + len(first.body) - 1)
    done = export(path)
    assert sorted(payloads(done)) == ["0", "1", "2", "3", "4", "5"], (
        "what one of them lost, the other one has"
    )


def test_two_may_read_at_once(cluster: Cluster, tmp_path: Path) -> None:
    path = write(cluster, "a", tmp_path / "a")
    with OfflineDirectory(path, Now(0.0, 0)) as one, OfflineDirectory(path, Now(0.0, 0)) as other:
        assert [message.seq for message in one.messages()] == [message.seq for message in other.messages()]
        with pytest.raises(StorageError, match="in use by another"):
            Journal.open(path, node="a", cluster_id="cluster")
    Journal.open(path, node="a", cluster_id="cluster").abandon()


@pytest.mark.parametrize("every", [41, pytest.param(3, marks=pytest.mark.soak)])
def test_a_worn_directory_with_any_byte_damaged_gives_its_live_messages(tmp_path: Path, every: int) -> None:
    """Segments of several ages, batches forgotten and moved; nothing that was forgotten may be missed."""
    writer = worn()
    copy_out(writer.disk, tmp_path)
    live = set(writer.live())
    done = export(tmp_path)
    assert done.code == 0
    assert {int(line["payload"].split()[1]) for line in done.lines} == live
    assert len(done.lines) == len(live)
    for name, offset in flips(writer.disk, every):
        flip(tmp_path / name, offset)
        done = export(tmp_path)
        there = {int(line["payload"].split()[1]) for line in done.lines}
        assert len(there) == len(done.lines)
        assert live <= there or done.code == 74 or "where the last write was torn" in done.err
        flip(tmp_path / name, offset)


def test_a_damaged_copy_gives_way_to_what_it_was_copied_from(tmp_path: Path) -> None:
    writer = compacted()
    writer.append(2)
    writer.commit()
    writer.append(2)
    writer.commit()
    writer.store.abandon()
    copy_out(writer.disk, tmp_path)
    file = max(tmp_path.glob("*.journal"))
    (moved,) = [frame for frame in frames_in(file) if frame.type == BATCH_MOVED]
    flip(file, file.read_bytes().index(b"payload", moved.offset))
    assert {int(line["payload"].split()[1]) for line in export(tmp_path).lines} == set(writer.live())


def test_memory_does_not_grow_with_what_is_in_the_directory(tmp_path: Path) -> None:
    cluster = Cluster(hold_time_max=10.0)
    topic = cluster.topic(rf=1)
    (home,) = topic.replicas[0]
    for _ in range(40):
        publish(cluster, [Message(b"x" * (1 << 19))] * 2)
    path = write(cluster, home, tmp_path / "a", 8 << 20)
    assert sum(frame.type == BATCH_STORED for frame in frames_in(segment(path))) > 5
    del cluster
    tracemalloc.start()
    with OfflineDirectory(path, Now(0.0, 0)) as directory:
        count = sum(1 for _ in directory.messages())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 80
    assert peak < 8 << 20, f"{peak} bytes for 40 MiB"


@pytest.mark.parametrize("lost", [False, True])
def test_the_directory_of_a_node_that_was_added_is_read(tmp_path: Path, lost: bool) -> None:
    cluster = GrowingCluster(3, hold_time_max=10.0)
    cluster.add("d")
    topic = cluster.topic(rf=1, partitions=8)
    number = topic.replicas.index(("d",))
    producer_id = cluster.ask("a", m.OpenSession()).producer_id
    reply = cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], number)))
    assert isinstance(reply, m.PublishReply)
    if lost:
        cluster.journals["d"] = [it for it in cluster.journals["d"] if not isinstance(it, ClusterPut)]
    with OfflineDirectory(write(cluster, "d", tmp_path / "d"), Now(0.0, 0)) as directory:
        assert directory.node == "d"
        assert [stored.message.payload for stored in directory.messages() if stored.message] == [b"x"]
