"""Moves of partitions, and changes of the members, in runs of real processes: as drawn, and asked of the cluster."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from quorumq.core.values.errors import TooFewReplicas
from quorumq.history import HistoryWriter
from sim.fault_plan import Fault
from sim.real.inflict import Inflicter
from sim.real.moves import Members, Moves
from sim.real.plan import MEMBERS, draw_real


class Operator:
    """A client of a cluster of four nodes with one topic that is read, and one that is not."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, str]] = []
        self.error: Exception | None = None

    async def metadata(self) -> Any:
        topics = [("other", (("n1", "n2", "n3"),)), ("real", (("n1", "n2", "n3"), ("n2", "n3", "n4")))]
        return SimpleNamespace(
            nodes=[SimpleNamespace(node=f"n{number}") for number in range(1, 5)],
            topics=[SimpleNamespace(name=name, replicas=replicas) for name, replicas in topics],
        )

    async def move_partition(self, topic: str, number: int, source: str, to: str, *, timeout: float) -> None:
        self.asked.append((topic, number, source, to))
        if self.error is not None:
            raise self.error


def test_moves_are_drawn_beside_the_other_faults_if_there_are_more_nodes_than_replicas() -> None:
    drawn = [fault for seed in range(5) for fault in draw_real(seed, 5, 120.0).faults if fault.kind == "move"]
    assert len(drawn) >= 5 * 5
    assert {fault.nodes[0] for fault in drawn} == {"n1", "n2", "n3", "n4", "n5"}
    assert not any(fault.kind == "move" for fault in draw_real(1, 3, 120.0).faults)


@pytest.mark.parametrize(
    ("node", "drawn", "asked"),
    [
        ("n4", 0, ("real", 0, "n1", "n4")),
        ("n4", 4, ("real", 0, "n2", "n4")),
        ("n4", 1, ("real", 1, "n4", "n1")),
        ("n1", 0, ("real", 0, "n1", "n4")),
    ],
)
async def test_a_move_gives_or_takes_a_slot(node: str, drawn: int, asked: tuple[str, int, str, str]) -> None:
    operator = Operator()
    moves = Moves(operator, ["real", "real"])  # type: ignore[arg-type]
    await moves.move(node, drawn)
    assert (operator.asked, moves.done) == ([asked], 1)


async def test_a_refused_move_is_left_at_that() -> None:
    operator = Operator()
    operator.error = TooFewReplicas("its last move is not over")
    moves = Moves(operator, ["real"])  # type: ignore[arg-type]
    await moves.move("n4", 0)
    assert (len(operator.asked), moves.done) == (1, 0)


async def test_a_fault_of_that_kind_moves_a_slot() -> None:
    operator = Operator()
    cluster = SimpleNamespace(nodes=("n4",), serves=lambda name: True)
    inflicter = Inflicter(cluster, HistoryWriter(io.StringIO(), run="r", who="sim"))  # type: ignore[arg-type]
    inflicter.moves = Moves(operator, ["real"])  # type: ignore[arg-type]
    await inflicter.run((Fault(0.0, "move", ("n4",), 0.0, 0.0),))
    assert operator.asked == [("real", 0, "n1", "n4")]
    assert inflicter.met == {"move": 1}


def changes(seed: int, nodes: int, seconds: float) -> list[tuple[str, str]]:
    faults = draw_real(seed, nodes, seconds).faults
    return [(fault.kind, fault.nodes[0]) for fault in faults if fault.kind in MEMBERS]


def test_a_node_is_added_and_one_removed_in_runs_of_a_minute_or_more() -> None:
    drawn = [changes(seed, 3, 90.0) for seed in range(20)]
    assert {change[0] for change in drawn if change} == {("add", "n4")}
    assert {node for change in drawn for kind, node in change if kind == "remove"} == {"n1", "n2", "n3", "n4"}
    for change in drawn:
        assert [kind for kind, _ in change] in ([], ["add"], [*MEMBERS], [*MEMBERS, "add"])
    assert not any(changes(seed, nodes, 90.0) for seed in range(20) for nodes in (2, 9))
    assert not any(changes(seed, 3, 50.0) for seed in range(20))


class Town:
    """A cluster of n1 to n3 that n4 may join, with one partition on the first three, and its operator."""

    def __init__(self) -> None:
        self.nodes, self.front = ("n1", "n2", "n3", "n4"), ["w:1", "w:2", "w:3", "w:4"]
        self.outside = {"n4": None}
        self.members, self.voters, self.drained = ["n1", "n2", "n3"], ["n1", "n2", "n3"], [""]
        self.replicas = ["n1", "n2", "n3"]
        self.failures = 0

    def peer_address(self, name: str) -> str:
        return "p:4"

    def let_in(self, name: str) -> None:
        assert name in self.members
        self.outside.pop(name, None)

    def dismiss(self, name: str) -> None:
        assert name not in self.members
        self.outside[name] = None

    async def metadata(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise TooFewReplicas("no node answers")
        infos = [SimpleNamespace(node=node, voter=node in self.voters) for node in self.members]
        return SimpleNamespace(
            nodes=infos, topics=[SimpleNamespace(name="real", replicas=(tuple(self.replicas),))]
        )

    async def add_node(self, node: str, address: str, *, peer_address: str, timeout: float) -> None:
        assert (address, peer_address) == ("w:4", "p:4")
        self.members.append(node)

    async def drain_node(self, node: str, *, timeout: float) -> None:
        self.drained.append(node)

    async def move_partition(self, topic: str, number: int, source: str, to: str, *, timeout: float) -> None:
        assert source in self.drained
        self.replicas[self.replicas.index(source)] = to

    async def move_voter(self, node: str, *, timeout: float) -> None:
        self.voters[self.voters.index(node)] = "n4"

    async def remove_node(self, node: str, *, timeout: float) -> None:
        assert node not in (*self.replicas, *self.voters)
        self.members.remove(node)


async def test_a_node_is_added_and_another_one_removed(autojump_clock: Any) -> None:
    town = Town()
    town.failures = 3
    members = Members(town, town)  # type: ignore[arg-type]
    await members.add("n4")
    assert town.outside == {}
    await members.remove("n2")
    assert (town.replicas, town.members) == (["n1", "n4", "n3"], ["n1", "n3", "n4"])
    assert town.outside == {"n2": None}


async def test_a_change_of_unknown_outcome_is_settled_when_all_is_healed() -> None:
    town = Town()
    town.members = ["n2", "n3", "n4"]
    await Members(town, town).settle(60.0)  # type: ignore[arg-type]
    assert town.outside == {"n1": None}
