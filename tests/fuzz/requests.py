"""Requests that a client may send, with numbers, names and sizes as far as they go, to three cores that say bytes."""

from __future__ import annotations

import functools
import random
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.values.errors import QuorumqError
from quorumq.core.values.types import PartitionId, ProducerId
from quorumq.node.connections import CLIENT_REQUESTS
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import TYPES
from quorumq.wire.requests import check_request
from tests.core.coded import Coded, through_the_wire
from tests.core.last_numbers import LAST, begun, far_batch, receipts, see_stamps
from tests.fuzz.draw import Draw, rng_of
from tests.fuzz.run import Fuzzer

ASKED: Final = 20
"""In the life of one cluster."""

KINDS: Final = tuple(
    cls
    for _, cls in sorted(TYPES.items())
    if cls in CLIENT_REQUESTS and cls not in (m.Hello, m.DeclareSurvivors)
)
OFTEN: Final = (m.Publish, m.Fetch, m.AckRequest, m.RejectRequest, m.RedriveRequest, m.SetGroup)


class Life:
    """One cluster, asked by a client that sends anything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cluster: Coded
        self.cluster, topic, self.items = begun()
        self.topic = topic
        here = PartitionId(topic.id, 0)
        known: dict[Any, Any] = {
            PartitionId: [here],
            ProducerId: [LAST.producer_id, ProducerId("x", 1, 1, 1), ProducerId("~derived", 1, 1, 2)],
            **{f"{cls.__name__}.topic": ["jobs"] for cls in KINDS if "topic" in cls._fields},
            **{f"{kind}.partition": [0] for kind in ("RedriveRequest", "PurgeRequest", "PeekRequest")},
            "Fetch.topics": [("jobs",)],
            "Fetch.partitions": [(), (0,), (1,)],
            "Fetch.start": ["earliest", "latest"],
            "Fetch.spans": [(), (), (LAST,), (LAST, LAST._replace(stop=LAST.start + 1))],
            "SetGroup.start": ["earliest", "latest", "time"],
            "group": ["g", "h"],
            "which": ["all", "ready", "dead"],
            "hold_time": [1.0, 5.0],
            "max_wait": [0.0],
            "rf": [3, 1],
            "delay": [0.0, 1.0],
        }
        self.draw = Draw(rng, known=known)
        self.draw.of = functools.partial(self.of, self.draw.of)  # type: ignore[method-assign]

    def of(self, usual: Any, cls: Any) -> Any:
        if cls is m.ReceiptPart and self.items and self.rng.random() < 0.75:
            return self.rng.choice(self.items)
        if cls is m.Publish:
            number, rng = self.draw.number, self.rng
            name = rng.choice(("a", "x", "~derived"))
            producer_id = ProducerId(name, number(0, 1 << 62), number(0, 1 << 64), number(0, 1 << 62))
            batch = far_batch(
                producer_id,
                number(0, 1 << 62),
                number(-(1 << 63), 1 << 63),
                rng.choice((0, 1, 1 << 32)),
                self.topic.id,
            )
            return m.Publish(batch, number(-(1 << 61), 1 << 61))
        return usual(cls)

    def ask(self) -> str:
        """Send one request; return the outcome."""
        cls = self.rng.choice(OFTEN if self.rng.random() < 0.5 else KINDS)
        request = self.draw.of(cls)
        try:
            check_request(through_the_wire(request, request=1))
        except (BadValue, QuorumqError):
            return "refused at the door"
        reply = self.cluster.ask(self.rng.choice(self.cluster.names), request)
        if isinstance(reply, m.FetchReply):
            self.items += receipts(reply)
        see_stamps(self.cluster)
        return f"failed: {reply.code}" if isinstance(reply, m.Failed) else "answered"


def case(seed: int, n: int) -> list[str]:
    life = Life(rng_of(seed, n))
    outcomes = []
    for _ in range(ASKED):
        outcomes.append(life.ask())
        if life.rng.random() < 0.2:
            life.cluster.advance(2.5)
    for name in life.cluster.names:
        life.cluster.stop(name)
    for name in life.cluster.names:
        life.cluster.start(name)
        life.cluster.journals[name] += tuple(life.cluster.nodes[name].snapshot(life.cluster.now))
    assert not isinstance(life.cluster.ask("a", m.OpenSession()), m.Failed)
    return outcomes


REQUESTS: Final = Fuzzer(
    "requests", "Extreme valid requests to three cores, then a restart of all.", case, "requests"
)
