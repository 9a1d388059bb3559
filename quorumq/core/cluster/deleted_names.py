"""Registers of names that were deleted long ago, packed: 52 bytes each.

Nothing forgets that a name was deleted: a node that slept may bring its topic or group back, with messages and acks of
before. All that has to be known is the number of the deletion, and which creation it ended. So a packed register is
a hash of the name with these numbers, and each question has the name.

Packed registers are in `PAGES` pages, by a keyed hash of the name. Each page is one value in memory and one record
of the journal, which is kept as a batch is: until a newer one of that page replaces it. So no snapshot repeats
packed registers, and a step that packs some rewrites one page. Pages are also the buckets of anti-entropy.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from quorumq.core.cluster.topics import names_sets
from quorumq.core.messages.records import DeletedNoted, DeletedPage, JournalRecord
from quorumq.core.values import limits
from quorumq.core.values.types import NODES_MAX, STAMP_ZERO, Group, NodeId, Stamp, Topic, topic_id

PAGES: Final = limits.REGISTER_BUCKETS
SUMS_END: Final = 1 << 8 * limits.DIGEST_BYTES
KEY_BYTES: Final = 32
"""The id of a group's topic, or zeros, and a hash of the name."""

NO_TOPIC: Final = bytes(16)
"""Stands for the topic's id in the key of a topic's own name: no topic's id is zero."""

UNSAVED_MAX: Final = 4096
"""Packed registers that peers sent and no page of the journal has yet: above that a page is written."""

NOTED_BYTES: Final = 16_384 * limits.DELETED_BYTES
"""Bytes of one record of these."""

INSERTED_MAX: Final = 64
"""Packed registers that are inserted into a page one by one; to merge more, the page is built anew."""

_ENTRY: Final = struct.Struct(">16s16sQQBBH")
"""Topic, hash of the name, deletions or generation, time and node of `made`, RF, proposed partitions with `_BURIED`."""

_BURIED: Final = 1 << 15
"""Stands beside the count of partitions of a topic whose deletion has reached every set."""

assert _ENTRY.size == limits.DELETED_BYTES
_NUMBER: Final = slice(KEY_BYTES, KEY_BYTES + 8)
_RF: Final = slice(limits.DELETED_BYTES - 3, limits.DELETED_BYTES - 2)
_PROPOSED: Final = limits.DELETED_BYTES - 2


def key_of(topic: bytes, name: str) -> bytes:
    """Return the key of a register: of a group with the id of its topic, of a topic with an empty one."""
    return (topic or NO_TOPIC) + hashlib.blake2b(name.encode(), digest_size=16).digest()


def key_of_register(register: Topic | Group) -> bytes:
    """Return the key of a topic's or group's register."""
    return key_of(register.topic if isinstance(register, Group) else b"", register.name)


def entries_of(packed: bytes) -> list[bytes]:
    """Return the single packed registers of many."""
    return [packed[at : at + limits.DELETED_BYTES] for at in range(0, len(packed), limits.DELETED_BYTES)]


def topic_of(entry: bytes) -> bytes:
    """Return the id of the topic of a group's packed register; empty for a topic's own."""
    return b"" if entry.startswith(NO_TOPIC) else entry[:16]


