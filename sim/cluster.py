"""A whole simulated cluster: machines, clients, faults, and the two phases of a run.

First the faults of the schedule happen while everyone works. Then everything is healed: nodes are started
again, the network carries everything, clients behave. From then on the cluster must settle every message
within a bound (promise G4). The rest is then listed, and the checkers check the whole history.
"""

from __future__ import annotations

from itertools import islice

from quorumq.core.messages.diskroom import Shortage
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.types import NodeId
from quorumq.history import VERSION
from sim.arrivals import Arrivals
from sim.clients.client import Client
from sim.clients.consumer import Consumer
from sim.clients.guest import guests_of
from sim.clients.inspector import Inspector
from sim.clients.labeller import Labeller
from sim.clients.mover import Mover
from sim.clients.namer import Namer
from sim.clients.operator import Operator
from sim.clients.producer import Producer
from sim.clients.rival import Rival
from sim.clients.surroundings import LATE_GROUP, STRAY_GROUP, Surroundings
from sim.clients.worker import Worker
from sim.drain import OUTPUT_GROUP, Drain
from sim.fault_plan import LOSSES
from sim.faults import Faults
from sim.host import Host
from sim.links import Links
from sim.observer import Observer
from sim.packet_world import PacketWorld
from sim.schedule import Schedule
from sim.targeted_faults import TargetedFaults
from sim.topics import OUTPUTS, Topics
from sim.world import World

PASSED_MAX = 40
"""Most deliveries in a row that a group gets of other partitions, in a calm run; 17 were seen in 300 seeds."""


