"""`client.show` and `quorumq show`: the life of one message."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from quorumq.cli.show import _check_known, _fields, _lines, _print, _told
from quorumq.client import Life, MessageId, NotFound, TooFewReplicas, Unauthorized, UsageError
from quorumq.client.base.context import EACH_S
from quorumq.core.messages import DescribeGroups, ShowRequest
from quorumq.core.values import limits
from quorumq.history import HistoryWriter
from tests.client.fake import failing, serving
from tests.client.steps import jobs, publish


def states(life: Life, group: str = "g") -> list[tuple[str, int]]:
    """Return each replica's state of the message and its number of ended deliveries."""
    return [
        (seen.state, seen.ended)
        for replica in life.replicas
        for seen in replica.groups
        if seen.group == group
    ]


async def test_a_life_is_told_from_its_publish_to_its_dead_letter(capsys: pytest.CaptureFixture[str]) -> None:
    async with jobs(max_deliveries=5) as (_, client):
        await client.create_group("jobs", "other")
        mid = await client.publish("jobs", b"x", delay=1.0)
        await trio.sleep(0.5)
        life = await client.show("jobs", str(mid))
        assert (life.id, life.topic, life.delay) == (mid, "jobs", 1.0)
        assert life.published_ms is not None
        assert [replica.payload for replica in life.replicas] == [True] * 3
        assert states(life, "other") == [("delayed", 0)] * 3
        await trio.sleep(1.0)
        (first,) = await client.fetch("jobs", "g", hold_time=2.0)
        held = await client.show("jobs", mid)
        (seen,) = [seen for seen in held.replicas[0].groups if seen.group == "g"]
        assert (seen.state, seen.holder is not None) == ("held", True)
        assert seen.token == first.fencing_token.time
        assert 1.0 < seen.remaining <= 2.0
        _print(held)
        await trio.sleep(2.5)
        assert states(await client.show("jobs", mid)) == [("ready", 1)] * 3
        messages = await client.fetch("jobs", "g", hold_time=2.0)
        await client.dead_letter(messages, error=ValueError("no such account"))
        dead = await client.show("jobs", mid)
        assert states(dead) == [("dead", 1)] * 3
        assert states(dead, "other") == [("ready", 0)] * 3
        death = next(seen.death for seen in dead.replicas[0].groups if seen.group == "g")
        assert death is not None
        assert death.message == "no such account"
        _print(dead)
    out = capsys.readouterr().out
    assert "g: held through " in out
    assert "g: dead · 2 failed attempts · token " in out
    assert "no such account" in out
    assert max(map(len, out.splitlines())) <= 80, out


async def test_histories_tell_each_delivery_in_order(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    with HistoryWriter(path, run="r", who="client:x") as history:
        async with serving("jobs", history=history) as (_, client):
            mid = await client.publish("jobs", b"x")
            await client.fetch("jobs", "g", max_messages=1, hold_time=1.0)
            await trio.sleep(1.5)
            (message,) = await client.fetch("jobs", "g", max_messages=1)
            await message.ack()
            await client.publish("jobs", b"another")
            life = await client.show("jobs", mid)
    lines = [_told(row).split(" ", 1)[1] for row in _lines((path,), life)]
    assert lines[0] == "client:x publish · outcome invoke"
    assert [line.split(" · token")[0] for line in lines if "deliver" in line] == [
        "client:x deliver of g · attempt 1 · n 0",
        "client:x deliver of g · attempt 2 · n 0",
    ]
    assert lines[-1].startswith("client:x ack of g · outcome acked")


async def test_silent_nodes_are_named_and_impossible_requests_refused() -> None:
    async with jobs() as (cluster, client):
        await client.create_topic("others")
        await publish(client, 1)
        (message,) = await client.fetch("jobs", "g")
        await message.ack()
        cluster.kill("b")
        asked = trio.current_time()
        life = await client.show("jobs", message.id)
        assert trio.current_time() - asked <= EACH_S + 0.5
        await client.backlog("jobs", "g")
        assert trio.current_time() - asked <= 2 * EACH_S + 1.0, "one that is down costs little"
        assert [replica.node for replica in life.replicas if replica.error] == ["b"]
        assert states(life) == [("acked", 0)] * 2
        never = message.id._replace(seq=999)
        with pytest.raises(UsageError, match="not a message id: 'x'"):
            await client.show("jobs", "x")
        with pytest.raises(UsageError, match="of another topic than 'others'"):
            await client.show("others", message.id)
        with pytest.raises(NotFound, match="has 1 partition: there is no 7"):
            await client.show("jobs", MessageId(message.id.partition._replace(number=7), *message.id[1:]))
        _check_known(life)
        unknown = await client.show("jobs", never, timeout=1.0)
        assert not any(replica.payload for replica in unknown.replicas)
        with pytest.raises(TooFewReplicas, match=f"knows {never}; b did not answer and may have it"):
            _check_known(unknown)
        cluster.revive("b")
        await trio.sleep(5)
        with pytest.raises(NotFound, match="no replica knows"):
            await client.show("jobs", never)
        assert {name for name, _ in cluster.of(ShowRequest)} == {"a", "b", "c"}
        for name in "abc":
            cluster.kill(name)
        with pytest.raises(TooFewReplicas):
            await client.show("jobs", message.id, timeout=1.0)


async def test_a_refusal_of_all_nodes_is_raised_as_it_is() -> None:
    """The error of a client without the right was TooFewReplicas, which asks to repeat the request."""
    async with jobs(1) as (cluster, client):
        (message,) = await client.fetch("jobs", "g")
        cluster.answer = failing("unauthorized", times=100, of=ShowRequest)
        with pytest.raises(Unauthorized):
            await client.show("jobs", message.id)
        cluster.answer = failing("unauthorized", times=100, of=DescribeGroups)
        for call in (client.backlog("jobs", "g"), client.backlogs()):
            with pytest.raises(Unauthorized):
                await call


async def test_groups_beyond_the_limit_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHOWN_GROUPS_MAX", 2)
    async with jobs() as (_, client):
        for number in range(3):
            await client.create_group("jobs", f"g{number}")
        life = await client.show("jobs", await client.publish("jobs", b"x"))
        assert [seen.group for seen in life.replicas[0].groups] == ["g0", "g1"]
        assert [replica.left_out for replica in life.replicas] == [1] * 3
        assert _fields(life)["replicas"][0]["groups_left_out"] == 1
        _print(life)
        assert capsys.readouterr().out.count("groups: 1 more, by name after these, are not shown") == 1


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"b":1,"a":[2]}', '    {\n      "b": 1,\n      "a": [\n        2\n      ]\n    }\n'),
        (b"x" * 300, f"    {'x' * 199}…\n"),
        (b"\xff\x00", "    base64 /wA=\n"),
        (b"one\x1b[2J\ntwo", "    one\\x1b[2J\n    two\n"),
        (b"", "    (empty)\n"),
    ],
)
async def test_a_message_is_shown_with_what_is_in_it_and_replicas_that_agree_once(
    payload: bytes, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F10: an operator needs its contents first."""
    async with serving("jobs") as (_, client):
        mid = await client.publish("jobs", payload, key="k", headers={"h": 1})
        assert (await client.show("jobs", mid)).body is None
        life = await client.show("jobs", mid, body=True)
        assert life.body is not None
        assert (life.body.payload, life.body.key) == (payload, b"k")
        _print(life)
    out = capsys.readouterr().out
    assert f"    key k\n    h = 1\n{shown}" in out
    assert out.count("has the payload") == 1
    assert "a, b, c: has the payload" in out
