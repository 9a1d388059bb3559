"""One layout a number (layouts.md, LAYOUTS): all nodes that have a layout of a partition have the same set in it."""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker


class OneLayout(Checker):
    promise = "one layout"

    def __init__(self) -> None:
        super().__init__()
        self.sets: dict[
            tuple[int, int], tuple[str, list[str]]
        ] = {}  # by partition and layout: who said it first

    def on_layout(self, row: Row) -> None:
        first, nodes = self.sets.setdefault((row["partition"], row["layout"]), (row["who"], row["nodes"]))
        if nodes != row["nodes"]:
            self.broken(
                f"partition {row['partition']} is on {', '.join(row['nodes'])} by layout {row['layout']} of "
                f"{row['who']}, and on {', '.join(nodes)} by that of {first}"
            )
