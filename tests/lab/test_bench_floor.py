"""The floor: as many frames and syncs as a message needs, and an answer when a majority has it."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from quorumq.lab import bench_floor
from quorumq.lab.bench_floor import LOOPS, Passer, frames_of, measure


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(bench_floor.os, "fdatasync", found.append)
    return found


def test_a_coordinator_answers_once_with_the_first_replica_and_syncs_two_legs_of_three(
    syncs: list[int], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(3)]
        for sock in (sock for pair in pairs for sock in pair):
            stack.enter_context(sock)
            sock.setblocking(False)
        (client, asked), *replicas = pairs
        file = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        stack.callback(os.close, file)
        passer = Passer(file, [ours for ours, _ in replicas])
        for frame in frames_of(1):
            passer.take(asked, frame[:10])
            passer.take(asked, frame[10:])
            assert [theirs.recv(9999) for _, theirs in replicas] == [frame, frame]
            with pytest.raises(BlockingIOError):
                client.recv(1)
            for ours, _ in replicas:
                passer.take(ours, frame)
            assert client.recv(9999) == frame
        assert len(syncs) == 2
        replica = Passer(file, [])
        for frame in frames_of(2):
            replica.take(asked, frame)
            assert client.recv(9999) == frame
        assert len(syncs) == 4


@pytest.mark.e2e
@pytest.mark.parametrize("loop", LOOPS)
def test_each_message_is_measured_and_nobody_is_left(loop: str, tmp_path: Path) -> None:
    found = measure(20, loop, tmp_path)
    assert found["count"] == 20
    assert 0 < found["p50"] <= found["p99"]
