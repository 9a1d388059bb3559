"""A node that was killed is back in service at once, as its peers report their holds (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import time

from quorumq.lab.local import LocalCluster
from tests.core.steps import outcomes
from tests.e2e.raw import Raw, size_of

HOLD_TIME_MAX_S = 900.0


def test_a_killed_node_delivers_again_long_before_its_quarantine_and_what_it_held_stays_held() -> None:
    with LocalCluster(3, hold_time_max=HOLD_TIME_MAX_S) as cluster:
        with Raw(cluster.address("n2")) as client:
            topic = client.topic("jobs")
            client.publish(topic, client.session(), 0, [b"%d" % number for number in range(10)])
            held = client.take("jobs", "g", 4, hold_time=0.9 * HOLD_TIME_MAX_S)
        cluster.kill("n2")
        cluster.start("n2")
        began = time.monotonic()
        cluster.wait_ready(quarantine=True)
        assert time.monotonic() - began < HOLD_TIME_MAX_S / 2, (
            "it would be over by itself after that and more"
        )
        with Raw(cluster.address("n2")) as client:
            client.drain("jobs", "g", 6)  # by n2 itself
            assert size_of(client.fetch("jobs", "g", max_wait=0.5)) == 0, "what is held"
            assert cluster.status("n2")["incarnation"] == 2
            assert outcomes(client.ack(*held)) == ["acked"] * len(held)
