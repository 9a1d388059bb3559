"""Copies of a node core, and keys that say when two are the same.

The explorer forks the world at every step, so a node is copied before it steps: `clone` copies all that can change
and shares the others. It knows no field of the core by name. It walks the object graph, so a field that the core
gains tomorrow is copied, and is part of the key, without a change here. That is why `key_of` lists the fields that it
leaves out, and not those that it takes in: forgetting something there costs states, never a missed behaviour.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

from sortedcontainers import SortedDict, SortedList

from quorumq.core.cluster.members import Members
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.digests import Digests
from quorumq.core.partition.stored import StoredBatches
from quorumq.core.values.rows import Rows
from quorumq.core.values.spans import SpanMap, SpanSet

SHARED: tuple[type, ...] = (
    int,
    float,
    str,
    bytes,
    bool,
    type(None),
    Enum,
    NodeConfig,
    random.Random,
    memoryview,
)
"""Never copied: these cannot change, or (the source of randomness) are handed in anew with each step."""

LEFT_OUT: dict[str, frozenset[str]] = {
    "NodeCore": frozenset({"config"}),
    "Context": frozenset({"rng", "hold_times"}),
    "Limiting": frozenset({"hold_times"}),
    "NodeState": frozenset({"answering", "config", "inbound", "timer_count", "vectors"}),
    "Replica": frozenset(
        {"topic", "placement", "partition", "choice", "learning", "recall", "storing", "unanswered"}
    ),
    "Batches": frozenset({"fresh", "partition", "digests", "idle_since", "lacking", "order"}),
    "ReadyMessages": frozenset({"batches"}),
    "MoveThrottle": frozenset({"active", "budget", "counted_at"}),
    "Views": frozenset({"partition", "to_reclaim"}),
    "Reclaim": frozenset({"unneeded"}),
    "GroupView": frozenset({"digests", "kept"}),
    "ClosedSessions": frozenset({"digests"}),
    "Catalogue": frozenset({"sums"}),
}
"""Attributes that `key_of` leaves out, by class: what is the same in every state of an exploration, what is worked out
from the rest and only kept (digests), counters that nothing but a tie-break or a status page reads, and the time when a
batch was made: it decides nothing if neither batch nor topic has a delay or a TTL, and there is one message. So the
order of batches is left out, and with it the list of those with messages that are ready: `spans` has those.
The times of
HOLD's answers, and the number of rounds without, decide only when a round times out: here the explorer says so. Moves
have no limit here that one message could use up."""

UNSET = "(unset)"
"""Stands for a slot that nothing was put into yet."""

T = TypeVar("T")

_fields: dict[type, tuple[str, ...]] = {}


def fields_of(kind: type) -> tuple[str, ...]:
    """Return the names of a class's instance attributes in slots; those in ``__dict__`` are looked up per object."""
    names = _fields.get(kind)
    if names is None:
        listed: list[str] = []
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            listed += [slots] if isinstance(slots, str) else list(slots)
        names = _fields[kind] = tuple(
            sorted(name for name in listed if name not in ("__dict__", "__weakref__"))
        )
    return names


