"""Loopback ports for the nodes of a cluster on this machine."""

from __future__ import annotations

import random
import socket
import sys
from typing import Final

from quorumq.core.values.errors import UsageError

PORTS: Final = (20_000, 32_000)
"""Range in which free ports are looked for: below the one from which systems take ports for outgoing connections."""


def _bindable(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def given_ports(base: int, count: int) -> list[int]:
    """Return ``count`` ports in a row from ``base`` on; UsageError if one is taken."""
    if not 0 < base <= 65_536 - count:
        raise UsageError(f"port {base}: give one from 1 to {65_536 - count}, so that {count} in a row exist")
    ports = list(range(base, base + count))
    taken = [port for port in ports if not _bindable(port)]
    if taken:
        raise UsageError(
            f"port {', '.join(map(str, taken))} of {ports[0]} to {ports[-1]} is taken: stop what listens there, or "
            "choose another --port"
        )
    return ports


class HeldPorts:
    """Free loopback ports that no other program gets from here until `release`.

    If a port is bound and not listened on, programs that set SO_REUSEADDR, as nodes do, can bind and listen on it, and
    others cannot. So a node finds its port free at each of its starts. Only Linux has it so; elsewhere nothing is held.

    Attributes:
        numbers: numbers of the ports.

    Raises:
        UsageError: there are fewer than ``count`` free ports.
    """

    def __init__(self, count: int) -> None:
        self.numbers: list[int] = []
        self._held: list[socket.socket] = []
        draw = random.SystemRandom()
        for _ in range(1000):
            if len(self.numbers) == count:
                break
            port, sock = draw.randrange(*PORTS), socket.socket()
            try:
                sock.bind(("127.0.0.1", port))  # without SO_REUSEADDR: it is refused if the port is held
            except OSError:
                sock.close()
                continue
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.numbers.append(port)
            self._held.append(sock)
        if len(self.numbers) < count or sys.platform != "linux":
            self.release()
        if len(self.numbers) < count:
            raise UsageError(f"no {count} free ports from {PORTS[0]} to {PORTS[1]} on 127.0.0.1; give --port")

    def release(self) -> None:
        """Give the ports up to all programs. Safe to repeat."""
        for sock in self._held:
            sock.close()
        self._held.clear()


def free_ports(count: int) -> list[int]:
    """Return ``count`` loopback ports that are not listened on now. Another program may take one the moment after."""
    ports = HeldPorts(count)
    ports.release()
    return ports.numbers
