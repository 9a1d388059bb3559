"""Packets of a run that were lost, late or doubled, as values: a seed's draws, written out.

A packet is named by its sender and receiver, by its content, and by the number of that kind that went before it
between the two. So a fault or a packet can be taken away without giving the others new names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumq.core.messages import Envelope


class Packet(NamedTuple):
    """Fate of one packet, or a number that was drawn for a pair of machines."""

    source: str  # sender: a node or a client
    target: str  # receiver
    # Type of the message in it; with a ``?`` in front: what was drawn, such as when a broken link is noticed.
    kind: str
    number: int  # number of that kind that went before it from ``source`` to ``target``
    # Seconds until it arrives; () if it is lost, two if it is duplicated. For a number: that number.
    delays: tuple[float, ...]

    @property
    def name(self) -> tuple[str, str, str, int]:
        """Return the name of the packet."""
        return self[:4]

    @property
    def fate(self) -> str:
        """Return ``lost``, ``doubled``, ``drawn`` or ``late``."""
        if self.kind.startswith("?"):
            return "drawn"
        return ("lost", "late", "doubled")[len(self.delays)]


def packets_of(value: Any) -> tuple[Packet, ...]:
    """Return the packets that JSON was made of.

    Raises:
        ValueError: it is something else.
    """
    packets = []
    for item in value:
        source, target, kind, number, delays = item
        if not (isinstance(source, str) and isinstance(target, str) and isinstance(kind, str)):
            raise ValueError(f"not a packet: {item!r}")
        packets.append(Packet(source, target, kind, int(number), tuple(map(float, delays))))
    return tuple(packets)


def carried(one: Any, two: Any) -> Any:
    """Return the message in a packet that `World.transmit` got."""
    if isinstance(one, Envelope):
        return one.message
    if type(two) is tuple:  # an answer, and the bodies that go with it
        return two[0]
    return two


def kind_of(message: Any) -> str:
    """Return the name of a message's kind."""
    if message is None:
        return "Reset"
    return "Gone" if isinstance(message, int) else type(message).__name__
