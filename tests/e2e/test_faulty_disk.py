"""A disk that fails to sync, and one that is full, under real processes: the answers to clients, and the end.

The failing disk is the process's own `fdatasync`, which fails while a file exists. The full one is a small tmpfs, where
the tests may mount one.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumq.core import messages as m
from quorumq.core.values.types import STAMP_ZERO, Death, Span
from quorumq.storage.records import BATCH_STORED
from quorumq.wire.codec import signed_items
from quorumq.wire.values import SignedNamed
from tests import patience
from tests.core.steps import outcomes
from tests.e2e.raw import Raw, publish, receipts, size_of
from tests.node.programs import address, start, until, write_config
from tests.patience import PATIENCE_S
from tests.storage.writer import frames_in

KIB, MIB = 1024, 1024 * 1024

FAILING = """
import errno, os, runpy, sys
flag, sync = sys.argv.pop(1), os.fdatasync
def fdatasync(fd):
    if os.path.exists(flag):
        raise OSError(errno.EIO, "Input/output error")
    sync(fd)
os.fdatasync = fdatasync
runpy.run_module("quorumq.node", run_name="__main__", alter_sys=False)
"""


def test_after_a_failed_fsync_no_answer_is_sent_and_the_process_ends(tmp_path: Path) -> None:
    """docs/protocol.md, G1: nothing is said to be durable that may not be, and the node stops."""
    path = write_config(tmp_path, auto_create_topics="true")
    path.write_text(path.read_text().replace('"true"', "true"))
    flag = tmp_path / "fail"
    command = [sys.executable, "-c", FAILING, str(flag), "--config", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(process, "node_started")
        with Raw(address(path)) as raw:
            topic = raw.topic("jobs", rf=1)
            producer_id = raw.session()
            assert isinstance(raw.publish(topic, producer_id, 0, [b"first"]), m.PublishReply)
            flag.touch()
            others = [Raw(address(path)) for _ in range(3)]
            asked = [
                (other, other.send(publish(topic, producer_id, seq, [b"never confirmed"])))
                for seq, other in enumerate((raw, *others), start=1)
            ]
            for other, number in asked:  # no answer, not even an error: the state of the disk is unknown
                with pytest.raises(ConnectionError):
                    other.receive(number)
                other.sock.close()
        assert process.wait(PATIENCE_S) == 74
        assert process.stderr is not None
        text = process.stderr.read()
        assert "nothing since then is reported durable" in text
        assert "Traceback" not in text
    finally:
        process.kill()
        process.wait()
    flag.unlink()
    stored = {
        frame.offset
        for segment in (tmp_path / "data").glob("*.journal")
        for frame in frames_in(segment)
        if frame.type == BATCH_STORED
    }
    assert stored, "what was confirmed is there"
    again = start(path)
    try:
        until(again, "node_started")
    finally:
        again.terminate()
        assert again.wait(PATIENCE_S) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    location = tmp_path / "disk"
    location.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(location)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield location
    subprocess.run(["umount", "-l", str(location)], check=True)


def test_a_full_disk_refuses_publishes_takes_acks_and_gives_space_back(
    small_disk: Path, tmp_path: Path
) -> None:
    """docs/protocol.md, section 6: `StorageFull` refuses publishes; ACK and FETCH go on."""
    path = write_config(
        tmp_path, data_dir=str(small_disk / "data"), segment_bytes=4 * MIB, disk_reserve_bytes=12 * MIB
    )
    node = start(path)
    try:
        until(node, "node_started")
        with Raw(address(path)) as raw:
            topic = raw.topic("jobs", rf=1)
            producer_id = raw.session()
            published, refused = fill(raw, topic, producer_id)
            assert published > 10_000
            assert refused.code == "storage-full"
            assert "let consumers ack" in refused.detail
            acked = 0
            while acked < 10_000:  # each in a request of its own
                asked = [
                    raw.send(m.AckRequest(signed_items([one])))
                    for one in singles(raw.fetch("jobs", "g", most=500, hold_time=60.0))
                ]
                assert [outcomes(raw.receive(number)) for number in asked] == [["acked"]] * len(asked)
                acked += len(asked)
            while acked < published:
                reply = raw.fetch("jobs", "g", most=500, hold_time=60.0)
                raw.ack(*receipts(reply))
                acked += size_of(reply)
            more = [bytes(2 * KIB)] * 100
            patience.until(
                lambda: not isinstance(raw.publish(topic, producer_id, published, more), m.Failed),
                "room comes back when everything is acked",
            )
    finally:
        node.terminate()
        assert node.wait(PATIENCE_S) == 0


@pytest.mark.soak
def test_dead_letters_on_a_full_disk_end_no_node(small_disk: Path, tmp_path: Path) -> None:
    """The reserve is for acks: other requests do not use it (docs/protocol.md, DISK SPACE)."""
    path = write_config(
        tmp_path,
        data_dir=str(small_disk / "data"),
        segment_bytes=4 * MIB,
        disk_reserve_bytes=8 * MIB,
        hold_time_max=5,
    )
    node = start(path)
    try:
        until(node, "node_started")
        with Raw(address(path)) as raw:
            topic = raw.topic("jobs", rf=1)
            producer_id = raw.session()
            raw.fetch("jobs", "g", most=1, hold_time=0.1)
            fill(raw, topic, producer_id)
            death = Death(STAMP_ZERO, "rejected", "ValueError", "m" * 8000, "s" * 8000, "f" * 32)
            for _ in range(30):
                for one in singles(raw.fetch("jobs", "g", most=50, hold_time=5.0)):
                    number = raw.send(m.RejectRequest(signed_items([one]), 0.0, death))
                    assert outcomes(raw.receive(number))[0] in ("ok", "storage-full", "hold-lost")
            ballast = small_disk / "ballast"
            with ballast.open("wb") as file, contextlib.suppress(OSError):
                while True:  # another consumer takes the rest
                    file.write(bytes(64 * KIB))
            for one in singles(raw.fetch("jobs", "g", most=50, hold_time=5.0)):
                (outcome,) = outcomes(raw.ack(one))
                assert outcome.startswith("acked") or outcome == "storage-full"
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
        node = start(path)
        until(node, "node_started")
        ballast.unlink()
        with Raw(address(path)) as raw:

            def served() -> bool:
                reply = raw.fetch("jobs", "g", most=50, hold_time=5.0)
                if not isinstance(reply, m.FetchReply) or not size_of(reply):  # it is in quarantine
                    return False
                assert set(outcomes(raw.ack(*receipts(reply)))) == {"acked"}
                return True

            patience.until(served, "it serves again once there is room")
    finally:
        node.terminate()
        assert node.wait(PATIENCE_S) == 0


def singles(reply: m.FetchReply) -> list[SignedNamed]:
    """Each message of a Fetched, to be acked on its own."""
    return [
        SignedNamed(delivery.signed, (Span(span.producer_id, seq, seq + 1),))
        for part in reply.slices
        for delivery in part.deliveries
        for span in [delivery.receipt.span]
        for seq in range(span.start, span.stop)
    ]


def fill(raw: Raw, topic: object, producer_id: object) -> tuple[int, m.Failed]:
    """Publish until it is refused: how many messages were taken, and the refusal."""
    published = 0
    while True:
        reply = raw.publish(topic, producer_id, published, [bytes(2 * KIB)] * 100)  # type: ignore[arg-type]
        if isinstance(reply, m.Failed):
            return published, reply
        published += 100
