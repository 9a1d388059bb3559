"""One run of one design: the same world, workload, faults and phases for all of them, and then its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorumq.history import VERSION, Row
from sim.fault_plan import Fault
from sim.faults import Faults
from sim.rivals.machine import Machine, Server
from sim.rivals.workload import GROUP, TOPIC, Books, Consumer, Producer
from sim.schedule import Schedule
from sim.topics import Topics
from sim.world import World

SETTLE_S = 15.0
"""Seconds after healing after which a confirmed message that is not settled counts as lost."""

LINGER_S = 2.5
"""Seconds, more than a hold, that a run goes on once all is settled, so that late deliveries are seen."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of the designs."""

    release: bool = True  # literal C takes its optional step: a loser's holds are removed
    gap: float = 1.0  # B and the log: seconds from a leader's loss to the next one
    watermark: int = 8  # B: a provider refills its buffer when it holds fewer keys
    refill: int = 16  # B: number of keys it asks each replica for
    assignor: str = "sticky"  # the log: ``range``, ``roundrobin`` or ``sticky``
    cooperative: bool = True  # the log: partitions that stay are read on during a rebalance
    static: bool = False  # the log: consumers have ids that outlive them
    commit: str = "after"  # the log: ``after`` handling, or ``before``


class RivalFaults(Faults):
    """Faults of the machines as in every run, and of consumers' processes."""

    def do_die(self, fault: Fault) -> None:
        """End a consumer's process, and start another one later."""
        for name in fault.nodes:
            client: Any = self.clients[name]
            client.die(fault.seconds)


class Run:
    """One run, to be filled by a design before it is run. Clients take it for their surroundings.

    Args:
        design: its name.
        schedule, knobs: the run, and settings of the designs.

    Attributes:
        oracle: elects leaders, if the design has any.
        settled_at: when all was settled, or the run given up.
        costs: network messages and fsyncs until then.
    """

    def __init__(self, design: str, schedule: Schedule, knobs: Knobs) -> None:
        self.design = design
        self.schedule = schedule
        self.options = schedule.options
        self.knobs = knobs
        self.world = World(schedule)
        self.world.run_name = f"{design}-{schedule.profile}-{schedule.seed}"
        self.topics = Topics(self.options)
        self.books = Books()
        self.machines: dict[str, Any] = {}
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.oracle: Any = None
        self.settled_at = 0.0
        self.costs: dict[str, float] = {}

    def add_machines(self, serve: Callable[[Machine, list[Any]], Server]) -> None:
        """Add a machine for each node; ``serve`` makes its servers."""
        for name in self.options.node_names:
            self.machines[name] = Machine(self.world, name, self.machines, serve)

    def add_clients(self, producer: type[Producer], consumer: type[Consumer]) -> None:
        """Add the clients, of a design's classes."""
        self.producers = [producer(self, f"p{i}") for i in range(self.options.producers)]
        self.consumers = [consumer(self, f"c{i}") for i in range(self.options.consumers)]

    def run(self) -> list[Row]:
        """Run faults, healing, and the rest; return the history."""
        world, options = self.world, self.options
        settings = {"design": self.design, "schedule": self.schedule.to_json()}
        world.note("sim", "settings", history=VERSION, clock="simulated", settings=settings)
        world.note("sim", "phase", phase="faults", seconds=options.fault_time)
        boot = world.stream("boot")
        for machine in self.machines.values():
            world.at(boot.random() * 0.05, machine.boot, machine.life)
        clients: dict[str, Any] = {client.name: client for client in (*self.producers, *self.consumers)}
        for client in clients.values():
            world.at(0.05 + boot.random() * 0.3, client.begin)
        if self.oracle is not None:
            self.oracle.begin()
        faults = RivalFaults(world, self.machines, clients)
        for fault in self.schedule.faults:
            world.at(fault.at, faults.inflict, fault)
        world.run(options.fault_time)
        self.heal(clients)
        world.run(world.time + SETTLE_S, self.is_settled)
        self.settled_at = world.time
        self.costs = {
            "messages": world.messages,
            "syncs": sum(machine.journal.syncs for machine in self.machines.values()),
            "deliveries": self.books.deliveries,
        }
        world.run(world.time + LINGER_S)
        for key in self.books.dead.values():
            world.note(
                "sim", "list", topic=TOPIC, partition=key.partition, group=GROUP, generation=0, state="dead",
                n=0, spans=[[key.producer_id, key.seq, key.seq + 1]], complete=True,
            )  # fmt: skip
        world.note("sim", "phase", phase="drained")
        return world.rows

    def heal(self, clients: dict[str, Any]) -> None:
        """End all faults: every node and client is up, connected and fast from here on."""
        world = self.world
        world.heal_network()
        for machine in self.machines.values():
            machine.frozen_until = min(machine.frozen_until, world.time)
            machine.slow_until = 0.0
            machine.thaw(machine.life)
            machine.boot(machine.life)
        for client in clients.values():
            client.paused_until = min(client.paused_until, world.time)
        world.note("sim", "phase", phase="healed", seconds=SETTLE_S)

    def is_settled(self) -> bool:
        """Return True if all that was confirmed is a dead letter, or has a sent ACK, even by a client that is gone."""
        books = self.books
        return all(producer.finished for producer in self.producers) and all(
            key in books.settled for key in books.confirmed
        )

    def dispose(self) -> None:
        """Cut the cycles, so that campaigns need no garbage collector."""
        for thing in (*self.machines.values(), *self.producers, *self.consumers, self.world, self):
            thing.__dict__.clear()
