"""Options of a run, drawn by one function for each profile."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from sim.options import Options


def draw_distance(rng: random.Random, options: Options) -> Options:
    """Draw, in some runs, nodes that are far apart: answers take up to 0.4 of the shortest hold."""
    if rng.random() >= 0.1:
        return options
    most = 0.2 * min(options.hold_times[0], options.request_timeout)
    return dataclasses.replace(
        options, distance=round(max(0.0, rng.uniform(0.2, 1.0) * most - options.latency), 4)
    )


def off(names: str) -> dict[str, Any]:
    """Return the options of these names, each 0."""
    return dict.fromkeys(names.split(), 0)


def sometimes(rng: random.Random, share: float, low: float, high: float) -> float:
    """Return 0 mostly; in ``share`` of the seeds a value between ``low`` and ``high``."""
    value = rng.uniform(low, high)
    return round(value, 4) if rng.random() < share else 0.0


RIVALS = 0.25
"""Share of the seeds with conflicting creations."""

SHAPES = {(3, 3): 58, (5, 3): 22, (7, 3): 12, (5, 5): 4, (3, 1): 4}
"""Numbers of nodes and replicas of a seed, with their weights."""


LABELS = 1 / 3
"""Share of the seeds in which labels of the topic are changed and read."""

SILENCE = 0.2
"""Share of the calm seeds with a node that is silent most of the time."""

GUESTS = 0.2
"""Share of the seeds in which groups are made by a FETCH."""


FIRST_NAMES = {
    "release": "leave", "targeted_faults": "moments", "ttl_share": "mortal", "session_idle": "origin_idle",
}  # fmt: skip
"""Options under new names, with the names that they had when their text first seeded a stream."""


def seed_of(options: Options) -> str:
    """Return options as text that seeds a stream, so that a new name of an option leaves every seed its run."""
    shown = [field.name for field in dataclasses.fields(options) if field.repr]
    text = ", ".join(f"{FIRST_NAMES.get(name, name)}={getattr(options, name)!r}" for name in shown)
    return f"Options({text})"


def draw_swarm(rng: random.Random, shapes: dict[tuple[int, int], int] = SHAPES) -> Options:
    """Draw a little of everything, anew for each seed."""
    options = _draw_many(rng, shapes)
    another = random.Random(f"guests {seed_of(options)}")  # so that the other seeds are what they were
    return with_guests(another, options) if another.random() < GUESTS else options


def with_guests(rng: random.Random, options: Options) -> Options:
    """Return options with groups made by a FETCH, and times of day mostly off by less than any node warns of."""
    return dataclasses.replace(
        options,
        guests=rng.choice((1, 2, 2, 3)),
        wall_offset=rng.choice((0.0, 0.2, 3.0, options.wall_offset)),
        auto_create_groups=rng.random() < 0.9,
        keep=rng.random() < 0.7,
    )


def draw_moves(rng: random.Random) -> Options:
    """Draw small clusters whose partitions move all the time; in half of them one or two nodes are added meanwhile.

    In one third the group is limited now and then.
    """
    options = dataclasses.replace(draw_swarm(rng, {(5, 3): 2, (4, 3): 1, (4, 1): 1}), moves=0.6)
    another = random.Random(seed_of(options))  # so that seeds without such nodes are what they were
    joining = another.choice((0, 0, 1, min(2, options.nodes - 3)))
    return dataclasses.replace(options, joining=joining, limit=another.choice((0.0, 0.0, 0.6)))


def draw_calm(rng: random.Random) -> Options:
    """Draw clusters without faults, in which clients publish, consume and ack, and nothing waits for long.

    In most seeds slots move meanwhile, and nodes are added, drained and removed. Connections keep their order, as TCP
    does: a RELEASE before its HOLD leaves a hold without a client. No session is closed for being idle. In
    half of the seeds each group has one client, so that no other client takes its messages. Holds are long, because a
    FETCH is parked for a tenth of its hold. In a fifth of the seeds a node is silent most of the time (`with_silence`).
    """
    options = draw_moves(rng)
    none = "loss duplicate spikes slow reject dead extend claim release vanish partial shred replay redrive rewind"
    none += " unmake pause limit purge alter targeted_faults by_id inspectors guests late_group derive dead_readers"
    none += " deletions rivals relay runs_per_step delayed ttl_share retry_early delay names"
    if rng.random() < 1 / 3:
        none += " moves joining"
    calm = {
        **off(none),
        "fifo": True,
        "partitions": rng.choice((1, 2, 4)),
        "hold_time_max": 20.0,
        "hold_times": (4.0, 20.0),
        "session_idle": 86_400.0,
        "max_deliveries": 50,
        "auto_create_groups": True,
        "fetch_bytes": 1 << 20,
        "batches": 12,
        "fault_time": 8.0,
        "wait_max": 0.7 if options.rf > 1 else 1.0,  # one replica moves twice, and its clients ask again
    }
    options = dataclasses.replace(options, **calm)
    options = dataclasses.replace(
        options,
        latency=min(options.latency, 0.01),
        fsync=min(options.fsync, 0.01),
        batch_messages=min(options.batch_messages, 8),
        fetch_messages=max(options.fetch_messages, 4),
        consumers=rng.choice((options.groups, options.consumers)),
    )
    another = random.Random(f"silence {seed_of(options)}")  # so that the other seeds are what they were
    return with_silence(another, options) if another.random() < SILENCE else options


def with_silence(rng: random.Random, options: Options) -> Options:
    """Return options with three nodes, one of them silent, and with holds that outlast its silence.

    Several clients ask each other node for few messages at a time, and some keep theirs for long. So a conflict may
    leave a hold by the vote of the silent node, and the other node then takes the held messages for ready. The bound
    allows some rounds that end at their timeout, as the third vote is missing.
    """
    return dataclasses.replace(
        options, consumers=rng.choice((4, 6)), fetch_messages=rng.choice((1, 2, 4)), producers=3, batches=45,
        batch_messages=4, partitions=1, groups=1, moves=0, joining=0, nodes=3, rf=3, silent=rng.choice("abc"),
        latency=0.01, hold_times=(8.0, 10.0), hold_time_max=10.0, request_timeout=1.0, fault_time=12.0, wait_max=4.0,
    )  # fmt: skip


def draw_groups(rng: random.Random) -> Options:
    """Draw small clusters in which groups are made by a FETCH, are deleted and made again, without other faults.

    In three of five seeds all clocks are right, so that a finding is not a clock's fault.
    """
    options = with_guests(rng, draw_swarm(rng, {(3, 3): 3, (5, 3): 2}))
    if rng.random() < 0.6:
        options = dataclasses.replace(options, wall_offset=0.0, clock_rate=0.0)
    none = "loss duplicate spikes slow vanish delayed ttl_share reject derive relay turn distance deletions rivals"
    none += " runs_per_step rival_rf inspectors check recall"
    options = dataclasses.replace(options, **off(none), guests=3, disk="memory")
    return dataclasses.replace(
        options,
        batches=5,
        batch_messages=3,
        consumers=1,
        latency=min(options.latency, 0.01),
        hold_time_max=2.0,
        hold_times=(0.5, 1.0),
        fault_time=2.0,
        unmake=sometimes(rng, 0.4, 0.1, 0.6),
        rewind=sometimes(rng, 0.1, 0.1, 0.6),
        alter=sometimes(rng, 0.5, 0.3, 0.8),
    )


def _draw_many(rng: random.Random, shapes: dict[tuple[int, int], int]) -> Options:
    """Draw most options of a seed. If sessions are closed soon, comparing goes fast, too."""
    options = _draw_swarm(rng, *rng.choices(list(shapes), list(shapes.values()))[0])
    another = random.Random(seed_of(options))  # so that the other seeds are what they were
    options = dataclasses.replace(options, unmake=sometimes(another, 0.15, 0.1, 0.6))
    options = dataclasses.replace(options, auto_create_groups=another.random() < 0.7)
    options = dataclasses.replace(options, turn=sometimes(another, 0.4, 0.001, 0.01))
    options = dataclasses.replace(options, inspectors=int(another.random() < 0.3))
    options = dataclasses.replace(options, fetch_bytes=another.choice((1 << 20, 1 << 20, 1 << 20, 100)))
    options = dataclasses.replace(options, small=another.choice((512, 512, 512, 512, 512, 4)))
    options = dataclasses.replace(options, by_id=sometimes(another, 0.2, 0.05, 0.3))
    another.randrange(2)  # draw for an option that is gone: each seed keeps the limit that it had
    runs = another.choice((0, 0, 0, 0, 0, 0, 1, 2, 3))
    options = dataclasses.replace(options, labels=another.random() < LABELS)
    options = dataclasses.replace(options, names=another.random() < LABELS)
    options = dataclasses.replace(options, pause=sometimes(another, 1 / 3, 0.05, 0.4))
    options = dataclasses.replace(options, claim=sometimes(another, 1 / 3, 0.05, 0.4))
    options = dataclasses.replace(options, limit=sometimes(another, 1 / 4, 0.1, 0.5))
    if runs:  # and then requests with more than that
        options = dataclasses.replace(
            options,
            runs_per_step=runs,
            batch_messages=max(16, options.batch_messages),
            fetch_messages=max(16, options.fetch_messages),
        )
    idle = rng.choice((86_400.0, 86_400.0, 0.1, 0.5, 2.0))
    if idle != 86_400.0:
        options = dataclasses.replace(options, session_idle=idle, sync_interval=rng.choice((0.2, 0.5, 1.0)))
    recall = sometimes(rng, 0.25, 0.01, 0.05) / 4
    if options.batch_messages > 100:  # a recall reads the whole journal anew
        recall /= 10
    if rng.random() < RIVALS:
        others = [rf for rf in (1, 3, 5) if rf != options.rf and rf <= options.nodes]
        options = dataclasses.replace(
            options,
            rivals=rng.choice((1, 1, 2)),
            rival_rf=rng.choice((0, *others)),
            implicit=rng.random() < 0.5 and not (options.rewind or options.late_group),
        )
    wide = options.nodes > options.rf > 1  # then what changes registers meets cuts through replica sets
    alter = sometimes(rng, 0.5 if wide else 0.2, 0.2, 0.8)
    derive = sometimes(rng, 0.1 if wide else 0.2, 0.05, 0.5)
    options = dataclasses.replace(
        options,
        recall=recall,
        alter=alter,
        derive=derive,
        output_partitions=rng.choice((1, 2)),
        deletions=rng.choice((1, 1, 2)) if rng.random() < (0.3 if wide else 0.15) else 0,
        keep=rng.random() < 0.6,
        targeted_faults=sometimes(rng, 0.7 if wide else 0.4, 0.5, 1.0),
        operators=max(options.operators, rng.choice((1, 2, 3)) if wide else 1),
    )
    if rng.random() < 0.16 and options.nodes == options.rf >= 3:
        # Long enough for the quarantine of the one that is left to end before the other is back.
        brief = dataclasses.replace(options, relay=True, fault_time=8.0, hold_time_max=2.0)
        return dataclasses.replace(brief, hold_times=(options.hold_times[0], options.hold_times[0]))
    if rng.random() < 0.02:  # more runs of equal records than one chunk of a span map holds
        many = dataclasses.replace(options, shred=0.8, check=0.0, recall=options.recall / 10)
        return dataclasses.replace(many, batches=2, batch_messages=700, fetch_messages=2000, producers=1)
    return options


def _draw_swarm(rng: random.Random, nodes: int, rf: int) -> Options:
    """Draw the default: small clusters under everything, each seed with its own mix."""
    hold_time_max = rng.choice((2.0, 4.0, 4.0, 8.0))
    shortest = rng.choice((0.3, 0.5, 1.0))
    return Options(
        nodes=nodes,
        rf=rf,
        partitions=rng.choices((1, 2, 6), (80, 16, 4))[0],
        groups=1 if rng.random() < 0.8 else 2,
        disk="store" if rng.random() < 0.2 else "memory",
        fifo=rng.random() < 0.3,
        loss=sometimes(rng, 0.5, 0.005, 0.15),
        duplicate=sometimes(rng, 0.4, 0.01, 0.2),
        late=round(rng.uniform(0.2, 4.0), 3),
        spikes=sometimes(rng, 0.4, 0.01, 0.1),
        latency=rng.choice((0.0005, 0.002, 0.002, 0.01, 0.03)),
        fsync=rng.choice((0.0005, 0.003, 0.01, 0.05)),
        wall_offset=rng.choice((0.0, 0.5, 5.0, 60.0, 3600.0, 31_536_000.0)),
        hold_time_max=hold_time_max,
        hold_times=(shortest, rng.choice((shortest, hold_time_max))),
        request_timeout=rng.choice((0.5, 1.0, 2.0)),
        heartbeat=rng.choice((0.5, 0.5, 1.0)),
        sync_interval=rng.choice((1.0, 2.0, 4.0)),
        sync_grace=rng.choice((0.2, 1.0)),
        max_deliveries=rng.choice((1, 2, 3, 5, 50)),
        producers=rng.randint(1, 3),
        batches=rng.randint(1, 5),
        batch_messages=rng.choice((1, 3, 8, 40)),
        retry_early=sometimes(rng, 0.3, 0.1, 0.5),
        consumers=rng.randint(1, 5),
        fetch_messages=rng.choice((1, 4, 16, 64)),
        slow=sometimes(rng, 0.5, 0.02, 0.4),
        reject=sometimes(rng, 0.5, 0.02, 0.4),
        delay=rng.choice((0.0, 0.5, 2.0)),
        dead=sometimes(rng, 0.5, 0.02, 0.4),
        extend=sometimes(rng, 0.6, 0.1, 0.8),
        release=sometimes(rng, 0.3, 0.02, 0.3),
        vanish=sometimes(rng, 0.5, 0.02, 0.4),
        partial=sometimes(rng, 0.4, 0.05, 0.4),
        replay=sometimes(rng, 0.5, 0.05, 0.5),
        redrive=sometimes(rng, 0.6, 0.2, 1.0),
        fault_time=rng.choice((2.0, 4.0, 6.0)),
        check=0.25 if rng.random() < 0.04 else 0.0,
        delayed=sometimes(rng, 0.5, 0.1, 1.0),
        delayed_by=rng.choice((0.5, 4.0, 15.0)),
        ttl_share=sometimes(rng, 0.4, 0.1, 1.0),
        ttl=rng.choice((0.3, 2.0, 30.0)),
        by_topic=sometimes(rng, 0.4, 0.2, 1.0),
        rewind=sometimes(rng, 0.35, 0.1, 0.6),
        purge=sometimes(rng, 0.4, 0.1, 0.6),
        late_group=rng.random() < 0.15,
        dead_readers=rng.choice((0, 0, 0, 1, 2)),
        operators=rng.choice((1, 1, 2)),
    )


def swarm_with(**options: Any) -> Callable[[random.Random], Options]:
    """Return a function that draws the default profile with these options."""
    return lambda rng: dataclasses.replace(draw_swarm(rng), **options)


def draw_quiet(rng: random.Random) -> Options:
    """Draw no fault at all: a perfect but not instantaneous world."""
    options = draw_swarm(rng)
    options = dataclasses.replace(options, loss=0.0, duplicate=0.0, spikes=0.0, slow=0.0, vanish=0.0)
    options = dataclasses.replace(
        options, release=0.0, replay=0.0, relay=False, runs_per_step=0, fault_time=2.0
    )
    return dataclasses.replace(options, hold_times=(4.0, 4.0), hold_time_max=4.0)


def draw_clocks(rng: random.Random) -> Options:
    """Draw three nodes, and delays and TTLs that mostly outlast the faults: one node's clock is set in that time."""
    options = dataclasses.replace(draw_swarm(rng, {(3, 3): 1}), fault_time=6.0, keep=True)
    options = dataclasses.replace(options, delayed=0.7, delayed_by=15.0, ttl_share=0.5, ttl=30.0)
    return dataclasses.replace(options, rewind=0.0, deletions=0, relay=False)


