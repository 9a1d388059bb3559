"""A rule of the catalogue, and the means to leave it out for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

from sim.explorer.scenario import Scenario

Patch = tuple[Any, str, Any]
"""A class or module, the name in it, and its replacement."""

INHERITED = object()
"""Stands for an attribute that a class has from its base."""


@dataclass(frozen=True)
class Rule:
    """A rule of the protocol, and how to leave it out."""

    name: str  # for the command line
    says: str  # the rule, in one sentence
    patches: tuple[Patch, ...] = ()  # functions that replace the core's
    _: KW_ONLY
    # Small bounds in which leaving the rule out is fatal, for the explorer; None: it is not explored.
    scenario: Scenario | None = None
    # True if random runs are searched for a seed that shows that the rule is left out: always if it is not
    # explored.
    hunted: bool = False
    survives: str = ""  # the reason why no such seed is found, if none is
    profile: str = "swarm"  # profile of the seeds that are searched
    # Test in tests/core that fails without it, if neither the explorer nor random runs show that it matters.
    test: str = ""

    def __post_init__(self) -> None:
        if self.scenario is None:
            object.__setattr__(self, "hunted", True)


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[dict[str, None]]:
    """Put the patches in place while the context lasts.

    Yields the names of patches that were not used yet. One that is still there at the end changes nothing:
    no code calls the function that it replaces any more.
    """
    patches = tuple(patches)
    before = [(owner, name, vars(owner).get(name, INHERITED)) for owner, name, _ in patches]
    unused: dict[str, None] = {}
    for owner, name, _ in patches:
        getattr(owner, name)  # a patch of nothing would leave nothing out
    try:
        for owner, name, instead in patches:
            setattr(owner, name, _watched(f"{owner.__name__}.{name}", instead, unused))
        yield unused
    finally:
        for owner, name, old in reversed(before):
            if old is INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _watched(patched: str, instead: Any, unused: dict[str, None]) -> Any:
    """Return the same, taken out of ``unused`` when it is called, or read if it is a value."""
    unused[patched] = None

    def call(*args: Any, **named: Any) -> Any:
        unused.pop(patched, None)
        return instead(*args, **named)

    def read(_: object) -> Any:
        unused.pop(patched, None)
        return instead

    return call if callable(instead) else property(read)
