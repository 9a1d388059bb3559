"""Looking for a node takes no longer than a command's --timeout."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import MockClock

from quorumq.cli.common import cluster
from quorumq.core.errors import QuorumqError


@pytest.mark.parametrize("listens", [True, False], ids=["a node that says nothing", "nobody"])
def test_looking_for_a_node_takes_no_longer_than_the_timeout(listens: bool) -> None:
    async def took(address: str) -> float:
        begun = trio.current_time()
        with pytest.raises(QuorumqError, match="no node answers"):
            async with cluster([address], 1.0):
                pass
        return trio.current_time() - begun

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert trio.run(took, address, clock=MockClock(autojump_threshold=0.01)) < 1.5
