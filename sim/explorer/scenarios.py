# sim/explorer/scenarios.py: general bounds, not made for one rule.
#
# They are what `make soak` explores for longer, with all rules. Each leans on another part of the protocol; the
# smaller ones are exhausted.
"""Scenarios that no single rule owns."""

from __future__ import annotations

from sim.explorer.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="holds", about="2 attempts through any node, holds run out", attempts=2, ticks=3),
    Scenario(name="three-attempts", about="3 attempts through any node", attempts=3),
    Scenario(
        name="lagging-clocks", about="2 attempts, ballots out of order", attempts=2, ticks=3, low_clocks=True
    ),
    Scenario(name="one-restart", about="2 attempts, any node crashes once", attempts=2, restarts=1, ticks=3),
    Scenario(name="two-restarts", about="3 attempts, 2 crashes", attempts=3, restarts=2, ticks=4),
    Scenario(
        name="clean",
        about="2 attempts, a clean stop and a crash",
        attempts=2,
        restarts=1,
        clean_stops=1,
        ticks=4,
    ),
    Scenario(
        name="acks", about="2 attempts, 2 ACKs, holds run out", attempts=2, acks=2, ticks=3, via=("a", "b")
    ),
    Scenario(
        name="ack-restart",
        about="2 attempts, 1 ACK, 1 crash",
        attempts=2,
        acks=1,
        restarts=1,
        ticks=3,
        via=("b",),
    ),
    Scenario(
        name="ack-unsynced",
        about="2 attempts, 1 ACK, 2 crashes, every fsync a step of its own",
        attempts=2,
        acks=1,
        restarts=2,
        ticks=4,
        via=("a",),
        coordinators=("a", "b"),
        unsynced=True,
    ),
    Scenario(
        name="rejects",
        about="2 attempts, REJECT at once, with delay or to dead letters",
        attempts=2,
        rejects=1,
        ticks=2,
        reject_as=("now", "delay", "dead"),
        via=("b",),
    ),
    Scenario(
        name="dead-letters",
        about="3 attempts, 2 REJECTs to dead letters, redriven, acked, anti-entropy",
        attempts=3,
        rejects=2,
        redrives=1,
        acks=1,
        offers=2,
        ticks=3,
        via=("a", "b"),
        coordinators=("a", "c"),
    ),
    Scenario(
        name="dead-restart",
        about="2 attempts, dead letter, redriven, 1 crash",
        attempts=2,
        rejects=1,
        redrives=1,
        restarts=1,
        ticks=3,
        via=("b",),
        coordinators=("a", "c"),
    ),
    Scenario(
        name="max-deliveries",
        about="2 attempts where the second finds no deliveries left and buries",
        attempts=3,
        ticks=4,
        redrives=1,
        max_deliveries=1,
        coordinators=("a", "c"),
        via=("b",),
    ),
    Scenario(
        name="extend-leave",
        about="2 attempts, EXTEND and LEAVE through any node",
        attempts=2,
        extends=1,
        leaves=1,
        ticks=3,
    ),
    Scenario(
        name="missing",
        about="one replica has no copy; anti-entropy brings it",
        attempts=2,
        acks=1,
        offers=2,
        ticks=2,
        stored_on=("a", "b"),
        via=("b",),
    ),
    Scenario(
        name="remote",
        about="FETCH through a node without a replica, and through one with",
        nodes=("a", "b", "c", "d"),
        attempts=3,
        ticks=2,
        coordinators=("d", "a"),
    ),
    Scenario(
        name="rf1",
        about="one replica, through it and past it",
        rf=1,
        attempts=3,
        acks=1,
        rejects=1,
        restarts=1,
        ticks=6,
    ),
)
