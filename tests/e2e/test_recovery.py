"""A node that was killed is back in service at once, as its peers tell it their holds (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import time

from quorumq.core import messages as m
from quorumq.lab.local import LocalCluster
from tests.e2e.raw import Raw, outcomes, receipts, size_of

HOLD_TIME_MAX_S = 60.0


def test_a_killed_node_delivers_again_long_before_its_quarantine_and_what_it_held_stays_held() -> None:
    with LocalCluster(3, hold_time_max=HOLD_TIME_MAX_S) as cluster:
        with Raw(cluster.address("n2")) as client:
            topic = client.topic("jobs")
            client.publish(topic, client.session(), 0, [b"%d" % number for number in range(10)])
            held = receipts(client.fetch("jobs", "g", 4, hold_time=50.0))
        cluster.kill("n2")
        cluster.start("n2")
        began = time.monotonic()
        while cluster.status("n2")["quarantine_s"] > 0:
            assert time.monotonic() < began + 1.0, cluster.log_tail("n2")
            time.sleep(0.01)
        with Raw(cluster.address("n2")) as client:
            reply = client.fetch("jobs", "g", 100, hold_time=5.0, max_wait=1.0)
            assert size_of(reply) == 6, "all but what is held, and delivered by n2 itself"
            assert isinstance(reply, m.FetchReply)
            assert cluster.status("n2")["incarnation"] == 2
            assert outcomes(client.ack(*held)) == ["acked"] * len(held)
