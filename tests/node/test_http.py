"""/live, /ready and /metrics, over loopback: their answers, and clients that try to harm the node. In real time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import trio
import yaml

from quorumq.core import messages as m
from quorumq.core.values.latency import ANSWERS_MIN
from quorumq.node import http, metrics
from quorumq.node.config import make_config
from quorumq.node.health import Health
from quorumq.node.http import HttpServer
from quorumq.node.join import wait_to_join
from quorumq.node.metrics import Metrics, Table
from quorumq.node.transport import Transport, listen
from sim.shell.memory import SECRET, Log
from tests.node.memory import World, fetch, payloads, publish, receipts, world
from tests.patience import PATIENCE_S
from tests.virtual import in_real_time


async def watched(cluster: World, name: str, nursery: trio.Nursery) -> int:
    """The port at which a node is watched from now on."""
    (sock,) = listen("127.0.0.1", 0)
    sock.listen()
    nursery.start_soon(HttpServer(cluster.services[name].node).run, [sock])
    return int(sock.getsockname()[1])


async def said(port: int, data: bytes) -> bytes:
    """All that is answered to these bytes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        answer = b""
        try:
            await stream.send_all(data)
            async for part in stream:
                answer += part
        except trio.BrokenResourceError:
            pass  # unread bytes reset the connection
        return answer


