"""The node's history: the log reports its end once."""

from __future__ import annotations

from pathlib import Path

from quorumq.history import HistoryWriter
from quorumq.node.trace import Trace
from sim.shell.memory import Log
from tests.node.memory import world


async def test_a_history_that_is_full_is_said_once(tmp_path: Path) -> None:
    async with world("a") as cluster:
        log = Log()
        writer = HistoryWriter(tmp_path / "a.jsonl", run="r", who="node:a", bytes_max=600)
        trace = Trace(cluster.services["a"].node.config, log, writer)
        assert not log.of("history_full")
        for _ in range(20):
            trace.started(cluster.services["a"].node.core.state.incarnation, waits=False)
        (line,) = log.of("history_full")
        assert "move it away" in line["reason"]
