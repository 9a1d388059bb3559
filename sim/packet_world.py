"""A world that writes down the fate of every packet, and takes fates from a schedule.

`World` draws the fate of each packet as it is sent: any change in a run changes that for all later ones. Here
the schedule may say it packet by packet. A packet that it does not name arrives after the mean delay, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.packets import Packet, carried, kind_of
from sim.schedule import Schedule
from sim.world import Action, World

USUAL_MAX = 20.0
"""Mean delays after which a packet was held back; once the cluster is healed, none is."""


class PacketWorld(World):
    """A `World` with packets by name.

    Attributes:
        log: fate of every packet, so that a schedule with all of it gives the same run.
        on_packet: called for each packet: its time, the times its copies arrive, its content, and its owner.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        given = schedule.packets
        self.given = None if given is None else {packet.name: packet.delays for packet in given}
        self.log: list[Packet] = []
        self.numbers: dict[tuple[str, str, str], int] = {}
        self.on_packet: Callable[[Packet, tuple[float, ...], Any, Any], None] | None = None

    def transmit(self, source: str, target: str, action: Action, one: Any, two: Any = None) -> None:
        message = carried(one, two)
        name = self.named(source, target, kind_of(message))
        if source != target and (source, target) in self.blocked:
            if self.on_packet is not None:
                self.on_packet(Packet(*name, ()), (), message, one)
            return
        delays = self.drawn_delays(source, target) if self.given is None else self.given_delays(name)
        packet = Packet(*name, delays)
        self.log.append(packet)
        arrivals = self.arrivals(source, target, delays)
        if self.on_packet is not None:
            self.on_packet(packet, arrivals, message, one)
        if not delays and self.fifo:
            self.on_broken(source, target)
        for time in reversed(arrivals):  # a copy is planned before the packet itself, as `World` does
            self.at(time, action, one, two)

    def arrivals(self, source: str, target: str, delays: tuple[float, ...]) -> tuple[float, ...]:
        """Return the times when copies arrive; the second one's delay counts from the first's arrival."""
        if not delays:
            return ()
        time = self.time + delays[0]
        if self.fifo:
            pair = (source, target)
            time = self.lines[pair] = max(time, self.lines.get(pair, 0.0) + 1e-7)
        return (time, *(time + delay for delay in delays[1:]))

    def drawn_delays(self, source: str, target: str) -> tuple[float, ...]:
        """Return the delays that `World` would draw, from the same stream in the same order."""
        rng = self.net_rng
        if self.loss and rng.random() < self.loss:
            return ()
        delay = self.latency * (0.3 + rng.expovariate(1.4))
        if self.spikes and rng.random() < self.spikes:
            delay += rng.random() * self.late
        delay += self.away(source, target)
        if not self.fifo and self.duplicate and rng.random() < self.duplicate:
            return delay, rng.random() ** 3 * self.late
        return (delay,)

    def given_delays(self, name: tuple[str, str, str, int]) -> tuple[float, ...]:
        """Return the schedule's delays, or the mean delay."""
        assert self.given is not None
        usual = self.latency + self.away(name[0], name[1])
        delays = self.given.get(name)
        if delays is None or (self.healed and (len(delays) != 1 or delays[0] > USUAL_MAX * usual)):
            return (usual,)
        return delays

    def away(self, source: str, target: str) -> float:
        """Return the seconds that the distance between two nodes adds."""
        apart = source != target and source in self.nodes and target in self.nodes
        return self.distance if apart else 0.0

    def draw(self, low: float, high: float, kind: str, source: str, target: str) -> float:
        name = self.named(source, target, f"?{kind}")
        if self.given is None:
            value = super().draw(low, high, kind, source, target)
        else:
            value = self.given.get(name, ((low + high) / 2,))[0]
        self.log.append(Packet(*name, (value,)))
        return value

    def named(self, source: str, target: str, kind: str) -> tuple[str, str, str, int]:
        """Return the name of the next one of its kind between two."""
        pair = (source, target, kind)
        number = self.numbers[pair] = self.numbers.get(pair, -1) + 1
        return source, target, kind, number
