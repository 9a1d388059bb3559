"""Copies of a node core, and keys that say when two are the same.

The explorer forks the world at every step, so a node is copied before it steps: `clone` copies what can change
and shares what cannot. It knows no field of the core by name. It walks the object graph, so a field that the core
gains tomorrow is copied, and is part of the key, without a change here. That is why `key_of` has a list of what it
leaves out, and not of what it takes in: forgetting something there costs states, never a missed behaviour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any

from sortedcontainers import SortedDict, SortedList

from quorumq.core.nodecore import NodeCore
from quorumq.core.partition.stored import StoredBatches
from quorumq.core.rows import Rows
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.state import NodeConfig

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
    "Context": frozenset({"rng", "_asked_at", "hold_times"}),
    "NodeState": frozenset({"config", "timer_count", "vectors"}),
    "Replica": frozenset(
        {"members", "topic", "partition", "choice", "learning", "recall", "storing", "unanswered"}
    ),
    "Batches": frozenset({"fresh", "members", "partition", "digests", "idle_since"}),
    "Views": frozenset({"partition", "to_reclaim"}),
    "Reclaim": frozenset({"settled"}),
    "GroupView": frozenset({"digests", "kept", "lasting"}),
}
"""What `key_of` leaves out, by class: what is the same in every state of one exploration, what is worked out from the
rest and only kept (digests), counters that nothing but a tie-break or a status page reads, and when a batch was
made, by which nothing is decided where neither it nor its topic has a delay or a TTL. The times of
HOLD's answers, and how many rounds went without, decide only when a round times out: here the explorer says so."""

UNSET = "(unset)"
"""Stands for a slot that nothing was put into yet."""

_fields: dict[type, tuple[str, ...]] = {}


def fields_of(kind: type) -> tuple[str, ...]:
    """The names of a class's instance attributes in slots; those in ``__dict__`` are looked up per object."""
    names = _fields.get(kind)
    if names is None:
        found: list[str] = []
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            found += [slots] if isinstance(slots, str) else list(slots)
        names = _fields[kind] = tuple(
            sorted(name for name in found if name not in ("__dict__", "__weakref__"))
        )
    return names


