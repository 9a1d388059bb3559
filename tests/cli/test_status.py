"""`quorumq status` fits a terminal of 80 columns."""

from __future__ import annotations

import io
import time
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from quorumq.cli import probe
from quorumq.cli.status import _ask, _keepers, _tables, _topics, cluster_report
from quorumq.core.messages import MetadataReply, StatusReply, Welcome
from quorumq.core.values.errors import TooFewReplicas, UsageError
from quorumq.core.values.types import Incarnation
from quorumq.node.problems import DISK_ROOMS, move_lines, problems


def node(number: int, **fields: Any) -> dict[str, Any]:
    """A node of three as `status` reports it, with everything at its usual width."""
    name = f"n{number}"
    return {
        "node": name,
        "address": f"127.0.0.1:740{number}",
        "up": True,
        "incarnation": 12,
        "peers": {other: {"up": True} for other in ("n1", "n2", "n3") if other != name},
        "clock_difference_s": 0.001,
        "disk_free": 123.4e9,
        "fsync_ms": {"p50": 12.3},
        "requests": 123_456,
        **fields,
    }


def printed(width: int, *nodes: dict[str, Any], topic: str = "orders", **more: Any) -> str:
    groups = {
        "billing": {"ready": 1_234_567, "held": 1_234, "dead": 12, "done": 7_654_321},
        "billing!dead": {"ready": 12, "held": 0, "dead": 0, "done": 1},
    }
    row = {"topic": topic, "partitions": 3, "messages": 8_888_888, "groups": groups, "kept_s": None}
    row |= more
    report = {"cluster_id": "0123456789abcdef" * 2, "nodes": nodes, "topics": [row], "problems": []}
    out = io.StringIO()
    Console(file=out, width=width).print(_tables(report))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_a_status_of_usual_values_is_whole_on_80_columns(width: int) -> None:
    lonely = {"n1": {"up": True}, "n3": {"up": False}}
    down = {"node": "n3", "address": "127.0.0.1:7403", "up": False, "error": "refused"}
    text = printed(width, node(1, quarantine_s=12.3), node(2, peers=lonely), down)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "n1 127.0.0.1:7401 quarantine 12.3 s 12 all +0.001 s 123 GB 12.3 ms" in rows
    assert "n2 127.0.0.1:7402 up 12 n1 +0.001 s 123 GB 12.3 ms" in rows
    assert "n3 127.0.0.1:7403 down" in rows
    assert "orders 3 8,888,888 billing 1,234,567 1,234 12 7,654,321" in rows
    assert "billing!dead 12 0 0 1" in rows


def test_a_long_name_of_a_topic_costs_no_number_its_digits() -> None:
    name = "payments.settled.by-country"
    text = printed(80, node(1), topic=name)
    assert max(map(len, text.splitlines())) <= 80
    assert all(number in text for number in ("8,888,888", "1,234,567", "7,654,321"))
    assert name in printed(160, node(1), topic=name)


def test_a_limited_group_has_a_line() -> None:
    """A replica that has not heard of the limit reports none."""
    counts = {"available": 1, "held": 0, "dead": 0, "settled": 0}
    parts = [
        {
            "topic": "orders",
            "partition": 0,
            "messages": 1,
            "groups": {"g": {**counts, "per_second": per_second}},
        }
        for per_second in (0.0, 2.5)
    ]
    (topic,) = _topics([{"partitions": [part]} for part in parts])
    assert topic["limits"] == {"g": 2.5}
    text = printed(80, node(1), limits=topic["limits"])
    assert "orders: group 'g' is limited to 2.5 deliveries a second" in text


def test_the_topics_that_are_kept_for_longest_have_a_line() -> None:
    """A cluster of 1,000 topics had 1,000 such lines."""
    lines = _keepers([{"topic": f"t{n}", "kept_by": "g", "kept_s": 60.0 * n} for n in range(20)])
    assert lines[0] == "t19: group 'g' keeps the oldest message on disk, for 0:19:00"
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"t{n}" for n in range(19, 9, -1)]
    assert lines[-1] == "9 more topics kept for over a minute: see --json"


