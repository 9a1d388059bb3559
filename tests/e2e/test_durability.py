"""durability = "os" on real processes: it survives kill -9 of all of them, and no publish waits for an fsync."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from quorumq.core import messages as m
from quorumq.lab.local import LocalCluster
from quorumq.wire.codec import sealed_items
from tests.e2e.raw import Raw, publish, receipts, size_of
from tests.e2e.test_disk import commits
from tests.e2e.test_faulty_disk import address
from tests.node.test_process import until, write_config

HANGING = """
import os, runpy, sys, time
flag, sync = sys.argv.pop(1), os.fdatasync
def fdatasync(fd):
    while os.path.exists(flag):
        time.sleep(0.01)
    sync(fd)
os.fdatasync = fdatasync
runpy.run_module("quorumq.node", run_name="__main__", alter_sys=False)
"""


def test_what_was_confirmed_survives_kill_9_of_all_nodes(own: LocalCluster) -> None:
    """docs/protocol.md, G1."""
    with Raw(own.addresses[0]) as raw:
        topic = raw.topic("jobs", durability="os", partitions=3)
        origin = raw.session()
        asked = [
            raw.send(publish(topic, origin, seq, [b"%d/%d" % (partition, seq)], partition))
            for seq in range(100)
            for partition in range(3)
        ]
        for number in asked:
            assert isinstance(raw.receive(number), m.PublishReply)
        for name in own.nodes:  # within a second: not all of it was synced
            own.kill(name)
    own.start_all()
    got: list[bytes] = []
    end = time.monotonic() + 20
    with Raw(own.addresses[1]) as raw:
        while len(got) < 300 and time.monotonic() < end:
            reply = raw.fetch("jobs", "g", max_wait=0.2)
            if isinstance(reply, m.FetchReply):
                got += [message.payload for part in reply.slices for message in part.messages()]
                raw.ack(*receipts(reply))
    assert sorted(got) == sorted(b"%d/%d" % (partition, seq) for seq in range(100) for partition in range(3))


def test_publishes_one_after_the_other_cost_an_fsync_a_second_and_not_each(own: LocalCluster) -> None:
    """docs/protocol.md, section 7. With "fsync", a publish that waits for the last one costs each replica an fsync."""
    with Raw(own.addresses[0]) as raw:
        origin = raw.session()
        spent = {}
        for durability in ("fsync", "os"):
            topic = raw.topic(durability, durability=durability)
            time.sleep(2.5)  # what is not ours is synced by then
            before, began = commits(own), time.monotonic()
            for seq in range(200):
                assert isinstance(raw.publish(topic, origin, seq, [b"x" * 100]), m.PublishReply)
            seconds = time.monotonic() - began
            spent[durability] = min(count - before[name] for name, count in commits(own).items())
            if durability == "os":  # the clock's reserve, positions of peers and heartbeats may add one each
                assert spent[durability] <= 4 + 3 * seconds, (spent, seconds)
        assert spent["fsync"] > 100 > spent["os"], spent


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_publishes_are_confirmed_while_an_fsync_hangs(tmp_path: Path, durability: str) -> None:
    path = write_config(tmp_path, auto_create_topics="true")
    path.write_text(path.read_text().replace('"true"', "true"))
    flag = tmp_path / "hang"
    command = [sys.executable, "-c", HANGING, str(flag), "--config", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(process, "node_started")
        with Raw(address(path), timeout=3.0) as raw:
            topic = raw.topic("jobs", rf=1, durability=durability)
            origin = raw.session()
            assert isinstance(raw.publish(topic, origin, 0, [b"first"]), m.PublishReply)
            given = receipts(raw.fetch("jobs", "g"))
            flag.touch()
            acked = raw.send(m.AckRequest(sealed_items(given)))
            numbers = [raw.send(publish(topic, origin, seq, [b"x"])) for seq in range(1, 50)]
            if durability == "os":
                for number in numbers:
                    assert isinstance(raw.receive(number), m.PublishReply)
                assert size_of(raw.fetch("jobs", "g")) == 49
            assert not raw.replies
            with pytest.raises(TimeoutError):
                raw.receive(acked)
    finally:
        flag.unlink(missing_ok=True)
        process.terminate()
        assert process.wait(20) == 0
