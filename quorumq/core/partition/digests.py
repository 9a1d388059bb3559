"""Digests of one table of a partition, producer id by producer id, kept summed up in a tree, for replicas to compare.

The tree makes a comparison cost what differs, not what there is. A producer id has a place, 60 bits, and each node of
the tree stands for the producer ids whose places begin alike. Its sum is that of their digests, so a producer id that
changed is subtracted and added along one path. A replica that compares goes down only where sums differ.

Clients choose producer ids. Both the place and the digest are therefore keyed with a secret of the replicas (`Keyed`).
No client can aim producer ids at one node of the tree, or find producer ids whose digests cancel out
(docs/decisions/0021).

Equal content gives an equal tree: a node of the tree is split exactly if it has more than `LISTED_MAX` producer ids.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from quorumq.core.values import limits
from quorumq.core.values.types import ProducerId

BRANCHES: Final = limits.DIGEST_BRANCHES
"""Parts of a node: one for each hexadecimal digit of a place."""

DIGITS: Final = limits.DIGEST_DIGITS
"""Hexadecimal digits of a place: 60 bits."""

LISTED_MAX: Final = 64
"""Producer ids up to which a node is not parted, and is compared producer id by producer id."""

COUNTED_BYTES: Final = 256
"""Bytes of content that cost as much as one more producer id: some six runs of names."""

DIGEST_BYTES: Final = limits.DIGEST_BYTES
SUMS_END: Final = 1 << 8 * DIGEST_BYTES
ROOT: Final = 1
"""A node is named by its digits behind a 1, as one number: the root has none."""

_LOCATION_BITS: Final = 4 * DIGITS
_LOCATIONS: Final = (1 << _LOCATION_BITS) - 1


class Keyed(NamedTuple):
    """Places and digests under one key.

    Args:
        key: secret that all replicas of a partition share, and no client knows.
    """

    key: bytes

    def _hash(self, text: bytes) -> int:
        keyed = _begun(self.key).copy()
        keyed.update(text)
        return int.from_bytes(keyed.digest(), "big")

    def location(self, name: bytes) -> int:
        """Return the place of a producer id, by its name as `named` gives it."""
        return self._hash(name) & _LOCATIONS

    def digest(self, label: bytes, name: bytes, content: bytes) -> int:
        """Return the digest of a table's content for a producer id."""
        return self._hash(b"%d %b%b\n%b" % (len(label), label, name, content))


@functools.lru_cache(maxsize=1024)
def _begun(key: bytes) -> Any:
    return hashlib.blake2b(digest_size=DIGEST_BYTES, key=key.ljust(DIGEST_BYTES, b"\0"))


def named(producer_id: ProducerId) -> bytes:
    """Return a producer id as bytes, equal on every node."""
    return b"%b\0%d\0%d\0%d" % (producer_id[0].encode(), *producer_id[1:])


class Node:
    """One node of the tree.

    Attributes:
        sum: sum of the digests of its producer ids.
        size: number of its producer ids.
        parts: the nodes that it is parted into; None if it is not.
        producer_ids: digest and tree position of each producer id packed into one number, if the node is a leaf.
    """

    __slots__ = ("parts", "producer_ids", "size", "sum")

    def __init__(self, producer_ids: dict[ProducerId, int]) -> None:
        self.sum = sum([value >> _LOCATION_BITS for value in producer_ids.values()]) % SUMS_END
        self.size = len(producer_ids)
        self.parts: list[Node | None] | None = None
        self.producer_ids = producer_ids

    def all(self) -> dict[ProducerId, int]:
        """Return digest and place of each producer id."""
        if self.parts is None:
            return self.producer_ids
        return {
            producer_id: value
            for part in self.parts
            if part is not None
            for producer_id, value in part.all().items()
        }

    def part(self, depth: int) -> None:
        """Part a node that has too many producer ids."""
        if len(self.producer_ids) <= LISTED_MAX or depth == DIGITS:
            return
        shift = 4 * (DIGITS - 1 - depth)
        few: list[dict[ProducerId, int]] = [{} for _ in range(BRANCHES)]
        for producer_id, value in self.producer_ids.items():
            few[value >> shift & 15][producer_id] = value
        self.parts, self.producer_ids = (
            [Node(producer_ids) if producer_ids else None for producer_ids in few],
            {},
        )
        for part in self.parts:
            if part is not None:
                part.part(depth + 1)

    def copy(self) -> Node:
        twin = Node({})
        twin.sum, twin.size, twin.producer_ids = self.sum, self.size, self.producer_ids.copy()
        if self.parts is not None:
            twin.parts = [part.copy() if part is not None else None for part in self.parts]
        return twin

    def state(self) -> tuple[Any, ...]:
        """Return all of it as a value."""
        parts = [part and part.state() for part in self.parts] if self.parts is not None else None
        return self.sum, self.size, parts, self.producer_ids