def test_a_move_that_waits_has_a_line_with_the_nodes_that_it_waits_for() -> None:
    moves = [
        {"topic": "orders", "partition": 4, "state": "learning", "waits_for": ["n2", "n3"]},
        {"topic": "orders", "partition": None, "state": "chosen", "waits_for": []},
        {"topic": "orders", "partition": 5, "state": "leaving", "waits_for": ["n2"]}
        | {"messages_left": 12_000, "messages_per_s": 400.0, "seconds_left": 30.0},
        {"topic": "orders", "partition": 6, "state": "away", "waits_for": ["n3"], "messages_left": None},
    ]
    text = " ".join(printed(80, node(1, moves=moves)).split())
    assert "n1 is new in orders/4 and does not vote there yet: it waits for n2, n3" in text
    assert "n1 knows that a move of orders was chosen, which no majority has heard of yet" in text
    assert "it waits for n2; 12,000 messages to go, 400 a second, 0:00:30 left" in text
    assert "a replica of orders/6, whose payload a node that left keeps as well" in text
    rows = [node(1, moves=moves)]
    assert len(move_lines(rows, "orders", 5)) == 2, "its own, and that of the topic"
    assert move_lines(rows, "jobs", 5) == []


@pytest.mark.parametrize(
    ("fields", "free"),
    [({"disk_full": True}, "full"), ({"disk_free": 1.26e9}, "1.3 GB"), ({"disk_free": -1}, "s 12.3 ms")],
)
def test_the_space_on_the_disk_is_said_where_it_is_known(fields: dict[str, Any], free: str) -> None:
    (row,) = [line for line in printed(80, node(1, **fields)).splitlines() if line.startswith("n1 ")]
    assert free in " ".join(row.split())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"quarantine_s": 1.23}, "n1 is in quarantine after its start: it delivers again in 1.2 s"),
        *(
            (
                {"disk_full": True, "disk_capacity": capacity},
                f"n1 {DISK_ROOMS[capacity]}; {acks}delete topics that are not needed, or give it a larger disk",
            )
            for capacity, acks in (
                *((capacity, "let consumers ack what is there, ") for capacity in ("first", "second")),
                ("none", ""),  # acks are refused
            )
        ),
        (
            {"certificate_expires_s": 3 * 86400 + 5},
            "n1's certificate ends in 3 days: put a new one in place, it is read without a restart",
        ),
        (
            {"certificate_expires_s": -5},
            "n1's certificate has ended: put a new one in place, it is read without a restart",
        ),
        (
            {"clients_file_problem": "it names no client"},
            "n1 goes by the clients file of before: it names no client",
        ),
        (
            {"config_file_problem": "node is missing"},
            "n1 goes by its configuration file of before: node is missing",
        ),
        (
            {"needs_restart": ["heartbeat"]},
            "n1 needs a restart for other values of heartbeat, which its configuration file has by now",
        ),
        ({"resync": "damaged"}, "n1 is not trusted and learns from the others: damaged"),
        (
            {"outdated": "it lacks d = 'd:7401'"},
            "the configuration of n1 is out of date, and the members' list counts: it lacks d = 'd:7401'. Change its "
            "`nodes`, from which it reaches the others first",
        ),
        ({"up": False, "error": "refused"}, "n1 is down: refused"),
        ({"up": False, "error": "no TLS", "refuses": True}, "n1 refuses: no TLS"),
    ],
)
def test_problems_of_a_node_carry_its_name(fields: dict[str, Any], problem: str) -> None:
    assert problem in problems([node(1, **fields), node(2), node(3)], [])
    assert problem not in problems([node(1), node(2), node(3)], [])


def test_a_node_that_is_drained_says_so_in_its_status() -> None:
    """A removed node has links to none, and the others none to it."""
    removed = node(4, standing="removed", peers={}, voters=["n4"])
    three = [node(number, standing="joined", voters=["n1", "n2", "n3"]) for number in (1, 2, 3)]
    assert [*problems([removed, *three], [])] == [
        "n4 was removed from the cluster, and the others refuse it: stop it"
    ]
    rows = printed(100, node(1, standing="draining"), removed)
    assert [line.split()[2] for line in rows.splitlines() if "127.0.0.1" in line] == ["draining", "removed"]


