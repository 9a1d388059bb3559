"""Options of one run: drawn per seed, and written out in full in its schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

NODE_NAMES = tuple("abcdefghi")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one run. Times are simulated seconds, shares are probabilities."""

    nodes: int = 3  # number of nodes
    rf: int = 3  # replicas of each partition
    partitions: int = 1  # partitions of the topic
    groups: int = 1  # groups that read the topic
    # ``memory`` keeps the journal's records and the number of durable ones; ``store`` runs quorumq's own store on a
    # disk in memory that tears writes.
    disk: str = "memory"
    # True if a connection keeps its order, and breaks if it loses something, as TCP does.
    fifo: bool = False
    loss: float = 0.0  # share of messages lost
    duplicate: float = 0.0  # share of messages delivered twice, the second time up to ``late`` seconds later
    late: float = 1.0  # see there; also the longest of the delay spikes
    spikes: float = 0.0  # share of messages that are delayed by up to ``late``
    latency: float = 0.002  # mean one-way delay
    # Most seconds of a turn of a node's loop: events meanwhile go into one step.
    turn: float = 0.0
    distance: float = 0.0  # seconds that a message from one node to another takes besides, always
    fsync: float = 0.003  # mean time of an fsync
    clock_rate: float = 0.01  # how far each clock's rate is from real time at most
    wall_offset: float = (
        0.0  # how far the time of day of each node and client is from the truth at most, in seconds
    )
    hold_time_max: float = 4.0  # longest hold that the cluster grants
    hold_times: tuple[float, float] = (0.5, 4.0)  # shortest and longest hold asked for
    request_timeout: float = 1.0  # timeout of the nodes' quorum rounds
    heartbeat: float = 0.5  # interval of the nodes' heartbeats
    sync_interval: float = 2.0  # interval of the nodes' anti-entropy
    sync_grace: float = 0.5  # grace of the nodes' anti-entropy
    max_deliveries: int = 5  # most deliveries of a message, a setting of the topic
    producers: int = 2  # number of producers
    batches: int = 5  # that each publishes
    batch_messages: int = 6  # in each at most
    retry_early: float = 0.0  # share of publishes that are sent to a second node at once
    consumers: int = 3  # number of consumers, over all groups
    fetch_messages: int = 8  # that one FETCH asks for at most
    fetch_bytes: int = field(default=1 << 20, repr=False)  # most bytes of one FETCH until all is healed
    slow: float = 0.0  # share of deliveries that are worked on for longer than their hold
    reject: float = 0.0  # share of deliveries rejected with a delay of up to ``delay``
    delay: float = 1.0  # see there
    dead: float = 0.0  # share rejected to the dead letters
    extend: float = 0.0  # share extended before they are acked
    claim: float = field(default=0.0, repr=False)  # share claimed for longer than a hold
    release: float = 0.0  # share given back without being handed to the application
    vanish: float = 0.0  # share that is never settled
    partial: float = 0.0  # share with a part that is acked and the rest rejected
    shred: float = 0.0  # share with every other message acked, and the rest never settled
    replay: float = 0.0  # share of settlements after which an old receipt is tried again
    redrive: float = 0.0  # share of the dead letters listed that an operator redrives each time it looks
    rewind: float = 0.0  # share of an operator's rounds in which it rewinds a group
    unmake: float = 0.0  # share in which it deletes a group, which is made again soon after
    pause: float = field(
        default=0.0, repr=False
    )  # share in which it pauses a group, which is resumed soon after
    # Share in which it limits a group's deliveries; the limit ends soon after.
    limit: float = field(default=0.0, repr=False)
    purge: float = 0.0  # share in which it purges a backlog or dead letters
    # Share with one, or two at once, that change the topic: its settings, and its number of partitions.
    alter: float = 0.0
    # Probability that an operator who moves partitions moves one in a round; 0: there is none.
    moves: float = field(default=0.0, repr=False)
    joining: int = field(default=0, repr=False)  # how many of the nodes are added while the run goes on
    # Share of the deliveries after whose outputs their consumer dies; 0: nothing is derived.
    derive: float = 0.0
    output_partitions: int = 1  # partitions of the topic that outputs are published to
    # True if payload is kept when groups are rewound or made later, so that they get all of it again.
    keep: bool = True
    # Share of the moments at which sim/targeted_faults.py makes the worst fault for the cluster just then.
    targeted_faults: float = 0.0
    # Share of the FETCHes of a consumer that name messages which it had before.
    by_id: float = field(default=0.0, repr=False)
    # Inspectors that look at nodes, topics, groups and messages, and try requests that have to be refused.
    inspectors: int = field(default=0, repr=False)
    # Groups made by a FETCH, of several consumers at once, once messages were published.
    guests: int = field(default=0, repr=False)
    late_group: bool = False  # True if another group is created from latest while the run goes on
    # The topic's setting, as it is created; if it is false, a client reads a group that no client creates.
    # It is drawn by what the others are.
    auto_create_groups: bool = field(default=True, repr=False)
    names: bool = field(default=False, repr=False)  # True if two clients publish under names of their own
    # True if two clients change and read labels of the topic.
    labels: bool = field(default=False, repr=False)
    dead_readers: int = 0  # readers of the dead letters of the first group
    operators: int = 1  # number of operators
    deletions: int = 0  # times that the topic is deleted while the run goes on; mostly it is created again
    rivals: int = 0  # other clients that create the topic, with other settings
    rival_rf: int = 0  # replicas that half of their creations ask for; 0: as many as ``rf``
    implicit: bool = False  # True if they create it as a producer does, too, without settings
    # True if one node's directory is lost or damaged just when a node that knows the same goes, and others
    # that do not start again.
    relay: bool = False
    fault_time: float = 6.0  # seconds of faults before everything is healed
    # Longest wait in seconds of a message or a publish, in a run without faults; 0: there may be faults.
    wait_max: float = field(default=0.0, repr=False)
    check: float = 0.0  # share of the steps of cores that are followed by the core's own `check`
    # Runs of equal values of one producer id that a span map keeps in a tuple, before it sorts them otherwise.
    small: int = field(default=512, repr=False)
    # Runs of messages that one step of a core votes on, the other limits of a step being as low; 0: as ever.
    runs_per_step: int = field(default=0, repr=False)
    recall: float = 0.0  # share of the steps after which its journal must have all of the core's knowledge
    # Share of the messages that end the process that handles them; 0: consumers do not die of messages.
    poison: float = 0.0
    # Share of messages at which a worker stops, instead of handling one, and rejects what it has; then they join late.
    stops: float = field(default=0.0, repr=False)
    # A node that no client asks, and that stands still again and again. Then each consumer asks one of the others.
    silent: str = field(default="", repr=False)
    delayed: float = 0.0  # share of batches that are published with a delay of up to ``delayed_by``
    delayed_by: float = 0.0  # see there
    ttl_share: float = 0.0  # share of batches that are published with a TTL of up to ``ttl``
    ttl: float = 0.0  # see there
    by_topic: float = 0.0  # share of rejects that leave their delay to the topic's backoff list
    session_idle: float = 86_400.0  # seconds after which a session with nothing left may be closed

    @property
    def is_brief(self) -> bool:
        """Return True if the faults' time is the shortest that is drawn: no directory is lost or damaged then."""
        return self.fault_time == 2.0

    @property
    def backoff(self) -> tuple[float, ...]:
        """Return the topic's backoff list."""
        return (round(self.delay / 3, 3), self.delay)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the ids of the nodes."""
        return NODE_NAMES[: self.nodes]

    @property
    def founder_names(self) -> tuple[str, ...]:
        """Return the ids of the nodes that the cluster is made with."""
        return NODE_NAMES[: self.nodes - self.joining]

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients: producers, consumers, the operator."""
        producers = tuple(f"p{i}" for i in range(self.producers))
        consumers = (f"c{i}" for i in range(self.consumers))
        return (*producers, *consumers, *self.operator_names, *self.rival_names)

    @property
    def operator_names(self) -> tuple[str, ...]:
        """Return the names of the operators; the first creates the topic."""
        return ("op", *(f"op{i}" for i in range(1, self.operators)))

    @property
    def rival_names(self) -> tuple[str, ...]:
        """Return the names of the other clients that create the topic."""
        return tuple(f"rival{i}" for i in range(self.rivals))

    @property
    def drain_bound(self) -> float:
        """Return the seconds that a healed cluster may take to deliver and settle everything (promise G4).

        A node that started at the last moment waits out its quarantine; then a hold that was granted just before
        runs out, or a delay ends, one that began again if a clock was set back; the rest is a few quorum rounds,
        and two rounds of anti-entropy.
        """
        rounds = 4 * self.sync_interval + 3 * self.request_timeout + 3.0 + 20 * self.distance
        # The message settled last may have outputs, which are then published, delivered and settled.
        if self.derive:
            rounds += 2 * self.request_timeout + 2.0
        if self.pause or self.limit:  # a group may have to be resumed
            rounds += 2 * self.request_timeout + 2.0
        if self.deletions:  # the topic and its groups are created again, and producers begin anew
            rounds += 4 * self.request_timeout + 3.0
        claim = 2 * self.hold_time_max if self.claim else 0.0
        return 2.2 * self.hold_time_max + self.delay + self.delayed_by + claim + rounds

    @property
    def fetch_healed(self) -> int:
        """Return the number of messages a consumer asks for at once, when all is healed."""
        return max(64, self.fetch_messages)

    @property
    def turn_bound(self) -> float:
        """Return the seconds that a suspect takes alone in a delivery: FETCH, HOLD, ACK, their fsyncs, its handler.

        Messages held by the thousand when their consumer died are redelivered one by one.
        """
        return (16 * (self.latency + self.distance) + 4 * self.fsync + 0.1) / max(1, self.consumers)