class Cluster:
    """One run of one schedule.

    Args:
        full: True if the history gets the nodes' lines too, which no checker needs.
        traced: True if the fate of each packet is written down.
    """

    def __init__(self, schedule: Schedule, *, full: bool = False, traced: bool = False) -> None:
        self.schedule = schedule
        self.options = options = schedule.options
        self.world = World(schedule) if schedule.packets is None and not traced else PacketWorld(schedule)
        self.topics = Topics(options)
        steady = not any(fault.kind in ("wall-jump", "wrong-clock") for fault in schedule.faults)
        self.observer = Observer(self.world, self.topics, full=full, steady=steady)
        self.world.on_broken = self.observer.on_broken
        links: dict[NodeId, Links] = {}
        self.hosts = {name: Host(self.observer, name, links) for name in options.node_names}
        links.update((name, host.links) for name, host in self.hosts.items())
        self.observer.hosts = self.hosts
        self.around = around = Surroundings(self.world, self.topics, self.hosts)
        groups = around.groups
        self.producers = [Producer(around, f"p{i}") for i in range(options.producers)]
        self.consumers = [
            (Worker if options.poison else Consumer)(around, f"c{i}", groups[i % len(groups)])
            for i in range(max(options.consumers, len(groups)))
        ]
        if options.late_group:
            groups.append(LATE_GROUP)
            self.consumers.append(Consumer(around, "late", LATE_GROUP, "latest"))
        if not options.auto_create_groups:
            self.consumers.append(Consumer(around, "stray", STRAY_GROUP, "latest"))
        self.consumers += [
            Consumer(around, f"d{i}", groups[0] + DEAD_SUFFIX) for i in range(options.dead_readers)
        ]
        if options.derive:
            self.consumers += [Consumer(around, f"o{i}", OUTPUT_GROUP, topic=OUTPUTS) for i in range(2)]
        self.guests = guests_of(around)
        self.operators: list[Operator] = []
        for name in options.operator_names:
            Operator(around, name, self.operators, first=not self.operators)
        lossy = any(fault.kind in LOSSES for fault in schedule.faults)
        for name in options.rival_names:
            Rival(around, name, self.operators, lossy=lossy)
        self.topics.when_another += [
            caller.on_another for caller in (*self.operators, *self.consumers, *self.guests)
        ]
        self.topics.when_deleted += [operator.on_deleted for operator in self.operators]
        self.topics.when_deleted += [producer.begin_again for producer in self.producers]
        leaving: dict[NodeId, None] = {}
        movers = [Mover(around, f"m{i}", self.hosts, leaving) for i in range(2 if options.moves else 0)]
        inspectors = [Inspector(around, f"i{i}") for i in range(options.inspectors)]
        named_once = not (options.deletions or options.rivals)  # so that a label is of one topic
        labellers = [Labeller(around, f"l{i}") for i in range(2 if options.labels and named_once else 0)]
        right = options.wall_offset <= 5.0 and not any(
            "wall" in fault.kind or "clock" in fault.kind for fault in schedule.faults
        )
        namers = [Namer(around, f"n{i}") for i in range(2 if options.names and named_once and right else 0)]
        clients: tuple[Client, ...] = (
            *self.producers,
            *self.consumers,
            *self.guests,
            *self.operators,
            *inspectors,
            *labellers,
            *namers,
            *movers,
        )
        self.clients = {client.name: client for client in clients}
        self.faults = Faults(self.world, self.hosts, self.clients)
        self.targeted_faults = TargetedFaults(around, self.operators, self.producers, self.faults.inflict)
        around.on_late_ack = self.targeted_faults.on_late_ack
        self.faults.on_cut = self.targeted_faults.on_cut
        self.observer.on_steps = self.targeted_faults.on_steps
        self.topics.when_deleted.append(self.targeted_faults.on_deleted)
        self.arrivals = Arrivals(around, self.guests, self.operators, self.faults.inflict)
        self.drain = Drain(self.hosts, self.observer, self.producers, around)
        self.bound = 0.0
        self.drained = False

    def run(self) -> None:
        """Run faults, then healing, then draining; the history is complete afterwards."""
        world, options = self.world, self.options
        world.note(
            "sim",
            "settings",
            history=VERSION,
            clock="simulated",
            settings={
                "rf": self.options.rf,
                "hold_min": self.options.hold_times[0],
                "kept": self.around.keeps,
                "schedule": self.schedule.to_json(),
                **({"wait_max": options.wait_max} if options.wait_max else {}),
                **({"passed_max": PASSED_MAX} if options.wait_max and not options.silent else {}),
            },
        )
        world.note("sim", "phase", phase="faults", seconds=options.fault_time)
        boot = world.stream("boot")
        for host in self.hosts.values():
            world.at(boot.random() * 0.05, host.boot, host.life)
        for client in self.clients.values():
            world.at(0.05 + boot.random() * 0.3, client.begin)
        for fault in self.schedule.faults:
            world.at(fault.at, self.faults.inflict, fault)
        self.targeted_faults.begin()
        self.arrivals.begin()
        ends = self.schedule.ends
        world.run(min(options.fault_time, ends) if ends else options.fault_time)
        if ends and ends <= options.fault_time:
            return
        self.heal()
        bound = world.time + self.bound
        self.drained = world.run(min(bound, ends) if ends else bound, self.drain.is_drained)
        if ends and not self.drained:
            return
        if self.drained:
            world.note("sim", "phase", phase="drained")
        else:
            world.note("sim", "phase", phase="end", detail=" · ".join(islice(self.drain.unsettled(), 4)))
        self.drain.list_settled(complete=self.drained)
        if self.drained:
            for host in self.hosts.values():
                host.check_deleted()
                if host.core is not None:
                    host.check()

    def heal(self) -> None:
        """End all faults: every node and client is up, connected, fast and well behaved from here on."""
        world = self.world
        world.heal_network()
        for host in self.hosts.values():
            host.frozen_until = min(host.frozen_until, world.time)
            host.slow_until = 0.0
            host.thaw(host.life)
            host.set_shortage(Shortage.NONE)
            host.boot(host.life)
        for client in self.clients.values():
            client.paused_until = min(client.paused_until, world.time)
        self.bound = self.options.drain_bound + self.options.turn_bound * self.drain.one_by_one()
        world.note("sim", "phase", phase="healed", seconds=self.bound)

    def dispose(self) -> None:
        """Cut the cycles, so that everything is released at once and campaigns need no garbage collector."""
        parts = (
            self.faults,
            self.targeted_faults,
            self.arrivals,
            self.drain,
            self.observer,
            self.around,
            self.topics,
        )
        for part in (*self.hosts.values(), *self.clients.values(), *parts, self.world, self):
            part.__dict__.clear()