class Digests:
    """The digests of one table.

    Attributes:
        root: the tree; None if it is empty.
        stale: producer ids whose digest has to be made anew: each change of the table adds its producer id here.
    """

    __slots__ = ("root", "stale")

    def __init__(self) -> None:
        self.root: Node | None = None
        self.stale: dict[ProducerId, None] = {}

    def clear(self, stale: Iterable[ProducerId] = ()) -> None:
        """Forget all digests; those of ``stale`` are made anew."""
        self.root = None
        self.stale = dict.fromkeys(stale)

    def renew(self, keyed: Keyed, label: bytes, content_of: Callable[[ProducerId], bytes], most: int) -> int:
        """Make the digests of stale producer ids anew.

        Args:
            content_of: returns the table's content for a producer id; b"" if it has nothing.
            most: cost of the producer ids to look at: one each, and one for each `COUNTED_BYTES` of content.

        Returns:
            the cost of the producer ids that were looked at.
        """
        stale, count = self.stale, 0
        while stale and count < most:
            producer_id, _ = stale.popitem()
            content, name = content_of(producer_id), named(producer_id)
            count += 1 + len(content) // COUNTED_BYTES
            location = keyed.location(name)
            value = keyed.digest(label, name, content) << _LOCATION_BITS | location if content else 0
            self.put(location, producer_id, value)
        return count

    def put(self, location: int, producer_id: ProducerId, value: int) -> None:
        """Have digest and place of a producer id be ``value``; 0 takes it out."""
        path: list[Node] = []
        node, shift, digit = self.root, _LOCATION_BITS, 0
        while node is not None and node.parts is not None:
            path.append(node)
            shift -= 4
            digit = location >> shift & 15
            node = node.parts[digit]
        if node is None:
            if not value:
                return
            node = Node({})
            if path:
                path[-1].parts[digit] = node  # type: ignore[index]
            else:
                self.root = node
        before = node.producer_ids.get(producer_id, 0)
        if before == value:
            return
        path.append(node)
        change, more = (value >> _LOCATION_BITS) - (before >> _LOCATION_BITS), bool(value) - bool(before)
        for each in path:
            each.sum = (each.sum + change) % SUMS_END
            each.size += more
        if value:
            node.producer_ids[producer_id] = value
        else:
            del node.producer_ids[producer_id]
        if more > 0:
            node.part(len(path) - 1)
        elif more < 0:
            self._shrink(path, location)

    def _shrink(self, path: list[Node], location: int) -> None:
        """Join nodes that are small by now, and take out empty ones."""
        for depth, node in enumerate(path):
            if not node.size:
                if depth:
                    path[depth - 1].parts[location >> _LOCATION_BITS - 4 * depth & 15] = None  # type: ignore[index]
                else:
                    self.root = None
                return
            if node.parts is not None and node.size <= LISTED_MAX:
                node.producer_ids, node.parts = node.all(), None
                return

    def at(self, location: int) -> Node | None:
        """Return the node of that name, made up if it is part of one that is not parted."""
        node, depth = self.root, depth_of(location)
        for level in range(depth):
            if node is None:
                return None
            if node.parts is None:
                first, last = bounds_of(location)
                few = {
                    key: value
                    for key, value in node.producer_ids.items()
                    if first <= value & _LOCATIONS < last
                }
                return Node(few) if few else None
            node = node.parts[location >> 4 * (depth - level - 1) & 15]
        return node

    def add_sums(self, location: int, sums: list[int]) -> int:
        """Add to ``sums`` those of the node's parts; the number of producer ids and parts that were looked at."""
        node = self.at(location)
        if node is None:
            return 1
        if node.parts is not None:
            for digit, part in enumerate(node.parts):
                if part is not None:
                    sums[digit] += part.sum
            return BRANCHES
        shift = 4 * (DIGITS - 1 - depth_of(location))
        for value in node.producer_ids.values():
            sums[value >> shift & 15] += value >> _LOCATION_BITS
        return 1 + node.size

    def items(self, location: int = ROOT) -> list[tuple[ProducerId, int]]:
        node = self.at(location)
        return (
            [(producer_id, value >> _LOCATION_BITS) for producer_id, value in node.all().items()]
            if node is not None
            else []
        )

    def clone(self) -> Digests:
        twin = Digests()
        twin.root, twin.stale = self.root and self.root.copy(), self.stale.copy()
        return twin

    def check(self, keyed: Keyed, label: bytes, contents: Mapping[ProducerId, bytes]) -> None:
        """Assert that the digests equal those computed anew from ``contents``, stale ones aside."""
        anew, kept = Digests(), self.clone()
        fresh = {
            producer_id: None
            for producer_id, content in contents.items()
            if content and producer_id not in self.stale
        }
        anew.stale = fresh
        anew.renew(keyed, label, contents.__getitem__, limits.NUMBERS_END)
        for producer_id in self.stale:
            kept.put(keyed.location(named(producer_id)), producer_id, 0)
        ours, theirs = (it.root and it.root.state() for it in (kept, anew))
        assert ours == theirs, f"digests of {label!r}: kept are {ours}, computed anew {theirs}"


def depth_of(location: int) -> int:
    """Return how many digits a node's name has."""
    return (location.bit_length() - 1) // 4


def bounds_of(location: int) -> tuple[int, int]:
    """Return the first place of a node, and the one behind its last."""
    rest = 4 * (DIGITS - depth_of(location))
    first = (location << rest) & _LOCATIONS
    return first, first + (1 << rest)


def parts_of(location: int) -> range:
    return range(location << 4, (location << 4) + BRANCHES)
