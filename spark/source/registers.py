"""Topics and groups as the journals of several nodes have them, merged.

A deleted name is in a register of its own, or packed with others (quorumq/core/cluster/deleted_names.py). A node that
was away has the older register: that does not restore its messages and dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from quorumq.core.cluster.deleted_names import KEY_BYTES, PAGES, DeletedNames, key_of
from quorumq.core.cluster.topics import merge_topics, rank
from quorumq.core.messages.records import DeletedNoted, DeletedPage, GroupPut, TopicPut
from quorumq.core.values.types import Group, PartitionId, Stamp, Topic, merge_groups
from quorumq.storage.records import TYPE_OF, PageMoved

PAGE_TYPES: Final = (TYPE_OF[DeletedPage], TYPE_OF[PageMoved])
"""Types of records that are kept in any segment until they are dropped, as a batch is."""

REGISTER_TYPES: Final = (*(TYPE_OF[cls] for cls in (TopicPut, GroupPut, DeletedNoted)), *PAGE_TYPES)


class Registers:
    """Topics and groups, merged from any number of nodes.

    Attributes:
        topics, groups: registers by id, and by topic and name.
        deleted: packed registers of deleted names.
        unknown: topics with batches and no register in an undamaged journal: they were deleted long ago.
    """

    def __init__(self) -> None:
        self.topics: dict[bytes, Topic] = {}
        self.groups: dict[tuple[bytes, str], Group] = {}
        self.deleted = DeletedNames((), b"")
        self.unknown: set[bytes] = set()
        self._newest: dict[str, tuple[int, Stamp]] = {}

    def take(self, record: Any) -> None:
        if isinstance(record, TopicPut):
            topic = record.topic
            known = self.topics.get(topic.id)
            self.topics[topic.id] = topic = topic if known is None else merge_topics(known, topic)
            self._newest[topic.name] = max(rank(topic), self._newest.get(topic.name, rank(topic)))
        elif isinstance(record, GroupPut):
            group = record.group
            key = (group.topic, group.name)
            self.groups[key] = merge_groups(self.groups[key], group) if key in self.groups else group
        elif isinstance(record, DeletedNoted):
            self._pack(record.packed)
        else:
            self._pack((record.page if isinstance(record, PageMoved) else record).packed)

    def _pack(self, packed: bytes) -> None:
        self.deleted.load(DeletedPage(0, 0, b"", b"", packed))

    def update(self, other: Registers) -> None:
        for topic in other.topics.values():
            self.take(TopicPut(topic))
        for group in other.groups.values():
            self.take(GroupPut(group))
        for page in filter(None, map(other.deleted.page, range(PAGES))):
            self._pack(page)
        self.unknown |= other.unknown

    def only(self, ids: Iterable[bytes]) -> Registers:
        chosen = frozenset(ids)
        result = Registers()
        result.topics = {name: topic for name, topic in self.topics.items() if name in chosen}
        result.groups = {name: group for name, group in self.groups.items() if name[0] in chosen}
        for topic in sorted(chosen.intersection(self.deleted.groups)):
            result._pack(self.deleted.of_topic(topic, 0, len(self.deleted))[0])
        return result

    def is_deleted(self, topic: bytes) -> bool:
        """Return True if a topic was deleted, or another one has taken its name since."""
        known = self.topics.get(topic)
        if known is None:
            return topic in self.unknown
        if known.deleted or rank(known) < self._newest[known.name]:
            return True
        return known.deletions <= self._number(b"", known.name)

    def buried(self, topic: bytes, group: str) -> int:
        """Return the generation of a group's last deletion: records of lower ones are void. 0 without one."""
        known = self.groups.get((topic, group))
        return max(0 if known is None else known.buried, self._number(topic, group))

    def _number(self, topic: bytes, name: str) -> int:
        """Return the number of deletions or the generation in a packed register; -1 without one."""
        if not (self.deleted.groups.get(topic) if topic else self.deleted.topics):
            return -1
        entry = self.deleted.find(key_of(topic, name))
        return -1 if entry is None else int.from_bytes(entry[KEY_BYTES : KEY_BYTES + 8], "big")

    def name_of(self, topic: bytes) -> str:
        """Return a topic's name; its id in hex if no register says the name."""
        known = self.topics.get(topic)
        return topic.hex() if known is None else known.name

    def counts_at(self, key: PartitionId, node: str) -> bool:
        """Return False if a partition was moved away from a node, which has released its records."""
        topic = self.topics.get(key.topic)
        moved = None if topic is None else topic.placement(key.number)
        return moved is None or node in moved.nodes or node in moved.sources
