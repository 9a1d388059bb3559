"""Bodies of batches, which follow a CBOR header: `Lift` collects them for a writer, `Body` cuts them for a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quorumq.core import messages
from quorumq.wire.cbor import BadValue


@dataclass(slots=True, eq=False)
class Lift:
    """Collects the raw bodies that belong behind the CBOR, in order."""

    read: Callable[[messages.Slice], bytes | memoryview] | None = None
    """Function that returns the bytes of a `Slice`: the body of its batch from the end of record ``first - 1`` to the
    end of record ``stop - 1``. Needed only to encode `FetchReply` and `PeekReply`."""
    bodies: list[bytes | memoryview] = field(default_factory=list)


class Body:
    """The raw bytes behind the CBOR, cut off chunk by chunk in the order of the values that need them."""

    __slots__ = ("at", "view")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.view = memoryview(data)
        self.at = 0

    def take(self, size: int, name: str) -> memoryview:
        """Return the next ``size`` bytes, as a view. `BadValue` if there are fewer."""
        remaining = len(self.view) - self.at
        if size > remaining:
            raise BadValue(f"{name} has {size} bytes, of which the frame brings {remaining}")
        self.at += size
        return self.view[self.at - size : self.at]

    def check_finished(self) -> None:
        """Raise `BadValue` if bytes are left that nothing asked for."""
        if self.at != len(self.view):
            raise BadValue(f"the body has {len(self.view)} bytes, of which the header explains {self.at}")
