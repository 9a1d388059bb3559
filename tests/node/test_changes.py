"""Who changed what is in the log, with what came of it."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.effects import Gone, Request
from quorumq.node.changes import WHAT, Changes
from sim.shell.memory import Log
from tests.node.memory import fetch, publish, served


async def test_each_change_has_one_line_and_nothing_else_has() -> None:
    async with served("a") as (cluster, client, topic, origin):
        await client.ask(publish(topic, origin, 0, b"x"))
        await client.ask(m.SetGroup("jobs", "g"))
        await client.ask(m.SetGroup("jobs", "g", rewind=True))
        await client.ask(fetch())
        await client.ask(m.PurgeRequest("jobs", 0, "g"))
        await client.ask(m.AlterTopic("jobs", max_deliveries=0))
        await client.ask(m.DeleteGroup("jobs", "g"))
        await client.ask(m.DeleteTopic("jobs", topic.id))
        lines = cluster.logs["a"].of("change")
        assert [(line["what"], line["topic"], line["outcome"]) for line in lines] == [
            ("topic created", "jobs", "ok"),
            ("group created", "jobs", "ok"),
            ("group rewound", "jobs", "ok"),
            ("messages purged", "jobs", "ok"),
            ("topic altered", "jobs", "usage"),
            ("group deleted", "jobs", "ok"),
            ("topic deleted", "jobs", "ok"),
        ]
        assert {line.get("group", "g") for line in lines} == {"g"}
        assert {line["client"] for line in lines} == {"test at client"}


def test_a_client_that_goes_before_the_answer_leaves_a_line_and_many_under_way_are_bounded() -> None:
    log = Log()
    changes = Changes(log)
    changes.noticed([Request(1, m.DeclareSurvivors(("a", "b"))), Gone(1), Gone(2)], {})
    (line,) = log.of("change")
    assert (line["survivors"], line["outcome"]) == ("a, b", "unknown: the client has gone")
    changes.noticed([Request(key, m.DeleteTopic("t", b"")) for key in range(5_000)], {})
    for key in range(5_000):
        changes.answered(key, m.Failed("usage", ""))
    assert len(log.of("change")) == 1 + 4_096


def test_every_request_that_changes_something_for_others_is_named() -> None:
    assert {kind.__name__ for kind in WHAT} == {
        "CreateTopic", "AlterTopic", "DeleteTopic", "SetGroup", "DeleteGroup", "PurgeRequest", "RedriveRequest",
        "DeclareSurvivors",
    }  # fmt: skip
