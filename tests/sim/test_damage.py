"""Damaged bodies and directories in the simulator: found, not served, and restored."""

from __future__ import annotations

import random

import pytest

from quorumq.core.messages import Slice
from quorumq.core.messages.records import BatchStored, DirectoryMade, Started, TrustLost
from quorumq.core.values.types import Batch, Incarnation, PartitionId, ProducerId
from quorumq.wire.batch import Message, build_batch
from sim.cluster import Cluster
from sim.disks import DamagedBody, MemoryJournal
from sim.fault_plan import Fault
from sim.links import Links
from sim.options import Options
from sim.runner import run_schedule
from sim.schedule import Schedule, draw

BATCHES = range(1, 41)


def journal() -> MemoryJournal:
    """One with a directory, a start and some batches, all durable."""
    made = MemoryJournal()
    made.append((DirectoryMade("a", "sim", 7), Started(Incarnation(1, 5))))
    producer_id = ProducerId("a", 1, 5, 1)
    for number in BATCHES:
        batch = build_batch(PartitionId(b"t" * 16, 0), producer_id, number, 0, [Message(b"m")])
        made.append((BatchStored(number, batch, 0, 0),))
    made.close()
    made.open()
    return made


def numbers(records: list[BatchStored]) -> list[int]:
    return [record.number for record in records if isinstance(record, BatchStored)]


def test_a_start_finds_some_damaged_batches_and_who_reads_them_the_others() -> None:
    one = journal()
    one.flip(random.Random(1), 0.5)
    present, damaged = numbers(one.open()), numbers(one.damaged())
    assert damaged
    assert sorted(present + damaged) == list(BATCHES)
    latent = []
    for number in present:
        try:
            one.batch(number)
        except DamagedBody as error:
            latent.append(error.number)
    assert latent
    one.set_aside(latent[0])
    one.open()
    assert numbers(one.damaged()) == sorted([*damaged, latent[0]])
    one.drop(tuple(damaged))
    one.open()
    assert numbers(one.damaged()) == [latent[0]]
    one.lose(random.Random(1), backup=False, last=False)
    assert (one.open(), one.damaged()) == ([], [])


def test_a_damaged_directory_says_so_keeps_whose_it_is_and_gives_no_number_twice() -> None:
    lost = 0
    for seed in range(50):
        one = journal()
        one.damage(random.Random(seed), seed % 2 * 5)
        records = one.open()
        assert isinstance(records[0], DirectoryMade)
        assert isinstance(records[-1], TrustLost)
        assert one.next_number() == BATCHES.stop
        lost += len(numbers(records)) < len(BATCHES)
    assert lost


SEEDS = range(1, 6)
"""Some of them: which batches are damaged, and who reads them, is drawn."""


def still(kind: str, victim: str, seed: int, disk: str = "memory") -> Schedule:
    """A cluster without other faults, on which messages lie for a while before they are due."""
    options = Options(
        delayed=1.0,
        delayed_by=6.0,
        fault_time=6.0,
        batches=8,
        consumers=3,
        producers=3,
        hold_times=(4.0, 4.0),
        disk=disk,
    )
    return Schedule(seed, "swarm", options, (Fault(3.0, kind, (victim,), 0.3),))


@pytest.mark.parametrize("disk", [pytest.param("memory", marks=pytest.mark.soak), "store"])
@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("rot", "a damaged batch was not served"),
        ("flip", "a start found a damaged batch"),
        ("damage", "a damaged directory was started from"),
    ],
)
def test_a_damaged_batch_is_not_served_and_returns_from_peers(kind: str, seen: str, disk: str) -> None:
    """Each node is damaged in turn; on the simulator's own journal with every seed."""
    for victim, first in zip("abc", range(3), strict=True):
        of_victim = SEEDS if disk == "memory" else SEEDS[first::3]
        outcomes = [run_schedule(still(kind, victim, seed, disk)) for seed in of_victim]
        assert [outcome.violations for outcome in outcomes] == [[]] * len(of_victim)
        assert any(seen in outcome.seen for outcome in outcomes)


def test_in_the_end_no_batch_that_is_known_to_be_damaged_is_counted_as_here() -> None:
    count = 0
    for seed in SEEDS:
        cluster = Cluster(still("rot", "a", seed))
        cluster.run()
        journal, core = cluster.hosts["a"].journal, cluster.hosts["a"].core
        assert isinstance(journal, MemoryJournal)
        assert core is not None
        known = [number for number, damaged in journal.flipped.items() if damaged]
        assert not any(
            number in replica.batches.stored for replica in core.replicas.values() for number in known
        )
        count += len(known)
    assert count


def test_one_node_is_damaged_or_lost_in_a_run() -> None:
    kinds = ("wipe", "restore", "flip", "rot", "damage")
    kinds_seen = set()
    for seed in range(300):
        hit = [(fault.kind, fault.nodes) for fault in draw(seed).faults if fault.kind in kinds]
        kinds_seen |= {kind for kind, _ in hit}
        assert len({nodes for _, nodes in hit}) <= 1
        assert not hit or draw(seed).options.rf > 1
    assert kinds_seen == set(kinds)


def test_the_store_is_run_in_a_fifth_of_the_seeds() -> None:
    assert 0.15 < sum(draw(seed).options.disk == "store" for seed in range(500)) / 500 < 0.25


def test_an_answer_whose_batch_was_dropped_releases_its_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the fsync of an answer its group may be rewound, and RECLAIM drops the batch: seeds 409369, 409882."""
    bodies, gone = Links.bodies, iter([True] * 3)

    def dropped(self: Links, slices: tuple[Slice, ...]) -> tuple[Batch, ...]:
        if slices and next(gone, False):
            raise KeyError(slices[0].batch)
        return bodies(self, slices)

    monkeypatch.setattr(Links, "bodies", dropped)
    assert run_schedule(draw(3, "swarm")).violations == []
    assert next(gone, None) is None, "three answers were refused"
