"""A node that breaks one rule: ``python planted_node.py PLANT CONTROL --config node.toml`` (test_real_plants.py)."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quorumq.core.requests.settle import AckCoordinator
from quorumq.core.values import limits
from quorumq.storage.disk import RealDisk

NODE = Path(__file__).parents[2] / "sim" / "real" / "faulty_node.py"


def ack() -> None:
    """Call an ACK acked once one replica has it."""
    checker = AckCoordinator.outcome_of

    def early(self: Any, ballot: Any, span: Any, yes: int, no: int, valid: int, *, last: bool) -> str | None:
        return "acked" if yes & valid else checker(self, ballot, span, yes, no, valid, last=last)

    AckCoordinator.outcome_of = early  # type: ignore[method-assign]


def quarantine() -> None:
    """Vote at once after a crash."""
    limits.QUARANTINE_SHARE = 0.0


def fsync() -> None:
    """Call bytes durable that are not."""
    RealDisk.sync = lambda self, file: None  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {"ack": ack, "quarantine": quarantine, "fsync": fsync}

if __name__ == "__main__":
    PLANTS[sys.argv.pop(1)]()
    runpy.run_path(str(NODE), run_name="__main__")