def is_named_tuple(kind: type) -> bool:
    """Return True if ``kind`` is a NamedTuple: the core keeps only values that cannot change in those."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


# ---------------------------------------------------------------------------------- clone
#
# A cloner or keyer is made for each class when the first object of it is met; for a class of our own it is written
# out for its slots, one after the other (`written_for`). What cannot change is recognised by its class (`_atomic`)
# where it is met: a call for each number would cost more than all the rest. Most dicts are empty: nor for those.

Cloner = Callable[[Any, dict[int, Any]], Any]
_atomic: set[type] = set()


class Made(dict[type, T]):
    """One value for each class that was met."""

    def __init__(self, make: Callable[[type], T]) -> None:
        self.make = make

    def __missing__(self, kind: type) -> T:
        made = self[kind] = self.make(kind)
        return made


def written_for(kind: type, lines: list[str], **names: object) -> Any:
    """Return the function ``walk`` of these lines of Python, which know ``names``, for objects of ``kind``."""
    inside = {"kind": kind, "atomic": _atomic, "UNSET": UNSET, **names}
    exec("\n".join(lines), inside)
    return inside["walk"]


def clone(core: NodeCore) -> NodeCore:
    """Return a copy of ``core`` that changes on its own from now on.

    References that several objects share (the node's state by its replicas, a coordinator by a request and its
    rounds) are shared in the copy in the same way.
    """
    return _cloners[core.__class__](core, {})  # type: ignore[no-any-return]


def is_atomic(kind: type) -> bool:
    """Return True if objects of this class cannot change."""
    return issubclass(kind, SHARED) or is_named_tuple(kind) or kind is frozenset


def _cloner_for(kind: type) -> Cloner:
    if is_atomic(kind):
        _atomic.add(kind)
        return lambda value, memo: value
    if issubclass(kind, SpanMap | SpanSet | Rows | StoredBatches | Digests):
        return lambda value, memo: value.clone()
    if kind is Members:  # never changed, but replaced
        return lambda value, memo: value
    return _OF_CONTAINERS.get(kind) or _object_cloner(kind)


def _clone_dict(value: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    twin = value.copy()
    for key, item in value.items():
        kind = item.__class__
        if kind not in _atomic:
            twin[key] = _cloners[kind](item, memo)
    return twin


def _clone_list(value: Sequence[Any], memo: dict[int, Any]) -> list[Any]:
    if _atomic.issuperset(map(type, value)):
        return [*value]
    return [item if item.__class__ in _atomic else _cloners[item.__class__](item, memo) for item in value]


def _clone_tuple(value: tuple[Any, ...], memo: dict[int, Any]) -> tuple[Any, ...]:
    for at, item in enumerate(value):
        kind = item.__class__
        if kind not in _atomic and (copy := _cloners[kind](item, memo)) is not item:
            return (*value[:at], copy, *_clone_list(value[at + 1 :], memo))
    return value


_OF_CONTAINERS: dict[type, Cloner] = {
    dict: _clone_dict,
    list: _clone_list,
    tuple: _clone_tuple,
    SortedDict: lambda value, memo: SortedDict(value) if value else SortedDict(),
    SortedList: lambda value, memo: value.copy(),
    set: lambda value, memo: set(value),
    deque: lambda value, memo: deque(_clone_list(value, memo)),
}


def _object_cloner(kind: type) -> Cloner:
    """Return a cloner for a class of our own: slots, instance attributes, or both."""
    plain: type = object
    frozen = kind.__setattr__ is not plain.__setattr__
    lines = [
        "def walk(value, memo):",
        "    twin = memo.get(id(value))",
        "    if twin is not None:",
        "        return twin",
        "    twin = memo[id(value)] = new(kind)",
    ]
    for name in fields_of(kind):
        copy = "item if of in atomic else {} if of is dict and not item else cloners[of](item, memo)"
        lines += [
            "    try:",
            f"        item = value.{name}",
            "    except AttributeError:",
            "        pass",
            "    else:",
            "        of = item.__class__",
            f"        put(twin, {name!r}, {copy})" if frozen else f"        twin.{name} = {copy}",
        ]
    if kind.__dictoffset__:
        lines.append("    twin.__dict__.update(copied(value.__dict__, memo))")
    lines.append("    return twin")
    return written_for(  # type: ignore[no-any-return]
        kind, lines, new=object.__new__, put=object.__setattr__, cloners=_cloners, copied=_clone_dict
    )


_cloners: Made[Cloner] = Made(_cloner_for)


# ------------------------------------------------------------------------------------ key

Keyer = Callable[[Any, dict[int, int]], Hashable]


def key_of(core: NodeCore) -> Hashable:
    """Return all that decides the next steps of ``core``, as nested tuples: two cores with equal keys behave alike.

    Dicts are listed in the order of their keys: the order in which a node learned is no part of its state.
    """
    return _keyers[core.__class__](core, {})


def _keyer_for(kind: type) -> Keyer:
    if is_atomic(kind):
        _atomic.add(kind)
        return lambda value, memo: value
    if issubclass(kind, SpanMap | SpanSet | Rows):
        return lambda value, memo: value.state() if value else ()
    if kind is StoredBatches:
        return lambda value, memo: value.state()
    if kind is Members:
        return lambda value, memo: value.layout
    if kind is dict or kind is SortedDict:
        return _key_dict
    if kind is list or kind is SortedList or kind is deque:
        return _key_list
    if kind is tuple:
        return _key_tuple
    if kind is set:
        return lambda value, memo: tuple(sorted(value))
    return _object_keyer(kind)


def _key_list(value: Any, memo: dict[int, int]) -> tuple[Hashable, ...]:
    if _atomic.issuperset(map(type, value)):
        return tuple(value)
    return tuple(
        [item if item.__class__ in _atomic else _keyers[item.__class__](item, memo) for item in value]
    )


def _key_tuple(value: tuple[Any, ...], memo: dict[int, int]) -> tuple[Hashable, ...]:
    for at, item in enumerate(value):
        kind = item.__class__
        if kind not in _atomic and (key := _keyers[kind](item, memo)) is not item:
            return (*value[:at], key, *_key_list(value[at + 1 :], memo))
    return value


def in_order(names: Iterable[Any]) -> list[Any]:
    """Return the keys of a dict in an order that depends on nothing but them: None does not compare with others."""
    try:
        return sorted(names)
    except TypeError:
        return sorted(names, key=repr)


def _key_dict(
    value: dict[Any, Any], memo: dict[int, int], left_out: frozenset[str] = frozenset()
) -> tuple[Hashable, ...]:
    parts: list[Hashable] = []
    for name in in_order(value) if len(value) > 1 else value:
        if name not in left_out:
            item = value[name]
            kind = item.__class__
            parts += (name, item if kind in _atomic else _keyers[kind](item, memo))
    return tuple(parts)


def _object_keyer(kind: type) -> Keyer:
    """Return a keyer for a class of our own. An object met again is named by its number: sharing is part of the key."""
    left_out = LEFT_OUT.get(kind.__name__, frozenset())
    lines = [
        "def walk(value, memo):",
        "    seen = memo.get(id(value))",
        "    if seen is not None:",
        "        return ('same', seen)",
        "    memo[id(value)] = len(memo)",
    ]
    names = [name for name in fields_of(kind) if name not in left_out]
    for at, name in enumerate(names):
        lines += [
            "    try:",
            f"        item = value.{name}",
            "    except AttributeError:",
            "        item = UNSET",
            "    of = item.__class__",
            f"    v{at} = item if of in atomic else () if of is dict and not item else keyers[of](item, memo)",
        ]
    parts = "".join(f"v{at}, " for at in range(len(names)))
    if kind.__dictoffset__:
        lines.append("    inside = keyed(value.__dict__, memo, left_out)")
        parts += "*inside, "
    lines.append(f"    return (title, {parts})")
    return written_for(  # type: ignore[no-any-return]
        kind, lines, keyers=_keyers, keyed=_key_dict, title=kind.__name__, left_out=left_out
    )


_keyers: Made[Keyer] = Made(_keyer_for)
