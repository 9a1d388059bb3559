"""A healthy cluster makes no duplicates, does not starve, and needs few HOLD rounds."""

from __future__ import annotations

import dataclasses

import pytest

from quorumq.core.messages import Fetch, FetchReply
from sim.clients.client import Client
from sim.clients.surroundings import Surroundings
from sim.cluster import Cluster
from sim.options import Options
from sim.runner import Outcome, run_schedule
from sim.schedule import Schedule

HEALTHY = Options(
    clock_rate=0.01,
    hold_time_max=10.0,
    hold_times=(10.0, 10.0),
    request_timeout=5.0,
    wall_offset=5.0,
    fault_time=2.0,
)


def healthy(seed: int, **options: object) -> Outcome:
    outcome = run_schedule(Schedule(seed, "quiet", dataclasses.replace(HEALTHY, **options)))  # type: ignore[arg-type]
    assert outcome.violations == []
    return outcome


def assert_no_duplicates(deliveries: int, seed: int) -> None:
    """Six consumers on three nodes share ``deliveries`` messages or more, each delivered once."""
    per_producer = deliveries // 4
    outcome = healthy(
        seed,
        producers=4,
        batches=1 + 2 * per_producer // 5000,
        batch_messages=5000,
        consumers=6,
        fetch_messages=2500,
        fault_time=2.0 + deliveries / 100_000,
    )
    counts = outcome.counts
    assert counts["published"] >= deliveries * 0.8
    assert counts["delivered"] == counts["published"]
    assert counts["redelivered"] == 0


def test_no_duplicate_in_many_deliveries() -> None:
    assert_no_duplicates(12_000, 1)


@pytest.mark.soak
def test_no_duplicate_in_a_million_deliveries() -> None:
    assert_no_duplicates(1_300_000, 2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("batch", [1, 40])
def test_few_hold_rounds_with_six_consumers_on_three_nodes(seed: int, batch: int) -> None:
    counts = healthy(
        seed, producers=3, batches=12, batch_messages=batch, consumers=6, fetch_messages=50
    ).counts
    assert counts["delivered"] == counts["published"]
    assert counts["hold_rounds"] <= 3 * counts["fetched_batches"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_overtakes_a_message_whatever_its_producer_s_clock_says(seed: int) -> None:
    """Three producers keep a backlog up, with clocks up to an hour off; one consumer takes it one by one.

    Messages are taken in the order in which they were published, but for those whose publishes overlapped, or whose
    ages were rounded to the same millisecond.
    """
    options = dataclasses.replace(
        HEALTHY, nodes=1, rf=1, wall_offset=3600.0, producers=3, batches=30, batch_messages=4, consumers=1,
        fetch_messages=1, fault_time=6.0,
    )  # fmt: skip
    outcome = run_schedule(Schedule(seed, "quiet", options), keep=True)
    assert outcome.violations == []
    began: dict[tuple[str, int], float] = {}
    done: dict[tuple[str, int], float] = {}
    taken: list[tuple[str, int]] = []
    for row in outcome.rows:
        names = [
            (producer_id, seq)
            for producer_id, start, stop in row.get("spans", ())
            for seq in range(start, stop)
        ]
        if row["kind"] == "publish":
            times = began if row["outcome"] == "invoke" else done
            times |= {name: row["at"] for name in names if name not in times}
        elif (
            row["kind"] == "deliver" and row["at"] < options.fault_time
        ):  # then all that is left is taken at once
            taken += names
    assert len(taken) == len({*taken}) > 80
    overtaken_by = [sum(began[other] > done[name] for other in taken[:at]) for at, name in enumerate(taken)]
    assert max(overtaken_by) <= options.batch_messages


class Racer(Client):
    """Asks one node once for exactly ``many`` messages."""

    def __init__(self, around: Surroundings, name: str, node: str, many: int, at: float) -> None:
        super().__init__(around, name)
        self.target = node
        self.many = many
        self.got = -1
        self.answered_at = 0.0
        self.world.at(at, self.begin)

    def begin(self, _: object = None, __: object = None) -> None:
        request = Fetch(("jobs",), "race", self.many, 1 << 20, self.many, 1.0, 10.0, 0.0, self.name)

        def then(answer: object, _: object) -> None:
            assert isinstance(answer, FetchReply), answer
            self.got = sum(part.stop - part.first for part in answer.slices)
            self.answered_at = self.world.time

        self.ask(self.target, request, 5.0, then)  # type: ignore[arg-type]


@pytest.mark.parametrize("many", [1, 10, 100])
@pytest.mark.parametrize("latency", [0.0005, 0.005])
def test_three_coordinators_that_race_each_get_what_they_asked_for(many: int, latency: float) -> None:
    for seed in range(4):
        options = dataclasses.replace(
            HEALTHY, producers=1, batches=8, batch_messages=8 * many, latency=latency, consumers=1
        )
        cluster = Cluster(Schedule(seed, "quiet", options))
        for consumer in cluster.consumers:
            cluster.clients.pop(consumer.name)
        cluster.consumers.clear()
        start = 8.0
        racers = [Racer(cluster.around, f"r{node}", node, many, start) for node in "abc"]
        for name, client in {**cluster.clients}.items():
            assert name != "c0"
            cluster.world.at(0.1, client.begin)
        for host in cluster.hosts.values():
            cluster.world.at(0.0, host.boot, host.life)
        cluster.world.run(start + 3.0)
        assert cluster.around.counts.published >= 3 * many
        assert [racer.got for racer in racers] == [many] * 3
        assert max(racer.answered_at for racer in racers) <= start + 1.0 + 10 * latency
