"""Two of three data directories are lost: the rest is declared, and every message is read (docs/operations.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.cli.status import cluster_report
from quorumq.lab.local import LocalCluster
from tests.core.steps import outcomes
from tests.e2e.manual import run
from tests.e2e.nodes import data_of, publish, status_when
from tests.e2e.raw import Raw


@pytest.fixture
def emptied() -> LocalCluster:
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            topic = client.topic("jobs")
            publish(client, topic, 50)
            got = client.take("jobs", "g", 10)
            assert set(outcomes(client.ack(*got))) == {"acked"}
        for name in ("n2", "n3"):
            status_when(cluster, "n1", lambda fields: fields["partitions"][0]["groups"]["g"]["settled"] == 10)
            cluster.kill(name)
            shutil.rmtree(data_of(cluster, name))
        yield cluster  # type: ignore[misc]


def test_the_survivor_is_declared_and_every_message_is_read(emptied: LocalCluster) -> None:
    cluster = emptied
    refused = run(cluster, "survivors", "declare", "--yes")
    assert refused.exit_code == 75
    assert "nothing was declared: nodes n2, n3 cannot be reached" in refused.stderr
    for name in ("n2", "n3"):
        cluster.start(name)
    for name in ("n2", "n3"):
        status_when(cluster, name, lambda fields: "is not trusted either" in fields["resync"])
    assert any(
        "`quorumq survivors declare`" in text for text in cluster_report(cluster.addresses)["problems"]
    )

    plan = run(cluster, "survivors", "declare", "--dry-run")
    assert plan.exit_code == 0, plan.stderr
    assert "left: n1\n" in plan.stdout
    assert "messages, acks and dead letters in jobs/0" in plan.stdout
    aborted = CliRunner().invoke(main, ["survivors", "declare", "--node", cluster.address("n1")], input="n\n")
    assert aborted.exit_code == 1
    assert "declare that n1 is all there is?" in aborted.stderr
    assert not cluster.status("n2")["trusted"]

    done = run(cluster, "survivors", "declare", "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    fields = json.loads(done.stdout)
    assert (fields["survivors"], fields["declared"], fields["waiting"]) == (["n1"], True, [])
    assert [item["node"] for item in fields["learners"]] == ["n2", "n3"]
    assert (fields["may_lack"], fields["begin_empty"]) == (["jobs/0"], [])
    again = run(cluster, "survivors", "declare", "--yes")
    assert again.exit_code == 64
    assert "nothing has to be declared" in again.stderr

    cluster.wait_ready(quarantine=True)
    with Raw(cluster.address("n2")) as client:
        client.drain("jobs", "g", 40)  # and not what was acked
        publish(client, client.topic("jobs"), 5)


def test_messages_are_read_out_of_what_is_left_and_published_again(emptied: LocalCluster) -> None:
    directory = data_of(emptied, "n1")
    running = run(emptied, "export", "--data", directory)
    assert running.exit_code == 74
    assert "is in use by a node" in running.stderr
    emptied.terminate("n1")  # its last news is on its disk then, however slow that is
    done = run(emptied, "export", "--data", directory, "--topic", "jobs", "--group", "g")
    assert done.exit_code == 0, done.stderr
    assert {json.loads(line)["payload"] for line in done.stdout.splitlines()} == {
        str(number) for number in range(50)
    } - {str(number) for number in range(10)}

    script = Path(__file__).parents[2] / "docs" / "examples" / "republish.py"
    with LocalCluster(1) as other:
        command = [sys.executable, str(script), *other.addresses]
        again = subprocess.run(command, input=2 * done.stdout, capture_output=True, text=True, check=True)
        assert again.stdout == "published 40 messages\n"
        read = run(other, "consume", "jobs", "--group", "g", "--max", "40")
        assert sorted(read.stdout.split(), key=int) == [str(number) for number in range(10, 50)]
