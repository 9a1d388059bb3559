"""A client's request is checked before anything is done for it, so an error then is survivable."""

from __future__ import annotations

import copy

import pytest

from quorumq.core import messages as m
from quorumq.core.node.request_router import Coordinator, RequestRouter
from quorumq.core.values.types import Death, Kind, PartitionId, Record, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import fetch, published, receipts


def every_request(cluster: Cluster) -> tuple[Span, list[m.ClientRequest]]:
    """One of each that the request router looks at, each with something to do."""
    topic, producer_id = published(cluster)
    got = receipts(cluster.ask("a", fetch(most=5)))
    here, span = PartitionId(topic.id, 0), Span(producer_id, 0, 1)
    dead = m.SpanRecord(span, Record(0, 1, Kind.DEAD))
    return Span(producer_id, 0, 100), [
        m.StatusRequest(),
        m.Metadata(("jobs",)),
        m.Metadata(("unknown",)),
        m.OpenSession(),
        m.CloseSession(producer_id, (here,)),
        m.CreateTopic("more"),
        m.AlterTopic("jobs", max_deliveries=7),
        m.DeleteTopic("jobs", topic.id),
        m.MovePartition("jobs", 0, "a", "b"),
        m.ChangeMembers("add", "d", "d:7401"),
        m.Publish(cluster.batch(topic, producer_id, 10, [b"x"])),
        fetch(),
        m.AckRequest(got),
        m.RejectRequest(got, 0.0, Death(Stamp(0, ""), "rejected")),
        m.ExtendRequest(got, 5.0, 0.0),
        m.ReleaseRequest(got),
        m.SetGroup("jobs", "other", "earliest", 0, False),
        m.DeleteGroup("jobs", "g"),
        m.PauseGroup("jobs", "g", True),
        m.LimitGroup("jobs", "g", 5.0),
        m.LabelsRequest("jobs", (m.LabelChange("team", "a"),)),
        m.FindName(here, 60, 7, 1),
        m.PurgeRequest("jobs", 0, "g"),
        m.RedriveRequest("jobs", 0, "g", (dead,)),
        m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, True, False, None),
        m.PeekRequest("jobs", 0, "unknown", "all", (0, 0), 10, True, True, None),
        m.ShowRequest(here, span),
        m.DescribeGroups((("jobs", "g"),)),
        m.DescribeGroups((("jobs", "unknown"),)),
        m.DescribeGroups((("jobs", "g"), ("jobs", "unknown"))),
        m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, counted=True),
        m.DeclareSurvivors(),
    ]


def test_looking_at_a_request_changes_nothing_that_is_kept_or_promised() -> None:
    cluster = Cluster()
    whole, requests = every_request(cluster)
    core, now = cluster.nodes["a"], cluster.now
    context = core.context

    def known() -> object:
        tables = [
            (
                name,
                list(view.records.within(whole)),
                list(view.leases.within(whole)),
                view.attempts_of(whole.producer_id),
            )
            for replica in core.replicas.values()
            for name, view in sorted(replica.views.groups.items())
        ]
        rounds = (list(context.rounds), list(context.requests), list(context.releases.unsent))
        return copy.deepcopy((core.snapshot(now), core.state.timers, core.state.clock.value, tables, rounds))

    before = known()
    started = 0
    for key, request in enumerate(requests):
        started += isinstance(core.router._look(1000 + key, request, now, looked=False), Coordinator)
        assert known() == before, request
    assert started > 10, "most of them have something to do"
    assert {type(request) for request in requests} >= set(m.ClientRequest.__args__) - {m.Hello}


def test_a_bug_while_looking_is_not_hidden_from_who_looks_for_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()

    def planted(router: RequestRouter, *args: object, **named: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(RequestRouter, "_look", planted)
    with pytest.raises(ZeroDivisionError, match="planted"):
        cluster.ask("a", m.OpenSession())
