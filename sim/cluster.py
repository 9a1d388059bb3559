"""A whole simulated cluster: machines, clients, faults, and the two phases of a run.

First the faults of the schedule happen while everyone works. Then everything is healed: nodes are started
again, the network carries everything, clients behave. From then on the cluster must settle every message
within a bound (promise G4). What is then left is listed, and the checkers judge the whole history.
"""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import DeclareSurvivors, PeekRequest, Release
from quorumq.core.partition.group import DEAD_SUFFIX
from quorumq.core.partition.replica import Replica
from quorumq.core.spans import SpanMap
from quorumq.core.topics import SETTINGS
from quorumq.core.types import (
    STAMP_ZERO,
    Group,
    Kind,
    NodeId,
    Origin,
    PartitionId,
    Record,
    Span,
    Topic,
    record_rank,
    topic_id,
)
from quorumq.history import VERSION, owner_text, spans_value
from sim.host import Host
from sim.moments import Moments
from sim.rivals import Registers, Rival
from sim.schedule import Fault, Schedule
from sim.workload import LATE_GROUP, Consumer, Operator, Producer, Tally, label_of
from sim.world import World

TOPIC = "jobs"
OUTPUTS = "out"
OUTPUT_GROUP = "o"


class Cluster:
    """One run of one schedule.

    Args:
        schedule: what to run.
        full: whether the history gets the nodes' lines too, which no checker needs.

    Attributes:
        late_clients: set where a rule is left out: clients count their deadline from the reply's arrival.
    """

    def __init__(self, schedule: Schedule, *, full: bool = False) -> None:
        self.schedule = schedule
        self.options = schedule.options
        self.full = full
        self.late_clients = False
        self.world = World(schedule)
        self.world.on_broken = self.on_broken
        # What each topic is called in the history (docs/history.md): a name may have others, one after the other.
        options = schedule.options
        self.rfs = (options.rf, options.rival_rf) if options.rival_rf else (options.rf,)
        self.names = {topic_id(OUTPUTS, options.rf): OUTPUTS}
        self.after = dict.fromkeys(self.names, 0)  # how often the name of each was deleted before
        for deletions in range(options.deletions + 1):
            for rf in self.rfs:
                found = topic_id(TOPIC, rf, deletions)
                self.names[found], self.after[found] = label_of(TOPIC, rf, deletions, options), deletions
        self.lives = 1  # how many topics of the name there may be by now, one after the other
        self.confirmed: dict[bytes, int] = {}  # how many partitions each topic has for certain
        self.registers = Registers()
        self.newest = 0  # how often the name was deleted before the newest that is there for certain
        self.deleted: dict[bytes, bool] = {}  # those that a DELETE was sent for, and whether it is certain
        self.published_to: dict[Origin, str] = {}
        # Confirmed outputs: the batch in which each was first.
        self.outputs: dict[tuple[PartitionId, Origin], dict[int, tuple[Span, ...]]] = {}
        self.purged: dict[tuple[PartitionId, str], SpanMap[tuple[NodeId, Record]]] = {}
        self.hold_rounds: dict[tuple[NodeId, int, int], None] = {}
        self.fetched_batches = 0
        self.fetched_messages = 0
        self.tally = Tally()
        self.hosts = {name: Host(self, name) for name in self.options.node_names}
        groups = [f"g{i}" for i in range(self.options.groups)]
        self.groups = groups
        # What is reclaimed could not be read again.
        self.keeps = bool(self.options.rewind or self.options.late_group) and self.options.keep
        self.retention = 3600.0 if self.keeps else 0.0
        self.producers = [Producer(self, f"p{i}") for i in range(self.options.producers)]
        self.consumers = [
            Consumer(self, f"c{i}", groups[i % len(groups)])
            for i in range(max(self.options.consumers, len(groups)))
        ]
        if self.options.late_group:
            groups.append(LATE_GROUP)
            self.consumers.append(Consumer(self, "late", LATE_GROUP, "latest"))
        self.consumers += [
            Consumer(self, f"d{i}", groups[0] + DEAD_SUFFIX) for i in range(self.options.dead_readers)
        ]
        if self.options.derive:
            self.consumers += [Consumer(self, f"o{i}", OUTPUT_GROUP, topic=OUTPUTS) for i in range(2)]
        names = self.options.operator_names
        self.operators = [Operator(self, name, first=name == names[0]) for name in names]
        self.operator = self.operators[0]
        self.operators += [Rival(self, name) for name in self.options.rival_names]
        self.clients = {client.name: client for client in (*self.producers, *self.consumers, *self.operators)}
        self.steady = not any(fault.kind in ("wall-jump", "wrong-clock") for fault in schedule.faults)
        self.moments = Moments(self)
        self.healed_at = 0.0
        self.drained = False

    # ---------------------------------------------------------------- the run

    def run(self) -> None:
        """Faults, then healing, then draining; the history is complete afterwards."""
        world, options = self.world, self.options
        world.note(
            "sim",
            "settings",
            history=VERSION,
            clock="simulated",
            settings={
                "rf": self.options.rf,
                "hold_min": self.options.hold_times[0],
                "durability": self.options.durability,
                "kept": self.keeps,
                "schedule": self.schedule.to_json(),
            },
        )
        world.note("sim", "phase", phase="faults", seconds=options.fault_time)
        boot = world.stream("boot")
        for host in self.hosts.values():
            world.at(boot.random() * 0.05, host.boot, host.life)
        for client in self.clients.values():
            world.at(0.05 + boot.random() * 0.3, client.begin)
        for fault in self.schedule.faults:
            world.at(fault.at, self.inflict, fault)
        world.run(options.fault_time)
        self.heal()
        self.drained = world.run(world.time + options.drain_bound, self.is_drained)
        world.note("sim", "phase", phase="drained" if self.drained else "end")
        self.list_settled()
        if self.drained:
            for host in self.hosts.values():
                host.check_deleted()

    def heal(self) -> None:
        """No more faults: everyone is up, connected, fast and well behaved from here on."""
        world = self.world
        self.healed_at = world.time
        world.heal_network()
        for host in self.hosts.values():
            host.frozen_until = min(host.frozen_until, world.time)
            host.slow_until = 0.0
            host.thaw(host.life)
            host.set_disk_full(False, host.life)
            host.boot(host.life)
        for client in self.clients.values():
            client.paused_until = min(client.paused_until, world.time)
        world.note("sim", "phase", phase="healed", seconds=self.options.drain_bound)

    def is_drained(self) -> bool:
        """Whether every publish is confirmed, and every replica knows of every message that it is settled."""
        if not all(producer.finished for producer in self.producers) or not all(self.deleted.values()):
            return False
        if not self.operator.created and not self.operator.gone:
            return False
        expected: dict[PartitionId, dict[Origin, int]] = {}
        for producer in self.producers:
            for (partition, origin), count in producer.published.items():
                if self.is_over(partition.topic):
                    continue
                expected.setdefault(partition, {})[origin] = count
        for (partition, origin), known in self.outputs.items():
            expected.setdefault(partition, {})[origin] = len(known)
        for host in self.hosts.values():
            core = host.core
            if core is None or not host.started or not core.state.vouched:
                return False
            for partition, replica in core.replicas.items():
                if self.is_over(partition.topic):
                    continue
                if any(map(host.journal.is_set_aside, replica.batches)):
                    return False
                for origin, count in expected.get(partition, {}).items():
                    here = sum(
                        span.size
                        for table in (replica.present, replica.reclaimed)
                        for span in table.spans_of(origin)
                    )
                    if here < count and origin not in replica.closed:
                        return False
                if partition not in expected:
                    continue
                for group in self.groups_of(partition):
                    view = replica.groups.get(group)
                    if view is None:
                        return False
                    for span, slot in replica.index.items():
                        covered = view.covers(replica.batches[slot.number].header.published_ms)
                        if view.readable(span, covered):
                            return False
        registers: dict[Any, None] = {}
        for host in self.hosts.values():
            assert host.core is not None
            groups = tuple(sorted(host.core.groups.items()))
            registers[(tuple(host.core.registers()), groups)] = None
        if len(registers) > 1:
            return False
        for partition in expected:
            cores = [host.core for host in self.hosts.values() if host.core is not None]
            replicas = [core.replicas[partition] for core in cores if partition in core.replicas]
            views: dict[tuple[Any, ...], None] = {}
            for replica in replicas:
                found = tuple(
                    digest_of(replica.groups[group], replicas) for group in self.groups_of(partition)
                )
                views[found] = None
            if len(views) > 1:
                return False
        return True

    def list_settled(self) -> None:
        """What each replica has of each group at the end: its register, its dead letters as PEEK shows them, and
        what was purged, void or not.
        """
        for name, host in self.hosts.items():
            if host.core is None:
                continue
            for register in host.core.groups.values():
                self.note_register(name, register)
            for topic in host.core.topics.values():
                if not topic.deleted and topic.stamp != STAMP_ZERO:  # else a creation went no further
                    label = self.names[topic.id]
                    self.world.note(f"node:{name}", "topic", topic=label, settings=settings_of(topic))
            for partition, replica in host.core.replicas.items():
                for group in self.groups_of(partition):
                    page = replica.on_peek(
                        PeekRequest(0, partition, group, "dead", (0, 0), 10_000),
                        host.clock.now(self.world.time),
                    )
                    for item in page.items:
                        self.note_listed(name, partition, group, "dead", item.span, item.record)
                    view = replica.groups.get(group)
                    for span, record in view.records.items() if view is not None else ():
                        if record.kind in (Kind.SKIPPED, Kind.PURGED):
                            self.note_listed(name, partition, group, record.kind.name.lower(), span, record)
        self.list_closed()

    def note_purged(
        self, name: NodeId, partition: PartitionId, group: str, span: Span, record: Record
    ) -> None:
        """A replica merged such a record: it is listed at the end even if its origin was closed meanwhile."""
        purged = self.purged.setdefault((partition, group), SpanMap())
        for part, old in purged.split(span):
            if old is None or record_rank(old[1]) < record_rank(record):
                purged.set(part, (name, record))

    def list_closed(self) -> None:
        """What was purged of origins of which a replica keeps only the number."""
        for (partition, group), purged in self.purged.items():
            replicas = [
                host.core.replicas.get(partition) for host in self.hosts.values() if host.core is not None
            ]
            for span, (name, record) in purged.items():
                if any(replica is not None and span.origin in replica.closed for replica in replicas):
                    self.note_listed(name, partition, group, record.kind.name.lower(), span, record)

    def note_listed(
        self, name: NodeId, partition: PartitionId, group: str, state: str, span: Span, record: Record
    ) -> None:
        """A replica has this record at the end."""
        self.world.note(
            f"node:{name}",
            "list",
            topic=self.topic_name(partition),
            partition=partition.number,
            group=group,
            state=state,
            spans=spans_value((span,)),
            n=record.n,
            generation=record.generation,
            complete=self.drained,
        )

    def note_register(self, name: NodeId, register: Group) -> None:
        """A node has this register of a group."""
        self.world.note(
            f"node:{name}",
            "register",
            topic=self.names[register.topic],
            group=register.name,
            generation=register.generation,
            from_ms=register.from_ms,
        )

    def dispose(self) -> None:
        """Cut the cycles, so that everything is freed at once and campaigns need no garbage collector."""
        for host in self.hosts.values():
            host.__dict__.clear()
        for client in self.clients.values():
            client.__dict__.clear()
        self.world.__dict__.clear()
        self.__dict__.clear()

    # ----------------------------------------------------------------- faults

    def inflict(self, fault: Fault, _: object = None) -> None:
        """Carry out a fault, and plan its end."""
        world = self.world
        if world.healed:
            return
        note: dict[str, object] = {"fault": fault.kind, "seconds": fault.seconds}
        if fault.nodes:
            note["nodes"] = list(fault.nodes)
        if fault.links:
            note["links"] = [list(pair) for pair in fault.links]
        world.note("sim", "fault", **note)
        getattr(self, "do_" + fault.kind.replace("-", "_"))(fault)

    def _down(self, fault: Fault) -> None:
        for name in fault.nodes:
            host = self.hosts[name]
            if fault.kind == "stop":
                host.stop()
            else:
                host.crash(power=fault.kind == "crash")
            if host.core is None:
                if fault.kind in ("wipe", "restore"):
                    host.journal.lose(host.disk_rng, backup=fault.kind == "restore", last=fault.amount > 0)
                elif fault.kind == "flip":
                    host.journal.flip(host.disk_rng, 0.5)
                elif fault.kind == "damage":
                    host.journal.damage(host.disk_rng, int(fault.amount))
                    self.world.saw("a damaged directory was started from")
                self.world.after(fault.seconds, host.boot, host.life)

    def do_rot(self, fault: Fault) -> None:
        """Bits flip under processes that run; batches are damaged for who reads them next."""
        for name in fault.nodes:
            self.hosts[name].journal.flip(self.hosts[name].disk_rng, 0.0)

    def do_wrong_clock(self, fault: Fault) -> None:
        """Processes are killed, and find another time of day when they are started again."""
        self.do_wall_jump(fault)
        self._down(fault)

    do_crash = do_kill = do_stop = do_wipe = do_restore = do_flip = do_damage = _down

    def do_bereave(self, fault: Fault, _: object = None) -> None:
        """All directories but one are lost, at a moment when nothing is lost with them that was promised.

        Then an operator declares what is left, again and again until all vouch.
        """
        left = self.hosts[fault.nodes[0]]
        others = tuple(name for name in self.hosts if name != left.name)
        if self.world.healed:
            return
        if not all(left.knows_what(self.hosts[name]) for name in others):
            self.world.after(0.02, self.do_bereave, fault)
            return
        self.inflict(Fault(self.world.time, "wipe", others, fault.seconds))
        self.world.saw("all directories but one were lost")
        self.world.after(fault.seconds, self.declare, left)

    def declare(self, left: Host, _: object = None) -> None:
        """An operator at that node declares who can vouch to be all that is left, until everybody can."""
        vouch = [
            name for name, host in self.hosts.items() if host.core is not None and host.core.state.vouched
        ]
        if len(vouch) < len(self.hosts):
            left.on_request((self.operator, -1), DeclareSurvivors(tuple(vouch)))
            self.world.after(0.2, self.declare, left)
        else:
            self.world.saw("what was left was declared")

    def do_partition(self, fault: Fault) -> None:
        """Block the pairs; some connections notice and break, some do not."""
        world = self.world
        world.block(fault.links)
        rng = world.net_rng
        for source, target in fault.links:
            if source in self.hosts and target in self.hosts and rng.random() < 0.5:
                self.hosts[source].lose_link(target, rng.uniform(0.2, 2.0))
        world.after(fault.seconds, self.end_partition, fault)
        self.moments.on_cut(fault)

    def end_partition(self, fault: Fault, _: object = None) -> None:
        """The partition is over, unless everything was healed already."""
        self.world.unblock(fault.links)
        self.world.note("sim", "fault", fault="partition-over", links=[list(pair) for pair in fault.links])

    def do_freeze(self, fault: Fault) -> None:
        """Processes do not run for a while."""
        for name in fault.nodes:
            self.hosts[name].freeze(fault.seconds)

    def do_pause(self, fault: Fault) -> None:
        """Clients do not run for a while."""
        for name in fault.nodes:
            if name in self.clients:
                self.clients[name].paused_until = self.world.time + fault.seconds

    def do_slow_disk(self, fault: Fault) -> None:
        """Every fsync takes many times as long."""
        for name in fault.nodes:
            self.hosts[name].slow_until = self.world.time + fault.seconds
            self.hosts[name].slow_factor = fault.amount

    def do_full_disk(self, fault: Fault) -> None:
        """Publishes are refused for a while."""
        for name in fault.nodes:
            host = self.hosts[name]
            host.set_disk_full(True, host.life)
            self.world.after(fault.seconds, host.set_disk_full, False, host.life)

    def do_wall_jump(self, fault: Fault) -> None:
        """The time of day jumps, forth or back."""
        for name in fault.nodes:
            self.hosts[name].clock.wall_offset_ms += int(fault.amount * 1000)

    def do_cut(self, fault: Fault) -> None:
        """Connections break and are made again."""
        for source, target in fault.links:
            self.hosts[source].lose_link(target, self.world.net_rng.random() * 0.05)

    # -------------------------------------------------------------------- deletion

    def is_over(self, topic: bytes) -> bool:
        """Whether this topic is deleted for certain."""
        return self.deleted.get(topic, False)

    def on_delete_sent(self, topic: Topic) -> None:
        """From now on there may be another topic of the name, which what was asked for by name may reach."""
        self.deleted.setdefault(topic.id, False)
        if any(host.core is None for host in self.hosts.values()):
            self.world.saw("a topic was deleted while a node was down")
        if topic.deletions + 1 == self.lives:
            self.lives += 1
            for operator in self.operators:
                for call in operator.calls:
                    operator.reaches(call, topic.deletions + 1)

    def on_deleted(self, topic: bytes) -> None:
        """Somebody heard that this topic is deleted."""
        if self.is_over(topic):
            return
        self.deleted[topic] = True
        for operator in self.operators:
            operator.on_deleted()
        for producer in self.producers:
            producer.begin_again()

    def on_topic(self, topic: Topic) -> None:
        """Somebody heard that the topic is there."""
        self.newest = max(self.newest, topic.deletions)
        self.confirmed[topic.id] = max(topic.partitions, self.confirmed.get(topic.id, 0))
        for found in self.deleted:
            if self.after[found] < topic.deletions:  # it has taken their place
                self.on_deleted(found)

    # -------------------------------------------------------------- what hosts say

    def on_broken(self, source: str, target: str) -> None:
        """A connection that keeps its order lost something, so it breaks."""
        if source in self.hosts and target in self.hosts:
            self.hosts[source].lose_link(target, self.world.net_rng.uniform(0.01, 0.5))

    def on_death(self, name: NodeId, *, power: bool) -> None:
        """A node is gone: the others notice, sooner where its machine still answers for it."""
        rng = self.world.net_rng
        for host in self.hosts.values():
            if name in host.links:
                host.lose_link(name, rng.uniform(0.3, 2.0) if power else rng.uniform(0.001, 0.05))

    def on_hold_sent(self, name: NodeId, life: int, number: int) -> None:
        """A HOLD round asks another replica."""
        self.hold_rounds[(name, life, number)] = None

    def on_fetched(self, name: NodeId, reply: Any) -> None:
        """A node began to write a FETCH's answer."""
        mine = [part for part in reply.slices if part.deliveries[0].receipt.owner.node == name]
        self.fetched_batches += len(mine)
        for part in mine:
            self.fetched_messages += part.stop - part.first
            if self.full:
                for delivery in part.deliveries:
                    receipt = delivery.receipt
                    self.world.note(
                        f"node:{name}",
                        "hold_won",
                        topic=self.topic_name(receipt.partition),
                        partition=receipt.partition.number,
                        group=receipt.group,
                        generation=receipt.generation,
                        n=receipt.n,
                        spans=spans_value((receipt.span,)),
                        owner=owner_text(receipt.owner),
                        attempt=delivery.attempt,
                    )

    def note_release(self, name: NodeId, message: Release) -> None:
        """A node gave up a HOLD round, or what it won."""
        for freed in message.freed:
            if freed.owner.node == name:
                self.world.note(
                    f"node:{name}",
                    "hold_lost",
                    topic=self.topic_name(freed.partition),
                    partition=freed.partition.number,
                    group=freed.group,
                    spans=spans_value(freed.spans),
                    owner=owner_text(freed.owner),
                )

    def note_letter(self, name: NodeId, record: Any, span: Span, value: Record) -> None:
        """A node wrote a dead letter because a message ran out of deliveries."""
        letter = value.letter
        assert letter is not None
        self.world.note(
            f"node:{name}",
            "dead_letter",
            topic=self.topic_name(record.partition),
            partition=record.partition.number,
            group=record.group,
            generation=value.generation,
            n=value.n,
            spans=spans_value((span,)),
            owner=f"{letter.node}.0.0#{letter.ballot.time:x}@{letter.ballot.node}",
            outcome="ok",
            reason=letter.reason,
        )

    def topic_name(self, partition: PartitionId) -> str:
        """The name of a partition's topic."""
        return self.names[partition.topic]

    def groups_of(self, partition: PartitionId) -> list[str]:
        """The groups that read a partition's topic."""
        return [OUTPUT_GROUP] if self.topic_name(partition) == OUTPUTS else self.groups

    def tombstones(self, partition: PartitionId, group: str, span: Span) -> tuple[int, int]:
        """How many replicas that are up have ACKED for the first message of ``span``, and how many there are."""
        have, members = 0, 0
        for host in self.hosts.values():
            replica = host.core.replicas.get(partition) if host.core is not None else None
            if replica is None:
                continue
            members = len(replica.members)
            view = replica.groups.get(group)
            record = view.records.get(span.origin, span.start) if view is not None else None
            have += record is not None and record.kind == Kind.ACKED
        return have, members


def settings_of(topic: Topic) -> dict[str, Any]:
    """A register as the history has it."""
    return {"partitions": topic.partitions} | {name: getattr(topic, name) for name in SETTINGS}


def digest_of(view: Any, replicas: list[Replica]) -> tuple[Any, ...]:
    """What two replicas must agree on in the end: the records, letters by their ballot.

    Nothing is kept of an origin that was closed, which takes its time to spread.
    """
    agreed: SpanMap[tuple[Any, ...]] = SpanMap()
    for span, record in view.records.items():
        if not any(span.origin in replica.closed for replica in replicas):
            agreed.set(span, (*record[:3], record.letter.ballot if record.letter is not None else None))
    return tuple(agreed.items())
