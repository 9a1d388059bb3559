"""A node with an empty directory asks to be let in, and begins once it is a member: sockets and disks in memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.cluster.members import first_layout
from quorumq.core.messages.effects import Received
from quorumq.core.messages.records import ClusterMade, ClusterPut, Started
from quorumq.core.values.errors import Code, UsageError
from quorumq.core.values.types import Incarnation, MemberState
from quorumq.node.admission import wrong_listener
from quorumq.node.config import ConfigError, ServeConfig, make_config, with_join
from quorumq.node.join import NotAdmitted, ask_to_join, cluster_of
from quorumq.node.links import dial_address, greet, keep_link
from quorumq.node.serve import Service, open_node
from quorumq.node.transport import Transport
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX, FrameReader
from sim.memory_disk import MemoryDisk
from sim.shell.memory import SECRET, Commits, Log
from tests.node.memory import World, fetch, payloads, publish, world

MINE = {
    "node": "d", "cluster_id": "test", "secret": SECRET.decode(), "data_dir": "/nonexistent",
    "listen": "127.0.0.1:7404", "join": ["127.0.0.1:7401", "127.0.0.1:7402"],
}  # fmt: skip


def add(cluster: World, name: str) -> None:
    cluster.disks[name], cluster.commits[name], cluster.logs[name] = (
        MemoryDisk(),
        Commits(cluster.nursery),
        Log(),
    )


async def join(cluster: World, config: ServeConfig) -> m.Admitted | str:
    """Ask the nodes of the cluster, by their addresses, to let in the node of this configuration."""

    async def dial(address: str) -> Transport:
        await trio.lowlevel.checkpoint()
        return cluster.connect(cluster.names[int(address[-1]) - 1], f"node {config.node}")

    return await ask_to_join(config, dial, cluster.logs["d"])


def begin(cluster: World, config: ServeConfig, admitted: m.Admitted | None) -> Service:
    """Start the node."""
    node = open_node(
        config,
        cluster.disks["d"],
        log=cluster.logs["d"],
        commits=cluster.commits["d"],
        clock=lambda: cluster.clock("d"),
        rng=random.Random(7),
        admitted=admitted,
    )

    async def dial(peer: str) -> Transport:
        await trio.lowlevel.checkpoint()
        return cluster.connect(peer, "node d")

    service = cluster.services["d"] = Service(node, dial)
    cluster.nursery.start_soon(cluster._run, "d", service, ())
    return service


@asynccontextmanager
async def added() -> AsyncIterator[World]:
    """A cluster that has let d in."""
    async with world("abc") as cluster:
        add(cluster, "d")
        config = make_config(MINE)
        with pytest.raises(NotAdmitted):
            begin(cluster, config, None)
        answers: list[m.Admitted | str] = []

        async def wait() -> None:
            answers.append(await join(cluster, config))

        cluster.nursery.start_soon(wait)
        await trio.sleep(5)
        lines = cluster.logs["d"].of("waits_to_join")
        assert [line["address"] for line in lines] == MINE["join"], "once for each reason"
        assert "quorumq nodes add d --address 127.0.0.1:7404" in lines[0]["reason"]
        client = await cluster.client("c")
        reply = await client.ask(m.ChangeMembers("add", "d", "127.0.0.1:7404"))
        assert isinstance(reply, m.ChangeMembersReply), reply
        await trio.sleep(2)
        assert isinstance(answers[0], m.Admitted)
        begin(cluster, config, answers[0])
        await trio.sleep(3)
        yield cluster


async def test_a_node_waits_until_it_is_added_and_serves() -> None:
    async with added() as cluster:
        assert sorted(cluster.services["d"].node.links) == ["a", "b", "c"]
        assert all("d" in cluster.services[name].node.links for name in "abc")
        assert [line["members"] for line in cluster.logs["a"].of("members_changed")] == [[*"abcd"]]
        client = await cluster.client("d")
        topic = await client.topic(rf=3)
        await client.ask(publish(topic, await client.session(), 0, b"x"))
        assert payloads(await client.ask(fetch())) == [b"x"]
        known = await client.ask(m.Metadata())
        assert [info.address for info in known.nodes] == [f"127.0.0.1:740{at}" for at in (1, 2, 3, 4)]


async def test_a_node_that_is_removed_and_added_in_one_turn_gets_its_links_back() -> None:
    async with added() as cluster:
        node = cluster.services["a"].node
        layout = node.core.catalogue.cluster.layout
        gone = layout.members[3]._replace(state=MemberState.REMOVED)
        removed = layout._replace(number=layout.number + 1, members=(*layout.members[:3], gone))
        again = removed._replace(number=removed.number + 1, members=(*removed.members, layout.members[3]))
        own = node.core.state.incarnation
        puts = [m.PutCluster(0, each) for each in (removed, again)]
        node.feed(*[Received(m.Envelope("a", own, "a", own, 0, put)) for put in puts])
        assert "d" not in node.core.state.links
        await trio.sleep(5)
        assert "d" in node.core.state.links
        assert "a" in cluster.services["d"].node.core.state.links


async def test_a_node_that_is_removed_hears_it_before_its_links_end() -> None:
    """Its clients go elsewhere at once: it tells them, unasked. Else it would hear it when it dials again."""
    async with added() as cluster:
        client, of_leaver = await cluster.client("c"), await cluster.client("d")
        await client.ask(m.ChangeMembers("drain", "d"))
        refused = await of_leaver.ask(fetch())
        assert isinstance(refused, m.Failed)
        assert refused.code == Code.NOT_STORED
        removed = await client.ask(m.ChangeMembers("remove", "d"))
        assert isinstance(removed, m.ChangeMembersReply), removed
        await trio.sleep(0.01)
        assert cluster.services["d"].node.core.state.standing == MemberState.REMOVED
        assert not cluster.logs["d"].of("peer_refuses")
        refused = await of_leaver.ask(m.CreateTopic("other"))
        assert isinstance(refused, m.Failed)
        assert refused.code == Code.NOT_STORED
        members = await of_leaver.receive(0)
        assert [info.node for info in members.nodes] == [*"abc"]


async def test_a_directory_that_has_begun_needs_neither_a_list_nor_an_answer() -> None:
    async with added() as cluster:
        cluster.kill("d")
        await trio.sleep(1)
        core = begin(cluster, make_config(MINE), None).node.core
        assert core.config.nodes == ("a", "b", "c")
        assert core.config.hold_time_max == 5.0, "the cluster's, and not the default of the file"
        await trio.sleep(8)
        assert core.state.trusted
        assert sorted(cluster.services["d"].node.links) == ["a", "b", "c"]


async def test_the_list_in_the_journal_wins_over_the_file_of_a_first_node() -> None:
    async with added() as cluster:
        cluster.kill("a")
        cluster.names = ("a", "b", "d")  # in the files
        await trio.sleep(1)
        cluster.start("a")
        await trio.sleep(8)
        core = cluster.services["a"].node.core
        assert core.config.nodes == ("a", "b", "c")
        assert core.state.trusted
        assert sorted(cluster.services["a"].node.links) == ["b", "c", "d"]
        outdated = cluster.services["a"].node.core.status(cluster.clock("a"))["outdated"]
        assert (
            outdated
            == "it lacks c = '127.0.0.1:7403'; it has d = '127.0.0.1:7403', and the members' list "
            + ("'127.0.0.1:7404'")
        )


def test_a_directory_of_a_cluster_of_its_own_does_not_join() -> None:
    """It began by itself, and served clients as a cluster of one node."""
    config = make_config(MINE)
    made = ClusterMade(("d",), 60.0)
    with pytest.raises(UsageError, match="made with d, and `join` needs an empty one"):
        cluster_of(config, [made, Started(Incarnation(1, 1))], None)
    layout = first_layout(("a", "b", "c"))
    with pytest.raises(NotAdmitted):
        cluster_of(config, [made], None)
    admitted = m.Admitted(("a", "b", "c"), 60.0, (), layout)
    assert cluster_of(config, [made], admitted) == (ClusterMade(("a", "b", "c"), 60.0), layout)
    records = [ClusterMade(("a", "b", "c"), 60.0), ClusterPut(layout), Started(Incarnation(1, 1))]
    assert cluster_of(config, records, None) == (records[0], layout)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cluster_id": "other"}, "check cluster_id"),
        ({"secret": "another secret of the cluster"}, "does not know the secret"),
    ],
)
async def test_a_node_of_another_cluster_does_not_wait(change: dict[str, str], why: str) -> None:
    async with world("ab") as cluster:
        add(cluster, "d")
        answer = await join(cluster, make_config({**MINE, **change}))
        assert isinstance(answer, str)
        assert why in answer


class Refusing:
    """The other side of a dial, which shows a certificate and refuses HELLO; it takes all that is sent."""

    names = frozenset({"a"})

    def __init__(self, reason: str) -> None:
        self.answer = b"".join(encode_message(m.Failed(Code.UNAUTHORIZED, reason)))

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.answer

    def put(self, chunks: object) -> None:
        pass

    def flush(self) -> None:
        pass


async def test_a_node_whose_certificate_is_refused_hears_the_reason() -> None:
    """The error named the other node's certificate."""
    other, reader = Refusing("d shows the certificate of f"), FrameReader(HANDSHAKE_BYTES_MAX)
    answer = await greet([b""], "", other, reader, other, SECRET, shows_name=True)
    assert isinstance(answer, m.Failed)
    assert answer.detail == "d shows the certificate of f"


