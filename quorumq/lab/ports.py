"""Loopback ports for the nodes of a cluster on this machine."""

from __future__ import annotations

import random
import socket
from typing import Final

from quorumq.core.errors import UsageError

PORTS: Final = (20_000, 32_000)
"""Where free ports are looked for: below the range from which systems take ports for outgoing connections."""


def _bindable(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def given_ports(base: int, count: int) -> list[int]:
    """``count`` ports in a row from ``base`` on; UsageError where one is taken."""
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


def free_ports(count: int) -> list[int]:
    """``count`` loopback ports that nobody listens on now. Somebody else may take one the moment after."""
    draw = random.SystemRandom()
    found: dict[int, None] = {}
    for _ in range(1000):
        port = draw.randrange(*PORTS)
        if _bindable(port):
            found[port] = None
        if len(found) == count:
            return list(found)
    raise UsageError(f"no {count} free ports from {PORTS[0]} to {PORTS[1]} on 127.0.0.1; give --port")
