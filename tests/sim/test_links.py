"""A message that its receiver cannot read is a failure of a run, and not one of its faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from quorumq.core.messages import Hold, Release, Released, SourceReply, Want
from quorumq.core.messages.effects import Effect, Event, Send
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import Incarnation, Now, Owner, PartitionId, ProducerId, Span, Stamp
from quorumq.wire.codec import PeerError
from sim import links
from sim.campaign import run_seed
from sim.rules import patched
from sim.runner import run_schedule
from sim.schedule import draw


@pytest.mark.parametrize("lacking", [-2, 1 << 62])
def test_a_message_whose_value_is_outside_its_bounds_is_an_error(lacking: int) -> None:
    reply = SourceReply(1, PartitionId(b"x" * 16, 0), 1, lacking)
    links.check_readable(reply._replace(lacking=-1))
    with pytest.raises(PeerError, match="lacking"):
        links.check_readable(reply)


def test_a_run_reads_most_kinds_and_fails_by_an_unreadable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read, kinds = links.check_readable, set()

    def noted(message: Any) -> None:
        kinds.add(type(message))
        read(message._replace(lacking=-2) if isinstance(message, SourceReply) else message)

    monkeypatch.setattr(links, "check_readable", noted)
    (violation,) = run_seed(1, "moves").violations
    assert "SourceReply.lacking is -2" in violation
    assert len(kinds) > 15


def test_a_hold_after_its_release_is_reported() -> None:
    """It would hold for no client. Another owner's HOLD, and one for other messages, may follow."""
    releases = links.Releases()
    partition = PartitionId(bytes(16), 0)
    span = Span(ProducerId("a", 1, 7, 1), 0, 8)
    owner = Owner("a", Incarnation(1, 7), Stamp(9, "a"))
    hold = Hold(1, partition, 1, "g", 0, owner.ballot, 30.0, (Want(span, 0),))
    releases.check("a", hold)
    releases.check("a", Release((Released(partition, "g", owner, (span._replace(start=4),)),)))
    releases.check("a", hold._replace(ballot=Stamp(10, "a")))
    releases.check("a", hold._replace(wants=(Want(span._replace(stop=4), 0),)))
    with pytest.raises(AssertionError, match="follows its RELEASE"):
        releases.check("a", hold)


def test_a_run_fails_if_a_node_sends_its_releases_first() -> None:
    step = NodeCore.step

    def releases_first(self: NodeCore, events: Sequence[Event], now: Now, rng: random.Random) -> list[Effect]:
        effects = step(self, events, now, rng)
        return sorted(effects, key=lambda it: not (isinstance(it, Send) and isinstance(it.message, Release)))

    schedule = draw(28300027, "swarm")
    assert run_schedule(schedule).violations == []
    with patched(((NodeCore, "step", releases_first),)):
        (violation, *_) = run_schedule(schedule).violations
    assert "AssertionError" in violation
    assert "a HOLD for" in violation
