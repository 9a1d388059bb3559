"""Faults of a run: each fault of its schedule, and its end."""

from __future__ import annotations

from collections.abc import Callable

from quorumq.core.messages import DeclareSurvivors
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.values.types import NodeId
from sim.clients.client import Client
from sim.fault_plan import Fault
from sim.host import Host
from sim.world import World


class Faults:
    """Inflicts faults on the machines and clients of one run."""

    def __init__(self, world: World, hosts: dict[NodeId, Host], clients: dict[str, Client]) -> None:
        self.world = world
        self.hosts = hosts
        self.clients = clients
        self.on_cut: Callable[[Fault], None] = lambda fault: None

    def inflict(self, fault: Fault, _: object = None) -> None:
        """Carry out a fault, and plan its end."""
        world = self.world
        if world.healed:
            return
        world.note("sim", "fault", **fault.told())
        getattr(self, "do_" + fault.kind.replace("-", "_"))(fault)

    def _down(self, fault: Fault) -> None:
        for name in fault.nodes:
            host = self.hosts[name]
            if fault.kind == "stop":
                host.stop()
            else:
                host.crash(power=fault.kind in ("crash", "wrong-clock"))
            if host.core is None:
                if fault.kind in ("wipe", "restore") and host.is_member:
                    host.journal.lose(host.disk_rng, backup=fault.kind == "restore", last=fault.amount > 0)
                elif fault.kind == "flip":
                    host.journal.flip(host.disk_rng, 0.5)
                elif fault.kind == "damage":
                    host.journal.damage(host.disk_rng, int(fault.amount))
                    self.world.saw("a damaged directory was started from")
                self.world.after(fault.seconds, host.boot, host.life)

    def do_rot(self, fault: Fault) -> None:
        """Flip bits under processes that run, and damage batches for their next readers."""
        for name in fault.nodes:
            self.hosts[name].journal.flip(self.hosts[name].disk_rng, 0.0)

    def do_wrong_clock(self, fault: Fault) -> None:
        """Take the power of machines, which have another time of day when they boot.

        Why: within one boot nothing is counted by the time of day.
        """
        self.do_wall_jump(fault)
        self._down(fault)

    do_crash = do_kill = do_stop = do_wipe = do_restore = do_flip = do_damage = _down

    def do_bereave(self, fault: Fault, _: object = None) -> None:
        """Lose all directories but one, at a moment when nothing is lost with them that was promised.

        Then an operator declares what is left, again and again until all are trusted.
        """
        survivor = self.hosts[fault.nodes[0]]
        others = tuple(name for name in self.hosts if name != survivor.name)
        if self.world.healed:
            return
        if not all(survivor.knows_what(self.hosts[name]) for name in others):
            self.world.after(0.02, self.do_bereave, fault)
            return
        self.inflict(Fault(self.world.time, "wipe", others, fault.seconds))
        self.world.saw("all directories but one were lost")
        self.world.after(fault.seconds, self.declare, survivor)

    def declare(self, survivor: Host, _: object = None) -> None:
        """Let an operator at that node declare the trusted nodes to be all that is left, until all are trusted."""
        trusted = [
            name for name, host in self.hosts.items() if host.core is not None and host.core.state.trusted
        ]
        if len(trusted) < len(self.hosts):
            survivor.on_request((self.clients["op"], -1), DeclareSurvivors(tuple(trusted)))
            self.world.after(0.2, self.declare, survivor)
        else:
            self.world.saw("what was left was declared")

    def do_partition(self, fault: Fault) -> None:
        """Block the pairs; some connections notice and break, some do not."""
        world = self.world
        world.block(fault.links)
        for source, target in fault.links:
            if source not in self.hosts or target not in self.hosts:
                continue
            if world.draw(0.0, 1.0, "breaks", source, target) < 0.5:
                self.hosts[source].lose_link(target, world.draw(0.2, 2.0, "notices", source, target))
        world.after(fault.seconds, self.end_partition, fault)
        self.on_cut(fault)

    def end_partition(self, fault: Fault, _: object = None) -> None:
        """End the partition, unless everything was healed already."""
        self.world.unblock(fault.links)
        self.world.note("sim", "fault", fault="partition-over", links=[list(pair) for pair in fault.links])

    def do_freeze(self, fault: Fault) -> None:
        """Freeze processes for a while."""
        for name in fault.nodes:
            self.hosts[name].freeze(fault.seconds)

    def do_pause(self, fault: Fault) -> None:
        """Pause clients for a while."""
        for name in fault.nodes:
            if name in self.clients:
                self.clients[name].paused_until = self.world.time + fault.seconds

    def do_slow_disk(self, fault: Fault) -> None:
        """Make every fsync take many times as long."""
        for name in fault.nodes:
            self.hosts[name].slow_until = self.world.time + fault.seconds
            self.hosts[name].slow_factor = fault.amount

    def do_full_disk(self, fault: Fault) -> None:
        """Leave disks little room for a while, and so for nodes that start meanwhile."""
        for name in fault.nodes:
            self.hosts[name].set_shortage(Shortage(int(fault.amount) or Shortage.RESERVE))
            self.world.after(fault.seconds, self.hosts[name].set_shortage, Shortage.NONE)

    def do_wall_jump(self, fault: Fault) -> None:
        """Let the time of day jump, forth or back."""
        for name in fault.nodes:
            self.hosts[name].clock.wall_offset_ms += int(fault.amount * 1000)

    def do_cut(self, fault: Fault) -> None:
        """Break connections, which are made again."""
        for source, target in fault.links:
            self.hosts[source].lose_link(target, self.world.draw(0.0, 0.05, "cut", source, target))