def draw_limits(rng: random.Random) -> Options:
    """Draw three nodes, backlogs and quick consumers; groups are limited most of the time, and never deleted."""
    many = {"batches": 12, "batch_messages": 16, "consumers": 8, "limit": 0.6, "fault_time": 8.0}
    none = "unmake rewind pause purge deletions relay late_group guests slow vanish shred partial delayed claim derive"
    none += " poison stops by_id dead_readers"
    return dataclasses.replace(draw_swarm(rng, {(3, 3): 1}), **{**many, **off(none)})


PROFILES: dict[str, Callable[[random.Random], Options]] = {
    "swarm": draw_swarm,
    # Always with more nodes than a partition has replicas.
    "wide": lambda rng: draw_swarm(rng, {(5, 3): 2, (7, 3): 1}),
    # Partitions move from node to node all the time, and there are more nodes than replicas.
    "moves": draw_moves,
    "calm": draw_calm,
    "store": swarm_with(disk="store"),  # every node on quorumq's own store
    # With more of everything, and steps of production: nodes whose steps do little never get done with this load, as
    # clients repeat each ACK once a second.
    "long": swarm_with(fault_time=40.0, batches=40, producers=4, consumers=6, runs_per_step=0),
    # Every core's own `check` after every step, and its journal compared with what it knows.
    "checked": swarm_with(check=1.0, recall=1.0),
    # Some thirty times as many comparisons of journal and memory as in the default, in twice the time.
    "journal": swarm_with(recall=0.06),
    "quiet": draw_quiet,
    "clocks": draw_clocks,
    "groups": draw_groups,
    "limits": draw_limits,
}
