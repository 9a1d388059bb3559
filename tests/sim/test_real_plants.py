"""`sim real` finds three bugs that are planted in its nodes, and every schedule has the faults that show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.__main__ import main
from sim.fault_plan import Fault
from sim.real.cluster import HOLD_S, LONER, FaultyCluster
from sim.real.plan import draw_real
from sim.real.workload import RATE, work_s
from sim.schedule import Schedule
from tests.sim.planted_node import PLANTS

PLANTED = Path(__file__).with_name("planted_node.py")


def isolates(fault: Fault, names: tuple[str, ...]) -> bool:
    """Return True if a node and a client are isolated together for longer than the holds there last."""
    for node in names:
        apart = product((node, LONER), (name for name in names if name != node))
        cut = {pair for one, two in apart for pair in ((one, two), (two, one))}
        if fault.kind == "partition" and cut == {*fault.links}:
            return 2 * HOLD_S <= fault.seconds <= 4 * HOLD_S
    return False


def drops(fault: Fault, names: tuple[str, ...]) -> bool:
    """Return True if a majority is killed at once, and started at once."""
    return fault.kind == "kill" and 2 * len(fault.nodes) > len(names) and fault.seconds <= 0.1


def loses(fault: Fault, names: tuple[str, ...]) -> bool:
    """Return True if all lose power at once."""
    return fault.kind == "crash" and fault.nodes == names


SHOWN_BY: dict[str, tuple[Callable[[Fault, tuple[str, ...]], bool], float]] = {
    "ack": (isolates, 0.0),
    "quarantine": (drops, HOLD_S),
    "fsync": (loses, HOLD_S),
}
"""By plant the fault that shows it, and for how many seconds after it nothing else may happen."""


def shown(schedule: Schedule, plant: str) -> int:
    """Return the number of a schedule's faults that show a plant: right after a delivery, with no other fault before
    it is seen.

    Nor for a hold before: then messages are in hand.
    """
    names = tuple(f"n{number}" for number in range(1, schedule.options.nodes + 1))
    is_it, after = SHOWN_BY[plant]
    count = 0
    for fault in schedule.faults:
        end = fault.at + fault.seconds + after
        others = [
            it
            for it in schedule.faults
            if fault.at - HOLD_S < it.at < end and it is not fault and it.kind != "delay"
        ]
        count += bool(is_it(fault, names) and fault.amount and not others)
    return count


@pytest.mark.parametrize(("nodes", "minutes"), [(5, 10), (3, 3)])
def test_each_schedule_has_the_faults_that_show_a_plant(nodes: int, minutes: int) -> None:
    for seed in range(100):  # 0 is the default
        schedule = draw_real(seed, nodes, 60.0 * minutes)
        assert min(shown(schedule, plant) for plant in PLANTS) >= minutes // 3


def test_a_schedule_has_other_faults_besides() -> None:
    for seed in range(20):
        faults = draw_real(seed, 5, 600.0).faults
        assert len(faults) >= 25
        assert len({fault.kind for fault in faults}) >= 6


def test_handlers_have_messages_in_hand_at_any_time() -> None:
    numbers = range(1, 2001)
    first = [work_s(number, 1) for number in numbers]
    assert max(first) == pytest.approx(0.9 * HOLD_S)
    assert 2 * RATE * sum(first) / len(first) > 30, "so many are in hand in each group"
    back = 0.5 * HOLD_S  # a start on a busy machine
    average = sum(max(0.0, seconds - back) for seconds in first) / len(first)
    assert 2 * RATE * average > 10, "and so many still when nodes are back"
    assert max(work_s(number, 2) for number in numbers) < 0.1, "what comes again may have to come alone"


@pytest.mark.e2e
@pytest.mark.soak
@pytest.mark.parametrize(
    ("plant", "promises"),
    [
        ("ack", {"final after ack"}),
        ("quarantine", {"exclusive holds"}),
        ("fsync", {"no loss", "live after healing"}),  # as far as any node can still be trusted
    ],
)
def test_a_plant_is_found_in_a_run_as_it_is_by_default(
    plant: str, promises: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = FaultyCluster.command

    def planted(self: FaultyCluster, name: str) -> list[str]:
        python, safe, _, *rest = command(self, name)
        return [python, safe, str(PLANTED), plant, *rest]

    monkeypatch.setattr(FaultyCluster, "command", planted)
    done = CliRunner().invoke(main, ["real", "--json"])
    fields = json.loads(done.output)
    assert done.exit_code == 1, fields
    assert promises & {text.partition(" at ")[0] for text in fields["violations"]}, fields["violations"]
