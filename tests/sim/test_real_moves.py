"""Moves of partitions in runs of real processes: how they are drawn, and what is asked of the cluster."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from quorumq.core.values.errors import TooFewReplicas
from quorumq.history import HistoryWriter
from sim.fault_plan import Fault
from sim.real.inflict import Inflicter
from sim.real.moves import Moves
from sim.real.plan import draw_real


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
async def test_a_move_gives_a_slot_to_a_node_or_takes_it_away(
    node: str, drawn: int, asked: tuple[str, int, str, str]
) -> None:
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
