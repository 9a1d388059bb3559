"""Plans of several moves, on clusters of cores: a node is drained, and partitions are balanced."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from quorumq.cli.moves import (
    balanced,
    begin_drain,
    carry_out,
    check_removal,
    move_voter,
    off,
    planned,
    replace,
    until_they_vote,
)
from quorumq.core import messages as m
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull
from quorumq.core.values.errors import StorageFull, UsageError, error_from
from quorumq.core.values.types import MemberState, ProducerId
from tests.core.growing import GrowingCluster
from tests.core.network import wipe


class Calls:
    """The calls of a client that a plan is carried out by, on cores: time passes for them when it passes here."""

    def __init__(self, cluster: GrowingCluster) -> None:
        self.cluster = cluster
        self.moved: list[tuple[Any, ...]] = []
        self.at = trio.current_time()

    def ask(self, request: Any, node: str = "b") -> Any:
        self.cluster.advance(trio.current_time() - self.at)
        self.at = trio.current_time()
        key = self.cluster.submit(node, request)
        if key not in self.cluster.replies:
            self.cluster.advance(2.6)
        reply = self.cluster.replies[key]
        if isinstance(reply, m.Failed):
            raise error_from(reply.code, reply.detail)
        return reply

    async def metadata(self) -> m.MetadataReply:
        await trio.lowlevel.checkpoint()
        return self.ask(m.Metadata())

    async def status(self, node: str, *, timeout: float) -> Any:
        await trio.lowlevel.checkpoint()
        return self.ask(m.StatusRequest(), node).fields

    async def add_node(self, node: str, address: str, **more: str) -> None:
        self.ask(m.ChangeMembers("add", node, address, **more))

    async def drain_node(self, node: str, *, dry_run: bool = False) -> None:
        self.ask(m.ChangeMembers("drain", node, dry_run=dry_run))

    async def move_voter(self, node: str, to: str) -> Any:
        return self.ask(m.ChangeMembers("move-voter", node, to=to)).layout

    async def raise_voters(self, count: int) -> Any:
        return self.ask(m.ChangeMembers("raise-voters", "", voters=count)).layout

    async def remove_node(self, node: str) -> None:
        self.ask(m.ChangeMembers("remove", node))

    async def give_up_source(self, topic: str, partition: int, source: str) -> None:
        await self.move_partition(topic, partition, source, "")

    async def move_partition(self, topic: str, partition: int, source: str, to: str) -> None:
        await trio.lowlevel.checkpoint()
        self.ask(m.MovePartition(topic, partition, source, to))
        self.moved.append((topic, partition, source, to))


def grown(*machines: tuple[str, str], partitions: int = 8) -> GrowingCluster:
    """Return a cluster of three nodes with a topic, to which d and e were added after it was made."""
    cluster = GrowingCluster(3, machines=machines)
    cluster.checks = False  # tests of the core have them
    on = {"d": "m1", "e": "m4"} if machines else {}
    cluster.topic("jobs", rf=1 if not machines else 3, partitions=partitions)
    for name in "de":
        cluster.add(name, machine=on.get(name, ""))
    return cluster


async def test_balance_moves_what_the_new_nodes_ask_for_and_no_more() -> None:
    cluster = grown()
    calls = Calls(cluster)
    plan = balanced(await calls.metadata())
    assert {move.to for move in plan} == {"d", "e"}, "nothing moves between nodes that were there"
    assert await carry_out(calls, balanced, as_json=False) == len(plan) == len(calls.moved)  # type: ignore[arg-type]
    assert balanced(await calls.metadata()) == []
    assert not any(core.context.sources for core in cluster.nodes.values())


async def test_balance_keeps_machines_apart() -> None:
    cluster = grown(("a", "m1"), ("b", "m2"), ("c", "m3"))
    calls = Calls(cluster)
    plan = balanced(await calls.metadata())
    assert [move for move in plan if move.to == "d"], "some partitions rank d above a"
    assert all(move.source == "a" for move in plan if move.to == "d"), "d shares its machine with a"
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    on = {"a": "m1", "b": "m2", "c": "m3", "d": "m1", "e": "m4"}
    (topic,) = (await calls.metadata()).topics
    assert all(len({on[node] for node in members}) == 3 for members in topic.replicas)


async def test_drain_empties_a_node_and_waits_for_the_payload(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = grown()
    calls = Calls(cluster)
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    printed = capsys.readouterr().err.splitlines()
    counts = [int(line.split(": moved, ")[1].split()[0]) for line in printed if ": moved, " in line]
    assert counts[0] == len(counts) - 1, "all were made in one round"
    assert counts == sorted(counts, reverse=True)
    cluster.ask("a", m.ChangeMembers("drain", "d"))
    moved = await carry_out(calls, off("d"), as_json=True, node="d")  # type: ignore[arg-type]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == moved > 0
    assert all(line["source"] == "d" and line["outcome"] == "moved" for line in lines)
    (topic,) = (await calls.metadata()).topics
    assert not any("d" in members for members in topic.replicas)
    assert isinstance(cluster.ask("c", m.ChangeMembers("remove", "d")), m.ChangeMembersReply)
    states = {info.node: info.state for info in (await calls.metadata()).nodes}
    assert states == dict.fromkeys("abce", MemberState.JOINED)


async def test_two_nodes_are_drained_at_once() -> None:
    """The plan of one drain had moves to nodes that got the partition by the other: it ended with an error."""
    cluster = GrowingCluster(3)
    cluster.checks = False
    cluster.topic("jobs", partitions=8)
    for name in "def":
        cluster.add(name)
    calls = Calls(cluster)
    for name in "ac":
        await calls.drain_node(name)
    async with trio.open_nursery() as nursery:
        for name in "ac":
            nursery.start_soon(partial(carry_out, calls, off(name), False, name))  # type: ignore[arg-type]
    (topic,) = (await calls.metadata()).topics
    assert not {"a", "c"} & {node for members in topic.replicas for node in members}


class SlowCalls(Calls):
    """Calls whose moves take a second each, and begin at ``times``.

    Attributes:
        used: partitions that get a message before each status.
    """

    times: tuple[float, ...] = ()
    used: tuple[int, ...] = ()

    async def move_partition(self, topic: str, partition: int, source: str, to: str) -> None:
        self.times += (trio.current_time(),)
        await trio.sleep(1.0)
        await super().move_partition(topic, partition, source, to)

    async def status(self, node: str, *, timeout: float) -> Any:
        first = int(1000 * trio.current_time()) + ord(node)  # each producer is new
        for number in self.used:
            (topic,) = (await self.metadata()).topics
            self.ask(m.Publish(self.cluster.batch(topic, ProducerId("x", 1, 1, first), 0, [b"x"], number)))
        return await super().status(node, timeout=timeout)


async def test_moves_of_used_partitions_begin_seconds_after_one_another() -> None:
    """Moves one after the other made requests of clients several times as slow."""
    calls = SlowCalls(grown())
    calls.used = tuple(range(8))
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    assert len(calls.times) > 1
    assert all(later - earlier >= 4.0 for earlier, later in pairwise(calls.times))


async def test_idle_partitions_move_together() -> None:
    """A node with 1,000 of them was drained in a quarter of an hour, one after the other."""
    calls = SlowCalls(grown(partitions=32))
    moves = balanced(await calls.metadata())
    calls.used = (moves[3].partition,)
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    counts = [calls.times.count(at) for at in dict.fromkeys(calls.times)]
    assert counts[:2] == [3, 1], "those before the used one, and that"
    assert counts[2:] == [min(8, count) for count in range(len(moves) - 4, 0, -8)]


async def test_many_topics_do_not_move_together() -> None:
    cluster = grown(partitions=1)
    for number in range(12):
        cluster.topic(f"t{number}", rf=3)
    calls = SlowCalls(cluster)
    await calls.drain_node("a")
    await carry_out(calls, off("a"), as_json=False, node="a")  # type: ignore[arg-type]
    counts = [calls.times.count(at) for at in dict.fromkeys(calls.times)]
    assert max(counts) == 4


async def test_a_move_that_cannot_be_made_now_is_made_later(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = grown(("a", "m1"), ("b", "m2"), ("c", "m3"), partitions=4)
    calls = Calls(cluster)
    cluster.kill("c")
    with trio.move_on_after(1.5):
        await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    before = len(calls.moved)
    assert "every slot that stays has to be up" in capsys.readouterr().err
    cluster.start("c")
    cluster.relink()
    assert await carry_out(calls, balanced, as_json=False) > 0  # type: ignore[arg-type]
    assert len(calls.moved) > before
    assert balanced(await calls.metadata()) == []


async def test_a_move_to_an_untrusted_node_is_made_later(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = grown(("a", "m1"), ("b", "m2"), ("c", "m3"), partitions=4)
    calls = Calls(cluster)
    to = balanced(await calls.metadata())[0].to
    cluster.drop = lambda sender, to_, message: isinstance(message, m.ResyncReply) and to_ == to
    wipe(cluster, to, 1.0)
    with trio.move_on_after(1.5):
        await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    assert f"node '{to}' is not trusted yet" in capsys.readouterr().err
    cluster.hear_all(4.0)
    assert await carry_out(calls, balanced, as_json=False) > 0  # type: ignore[arg-type]
    assert balanced(await calls.metadata()) == []


async def test_a_dead_node_is_drained_once_it_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """It copies nothing any more: the others would wait for it for ever."""
    cluster = grown(("a", "m1"), ("b", "m2"), ("c", "m3"), partitions=4)
    calls = Calls(cluster)
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    cluster.kill("e")
    cluster.ask("a", m.ChangeMembers("drain", "e"))
    with trio.move_on_after(8):
        await carry_out(calls, off("e"), as_json=False, node="e")  # type: ignore[arg-type]
    assert (
        "e is away: if it is gone for good, --dead gives up the messages that it alone had"
        in capsys.readouterr().err
    )
    await carry_out(calls, off("e"), as_json=True, node="e", dead=True)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert {(line["source"], line["to"], line["outcome"]) for line in lines} == {("e", "", "given up")}
    assert isinstance(cluster.ask("c", m.ChangeMembers("remove", "e")), m.ChangeMembersReply)


async def test_a_node_without_a_node_that_takes_over_is_not_drained() -> None:
    cluster = GrowingCluster(3)
    cluster.topic("jobs", rf=3)
    with pytest.raises(UsageError, match=r"jobs/0 is on .*, and no other node is left for it: add one"):
        off("a")(await Calls(cluster).metadata())


async def test_a_drain_that_cannot_end_is_refused_before_it_changes_anything() -> None:
    one, three = GrowingCluster(1), GrowingCluster(3)
    for cluster, name in ((one, "b"), (one, "c"), (three, "d")):
        cluster.checks = False  # tests of the core have them
        cluster.add(name)
    one.topic("jobs", rf=3)
    three.topic("jobs", rf=1, partitions=8)
    three.feed("d", DiskFull(Shortage.RESERVE))
    three.advance(1.0)
    for cluster, node, to, why in (
        (one, "c", "", r"jobs/0 is on .*, and no other node is left for it: add one"),
        (three, "c", "d", "node d has only its reserve"),
    ):
        calls = Calls(cluster)
        for dry_run in (True, False):
            with pytest.raises((UsageError, StorageFull), match=why):
                await begin_drain(calls, node, off(node, to), dry_run=dry_run)  # type: ignore[arg-type]
        assert {info.state for info in (await calls.metadata()).nodes} == {MemberState.JOINED}
    calls = Calls(three)
    await calls.drain_node("d", dry_run=True)
    await calls.drain_node("d")
    with pytest.raises(UsageError, match="without c 2 nodes would be left"):
        await begin_drain(calls, "c", off("c"), dry_run=True)  # type: ignore[arg-type]
    assert [info.node for info in (await calls.metadata()).nodes if info.state] == ["d"]


async def test_a_node_is_replaced_by_another_one() -> None:
    cluster = grown()
    calls = Calls(cluster)
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    (topic,) = (await calls.metadata()).topics
    there = [number for number, members in enumerate(topic.replicas) if "d" in members]
    cluster.add("f")
    for moved in (len(there), 0):
        assert await replace(calls, "d", "f", "f:7401", as_json=False) == moved  # type: ignore[arg-type]
    known = await calls.metadata()
    assert [info.node for info in known.nodes] == [*"abcef"]
    (topic,) = known.topics
    assert [number for number, members in enumerate(topic.replicas) if "f" in members] == there
    with pytest.raises(UsageError, match="there is no node 'x'"):
        await replace(calls, "x", "g", "g:7401", as_json=False)  # type: ignore[arg-type]
    assert "g" not in [info.node for info in (await calls.metadata()).nodes], "nothing was changed"


async def test_a_first_node_is_replaced_and_drained_with_its_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = grown()
    calls = Calls(cluster)
    cluster.kill("e")
    key = cluster.submit("a", m.ChangeMembers("move-voter", "c", to="e"))
    cluster.advance(3.0)
    assert "e did not say so" in cluster.replies[key].detail  # type: ignore[union-attr]
    cluster.start("e")
    cluster.relink()
    await calls.drain_node("c")
    await carry_out(calls, off("c", "e"), as_json=False, node="c")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="node c keeps settings"):
        check_removal(await calls.metadata(), "c")
    capsys.readouterr()
    await move_voter(calls, "c", "e", as_json=True)  # type: ignore[arg-type]
    await move_voter(calls, "c", "e", as_json=True)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"source": "c", "voters": [*"abe"], "outcome": "moved"}]
    check_removal(await calls.metadata(), "c")
    cluster.add("f")
    await replace(calls, "a", "f", "f:7401", as_json=False)  # type: ignore[arg-type]
    known = await calls.metadata()
    assert [info.node for info in known.nodes] == [*"bcdef"]
    assert [info.node for info in known.nodes if info.voter] == [*"bef"]


@pytest.mark.parametrize(("to", "machines"), [("b", ()), ("d", (("a", "m0"), ("b", "m1"), ("c", "m2")))])
async def test_settings_go_to_another_node_if_the_named_one_cannot_have_them(
    to: str, machines: tuple[tuple[str, str], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """b is a voter, and d is on its machine. The partitions went there before, so the command has to end."""
    calls = Calls(grown(*machines))
    await calls.drain_node("c")
    await move_voter(calls, "c", to, as_json=True)  # type: ignore[arg-type]
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["outcome"] == "moved"
    assert line["voters"] in ([*"abd"], [*"abe"])


async def test_more_voters_are_asked_for_until_they_vote(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = grown()
    calls = Calls(cluster)
    cluster.kill("e")

    async def starts() -> None:
        await trio.sleep(5.0)
        cluster.start("e")
        cluster.relink()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(starts)
        names = await until_they_vote(lambda: calls.raise_voters(5), as_json=False)
    assert names == [*"abcde"]
    assert "(e did not say so); try again" in capsys.readouterr().err
    assert await until_they_vote(lambda: calls.raise_voters(5), as_json=True) == names
    with pytest.raises(UsageError, match="they cannot become fewer"):
        await calls.raise_voters(3)


async def test_a_removal_is_checked_before_it_is_asked_for() -> None:
    cluster = grown()
    calls = Calls(cluster)
    for node, why in (("a", "node a keeps"), ("x", "there is no node 'x'"), ("d", "node d is in use")):
        with pytest.raises(UsageError, match=why):
            check_removal(await calls.metadata(), node)
    await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    await calls.drain_node("d")
    with pytest.raises(UsageError, match=r"node d keeps jobs/.*: `quorumq nodes drain d` comes first"):
        check_removal(await calls.metadata(), "d")
    await carry_out(calls, off("d"), as_json=False, node="d")  # type: ignore[arg-type]
    check_removal(await calls.metadata(), "d")


async def test_plans_avoid_full_nodes_and_are_refused_by_name_if_they_cannot() -> None:
    cluster = grown(partitions=24)
    calls = Calls(cluster)
    before = planned(off("b"), await calls.metadata())
    cluster.feed("d", DiskFull(Shortage.RESERVE))
    cluster.advance(1.0)
    known = await calls.metadata()
    after = planned(off("b"), known)
    assert "d" in [move.to for move in before]
    assert [move[:3] for move in after] == [move[:3] for move in before]
    assert "d" not in [move.to for move in after]
    with pytest.raises(StorageFull, match=r"to d cannot be made: node d has only its reserve .* larger disk"):
        planned(off("b", "d"), known)
    with pytest.raises(StorageFull, match="node d has only its reserve"):
        await carry_out(calls, balanced, as_json=False)  # type: ignore[arg-type]
    assert not calls.moved
    cluster.feed("d", DiskFull(Shortage.NONE))
    cluster.advance(1.0)
    assert await carry_out(calls, balanced, as_json=False) == len(calls.moved)  # type: ignore[arg-type]


async def test_a_drain_names_a_node_without_space_for_its_payload(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = grown(partitions=1)
    calls = Calls(cluster)
    (source,) = cluster.nodes["b"].topic_named("jobs").replicas[0]  # type: ignore[union-attr]
    batch = cluster.batch(cluster.nodes["b"].topic_named("jobs"), ProducerId("x", 1, 1, 1), 0, [b"x"])  # type: ignore[arg-type]
    assert isinstance(cluster.ask(source, m.Publish(batch)), m.PublishReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    with trio.move_on_after(20.0):
        await calls.drain_node(source)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry_out, calls, off(source, "d"), False, source)
            await trio.sleep(5.0)
            cluster.feed("d", DiskFull(Shortage.RESERVE))
            cluster.hear_all()
    said = capsys.readouterr().err
    assert "waits until the payload of jobs/0 is copied; node d has only its reserve" in said
