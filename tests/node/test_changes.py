"""Changes by clients are in the log, with their outcome."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.messages.effects import Gone, Request
from quorumq.node.changes import WHAT, Changes
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.node.logs import LINES_PER_KIND, RateLimit, make_log
from sim.shell.memory import Log
from tests.node.memory import fetch, publish, served, world


async def test_each_change_has_one_line_and_nothing_else_has() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        await client.ask(m.SetGroup("jobs", "g"))
        await client.ask(m.SetGroup("jobs", "g", rewind=True))
        await client.ask(fetch())
        await client.ask(m.PurgeRequest("jobs", 0, "g"))
        await client.ask(m.AlterTopic("jobs", max_deliveries=0))
        await client.ask(m.DeleteGroup("jobs", "g"))
        await client.ask(m.DeleteTopic("jobs", topic.id))
        lines = cluster.logs["a"].of("change")
        assert [(line["what"], line["topic"], line["outcome"]) for line in lines] == [
            ("topic created", "jobs", "ok"), ("group created", "jobs", "ok"),
            ("group rewound", "jobs", "ok"), ("messages purged", "jobs", "ok"),
            ("group deleted", "jobs", "ok"), ("topic deleted", "jobs", "ok"),
        ]  # fmt: skip
        (refused,) = cluster.logs["a"].of("change_refused")
        assert (refused["what"], refused["outcome"]) == ("topic altered", "usage")
        assert {line.get("group", "g") for line in lines} == {"g"}
        assert {line["client"] for line in lines} == {"test at client"}


def test_a_client_that_goes_before_the_answer_writes_a_line_and_many_under_way_are_bounded() -> None:
    log = Log()
    changes, nothing = Changes(log), Catalogue("a")
    changes.noticed([Request(1, m.DeclareSurvivors(("a", "b"))), Gone(1), Gone(2)], {}, nothing)
    (line,) = log.of("change")
    assert (line["survivors"], line["outcome"]) == ("a, b", "unknown: the client has gone")
    changes.noticed([Request(key, m.DeleteTopic("t", b"")) for key in range(5_000)], {}, nothing)
    assert len(log.of("change")) == 1 + 5_000 - 4_096, "the oldest have their lines at once"
    for key in range(5_000):
        changes.answered(key, m.PurgeReply(1))
    assert len(log.of("change")) == 1 + 5_000


@pytest.mark.parametrize("code", ["usage", "not-found", "outcome-unknown", "too-few-replicas"])
def test_uncertain_changes_are_logged_and_refused_ones_are_not(code: str) -> None:
    log = Log()
    changes = Changes(log)
    changes.noticed([Request(1, m.AlterTopic("t"))], {}, Catalogue("a"))
    changes.answered(1, m.Failed(code, ""))
    unknown = code in ("outcome-unknown", "too-few-replicas")
    assert [line["outcome"] for line in log.of("change")] == [code] * unknown
    assert [line["outcome"] for line in log.of("change_refused")] == [code] * (not unknown)


async def test_no_client_keeps_the_changes_of_another_one_out_of_the_log(tmp_path: Path) -> None:
    token, entry = new_token("nobody")
    other, other_entry = new_token("other")
    root, root_entry = new_token("root")
    entries = {
        "nobody": Entry(entry),
        "other": Entry(other_entry, publish=("z*",), consume=(("zz", "g"),)),
        "root": Entry(root_entry, admin=("*",)),
    }
    write_clients(tmp_path / "clients.toml", entries)
    async with world("a", clients_file=str(tmp_path / "clients.toml")) as cluster:
        file = io.StringIO()
        log = make_log("json", "info", "a", file, RateLimit(trio.current_time))
        cluster.services["a"].node.changes._log = log
        no_client, busy, admin = [await cluster.client("a", token=it) for it in (token, other, root)]
        for _ in range(60):
            await no_client.ask(m.DeleteTopic("zz", b"x" * 16))
        topic = await admin.topic("zz", rf=1)
        for _ in range(60):
            await busy.ask(m.CreateTopic("zz", 1, implicit=True))  # it is there
            await busy.ask(m.SetGroup("zz", "g"))
            await busy.ask(m.AlterTopic("zz"))
        for _ in range(30):
            assert isinstance(await admin.ask(m.PurgeRequest("zz", 0, "g")), m.PurgeReply)
        await admin.ask(m.DeleteTopic("zz", topic.id))
        lines = [json.loads(line) for line in file.getvalue().splitlines()]
        done = [(line["client"].split()[0], line["what"]) for line in lines if line["event"] == "change"]
        assert done == [
            ("root", "topic created"),
            ("other", "group created"),
            *[("root", "messages purged")] * 30,
            ("root", "topic deleted"),
        ]
        refused = Counter(line["client"].split()[0] for line in lines if line["event"] == "change_refused")
        assert refused == {"nobody": LINES_PER_KIND, "other": LINES_PER_KIND}
        assert not any("limited_by" in line for line in lines)


def test_every_request_that_changes_something_for_others_is_named() -> None:
    assert {kind.__name__ for kind in WHAT} == {
        "CreateTopic", "AlterTopic", "MovePartition", "DeleteTopic", "SetGroup", "DeleteGroup", "PurgeRequest",
        "RedriveRequest",
        "DeclareSurvivors", "LabelsRequest", "PauseGroup", "ChangeMembers", "LimitGroup",
    }  # fmt: skip


async def test_each_adopted_layout_has_a_line_at_each_node() -> None:
    async with served("abc", rf=1) as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        (old,) = topic.replicas[0]
        new = next(name for name in "abc" if name != old)
        await client.ask(m.MovePartition("jobs", 0, old, new))
        with trio.fail_after(30):
            while any(len(layouts(cluster.logs[name])) < 2 for name in "abc"):
                await trio.sleep(0.5)
        for name in "abc":
            moved, released = layouts(cluster.logs[name])
            assert (moved["layout"], moved["partition"], moved["replicas"]) == (2, 0, new)
            assert (released["layout"], "partition" in released) == (3, False)
        (line,) = (each for each in cluster.logs["a"].of("change") if each["what"] == "partition moved")
        assert (line["source"], line["to"]) == (old, new)


def layouts(log: Log) -> list[dict[str, object]]:
    return [line for line in log.of("change") if line["what"] == "layout adopted"]
