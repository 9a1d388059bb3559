"""Publish to a real cluster, and wait for a state of one of its nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from quorumq.cli.probe import Unreachable
from quorumq.core import messages as m
from quorumq.lab.local import LocalCluster
from tests.e2e.raw import Raw
from tests.patience import until


def publish(client: Raw, topic: object, count: int) -> None:
    producer_id = client.session()
    for number in range(count):
        assert isinstance(client.publish(topic, producer_id, number, [b"%d" % number]), m.PublishReply)  # type: ignore[arg-type]


def data_of(cluster: LocalCluster, name: str) -> str:
    return str(cluster.node_directory(name) / "data")


def status_when(cluster: LocalCluster, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status of a node once something holds of it."""
    status: dict[str, Any] = {}

    def is_so() -> bool:
        nonlocal status
        with contextlib.suppress(Unreachable):  # it is not there yet
            return holds(status := cluster.status(name))
        return False

    until(is_so, lambda: status)
    return status
