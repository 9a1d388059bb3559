"""The rules of the protocol, and how to leave each of them out.

The core has no switches: it always keeps every rule. Here a rule is taken out of it for the length of one run, by
putting another function in place of the one that keeps it, or by letting the driver break the rule. Most are
lines of docs/rules.md; the others are single mistakes that a change may make: a record that is not
written, a wait for the disk that is left out, a vote that is not one, a memory that ends too soon.

A rule says how it is shown to matter. The explorer tries every interleaving of its scenario (`python -m sim explore`);
in random runs a seed is looked for in which a checker sees it (tests/sim/hunting.py). Both hold the simulator itself to
account: a rule that can be left out unseen shows a fault that it lacks, or a checker that is blind.
"""

from __future__ import annotations

from sim.rules import (
    acks,
    beside_moves,
    claims,
    creation,
    dead_letters,
    decisions,
    groups,
    holds,
    labels,
    limited,
    members,
    messages,
    moves,
    names,
    pauses,
    piggyback,
    recovery,
    suspects,
    topics,
    voters,
)
from sim.rules.rule import Rule, patched

_MODULES = (
    recovery, holds, piggyback, acks, suspects, dead_letters, groups, creation, decisions, topics, messages, labels,
    claims, pauses, moves, beside_moves, members, voters, limited, names,
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(rule for module in _MODULES for rule in module.RULES)

EXPLORED = tuple(rule for rule in RULES if rule.scenario is not None)
HUNTED = tuple(rule for rule in RULES if rule.hunted)


def rule_named(name: str) -> Rule:
    """Return the rule of that name. Raises KeyError, with the names there are, if there is none."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise KeyError(f"no rule is called {name!r}; there are: {', '.join(rule.name for rule in RULES)}")


__all__ = ["EXPLORED", "HUNTED", "RULES", "Rule", "patched", "rule_named"]
