"""If a node's directory is lost or replaced by an old copy, it resyncs by itself (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quorumq.cli.status import cluster_report
from quorumq.core import messages as m
from quorumq.core.messages.records import RecordsMerged
from quorumq.core.values.types import Death, Stamp
from quorumq.lab.local import LocalCluster
from quorumq.storage.records import TYPE_OF
from tests.core.steps import outcomes
from tests.e2e.nodes import data_of, publish, status_when
from tests.e2e.raw import Raw, size_of
from tests.patience import PATIENCE_S, until
from tests.storage.samples import record_headers

DEATHS = 12
LONG = Death(Stamp(0, ""), "rejected", "Error", "🐇" * 8_192, stack="🐇" * 8_192, host="h" * 16_000)


def dead(status: dict[str, Any]) -> int:
    """Return the number of dead letters at a node."""
    groups = [part["groups"].get("g", {}) for part in status["partitions"] if part["topic"] == "letters"]
    return sum(group.get("settled", 0) for group in groups)


def test_a_wiped_node_comes_back_by_itself_and_an_old_copy_does_too() -> None:
    with LocalCluster(3, hold_time_max=5.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            topic = client.topic("jobs")
            publish(client, topic, 20)
            shutil.copytree(data_of(cluster, "n2"), cluster.directory / "backup")
            got = client.take("jobs", "g", 5, hold_time=5.0)
            assert set(outcomes(client.ack(*got))) == {"acked"}
            publish(client, client.topic("letters"), DEATHS)
            for _ in range(DEATHS):
                dying = tuple(client.take("letters", "g", 1, hold_time=5.0))
                assert outcomes(client.ask(m.RejectRequest(dying, 0.0, LONG))) == ["ok"]
        for round_ in range(2):
            cluster.kill("n2")
            shutil.rmtree(data_of(cluster, "n2"))
            if round_:
                shutil.copytree(cluster.directory / "backup", data_of(cluster, "n2"))
                (cluster.directory / "backup" / "LOCK").unlink(missing_ok=True)
            with Raw(cluster.address("n1")) as client:
                publish(client, topic, 5)
            cluster.start("n2")
            cluster.wait_ready(quarantine=True)
            status = status_when(cluster, "n2", lambda fields: dead(fields) == DEATHS)
            assert status["trusted"], status
            assert status["incarnation"] > 1 + round_
            assert all(cluster.running(name) for name in cluster.nodes), "deaths that fit no frame ended them"
            with Raw(cluster.address("n2")) as client:
                publish(client, topic, 5)
        with Raw(cluster.address("n3")) as client:
            client.drain("jobs", "g", 35)  # with what was published through the node that was wiped


@pytest.mark.soak
def test_a_directory_that_was_copied_waits_for_all_others_or_for_an_operator() -> None:
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            publish(client, client.topic("jobs"), 20)
        for word in ("asks", "told"):
            cluster.kill("n2")
            cluster.kill("n3")
            data = data_of(cluster, "n2")
            shutil.copytree(data, f"{data}.copy")
            shutil.rmtree(data)
            shutil.move(f"{data}.copy", data)
            cluster.start("n2")
            status = status_when(cluster, "n2", lambda fields: fields["peers"]["n1"]["up"])
            assert not status["trusted"]
            assert "still missing n3." in status["moved"]
            assert any(
                "still missing n3." in problem for problem in cluster_report(cluster.addresses)["problems"]
            )
            if word == "told":
                assert cluster.terminate("n2") == 0
                command = [sys.executable, "-m", "quorumq", "serve", "--directory-is-newest", "--config"]
                process = subprocess.Popen([*command, str(cluster.config_path("n2"))])
                try:
                    status = status_when(cluster, "n2", lambda fields: fields["trusted"])
                    assert "operator" in status["placed"]
                finally:
                    process.terminate()
                    assert process.wait(PATIENCE_S) == 0
                cluster.start("n2")
            cluster.start("n3")
            cluster.wait_ready(quarantine=True)
            assert cluster.status("n2")["trusted"]
        log = cluster.log_path("n2").read_text()
        assert log.count("directory_trusted") == 1
        assert "resync_begins" not in log


def settled(status: dict[str, Any]) -> int:
    """Return the number of settled messages at a node, of the one group of the one partition."""
    (partition,) = status["partitions"]
    return partition["groups"].get("g", {}).get("settled", 0)


def tombstones_in(segment: Path) -> list[int]:
    """Return the offsets of records of settled messages."""
    return [at for type_, at in record_headers(segment.read_bytes()) if type_ == TYPE_OF[RecordsMerged]]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x55]))


@pytest.mark.soak
def test_a_node_whose_journal_was_damaged_comes_back_by_itself() -> None:
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            topic = client.topic("jobs")
            publish(client, topic, 20)
            for _ in range(5):
                assert set(outcomes(client.ack(*client.take("jobs", "g", 1)))) == {"acked"}
        segment = max(Path(data_of(cluster, "n2")).glob("*.journal"))
        # Two others may have made the majority: it may be late, and get all of them at once.
        status_when(cluster, "n2", lambda fields: settled(fields) == 5)
        until(lambda: tombstones_in(segment), "what it has heard of is on its disk")
        tombstones = tombstones_in(segment)
        cluster.kill("n2")
        flip(segment, tombstones[len(tombstones) // 2] + 5)
        cluster.kill("n3")
        cluster.start("n2")
        status = status_when(cluster, "n2", lambda fields: "from 1 more replicas" in fields["resync"])
        assert not status["trusted"], "one of the two others is not enough"
        assert "is damaged" in status["resync"], status
        cluster.start("n3")
        cluster.wait_ready(quarantine=True)
        status = cluster.status("n2")
        assert (status["trusted"], status["resync"]) == (True, "")
        assert settled(status) == 5
        log = cluster.log_tail("n2", 200)
        assert "directory_damaged" in log
        assert "resync_over" in log
        with Raw(cluster.address("n2")) as client:
            publish(client, topic, 5)
            client.drain("jobs", "g", 20)
            assert size_of(client.fetch("jobs", "g", 100, max_wait=0.5)) == 0
        cluster.kill("n2")
        cluster.start("n2")
        cluster.wait_ready(quarantine=True)
        assert cluster.log_tail("n2", 400).count("directory_damaged") == 1, "its directory is trusted again"


@pytest.mark.soak
def test_messages_without_a_disk_are_lost_until_a_disk_returns() -> None:
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            topic = client.topic("jobs")
            producer_id = client.session()
            client.publish(topic, producer_id, 0, [b"the one that is lost"])
            publish(client, topic, 3)
        status_when(cluster, "n3", lambda fields: fields["partitions"][0]["messages"] == 4)
        for name in cluster.nodes:
            cluster.terminate(name)
        shutil.move(data_of(cluster, "n3"), cluster.directory / "kept")
        for name in ("n1", "n2"):
            (segment,) = Path(data_of(cluster, name)).glob("*.journal")
            flip(segment, segment.read_bytes().index(b"the one that is lost"))
        for name in cluster.nodes:
            cluster.start(name)
        cluster.wait_ready(quarantine=True)
        for name in ("n1", "n2"):
            fields = status_when(cluster, name, lambda fields: fields["partitions"][0]["lost"] == 1)
            assert fields["damaged_batches"] == 1
        (problem,) = [
            text for text in cluster_report([cluster.address("n1")])["problems"] if "no replica has" in text
        ]
        assert "1 message of 'jobs'" in problem
        status_when(cluster, "n3", lambda fields: fields["partitions"][0]["messages"] == 3)
        with Raw(cluster.address("n3")) as client:
            client.take("jobs", "g", 3)  # the others are delivered
        cluster.terminate("n3")
        shutil.rmtree(data_of(cluster, "n3"))
        shutil.move(cluster.directory / "kept", data_of(cluster, "n3"))
        cluster.start("n3")
        for name in ("n1", "n2"):
            status_when(
                cluster,
                name,
                lambda fields: fields["damaged_batches"] == 0 and fields["partitions"][0]["messages"] == 4,
            )
            status_when(cluster, name, lambda fields: fields["partitions"][0]["lost"] == 0)
            until(
                lambda name=name: cluster.log_tail(name, 400).count("messages_lost") >= 2,
                lambda name=name: cluster.log_tail(name, 400),
            )
