"""What a mutant is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.cluster import Cluster


@dataclass(frozen=True)
class Mutant:
    """One rule left out.

    Args:
        name: short, for the command line and the tests.
        rule: what is left out, as docs/protocol.md says it.
        patches: (owner, attribute, replacement) for the time of a run.
        prepare: changes the cluster before it runs.
    """

    name: str
    rule: str
    patches: tuple[tuple[Any, str, Any], ...] = ()
    prepare: Callable[[Cluster], None] | None = None