def is_named_tuple(kind: type) -> bool:
    """Whether ``kind`` is a NamedTuple: the core keeps only values that cannot change in those."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


# ---------------------------------------------------------------------------------- clone
#
# A cloner or keyer is made for each class when the first object of it is met. What cannot change is recognised by
# its class (`_atomic`) in the loop that meets it: a call for each number would cost more than all the rest.

Cloner = Callable[[Any, dict[int, Any]], Any]
_cloners: dict[type, Cloner] = {}
_atomic: set[type] = set()


def clone(core: NodeCore) -> NodeCore:
    """A copy of ``core`` that changes on its own from now on.

    References that several objects share (the node's state by its replicas, a coordinator by a request and its
    rounds) are shared in the copy in the same way.
    """
    return _clone(core, {})  # type: ignore[no-any-return]


def _clone(value: Any, memo: dict[int, Any]) -> Any:
    kind = value.__class__
    cloner = _cloners.get(kind)
    if cloner is None:
        cloner = _cloners[kind] = _cloner_for(kind)
    return cloner(value, memo)


def is_atomic(kind: type) -> bool:
    """Whether objects of this class cannot change."""
    return issubclass(kind, SHARED) or is_named_tuple(kind) or kind is frozenset


def _cloner_for(kind: type) -> Cloner:
    if is_atomic(kind):
        _atomic.add(kind)
        return lambda value, memo: value
    if issubclass(kind, SpanMap | SpanSet | Rows | StoredBatches):
        return lambda value, memo: value.clone()
    if kind is dict:
        return _clone_dict
    if kind is list:
        return _clone_list
    if kind is tuple:
        return _clone_tuple
    if kind is SortedDict:
        return lambda value, memo: SortedDict(value) if value else SortedDict()
    if kind is SortedList:
        return lambda value, memo: value.copy()
    if kind is set:
        return lambda value, memo: set(value)
    return _object_cloner(kind)


def _clone_dict(value: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    if not value:
        return {}
    twin = value.copy()
    atomic = _atomic
    for key, item in value.items():
        if item.__class__ not in atomic:
            twin[key] = _clone(item, memo)
    return twin


def _clone_list(value: list[Any], memo: dict[int, Any]) -> list[Any]:
    atomic = _atomic
    return [item if item.__class__ in atomic else _clone(item, memo) for item in value]


def _clone_tuple(value: tuple[Any, ...], memo: dict[int, Any]) -> tuple[Any, ...]:
    copies = _clone_list(value, memo)  # type: ignore[arg-type]
    for copy, item in zip(copies, value, strict=True):
        if copy is not item:
            return tuple(copies)
    return value


def _object_cloner(kind: type) -> Cloner:
    """A cloner for a class of our own: slots, instance attributes, or both."""
    names = fields_of(kind)
    new, put, atomic = object.__new__, object.__setattr__, _atomic

    def cloner(value: Any, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(value))
        if twin is not None:
            return twin
        twin = memo[id(value)] = new(kind)
        for name in names:
            item = getattr(value, name, UNSET)
            if item is UNSET:
                continue
            put(twin, name, item if item.__class__ in atomic else _clone(item, memo))
        return twin

    def cloner_with_dict(value: Any, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(value))
        if twin is not None:
            return twin
        twin = cloner(value, memo)
        inside = twin.__dict__
        for name, item in value.__dict__.items():
            inside[name] = item if item.__class__ in atomic else _clone(item, memo)
        return twin

    return cloner_with_dict if kind.__dictoffset__ else cloner


# ------------------------------------------------------------------------------------ key

Keyer = Callable[[Any, dict[int, int]], Hashable]
_keyers: dict[type, Keyer] = {}


def key_of(core: NodeCore) -> Hashable:
    """Everything that decides what ``core`` does next, as nested tuples: two cores with equal keys behave alike.

    Dicts are listed in the order of their keys: in what order a node came to know things is not part of what it is.
    """
    return _key(core, {})


def _key(value: Any, memo: dict[int, int]) -> Hashable:
    kind = value.__class__
    keyer = _keyers.get(kind)
    if keyer is None:
        keyer = _keyers[kind] = _keyer_for(kind)
    return keyer(value, memo)


def _keyer_for(kind: type) -> Keyer:
    if is_atomic(kind):
        _atomic.add(kind)
        return lambda value, memo: value  # type: ignore[no-any-return]
    if issubclass(kind, SpanMap | SpanSet | Rows):
        return lambda value, memo: value.state() if value else ()  # type: ignore[no-any-return]
    if kind is StoredBatches:
        return lambda value, memo: value.state()  # type: ignore[no-any-return]
    if kind is dict or kind is SortedDict:
        return _key_dict
    if kind in (list, tuple, SortedList):
        return _key_list
    if kind is set:
        return lambda value, memo: tuple(sorted(value))
    return _object_keyer(kind)


def _key_list(value: Any, memo: dict[int, int]) -> Hashable:
    if not value:
        return ()
    atomic = _atomic
    return tuple([item if item.__class__ in atomic else _key(item, memo) for item in value])


def _key_dict(value: dict[Any, Any], memo: dict[int, int]) -> Hashable:
    if not value:
        return ()
    atomic = _atomic
    parts: list[Hashable] = []
    for name in sorted(value) if len(value) > 1 else value:
        item = value[name]
        parts.append(name)
        parts.append(item if item.__class__ in atomic else _key(item, memo))
    return tuple(parts)


def _object_keyer(kind: type) -> Keyer:
    """A keyer for a class of our own. An object met again is named by its number, so sharing is part of the key."""
    left_out = LEFT_OUT.get(kind.__name__, frozenset())
    names = [name for name in fields_of(kind) if name not in left_out]
    atomic = _atomic
    has_dict = bool(kind.__dictoffset__)
    title = kind.__name__

    def keyer(value: Any, memo: dict[int, int]) -> Hashable:
        seen = memo.get(id(value))
        if seen is not None:
            return ("same", seen)
        memo[id(value)] = len(memo)
        parts: list[Hashable] = [title]
        for name in names:
            item = getattr(value, name, UNSET)
            parts.append(item if item.__class__ in atomic else _key(item, memo))
        if has_dict:
            inside = value.__dict__
            for name in sorted(inside):
                if name not in left_out:
                    item = inside[name]
                    parts.append(item if item.__class__ in atomic else _key(item, memo))
        return tuple(parts)

    return keyer
