"""Everything that a simulated run depends on, as values.

A run is a pure function of its schedule (and of the code). The schedule holds the seed, the options drawn
from it and the list of faults, written out in full: a fault can be removed, or an option changed, without
reshuffling the rest, because each concern (network, disks, faults, workload, nodes) has a random stream of
its own, named by the seed.

Options are drawn per seed ("swarm"): a run with no loss at all but many crashes finds what a run with a
little of everything does not.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from typing import Any

from quorumq.core.types import rendezvous, topic_id

NODE_NAMES = tuple("abcdefghi")


@dataclass(frozen=True, slots=True)
class Options:
    """What one run is like. Times are simulated seconds, shares are probabilities.

    Args:
        nodes: how many nodes.
        rf: replicas of each partition.
        partitions: of the topic.
        groups: how many groups read the topic.
        disk: ``memory`` keeps the journal's records and how many are durable; ``store`` runs quorumq's own store on
            a disk in memory that tears writes.
        fifo: whether a connection keeps its order, and breaks where it loses something, as TCP does.
        loss: share of messages lost.
        duplicate: share of messages that come twice, the second time up to ``late`` seconds later.
        late: see there; also the longest of the delay spikes.
        spikes: share of messages that are delayed by up to ``late``.
        latency: mean one-way delay.
        distance: what a message from one node to another takes besides, always.
        fsync: mean time of an fsync.
        clock_rate: how far each clock's rate is from real time at most.
        wall_offset: how far each node's time of day is from the truth at most, in seconds.
        hold_time_max: of the cluster.
        hold_times: shortest and longest hold asked for.
        request_timeout: of the nodes' quorum rounds.
        heartbeat: of the nodes.
        sync_interval: of the nodes' anti-entropy.
        sync_grace: of the nodes' anti-entropy.
        max_deliveries: of the topic.
        producers: how many.
        batches: that each publishes.
        batch_messages: in each at most.
        retry_early: share of publishes that are sent to a second node at once.
        consumers: how many, over all groups.
        fetch_messages: that one FETCH asks for at most.
        slow: share of deliveries that are worked on for longer than their hold.
        reject: share of deliveries rejected with a delay of up to ``delay``.
        delay: see there.
        dead: share rejected to the dead letters.
        extend: share extended before they are acked.
        leave: share given back without being handed to the application.
        vanish: share that is never settled.
        partial: share of which a part is acked and the rest rejected.
        shred: share of which every other message is acked, and the rest never settled.
        replay: share of settlements after which an old receipt is tried again.
        redrive: share of the dead letters listed that an operator redrives each time it looks.
        rewind: share of an operator's rounds in which it rewinds a group.
        purge: share in which it purges a backlog or dead letters.
        alter: share in which one, or two at once, change the topic: its settings, and how many partitions it has.
        derive: share of the deliveries after whose outputs their consumer dies; 0: nothing is derived.
        output_partitions: of the topic that outputs are published to.
        keep: whether payload is kept where groups are rewound or come later, so that they get all of it again.
        moments: share of the moments at which sim/moments.py does to the cluster what hurts most just then.
        late_group: whether another group is created from latest while the run goes on.
        dead_readers: how many read the dead letters of the first group.
        operators: how many.
        rivals: how many others create the topic, with other settings.
        rival_rf: how many replicas half of their creations ask for; 0: as many as ``rf``.
        implicit: whether they create it as a producer does, too, who names no setting.
        relay: whether one node's directory is lost or damaged just when a node that knows the same goes, and others
            that do not come back.
        deletions: how often the topic is deleted while the run goes on; mostly it is created again.
        fault_time: how long faults go on before everything is healed.
        delayed: share of batches that are published with a delay of up to ``delayed_by``.
        delayed_by: see there.
        mortal: share of batches that are published with a TTL of up to ``ttl``.
        ttl: see there.
        by_topic: share of rejects that leave their delay to the topic's backoff list.
        durability: of the topic.
        origin_idle: after which time a session of which nothing is left may be closed.
        check: whether every step of every core is followed by its own `check`.
        recall: share of the steps after which its journal must know what the core knows.
    """

    nodes: int = 3
    rf: int = 3
    partitions: int = 1
    groups: int = 1
    disk: str = "memory"
    fifo: bool = False
    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 1.0
    spikes: float = 0.0
    latency: float = 0.002
    distance: float = 0.0
    fsync: float = 0.003
    clock_rate: float = 0.01
    wall_offset: float = 0.0
    hold_time_max: float = 4.0
    hold_times: tuple[float, float] = (0.5, 4.0)
    request_timeout: float = 1.0
    heartbeat: float = 0.5
    sync_interval: float = 2.0
    sync_grace: float = 0.5
    max_deliveries: int = 5
    producers: int = 2
    batches: int = 5
    batch_messages: int = 6
    retry_early: float = 0.0
    consumers: int = 3
    fetch_messages: int = 8
    slow: float = 0.0
    reject: float = 0.0
    delay: float = 1.0
    dead: float = 0.0
    extend: float = 0.0
    leave: float = 0.0
    vanish: float = 0.0
    partial: float = 0.0
    shred: float = 0.0
    replay: float = 0.0
    redrive: float = 0.0
    rewind: float = 0.0
    purge: float = 0.0
    alter: float = 0.0
    derive: float = 0.0
    output_partitions: int = 1
    keep: bool = True
    moments: float = 0.0
    late_group: bool = False
    dead_readers: int = 0
    operators: int = 1
    deletions: int = 0
    rivals: int = 0
    rival_rf: int = 0
    implicit: bool = False
    relay: bool = False
    fault_time: float = 6.0
    check: bool = False
    recall: float = 0.0
    delayed: float = 0.0
    delayed_by: float = 0.0
    mortal: float = 0.0
    ttl: float = 0.0
    by_topic: float = 0.0
    durability: str = "fsync"
    origin_idle: float = 86_400.0

    @property
    def backoff(self) -> tuple[float, ...]:
        """The topic's backoff list."""
        return (round(self.delay / 3, 3), self.delay)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The ids of the nodes."""
        return NODE_NAMES[: self.nodes]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients: producers, consumers, the operator."""
        producers = tuple(f"p{i}" for i in range(self.producers))
        consumers = (f"c{i}" for i in range(self.consumers))
        return (*producers, *consumers, *self.operator_names, *self.rival_names)

    @property
    def operator_names(self) -> tuple[str, ...]:
        """The names of the operators; the first creates the topic."""
        return ("op", *(f"op{i}" for i in range(1, self.operators)))

    @property
    def rival_names(self) -> tuple[str, ...]:
        """The names of the others who create the topic."""
        return tuple(f"rival{i}" for i in range(self.rivals))

    @property
    def drain_bound(self) -> float:
        """How long a healed cluster may take to deliver and settle everything (promise G4).

        A node that came back at the last moment waits out its quarantine; then a hold that was granted just before
        runs out, or a delay ends, one that began again where a clock was set back; the rest is a few quorum rounds,
        and two rounds of anti-entropy.
        """
        rounds = 4 * self.sync_interval + 3 * self.request_timeout + 3.0 + 20 * self.distance
        if (
            self.derive
        ):  # what is settled last may have outputs, which are then published, delivered and settled
            rounds += 2 * self.request_timeout + 2.0
        if self.deletions:  # the topic and its groups are created again, and producers begin anew
            rounds += 4 * self.request_timeout + 3.0
        return 2.2 * self.hold_time_max + self.delay + self.delayed_by + rounds


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to the cluster, with everything that was drawn for it.

    Args:
        at: when.
        kind: ``crash`` (power: what is not durable may be lost), ``kill`` (the process alone), ``stop`` (cleanly),
            ``wipe`` and ``restore`` (killed, and the directory is empty, or as before some start, when it comes back),
            ``flip`` and ``damage`` (killed, and bodies of batches, or other records, are damaged when it comes back),
            ``rot`` (bodies of batches are damaged under a running process), ``bereave`` (once this node knows what
            all others do, their directories are lost, and it is declared to be all that is left),
            ``partition``, ``freeze`` (of nodes), ``pause`` (of clients), ``slow-disk``, ``full-disk``, ``wall-jump``,
            ``wrong-clock`` (a kill, and another time of day at the next start) or ``cut`` (connections break).
        nodes: whom it hits.
        seconds: how long it lasts.
        amount: a factor for ``slow-disk``, seconds for ``wall-jump`` and ``wrong-clock``; for ``damage`` how many of
            the last records it hits, 0 for any; for ``restore`` whether it is the last backup.
        links: for ``partition`` and ``cut``: directed pairs that carry nothing.
    """

    at: float
    kind: str
    nodes: tuple[str, ...] = ()
    seconds: float = 0.0
    amount: float = 0.0
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run, in full: the same schedule and the same code give the same run."""

    seed: int
    profile: str
    options: Options
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    def to_json(self) -> str:
        """The schedule as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The inverse of `to_json`.

        Raises:
            ValueError: it is not JSON, or names an option that there is not.
        """
        data: dict[str, Any] = json.loads(text)
        try:
            options = Options(**{**data["options"], "hold_times": tuple(data["options"]["hold_times"])})
            faults = tuple(
                Fault(
                    **{
                        **fault,
                        "nodes": tuple(fault["nodes"]),
                        "links": tuple(tuple(pair) for pair in fault["links"]),
                    }
                )
                for fault in data["faults"]
            )
            return cls(data["seed"], data["profile"], options, faults)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a schedule: {error}") from None


