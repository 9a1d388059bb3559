"""A gateway beside a local cluster, if the extra for it is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from quorumq.lab.leash import Leashed, logged

NEEDED: Final = ("starlette", "hypercorn", "jinja2")
INSTALL: Final = "pip install 'quorumq[gateway]'"
PORTS_ABOVE: Final = 79
"""Number of the gateway's port above the first node's: 7480 beside 7401."""


def is_installed() -> bool:
    """Return True if a gateway can run here."""
    return all(find_spec(name) is not None for name in NEEDED)


def gateway_url(first_port: int) -> str:
    """Return the URL of the gateway beside the node with the first port."""
    return f"http://127.0.0.1:{first_port + PORTS_ABOVE}"


def start_gateway(addresses: Sequence[str], first_port: int, directory: Path) -> Leashed:
    """Start a gateway, whose console may change the cluster. Its log is in the directory."""
    listen = gateway_url(first_port).removeprefix("http://")
    command = [sys.executable, "-m", "quorumq", "gateway", "--listen", listen, "--console-write"]
    for address in addresses:
        command += ["--node", address]
    return logged(command, directory / "gateway.log")