def test_only_voters_count_for_the_majority_that_settings_need() -> None:
    voters = {"voters": ["n1", "n2", "n3"]}
    down = {"up": False, "error": "refused"}
    rows = [node(1, **down), node(2, **down), *(node(number, **voters) for number in (3, 4, 5))]
    line = "only 1 of 3 nodes answer: what needs a majority, publish, delivery, ack, waits for others"
    assert line in problems(rows, [])
    assert line not in problems(
        [node(1, **voters), node(2, **voters), node(3, **voters), node(4, **down)], []
    )


def test_a_topic_that_no_one_reads_is_named_where_a_disk_is_full() -> None:
    """No ack can make room there."""
    topics = [
        {"topic": name, "messages": messages, "groups": groups, "lost": 0, "missing": 0}
        for name, messages, groups in (("full", 470, {}), ("read", 5, {"g": {}}), ("empty", 0, {}))
    ]
    lines = [line for line in problems([node(1, disk_full=True), node(2)], topics) if "no group" in line]
    assert lines == [
        "no group reads 'full': its 470 messages stay until one is made and has acked or purged them, or the topic is "
        "deleted"
    ]
    assert not any("no group" in line for line in problems([node(1), node(2)], topics))


def test_clients_whose_clock_is_wrong_are_a_problem_that_names_the_worst() -> None:
    clients = [
        {"client": "billing", "address": "10.0.0.9", "ahead_s": -3600.0, "seen_s_ago": 1.0},
        {"client": "mail", "address": "10.0.0.8", "ahead_s": 2.5, "seen_s_ago": 1.0},
    ]
    (problem,) = [
        line
        for line in problems(
            [node(1, clients_clock_wrong=2, clock_wrong=clients), node(2, clock_wrong=[])], []
        )
        if "time of day" in line
    ]
    assert problem.startswith("n1: 2 clients published with a time of day")
    assert "billing at 10.0.0.9 one that is -3600.0 s off" in problem


def test_names_that_run_out_are_a_problem_at_half_of_what_there_can_be() -> None:
    used = {"topics": 3_999, "topics_max": 4_000, "groups": 9, "groups_max": 10}
    used |= {"topics_deleted": 9_000, "groups_deleted": 16_000, "deleted_max": 50_000}
    (problem,) = problems([node(1, names=used), node(2)], [])
    assert problem.startswith("n1 keeps 25000 names of deleted topics and groups, of 50000 that it can keep")
    assert not [*problems([node(1, names={**used, "groups_deleted": 15_999}), node(2)], [])]


@pytest.mark.parametrize(
    ("reason", "refuses"),
    [
        ("closed during the TLS handshake (TLS is used because QUORUMQ_TLS_CA is set)", True),
        ("the certificate is refused: IP address mismatch", True),
        ("Connection refused", False),
    ],
)
def test_a_node_that_fails_over_tls_is_not_called_down(
    reason: str, refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ask", Mock(side_effect=TooFewReplicas(reason)))
    row = _ask("127.0.0.1:1", 1.0)
    assert (row["up"], row["refuses"], reason in row["error"]) == (False, refuses, True)


def test_unreadable_authorities_are_not_taken_for_nodes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMQ_TLS_CA", "/nowhere/ca.pem")
    with pytest.raises(UsageError, match=r"tls_ca /nowhere/ca.pem: No such file"):
        cluster_report(["127.0.0.1:1"])


@pytest.mark.parametrize(("node_ms", "difference_s"), [(0, 0.0), (7_500, 0.0), (-20, -0.02), (8_020, 0.02)])
def test_a_slow_answer_is_no_clock_difference(
    node_ms: int, difference_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that takes 8 s says only that the node's clock was somewhere between."""
    welcome = Welcome(1, "orders", "n1", Incarnation(1, 7), 0, 1_000_000 + node_ms, 0, ())
    known = MetadataReply("orders", "n1", (), (), (), 60.0)
    monkeypatch.setattr(probe, "ask", lambda *args, **more: [welcome, StatusReply({}), known])
    times = iter((1000.0, 1008.0))
    monkeypatch.setattr(time, "time", lambda: next(times))
    assert _ask("127.0.0.1:1", 1.0)["clock_difference_s"] == difference_s