class DeletedNames:
    """The packed registers that one node has.

    Args:
        nodes: members of the cluster, by number: a packed stamp names its node by the first one.
        key: secret that all nodes share, and no client knows.

    Attributes:
        topics: number of packed registers of topics.
        groups: number of packed registers of groups, by topic; none is 0.
        sums: sum of the digests of each page.
        numbers: numbers of the records that have each page in the journal: one, and no entry if it was never written.
        unsaved: packed registers that no page of the journal has, by page, in the order received.
        stale: records of pages made with another key; they stay until each page is written anew.
        rewriting: indexes of pages to be written anew for that.
    """

    __slots__ = (
        "_key", "_nodes", "_pages", "_unsaved", "groups", "key_number", "numbers", "rewriting", "stale", "sums",
        "topics", "unsaved",
    )  # fmt: skip

    def __init__(self, nodes: Sequence[NodeId], key: bytes) -> None:
        self.know(nodes)
        self._key = key
        self.key_number = self._hash(b"number of this key", 2, 8)
        self._pages = [b""] * PAGES
        self._unsaved = 0
        self.sums = [0] * PAGES
        self.numbers: dict[int, tuple[int, ...]] = {}
        self.unsaved: dict[int, list[bytes]] = {}
        self.stale: list[int] = []
        self.rewriting: dict[int, None] = {}
        self.topics = 0
        self.groups: dict[bytes, int] = {}

    def know(self, nodes: Sequence[NodeId]) -> None:
        """Take note of the members, by number. What is packed stays as it is, because no number gets another node."""
        self._nodes = tuple(dict.fromkeys(nodes))

    # ------------------------------------------------------------------ one register

    def index_of(self, key: bytes) -> int:
        """Return the index of a register's page, which is also its bucket in anti-entropy."""
        return self._hash(key, 1, 1)[0]

    def pack(self, register: Topic | Group) -> bytes | None:
        """Return the packed register of a deleted topic or group; None for one that has no such form.

        A topic whose register names sets has none: DELETE has to reach them.
        """
        assert register.deleted, f"{register.name} is not deleted"
        if isinstance(register, Topic) and names_sets(register):
            return None
        time, node = register.made
        if node and node not in self._nodes:
            return None
        at = self._nodes.index(node) + 1 if node else 0
        number, rf, proposed = (
            (register.deletions, register.rf, register.all_partitions | register.buried * _BURIED)
            if isinstance(register, Topic)
            else (register.generation, 0, 0)
        )
        if max(at, rf) > 0xFF:
            return None
        key = key_of_register(register)
        return _ENTRY.pack(key[:16], key[16:], number, time, at, rf, proposed)

    def unpack(self, entry: bytes, name: str) -> Topic | Group:
        """Return the register of ``name`` that was packed as ``entry``."""
        topic, _, number, time, at, rf, proposed = _ENTRY.unpack(entry)
        made = Stamp(time, self._nodes[at - 1] if at else "")
        if topic != NO_TOPIC:
            return Group(topic, name, number, buried=number, made=made)
        return Topic(
            topic_id(name, rf, number), name, rf, (), 0, STAMP_ZERO, True,
            deletions=number, made=made, proposed=proposed & ~_BURIED, buried=bool(proposed & _BURIED),
        )  # fmt: skip

    def is_sound(self, entry: bytes) -> bool:
        """Return True if every number of a packed register is one that a register may have."""
        topic, _, number, time, at, rf, proposed = _ENTRY.unpack(entry)
        sound: bool = number < limits.NUMBERS_END and time < limits.STAMPS_END and at <= len(self._nodes)
        if topic == NO_TOPIC:
            return sound and 0 < rf <= NODES_MAX and proposed & ~_BURIED <= limits.PARTITIONS_MAX
        return sound and number > 0

    def digest(self, entry: bytes) -> int:
        """Return the digest of a packed register, which is also that of the register before it is packed."""
        return int.from_bytes(self._hash(entry, 0, limits.DIGEST_BYTES), "big")

    # ------------------------------------------------------------------ the table

    def find(self, key: bytes) -> bytes | None:
        """Return the packed register of this key, if there is one."""
        page = self._pages[self.index_of(key)]
        at = _from(page, key)
        return page[at : at + limits.DELETED_BYTES] if page.startswith(key, at) else None

    def put(self, index: int, entries: Sequence[bytes]) -> None:
        """Put registers into their page. Each replaces the one of its key."""
        if len(entries) <= INSERTED_MAX:
            for entry in entries:
                self._insert(index, entry)
            return
        page = {it[:KEY_BYTES]: it for it in entries_of(self._pages[index])}
        for entry in entries:
            before = page.get(entry[:KEY_BYTES])
            self._count(index, before, entry)
            page[entry[:KEY_BYTES]] = entry
        self._pages[index] = b"".join(page[key] for key in sorted(page))

    def _insert(self, index: int, entry: bytes) -> None:
        page, key = self._pages[index], entry[:KEY_BYTES]
        at = _from(page, key)
        stop = at + limits.DELETED_BYTES if page.startswith(key, at) else at
        self._count(index, page[at:stop], entry)
        self._pages[index] = b"".join((page[:at], entry, page[stop:]))

    def remove(self, key: bytes) -> None:
        """Remove the packed register of this key, if there is one. Its page in the journal may keep it."""
        index = self.index_of(key)
        page = self._pages[index]
        at = _from(page, key)
        if page.startswith(key, at):
            self._count(index, page[at : at + limits.DELETED_BYTES], None)
            self._pages[index] = page[:at] + page[at + limits.DELETED_BYTES :]

    def drop(self, topic: bytes) -> None:
        """Remove all groups of a topic that was deleted."""
        for index in range(PAGES) if topic in self.groups else ():
            page = self._pages[index]
            start, stop = _from(page, topic), _from(page, topic + b"\xff" * 16)
            for entry in entries_of(page[start:stop]):
                self._count(index, entry, None)
            if start < stop:
                self._pages[index] = page[:start] + page[stop:]

    def _count(self, index: int, before: bytes | None, after: bytes | None) -> None:
        """Count ``after`` instead of ``before``."""
        change = (self.digest(after) if after else 0) - (self.digest(before) if before else 0)
        self.sums[index] = (self.sums[index] + change) % SUMS_END
        for entry, more in ((before, -1), (after, 1)):
            if entry:
                self._count_in(topic_of(entry), more)

    def _count_in(self, topic: bytes, more: int) -> None:
        if not topic:
            self.topics += more
            return
        count = self.groups.get(topic, 0) + more
        if count:
            self.groups[topic] = count
        else:
            del self.groups[topic]

    def page(self, index: int) -> bytes:
        """Return all packed registers of a page, by key."""
        return self._pages[index]

    def of_topic(self, topic: bytes, index: int, most: int) -> tuple[bytes, int]:
        """Return packed registers of a topic's groups from page ``index`` on, about ``most``, and the next page."""
        chosen: list[bytes] = []
        if topic not in self.groups:
            return b"", PAGES
        while index < PAGES and sum(map(len, chosen)) < most * limits.DELETED_BYTES:
            page = self._pages[index]
            chosen.append(page[_from(page, topic) : _from(page, topic + b"\xff" * 16)])
            index += 1
        return b"".join(chosen), index

    def __len__(self) -> int:
        return self.topics + sum(self.groups.values())

    # ------------------------------------------------------------------ the journal

    def note(self, index: int, entry: bytes) -> None:
        """Add a register that a peer sent packed: a record of its own has it until its page is written."""
        self.unsaved.setdefault(index, []).append(entry)
        self._unsaved += 1

    def due(self) -> int | None:
        """Return the index of a page that should be written now; None if none is due."""
        if self._unsaved > UNSAVED_MAX:
            return next(iter(self.unsaved))
        return next(iter(self.rewriting), None)

    def save(self, index: int, number: int) -> tuple[DeletedPage, tuple[int, ...]]:
        """Return the record of a page under a new number, and the numbers of records that it replaces."""
        replaced, self.numbers[index] = self.numbers.get(index, ()), (number,)
        self._unsaved -= len(self.unsaved.pop(index, ()))
        if self.rewriting.pop(index, 0) is None and not self.rewriting:
            replaced += tuple(self.stale)
            self.stale = []
        total = self.sums[index].to_bytes(limits.DIGEST_BYTES, "big")
        return DeletedPage(number, index, self.key_number, total, self._pages[index]), replaced

    def load(self, record: DeletedPage) -> None:
        """Take in a page of the journal, before any other register."""
        number, index, key_number, total, packed = record
        if key_number == self.key_number and not self._pages[index]:
            self._pages[index] = packed
            self.sums[index] = int.from_bytes(total, "big")
            self.numbers[index] = (*self.numbers.get(index, ()), number)
            self._count_page(packed)
            return
        if key_number == self.key_number:  # a crash between a page and the end of the one before
            self.numbers[index] = (*self.numbers.get(index, ()), number)
        else:
            self.stale.append(number)
            self.rewriting = dict.fromkeys(range(PAGES))
        by_index: dict[int, list[bytes]] = {}
        for entry in entries_of(packed):
            by_index.setdefault(self.index_of(entry[:KEY_BYTES]), []).append(entry)
        for page, entries in by_index.items():
            self.put(page, [entry for entry in map(self.merged, entries) if entry])

    def _count_page(self, packed: bytes) -> None:
        at = _from(packed, NO_TOPIC + b"\xff" * 16)
        self.topics += at // limits.DELETED_BYTES
        while at < len(packed):
            topic = packed[at : at + 16]
            stop = _from(packed, topic + b"\xff" * 16)
            self.groups[topic] = self.groups.get(topic, 0) + (stop - at) // limits.DELETED_BYTES
            at = stop

    def merged(self, entry: bytes) -> bytes | None:
        """Return a packed register as merged with the packed one of its key; None if that changes nothing.

        The bytes behind the key are in the order in which registers stand: number, stamp. Two of one topic merge the
        count of partitions, too.
        """
        ours = self.find(entry[:KEY_BYTES])
        if ours is None or ours == entry:
            return entry if ours is None else None
        later = max(ours, entry)
        if ours[_NUMBER] == entry[_NUMBER] and ours[_RF] == entry[_RF]:
            counts = [int.from_bytes(it[_PROPOSED:], "big") for it in (ours, entry)]
            proposed = max(it & ~_BURIED for it in counts) | (counts[0] | counts[1]) & _BURIED
            later = later[:_PROPOSED] + proposed.to_bytes(2, "big")
        return later if later != ours else None

    def records(self) -> Iterator[JournalRecord]:
        """Yield what a snapshot has to say: registers that no page in the journal has."""
        noted = b"".join(entry for entries in self.unsaved.values() for entry in entries)
        for at in range(0, len(noted), NOTED_BYTES):
            yield DeletedNoted(noted[at : at + NOTED_BYTES])

    def check(self) -> None:
        assert self._unsaved == sum(map(len, self.unsaved.values())), (
            "packed registers without a page are miscounted"
        )
        topics, groups = 0, dict[bytes, int]()
        for index, page in enumerate(self._pages if any(self._pages) or any(self.sums) else ()):
            if not page:
                assert not self.sums[index], f"page {index} is empty, and its sum is not"
                continue
            entries = entries_of(page)
            keys = [entry[:KEY_BYTES] for entry in entries]
            assert keys == sorted(set(keys)), f"page {index} is out of order"
            assert all(self.index_of(key) == index for key in keys), (
                f"page {index} has a register of another one"
            )
            total = sum(map(self.digest, entries)) % SUMS_END
            assert self.sums[index] == total, f"page {index}: the sum is another than that computed anew"
            for topic in map(topic_of, entries):
                if topic:
                    groups[topic] = groups.get(topic, 0) + 1
                else:
                    topics += 1
        assert (self.topics, self.groups) == (topics, groups), "packed registers are miscounted"

    def _hash(self, content: bytes, purpose: int, size: int) -> bytes:
        return hashlib.blake2b(
            content, digest_size=size, key=self._key, person=purpose.to_bytes(1, "big")
        ).digest()


def _from(page: bytes, key: bytes) -> int:
    """Return the offset of the first register in a page whose key is not below ``key``."""
    low, high = 0, len(page) // limits.DELETED_BYTES
    while low < high:
        middle = (low + high) // 2
        at = middle * limits.DELETED_BYTES
        if page[at : at + len(key)] < key:
            low = middle + 1
        else:
            high = middle
    return low * limits.DELETED_BYTES
