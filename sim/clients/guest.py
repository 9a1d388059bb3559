"""Consumers of groups made by a FETCH: they wait for the run to begin them, several at once."""

from __future__ import annotations

from sim.clients.consumer import Consumer
from sim.clients.surroundings import Surroundings
from sim.topics import OUTPUTS, TOPIC

MISTYPED = ("mistyped0", "mistyped1")
"""Groups that are asked for once a topic makes none by itself."""


class Guest(Consumer):
    """Reads for a group that its own first FETCH may make.

    Args:
        start: beginning of the group if this consumer is the first to read it.
        names: the topics that it asks for, or patterns.
        part: the partitions that it asks for until all is healed; none means all.
    """

    def __init__(
        self,
        around: Surroundings,
        name: str,
        group: str,
        start: str,
        names: tuple[str, ...] = (TOPIC,),
        part: tuple[int, ...] = (),
    ) -> None:
        super().__init__(around, name, group, start)
        self.derives = False
        self.names = names
        self.part = part
        self.joined = False

    def begin(self, _: object = None, __: object = None) -> None:
        """Do nothing until the run begins it."""

    def join(self, node: str) -> None:
        """Send the first FETCH, to ``node``."""
        if not self.joined:
            self.joined = True
            self.first_node = node
            self.fetch()


def guests_of(around: Surroundings) -> list[Guest]:
    """Return the consumers of all groups made by a FETCH: two or three each, which begin it alike or not."""
    options, rng = around.options, around.world.stream("guests")
    guests: list[Guest] = []
    for number in range(options.guests):
        group = f"guest{number}"
        around.guests.append(group)
        starts = rng.choice((("latest",), ("latest",), ("latest",), ("earliest",), ("earliest", "latest")))
        parted = options.partitions > 1 and rng.random() < 0.4
        for i in range(rng.choice((2, 2, 3))):
            names = rng.choice(((TOPIC,), (TOPIC,), (TOPIC,), ("j*",), ("*", TOPIC)))
            if options.derive and rng.random() < 0.3:
                names = (TOPIC, OUTPUTS)
            part = (rng.randrange(options.partitions),) if parted else ()
            guests.append(Guest(around, f"{group}c{i}", group, rng.choice(starts), names, part))
    if options.guests and options.alter:
        for group in MISTYPED:
            around.guests.append(group)
            guests.append(Guest(around, f"{group}c", group, "earliest"))
    return guests
