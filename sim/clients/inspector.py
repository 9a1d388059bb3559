"""Client that looks at nodes, topics, groups and single messages, and makes requests that no client may make."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.types import (
    Death,
    Incarnation,
    Kind,
    Owner,
    PartitionId,
    ProducerId,
    Receipt,
    Record,
    Span,
    Stamp,
)
from sim.clients.client import Answer, Client
from sim.world import Refusal, SimError

LOOKED_FOR = ("all", "dead", "ready", "held", "delayed", "skipped")


class Inspector(Client):
    """Looks at everything through any node, and tries requests that have to be refused. Neither changes anything."""

    def begin(self, _: object = None, __: object = None) -> None:
        if self.world.healed:
            return
        look = self.rng.random() < 0.7
        request = self.some_look() if look else self.some_mistake()

        def then(answer: Answer, _: Any) -> None:
            refused = answer is None or isinstance(answer, Refusal | m.Failed) or is_refusal(answer)
            if look and isinstance(answer, m.StatusReply) and answer.more is not None:
                self.ask(node, m.StatusRequest(answer.more), self.timeout, then)
            elif not look and not refused:
                raise SimError(f"{request} is a mistake, and was answered {answer}")
            elif not look and isinstance(answer, m.Failed):
                self.world.saw("a mistake was refused")

        node = self.node()
        self.ask(node, request, self.timeout, then)
        self.later(self.rng.random() * 0.2, self.begin)

    def some_look(self) -> m.ClientRequest:
        """Return a request of an operator's screen."""
        rng, topic = self.rng, self.topics.current
        group = rng.choice(self.around.groups)
        number = rng.randrange(self.options.partitions)
        producer_ids = list(self.topics.published_to)
        if topic is None or not producer_ids:
            return rng.choice((m.StatusRequest(), m.Metadata()))
        partition = PartitionId(topic.id, number)
        producer_id, at = rng.choice(producer_ids), rng.randrange(20)
        peek = m.PeekRequest("jobs", number, group, rng.choice(LOOKED_FOR), (0, 0), rng.choice((1, 50)))
        return rng.choice(
            (
                m.StatusRequest(),
                m.StatusRequest((partition, group)),
                m.Metadata(("jobs",)),
                m.DescribeGroups((("jobs", group),)),
                m.DescribeGroups((("jobs", group), ("nothing", group))),
                m.DeclareSurvivors(),
                m.ShowRequest(partition, Span(producer_id, at, at + 1)),
                m.Fetch(("no topic*",), group, 1, 1 << 20, 1, 0.05, self.options.hold_times[0], 0.0),
                peek._replace(bodies=True),
                peek._replace(topic="jobs.deadletters"),
                peek._replace(complete=True),
                peek._replace(counted=True, since_ms=rng.choice((0, 1_790_000_000_000))),
                peek._replace(cursor=(rng.randrange(9), rng.randrange(9))),
            )
        )

    def some_mistake(self) -> m.ClientRequest:
        """Return a request that every node must refuse."""
        rng, options = self.rng, self.options
        group = rng.choice(self.around.groups)
        fetch = m.Fetch(("jobs",), group, 1, 1 << 20, 1, 0.0, options.hold_times[0], 0.0)
        span = Span(ProducerId("a", 1, 1, 1), 0, 2)
        partition = PartitionId(self.topics.current.id if self.topics.current is not None else b"?" * 16, 0)
        no_owner = Owner("a", Incarnation(0, 0), Stamp(0, "a"))
        dead = Receipt(partition, group + DEAD_SUFFIX, 0, 0, span, no_owner)
        mistakes: tuple[m.ClientRequest, ...] = (
            m.CreateTopic("jobs", 2),
            m.CreateTopic("jobs", options.nodes + 2),
            m.CreateTopic("", options.rf),
            m.CreateTopic("a topic with\nlines", options.rf),
            m.CreateTopic("more", options.rf, 0),
            m.CreateTopic("more", options.rf, max_deliveries=0),
            m.CreateTopic("more", options.rf, ttl_s=-1.0),
            m.CreateTopic("more", options.rf, backoff=(-1.0,)),
            m.CreateTopic("more.deadletters", options.rf, implicit=True),
            m.AlterTopic("jobs", partitions=0),
            m.AlterTopic("jobs", retention_s=-1.0),
            m.AlterTopic("nothing", ttl_s=1.0),
            m.DeleteTopic("jobs", b"?" * 16),
            m.DeleteTopic("nothing", b"?" * 16),
            m.SetGroup("jobs", group + "!dead"),
            m.SetGroup("jobs", ""),
            m.SetGroup("jobs", "two\nlines"),
            m.SetGroup("jobs", group, "somewhere"),
            m.SetGroup("nothing", group),
            m.PurgeRequest("jobs", 10_000, group),
            m.PeekRequest("jobs", 10_000, group, "all", (0, 0), 1),
            fetch._replace(hold_time=2 * options.hold_time_max),
            fetch._replace(topics=()),
            fetch._replace(topics=("jobs", "jobs.deadletters")),
            fetch._replace(group="two!marks"),
            fetch._replace(start="somewhere"),
            fetch._replace(max_messages=0),
            fetch._replace(max_wait=-1.0),
            fetch._replace(partitions=(10_000,)),
            m.RejectRequest((), -2.0),
            m.RejectRequest((m.ReceiptPart(dead, (span,)),), death=Death(no_owner.ballot, "dead once more")),
            m.RedriveRequest("jobs", 0, group, (m.SpanRecord(span, Record(0, 0, Kind.OPEN)),)),
            m.RedriveRequest("jobs", 0, group, (m.SpanRecord(span, Record(0, NUMBERS_END, Kind.DEAD)),)),
            m.ShowRequest(partition, span),
        )
        return rng.choice(mistakes)


def is_refusal(answer: Answer) -> bool:
    """Return True if each verdict says that it was asked wrongly."""
    return isinstance(answer, m.SettleReply) and all(
        verdict.outcome == Code.USAGE for verdict in answer.verdicts
    )