def draw(seed: int, profile: str = "swarm") -> Schedule:
    """The schedule of a seed.

    Args:
        seed: any integer.
        profile: one of `PROFILES`.

    Raises:
        ValueError: there is no such profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile is {profile!r}: it must be one of {', '.join(PROFILES)}")
    options = draw_distance(
        random.Random(f"{seed}/distance"), PROFILES[profile](random.Random(f"{seed}/options"))
    )
    faults = draw_faults(random.Random(f"{seed}/faults"), options)
    losses = draw_losses(random.Random(f"{seed}/losses"), options)
    losses += draw_damage(random.Random(f"{seed}/damage"), options, losses)
    relay = draw_relay(random.Random(f"{seed}/relay"), options, losses)
    faults += losses + relay
    faults += draw_bereavement(random.Random(f"{seed}/bereaved"), options, faults)
    if options.durability == "os":
        faults = spare_power(faults, options)
    return Schedule(seed, profile, options, tuple(sorted(faults, key=lambda fault: fault.at)))


def draw_distance(rng: random.Random, options: Options) -> Options:
    """In some runs, nodes that are far apart: answers take up to 0.4 of the shortest hold."""
    if rng.random() >= 0.1:
        return options
    most = 0.2 * min(options.hold_times[0], options.request_timeout)
    return dataclasses.replace(
        options, distance=round(max(0.0, rng.uniform(0.2, 1.0) * most - options.latency), 4)
    )


def sometimes(rng: random.Random, share: float, low: float, high: float) -> float:
    """0 mostly; in ``share`` of the seeds something between ``low`` and ``high``."""
    value = rng.uniform(low, high)
    return round(value, 4) if rng.random() < share else 0.0


RIVALS = 0.25
"""Share of the seeds with conflicting creations."""

SHAPES = {(3, 3): 58, (5, 3): 22, (7, 3): 12, (5, 5): 4, (3, 1): 4}
"""How many nodes and replicas a seed has, and how often."""


def draw_swarm(rng: random.Random, shapes: dict[tuple[int, int], int] = SHAPES) -> Options:
    """A little of everything, drawn anew for each seed. Where sessions are closed soon, comparing goes fast, too."""
    options = _draw_swarm(rng, *rng.choices(list(shapes), list(shapes.values()))[0])
    idle = rng.choice((86_400.0, 86_400.0, 0.1, 0.5, 2.0))
    if idle != 86_400.0:
        options = dataclasses.replace(options, origin_idle=idle, sync_interval=rng.choice((0.2, 0.5, 1.0)))
    recall = sometimes(rng, 0.25, 0.01, 0.05)
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
        moments=sometimes(rng, 0.7 if wide else 0.4, 0.5, 1.0),
        operators=max(options.operators, rng.choice((1, 2, 3)) if wide else 1),
    )
    if rng.random() < 0.16 and options.nodes == options.rf >= 3:
        # Long enough for the one that is left to come out of quarantine before the other is back.
        brief = dataclasses.replace(options, relay=True, fault_time=8.0, hold_time_max=2.0)
        return dataclasses.replace(brief, hold_times=(options.hold_times[0], options.hold_times[0]))
    if rng.random() < 0.02:  # more runs of equal records than one chunk of a span map holds
        many = {"batches": 2, "batch_messages": 2000, "fetch_messages": 2000, "producers": 1}
        return dataclasses.replace(options, **many, shred=0.8, check=False)
    return options


def _draw_swarm(rng: random.Random, nodes: int, rf: int) -> Options:
    """The default: small clusters under everything, each seed with its own mix."""
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
        leave=sometimes(rng, 0.3, 0.02, 0.3),
        vanish=sometimes(rng, 0.5, 0.02, 0.4),
        partial=sometimes(rng, 0.4, 0.05, 0.4),
        replay=sometimes(rng, 0.5, 0.05, 0.5),
        redrive=sometimes(rng, 0.6, 0.2, 1.0),
        fault_time=rng.choice((2.0, 4.0, 6.0)),
        check=rng.random() < 0.04,
        delayed=sometimes(rng, 0.5, 0.1, 1.0),
        delayed_by=rng.choice((0.5, 4.0, 15.0)),
        mortal=sometimes(rng, 0.4, 0.1, 1.0),
        ttl=rng.choice((0.3, 2.0, 30.0)),
        by_topic=sometimes(rng, 0.4, 0.2, 1.0),
        rewind=sometimes(rng, 0.35, 0.1, 0.6),
        purge=sometimes(rng, 0.4, 0.1, 0.6),
        late_group=rng.random() < 0.15,
        dead_readers=rng.choice((0, 0, 0, 1, 2)),
        operators=rng.choice((1, 1, 2)),
        durability="os" if rng.random() < 0.2 else "fsync",
    )


def draw_wide(rng: random.Random) -> Options:
    """As the default, always with more nodes than a partition has replicas."""
    return draw_swarm(rng, {(5, 3): 2, (7, 3): 1})


def draw_store(rng: random.Random) -> Options:
    """As the default, every node on quorumq's own store."""
    return dataclasses.replace(draw_swarm(rng), disk="store")