async def got(port: int, path: str) -> tuple[int, str]:
    head, _, body = (await said(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    return int(head.split()[1]), body.decode()


def value(page: str, name: str) -> float:
    (line,) = [line for line in page.splitlines() if line.startswith(name + " ")]
    return float(line.rpartition(" ")[2])


@in_real_time
async def test_the_endpoints_follow_the_state_of_the_node() -> None:
    async with world() as cluster, trio.open_nursery() as nursery:
        port = await watched(cluster, "a", nursery)
        assert await got(port, "/live") == (200, "live\n")
        assert await got(port, "/ready") == (200, "ready\n")
        client = await cluster.client("a")
        topic, producer_id = await client.topic(), await client.session()
        await client.ask(publish(topic, producer_id, 0, b"x", b"y", b"z"))
        answer = await client.ask(fetch(2))
        assert payloads(answer) == [b"x", b"y"]
        await client.ack(*receipts(answer))
        await client.ask(m.Fetch(("nothing",), "g", 1, 1, 1, 0.0, 1e9, 0.0))
        status, page = await got(port, "/metrics?x=1")
        assert status == 200
        assert value(page, 'quorumq_messages_total{kind="published"}') == 3
        assert value(page, 'quorumq_messages_total{kind="delivered"}') == 2
        assert value(page, 'quorumq_messages_total{kind="settled"}') == 2
        assert value(page, 'quorumq_bytes_total{kind="delivered"}') > 2
        assert value(page, 'quorumq_requests_total{code="ok",kind="Publish"}') == 1
        assert value(page, 'quorumq_requests_total{code="usage",kind="Fetch"}') == 1
        assert value(page, 'quorumq_request_seconds_count{kind="Publish"}') == 1
        assert value(page, 'quorumq_fsync_seconds_bucket{le="+Inf"}') >= 1
        assert value(page, 'quorumq_group_ready{group="g",topic="jobs"}') == 1
        assert value(page, 'quorumq_group_oldest_seconds{group="g",topic="jobs"}') > 0
        assert value(page, 'quorumq_topic_messages{topic="jobs"}') == 3
        for name in "bc":
            await cluster.stop(name)
        while (answer := await got(port, "/ready"))[0] == 200:
            await trio.sleep(0.02)
        assert answer == (503, "1 of 3 nodes linked, 2 are needed\n")
        cluster.services["a"].node.core.state.quarantine_until = float("inf")
        cluster.services["a"].node.core.state.trusted = False
        assert await got(port, "/ready") == (503, "not trusted: it waits for other nodes\n")
        assert (await got(port, "/live"))[0] == 200
        nursery.cancel_scope.cancel()


async def unreachable(address: str) -> Transport:
    raise ConnectionRefusedError(address)


@in_real_time
async def test_a_node_that_waits_to_be_added_answers() -> None:
    """A probe that hangs would have it killed, before an operator adds it."""
    (sock,) = listen("127.0.0.1", 0)
    sock.listen()
    port = int(sock.getsockname()[1])
    waits = {"node": "d", "cluster_id": "test", "secret": SECRET.decode(), "data_dir": "/nonexistent"}
    config = make_config({**waits, "join": ["127.0.0.1:1"]})
    with sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_to_join, config, unreachable, Log(), [sock])
            assert await got(port, "/live") == (200, "live\n")
            status, reason = await got(port, "/ready")
            assert (status, "waits to be added" in reason) == (503, True)
            assert value((await got(port, "/metrics"))[1], "quorumq_ready") == 0
            nursery.cancel_scope.cancel()
        assert sock.fileno() >= 0, "the node goes on with it"


@in_real_time
async def test_no_one_harms_the_node_or_those_who_ask_after_him(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DEADLINE_S", 0.5)
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 4)
    async with world("a") as cluster, trio.open_nursery() as nursery:
        port = await watched(cluster, "a", nursery)
        for data, code in (
            (b"POST /live HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"405"),
            (b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
            (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
            (b"GET /live HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nExpect: 100-continue\r\n\r\n", b"200"),
            (b"\x16\x03\x01 garbage\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000, b"431"),
        ):
            assert (await said(port, data))[9:12] == code, data[:20]
        head, _, body = (await said(port, b"HEAD /live HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
        assert (head[9:12], b"Content-Length: 5" in head, body) == (b"200", True, b"")
        assert not cluster.logs["a"].of("http_failed")
        for data in (b"", b"GET /live HTTP/1.1\r\nHost:"):
            assert await said_slowly(port, data) == b"", "it was hung up on"
        monkeypatch.setattr(http, "DEADLINE_S", 1000.0)
        mute = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(4)]
        await trio.sleep(0.05)
        for _ in range(2):
            assert (await got(port, "/live"))[0] == 200, "those who say nothing keep nobody out"
        with trio.fail_after(PATIENCE_S):
            assert await mute[0].receive_some(1) == b"", "the oldest has ended for it"
        with trio.move_on_after(0.1) as waiting:
            await mute[1].receive_some(1)
        assert waiting.cancelled_caught, "and no other: who has its answer makes room"
        assert isinstance(await (await cluster.client("a")).ask(m.StatusRequest()), m.StatusReply)
        for stream in mute:
            await stream.aclose()
        monkeypatch.setattr(Metrics, "page", broken)
        assert await said(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        assert "a bug" in cluster.logs["a"].of("http_failed")[0]["reason"]
        assert (await got(port, "/live"))[0] == 200
        nursery.cancel_scope.cancel()


async def said_slowly(port: int, data: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        if data:
            await stream.send_all(data)
        with trio.fail_after(PATIENCE_S):
            return await stream.receive_some(100)


async def broken(self: Metrics) -> bytes:
    raise AssertionError("a bug")


async def test_a_page_is_made_in_chunks_and_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    page = metrics.page

    def look(context: object, now: object, begin: object = None) -> object:
        looks.append(begin)
        return page(context, now, begin)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics, "page", look)
    monkeypatch.setattr("quorumq.core.values.limits.STATUS_ROWS_MAX", 2)
    async with world("a") as cluster:
        client = await cluster.client("a")
        await client.topic(rf=1, partitions=5)
        made = Metrics(cluster.services["a"].node)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(made.page)
        assert len(looks) == 3, "in three chunks, once"
        await trio.sleep(1.1)
        assert b"quorumq_up 1.0" in await made.page()
        assert len(looks) == 6


def test_groups_beyond_the_limit_are_summed_up() -> None:
    fields = {
        "available": 1, "suspects": 0, "dying": 0, "held": 2, "delayed": 0, "dead": 3, "dropped": 0, "oldest_s": None,
        "per_second": 5.0,
    }  # fmt: skip
    table = Table()
    for number in range(metrics.GROUPS_MAX + 50):
        row = {"topic": f"t{number}", "messages": 1, "missing": 0, "lost": 0}
        table.add([{**row, "groups": {"g": {**fields, "oldest_s": float(number)}}}])
    assert len(table.groups) == len(table.topics) == metrics.GROUPS_MAX + 1
    assert table.groups["other", "other"] == {
        "available": 50, "suspects": 0, "dying": 0, "held": 100, "delayed": 0, "dead": 150, "dropped": 0,
        "oldest_s": 249.0,
        "per_second": 5.0,
    }  # fmt: skip
    assert table.left_out == 100


async def test_the_manual_names_every_metric_and_dashboard_and_alerts_only_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Health, "certificate_left", lambda self: 1.0)  # a node without TLS has none
    docs = Path(__file__).parents[2] / "docs"
    async with world("a") as cluster:
        client = await cluster.client("a")
        await client.topic(rf=1)
        await client.ask(fetch())
        node = cluster.services["a"].node
        for _ in range(ANSWERS_MIN):
            node.core.context.hold_times.note(0.1)
        page = (await Metrics(node).page()).decode()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    text = (docs / "operations.md").read_text()
    assert {name for name in names if f"`{name}`" not in text} == set()
    asked = json.loads((docs / "grafana.json").read_text())["panels"]
    used = {name for item in asked for name in re.findall("quorumq_[a-z0-9_]+", json.dumps(item["targets"]))}
    assert {name.removesuffix("_bucket") for name in used} <= names
    series: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(quorumq_[a-z0-9_]+)(?:{(.*?)})? ", page, re.MULTILINE):
        series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    (group,) = yaml.safe_load((docs / "deploy" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        watched = re.findall(r"quorumq_[a-z0-9_]+", rule["expr"])
        labels = {label for name in watched for label in series[name]} | {"instance", "le"}
        assert set(re.findall(r"\w+", " ".join(re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"])))) <= labels
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
        assert rule["labels"]["severity"] in ("page", "ticket")
        heading = rule["annotations"]["page"].replace("-", "[ -]?[,]? ?")
        assert re.search(rf"^##+ {heading}$", text, re.MULTILINE | re.IGNORECASE), rule["annotations"]["page"]
