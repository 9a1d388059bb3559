"""HELLO of a client, as the client library and the commands that ask one node say it."""

from __future__ import annotations

import os
from typing import Final

from quorumq.core.messages import VERSIONS, Hello
from quorumq.core.values.types import Incarnation

TOKEN_VARIABLE: Final = "QUORUMQ_TOKEN"
"""The environment variable that has a client's token if the program does not give it."""


PROBE: Final = "quorumq cli"
"""The software of commands that ask one node over a connection of their own, as `quorumq status` does."""


def own_token() -> str:
    """Return the token that the environment has; "" if none."""
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def client_hello(
    software: str, wall_ms: int, *, cluster_id: str = "", token: str = "", on_behalf: str = ""
) -> Hello:
    """Return the first message of a client. If ``cluster_id`` is not "", only nodes of that cluster may answer."""
    start = Incarnation(0, 0)
    return Hello(VERSIONS, cluster_id, b"", 0.0, "", start, 0, wall_ms, 0, software, token, on_behalf)