def draw_long(rng: random.Random) -> Options:
    """Longer and with more of everything."""
    options = draw_swarm(rng)
    return dataclasses.replace(options, fault_time=40.0, batches=40, producers=4, consumers=6)


def draw_checked(rng: random.Random) -> Options:
    """As the default, with every core's own `check` after every step, and its journal compared with what it knows."""
    return dataclasses.replace(draw_swarm(rng), check=True, recall=1.0)


def draw_quiet(rng: random.Random) -> Options:
    """No fault at all: a perfect but not instantaneous world."""
    options = draw_swarm(rng)
    none = dict.fromkeys(("loss", "duplicate", "spikes", "slow", "vanish", "leave", "replay"), 0.0)
    brief = dataclasses.replace(options, **none, relay=False, fault_time=2.0)
    return dataclasses.replace(brief, hold_times=(4.0, 4.0), hold_time_max=4.0)


PROFILES = {
    "swarm": draw_swarm,
    "wide": draw_wide,
    "store": draw_store,
    "long": draw_long,
    "checked": draw_checked,
    "quiet": draw_quiet,
}

LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that lose a directory, or a part of it."""

YEAR_S = 31_536_000.0

WEIGHTS = {
    "crash": 4,
    "kill": 2,
    "stop": 2,
    "partition": 5,
    "freeze": 2,
    "pause": 2,
    "slow-disk": 1,
    "full-disk": 1,
    "wall-jump": 1,
    "cut": 1,
    "wrong-clock": 4,
}


def draw_faults(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """The faults of a run: of a few kinds that the seed chose, within the time for faults."""
    if options.slow == options.vanish == options.loss == options.spikes == 0.0 and options.fault_time == 2.0:
        return ()  # the quiet profile
    kinds = [kind for kind in WEIGHTS if rng.random() < 0.6] or ["crash"]
    wide = options.nodes > options.rf > 1
    if wide and "partition" not in kinds:
        kinds.append("partition")
    count = rng.choice((0, 1, 2, 3, 4, 6, 9)) * max(1, round(options.fault_time / 8))
    victim = rng.choice(options.node_names) if rng.random() < 0.4 else ""  # hit again and again
    faults: list[Fault] = []
    for _ in range(count):
        at = round(rng.uniform(0.3, options.fault_time), 4)
        seconds = round(rng.choice((0.05, 0.5, 1.0, 3.0)) * rng.uniform(0.5, 2.0), 4)
        kind = rng.choices(kinds, [WEIGHTS[kind] + 5 * (wide and kind == "partition") for kind in kinds])[0]
        faults.append(draw_fault(rng, options, at, kind, seconds, victim))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def draw_losses(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """In some runs, directories that are lost or brought back from a backup.

    Of one node only: what was confirmed is on another one, as promise G1 wants it. Where a partition has one replica,
    no such loss is promised to be survived.
    """
    if options.rf == 1 or options.fault_time == 2.0 or rng.random() > 0.2:
        return ()
    victim = (rng.choice(options.node_names),)
    return tuple(
        Fault(
            round(rng.uniform(0.5, options.fault_time), 4),
            rng.choice(("wipe", "restore")),
            victim,
            round(rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 2.0), 4),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def draw_damage(rng: random.Random, options: Options, losses: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """In some runs, bits that flip on one node's disk: the one whose directory is lost, where one is."""
    if options.rf == 1 or options.fault_time == 2.0 or rng.random() > 0.2:
        return ()
    victim = losses[0].nodes if losses else (rng.choice(options.node_names),)
    return tuple(
        Fault(
            round(rng.uniform(0.5, options.fault_time), 4),
            rng.choice(("flip", "rot", "damage")),
            victim,
            round(rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 2.0), 4),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def draw_relay(rng: random.Random, options: Options, losses: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """In some runs, faults in a row: a minority is cut off, a second node loses power, a third its directory.

    The minority comes back at that moment, so that what happened meanwhile is known to few who are there: where all
    of the directory is lost, or it comes from a backup, the one that loses power alone has seen its last start.
    """
    if not options.relay:
        return ()
    victim = losses[0].nodes[0] if losses else rng.choice(options.node_names)
    others = [name for name in options.node_names if name != victim]
    goes, *rest = rng.sample(others, len(others))
    away = rest[: (options.nodes - 1) // 2]
    begin, lasts = round(rng.uniform(0.8, 2.5), 4), round(rng.uniform(0.4, 1.5), 4)
    kind = rng.choice(("damage", "damage", "damage", "wipe", "restore", "restore"))
    if kind != "damage":  # long enough for deliveries after the victim's quarantine
        begin, lasts = begin / 2, lasts + 2.0
    alone = [] if kind == "damage" else [name for name in rest if name not in away]
    links = tuple(
        (one, two)
        for one in options.node_names
        for two in options.node_names
        if (one in away) != (two in away) or {one, two} in [{victim, name} for name in alone]
    )
    end = round(begin + lasts - 0.02, 4)
    again = () if kind == "damage" else (Fault(begin + 0.05, "kill", (victim,), 0.05),)
    return (
        Fault(begin, "partition", (), lasts, 0.0, links),
        *again,
        Fault(end, "crash", (goes,), options.fault_time),
        Fault(end, kind, (victim,), 0.05, rng.choice((5.0, 10.0, 20.0)) if kind == "damage" else 1.0),
    )


def draw_bereavement(rng: random.Random, options: Options, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """In a few runs without another loss, all directories but that of one node, which is a replica of everything.

    No clock is set in these: a ballot that only lost directories knew of may be used again where theirs went back.
    """
    if options.rf != options.nodes or options.rf == 1 or options.fault_time == 2.0 or rng.random() > 0.08:
        return ()
    if any(fault.kind in (*LOSSES, "wall-jump", "wrong-clock") for fault in faults):
        return ()
    at = round(rng.uniform(0.5, 0.7 * options.fault_time), 4)
    return (Fault(at, "bereave", (rng.choice(options.node_names),), round(rng.uniform(0.05, 1.0), 4)),)


LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that take something from a node's directory."""


def spare_power(faults: tuple[Fault, ...], options: Options) -> tuple[Fault, ...]:
    """The same with no power cut but of one node, the one whose directory is lost where one is: others are killed.

    With durability "os" that is what a confirmed message is promised to survive; with one replica, no power cut at all.
    """
    lost = [fault.nodes[0] for fault in faults if fault.kind in LOSSES]
    cut = [fault.nodes[0] for fault in faults if fault.kind == "crash"]
    victim = "" if options.rf == 1 else next(iter(lost + cut), "")
    spared: list[Fault] = []
    for fault in faults:
        if fault.kind != "crash":
            spared.append(fault)
            continue
        killed = tuple(name for name in fault.nodes if name != victim)
        if victim in fault.nodes:
            spared.append(dataclasses.replace(fault, nodes=(victim,)))
        if killed:
            spared.append(dataclasses.replace(fault, kind="kill", nodes=killed))
    return tuple(spared)


def draw_fault(
    rng: random.Random, options: Options, at: float, kind: str, seconds: float, victim: str
) -> Fault:
    """One fault of a kind, mostly on ``victim`` if there is one."""
    names = options.node_names
    some = tuple(sorted(rng.sample(names, rng.choice((1, 1, 1, 2, len(names))))))
    if victim and rng.random() < 0.7:
        some = (victim,)
    if kind == "pause":
        return Fault(at, kind, (rng.choice(options.client_names),), seconds * 2)
    if kind == "slow-disk":
        return Fault(at, kind, some, seconds, rng.choice((20.0, 200.0)))
    if kind in ("wall-jump", "wrong-clock"):
        if kind == "wall-jump":
            seconds = 0.0
        return Fault(
            at, kind, some, seconds, rng.choice((-YEAR_S, -3600.0, -1.0, 1.0, 120.0, 86_400.0, YEAR_S))
        )
    if kind == "cut":
        return Fault(
            at, kind, (), 0.0, 0.0, tuple((one, two) for one in names for two in names if one != two)
        )
    if kind == "partition":
        return Fault(at, kind, (), seconds, 0.0, draw_links(rng, options))
    if kind in ("freeze", "full-disk"):
        return Fault(at, kind, (rng.choice(names),), seconds)
    return Fault(at, kind, some, seconds)


def draw_links(rng: random.Random, options: Options) -> tuple[tuple[str, str], ...]:
    """The directed pairs that a partition cuts; clients are on one side or the other, or see both."""
    names = list(options.node_names)
    shapes = ("split", "isolate", "one-way", "bridge", "pair")
    shape = rng.choice(
        (*shapes, "through", "through", "through") if options.nodes > options.rf > 1 else shapes
    )
    rng.shuffle(names)
    if shape == "pair":
        return ((names[0], names[1]),)
    if shape == "bridge" and len(names) > 2:
        half = names[1:][: (len(names) - 1) // 2]
        other = [name for name in names[1:] if name not in half]
    elif shape == "through":
        half, other = draw_through(rng, options, names)
    else:
        size = 1 if shape != "split" else max(1, len(names) // 2)
        half, other = names[:size], names[size:]
    if rng.random() < 0.5:
        for client in options.client_names:
            (half if rng.random() < 0.5 else other).append(client)
    pairs = [(one, two) for one in half for two in other]
    if shape != "one-way":
        pairs += [(two, one) for one, two in pairs]
    elif rng.random() < 0.5:
        pairs = [(two, one) for one, two in pairs]
    return tuple(pairs)


def draw_through(rng: random.Random, options: Options, names: list[str]) -> tuple[list[str], list[str]]:
    """Two sides of a cut through the replica set of a partition; any of the other nodes are on either side."""
    partition = rng.randrange(options.partitions + (2 if options.alter else 0))
    members = rendezvous(options.node_names, topic_id("jobs", options.rf), partition)[: options.rf]
    half = rng.sample(members, rng.randint(1, options.rf - 1))
    half += [name for name in names if name not in members and rng.random() < 0.5]
    return half, [name for name in names if name not in half]