async def test_a_node_that_cannot_reach_anybody_says_so_and_goes_on() -> None:
    async with world("ab") as cluster:
        add(cluster, "d")
        cluster.kill("a")
        with trio.move_on_after(10):
            await join(cluster, make_config(MINE))
        reasons = [line["reason"] for line in cluster.logs["d"].of("waits_to_join")]
        assert len(reasons) == 2
        assert "nobody is there" in reasons[0]


async def test_a_node_that_is_refused_for_good_says_so_once() -> None:
    """It dials again each second, for years."""
    async with world("ab") as cluster:
        add(cluster, "d")
        nodes = {name: f"127.0.0.1:740{at}" for at, name in enumerate("abd", 1)}
        begin(cluster, make_config({**MINE, "join": [], "nodes": nodes, "listen": nodes["d"]}), None)
        await trio.sleep(10)
        assert sorted(line["peer"] for line in cluster.logs["d"].of("peer_refuses")) == ["a", "b"]


async def test_an_address_that_no_node_can_dial_ends_none() -> None:
    """The members' list may have one that was written by an older version; it is read again at each start."""
    async with world("ab") as cluster:
        node = cluster.services["a"].node
        for address in ("::1:7401", "☃.x:7401"):
            with trio.move_on_after(1):
                await keep_link(
                    node, "b", lambda peer, at=address: dial_address(at), random.Random(1), cluster.nursery
                )
        reasons = [line["reason"] for line in cluster.logs["a"].of("peer_unreachable")]
        assert "stands in brackets" in reasons[0]
        assert "is not the name of a host" in reasons[1]


def test_a_file_has_nodes_or_join() -> None:
    with pytest.raises(ConfigError, match="nodes and join are both given"):
        make_config({**MINE, "nodes": {"d": "127.0.0.1:7404"}})
    with pytest.raises(ConfigError, match=r"join\[0\] = 'nowhere'"):
        make_config({**MINE, "join": ["nowhere"]})
    with pytest.raises(ConfigError, match="learns them from the others"):
        make_config({**MINE, "machines": {"d": "m"}})
    apart = make_config({**MINE, "peer_listen": "127.0.0.1:8404"})
    hello = m.Hello(m.VERSIONS, "test", b"", 0.0, "a", Incarnation(0, 0), 0, 0, 0)
    assert "speaks with nodes at 127.0.0.1:8404 only" in wrong_listener(apart, "clients", hello)
    plain = {key: value for key, value in MINE.items() if key != "join"}
    assert with_join(make_config(plain), ("127.0.0.1:7401",)).join == ["127.0.0.1:7401"]
    assert with_join(make_config(plain), ()).join == []
    with pytest.raises(ConfigError, match="nodes and join are both given"):
        with_join(make_config({**plain, "nodes": {"d": "127.0.0.1:7404"}}), ("127.0.0.1:7401",))
