"""Registers of topics and groups that this node knows, and the merging of registers from other nodes.

The table decides which register stands. It carries out no consequences: those, such as the end of a topic's replicas,
are in core/requests/merging.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sortedcontainers import SortedDict

from quorumq.core.cluster.deleted_names import PAGES, DeletedNames, entries_of, key_of, key_of_register
from quorumq.core.cluster.members import Members, first_layout
from quorumq.core.cluster.register_sums import RegisterSums
from quorumq.core.cluster.topics import closed, merge_decisions, merge_topics, rank
from quorumq.core.messages import AlterTopic, CreateTopic, Failed, RequestRefused
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.patterns import is_pattern, matching
from quorumq.core.values.printable import plural
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    ClusterLayout,
    Decision,
    Group,
    Instance,
    NodeId,
    PartitionId,
    Topic,
    instance_of,
    merge_groups,
)


def _too_many(items: str, count: int, most: int, advice: str) -> Failed:
    return Failed(Code.TOO_LARGE, f"this cluster has {count} {items}: at most {most} are allowed; {advice}")


class NamesUsed(NamedTuple):
    """Counts of topics and groups, of deleted names, and their limits."""

    topics: int
    topics_max: int
    groups: int
    groups_max: int
    topics_deleted: int
    groups_deleted: int
    deleted_max: int

    @property
    def are_half_gone(self) -> bool:
        """Return True if half as many names are deleted as there is room for."""
        return 2 * (self.topics_deleted + self.groups_deleted) >= self.deleted_max


class Catalogue:
    """Topics and groups that one node knows.

    Registers of deleted names are kept as they are, the last ones, or packed (core/cluster/deleted_names.py).

    Attributes:
        cluster: members of the cluster.
        topics: registers by topic id, deleted ones included that are not packed.
        names: id of the newest topic of each name, deleted or not, whose register is not packed.
        living: id of each topic that is not deleted, by name.
        decisions: decisions without a known outcome, by instance.
        groups: registers by (topic id, name), deleted ones included that are not packed.
        live_groups: number of groups by topic id, without deleted ones.
        deleted: packed registers.
        unpacked: deleted names whose registers are not packed, the longest deleted first: (topic id of a group or
            empty, name).
        unpackable: deleted names whose registers have no packed form yet: the deletion of a topic may not have reached
            its sets, or the node that made one is no member that is known here.
        registered_groups: groups known to be at a majority of a partition's replicas.
        replaced: ids of deleted topics with a newer one of their name, the oldest first; a limited number.
        sums: digests of all registers.

    Args:
        key: secret of the cluster for these digests.
        layout: the first layout of the cluster; None: this node is alone.
    """

    __slots__ = (
        "_used", "cluster", "decisions", "deleted", "groups", "live_groups", "living", "me", "names",
        "registered_groups", "replaced", "sums", "topics", "unpackable", "unpacked",
    )  # fmt: skip

    def __init__(self, me: NodeId, key: bytes = b"", layout: ClusterLayout | None = None) -> None:
        self.me = me
        self.cluster = Members(first_layout((me,)) if layout is None else layout)
        self.deleted = DeletedNames(self.cluster.names, key)
        self.sums = RegisterSums(self.deleted)
        self.unpacked: dict[tuple[bytes, str], None] = {}
        self.unpackable: dict[tuple[bytes, str], None] = {}
        self.topics: dict[bytes, Topic] = {}
        self.names: dict[str, bytes] = {}
        self.living: dict[str, bytes] = {}
        self.replaced: dict[bytes, None] = {}
        self.decisions: SortedDict[Instance, Decision] = SortedDict()
        self.groups: SortedDict[tuple[bytes, str], Group] = SortedDict()
        self.live_groups: dict[bytes, int] = {}
        self.registered_groups: dict[tuple[PartitionId, str], None] = {}
        self._used: NamesUsed | None = None  # as counted since the last change

    # ------------------------------------------------------------------ looking up

    def register_named(self, name: str) -> Topic | None:
        """Return the newest register of that name, deleted or not; None without one."""
        topic_id = self.names.get(name)
        if topic_id is not None:
            return self.topics[topic_id]
        packed = self._packed(b"", name)
        return packed if isinstance(packed, Topic) else None

    def _packed(self, topic: bytes, name: str) -> Topic | Group | None:
        """Return the register of a name if it is packed; ``topic`` is that of a group, or empty."""
        if not (self.deleted.groups.get(topic) if topic else self.deleted.topics):
            return None
        entry = self.deleted.find(key_of(topic, name))
        return self.deleted.unpack(entry, name) if entry is not None else None

    def register_with(self, topic: bytes, name: str) -> Topic | None:
        """Return the register of a topic by id, also if it is packed; ``name`` is the topic's."""
        known = self.topics.get(topic) or self.register_named(name)
        return known if known is not None and known.id == topic else None

    def group(self, topic: bytes, name: str) -> Group | None:
        """Return the register of a group, deleted or not; None without one."""
        known = self.groups.get((topic, name)) or self._packed(topic, name)
        return known if isinstance(known, Group) else None

    def topic_named(self, name: str) -> Topic | None:
        """Return the topic of that name, if there is one that is not deleted."""
        known = self.living.get(name)
        return self.topics[known] if known is not None else None

    def partitions_of(self, name: str) -> int:
        """Return the number of partitions of the newest topic of that name, deleted or not; 0 without one."""
        topic_id = self.names.get(name)
        return self.topics[topic_id].partitions if topic_id is not None else 0

    def topics_matching(self, name: str) -> list[Topic]:
        """Return the topic of that name, or all topics that the pattern matches, without deleted ones."""
        names = matching(name, self.living) if is_pattern(name) else [name]
        return [topic for topic in map(self.topic_named, names) if topic is not None]

    def live(self) -> list[Topic]:
        """Return all topics that are not deleted."""
        return list(map(self.topics.__getitem__, self.living.values()))

    def registers(self) -> list[Topic]:
        """Return the newest register of each name, packed ones aside. It says that all older ones are deleted."""
        return [self.topics[self.names[name]] for name in sorted(self.names)]

    def all_deleted(self) -> tuple[bytes, ...]:
        """Return the registers of all deleted names as they are packed, for comparisons."""
        registers: list[Topic | Group] = [*self.registers(), *self.groups.values()]
        packed = [self.deleted.pack(register) for register in registers if register.deleted]
        pages = [entry for index in range(PAGES) for entry in entries_of(self.deleted.page(index))]
        return tuple(sorted([entry for entry in packed if entry is not None] + pages))

    def names_used(self) -> NamesUsed:
        """Return how many names are taken. They are counted again only after a register has changed."""
        if self._used is None:
            topics = len(self.names) - len(self.living)
            groups = len(self.unpacked) + len(self.unpackable) - topics
            self._used = NamesUsed(
                len(self.living),
                limits.TOPICS_MAX,
                len(self.groups) - groups + len(self.decisions),
                limits.GROUPS_MAX,
                topics + self.deleted.topics,
                groups + sum(self.deleted.groups.values()),
                limits.DELETED_NAMES_MAX,
            )
        return self._used

    def is_deleted(self, topic: bytes) -> bool:
        return topic in self.topics and self.topics[topic].deleted

    def members_of(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """Return the replica set of a partition; empty if it is not known here."""
        topic = self.topics.get(partition.topic)
        sets = topic.replicas if topic is not None else ()
        return sets[partition.number] if partition.number < len(sets) else ()

    def holders_of(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """Return the replica set of a partition, and nodes that left it and may report the holds that they granted."""
        members, topic = self.members_of(partition), self.topics.get(partition.topic)
        placement = topic.placement(partition.number) if topic is not None else None
        if placement is None:
            return members
        return tuple(dict.fromkeys((*members, *placement.nodes_before, *placement.sources)))

    def epoch_of(self, partition: PartitionId) -> int:
        """Return the epoch of a partition of a known topic: the layout in which its slots last changed."""
        topic = self.topics[partition.topic]
        return FIRST_LAYOUT if topic.layout is None else topic.epoch_of(partition.number)

    def all_groups(self) -> list[Group]:
        """Return the registers of all groups by topic and name, packed ones aside."""
        return list(self.groups.values())

    def group_registers(self, topic: bytes) -> list[Group]:
        """Return the registers of a topic's groups by name, packed ones aside."""
        return [self.groups[key] for key in self.group_keys(topic)]

    def group_keys(self, topic: bytes) -> list[tuple[bytes, str]]:
        """Return the keys of these in `groups`. It looks at no group of another topic."""
        return list(self.groups.irange((topic,), (topic + b"\0",)))

    def reads(self, topic: bytes, group: str) -> bool:
        """Return True if the group is known and not deleted."""
        register = self.groups.get((topic, group))
        return register is not None and not register.deleted

    def is_group_deleted(self, topic: bytes, group: str) -> bool:
        register = self.groups.get((topic, group)) or self.group(topic, group)
        return register is not None and register.deleted

    def makes_group(self, topic: Topic, group: str) -> bool:
        """Return True if a FETCH for a group that is not known here may make it."""
        return topic.auto_create_groups and not self.is_group_deleted(topic.id, group)

    # ----------------------------------------------------- errors for unknown names and full tables

    def named(self, name: str) -> Topic:
        """Return the topic that has the name now, or refuse the request."""
        topic = self.topic_named(name)
        if topic is None:
            raise RequestRefused(self.not_found(name))
        return topic

    def partition_named(self, name: str, number: int) -> PartitionId:
        """Return a partition of a topic by name, or refuse the request."""
        topic = self.named(name)
        if number >= topic.partitions:
            there = plural(topic.partitions, "partition")
            raise RequestRefused(Failed(Code.NOT_FOUND, f"topic {name!r} has {there}: there is no {number}"))
        return PartitionId(topic.id, number)

    def not_found(self, name: str) -> Failed:
        """Return `not-found`: deleted, or not there. The shell adds a hint: it knows which names a client may see."""
        if self.register_named(name) is not None:
            return Failed(
                Code.NOT_FOUND,
                f"topic {name!r} was deleted: `quorumq topics create {name}` makes a new one of that name",
            )
        return Failed(Code.NOT_FOUND, f"there is no topic {name!r}", topic=name)

    def no_group(self, topic: str, group: str) -> Failed:
        """Return `not-found`: deleted, or not there. The shell adds a hint."""
        if self.is_group_deleted(self.names.get(topic, b""), group):
            return Failed(
                Code.NOT_FOUND,
                f"group {group!r} of topic {topic!r} was deleted: `quorumq groups create` makes a new one of that name",
            )
        return Failed(Code.NOT_FOUND, f"no group {group!r} reads topic {topic!r}", topic=topic, group=group)

    def why_no_capacity(self, request: CreateTopic | AlterTopic) -> Failed | None:
        """Return `too-large` if a request would exceed the limits of a cluster."""
        topic, live = self.topic_named(request.name), self.live()
        more = (request.partitions or 0) - (topic.partitions if topic is not None else 0)
        count = sum(other.partitions for other in live)
        if topic is None and len(live) >= limits.TOPICS_MAX:
            return _too_many("topics", len(live), limits.TOPICS_MAX, "delete one")
        if topic is None and self.register_named(request.name) is None and (full := self._why_no_names()):
            return full
        if more > 0 and count + more > limits.PARTITIONS_IN_ALL_MAX:
            most = limits.PARTITIONS_IN_ALL_MAX
            return _too_many(f"partitions, and {more} more asked for", count, most, "delete a topic")
        if more > 0 and topic is not None:
            return self._why_no_views(self.live_groups.get(topic.id, 0) * more)
        return None

    def _why_no_names(self) -> Failed | None:
        """Return `too-large` if no new name can be taken: each may be deleted one day, and is kept then."""
        used = self.names_used()
        deleted = used.topics_deleted + used.groups_deleted
        if deleted < used.deleted_max:
            return None
        known = "deleted names of topics, which are kept for good, and of groups, which are kept as long as their topic"
        return _too_many(known, deleted, used.deleted_max, "take the name of a deleted one")

    def _why_no_views(self, more: int) -> Failed | None:
        """Return `too-large` if ``more`` groups, each counted once per partition that it reads, exceed the limit."""
        total = sum(count * self.topics[topic].partitions for topic, count in self.live_groups.items())
        if total + more <= limits.GROUP_PARTITIONS_MAX:
            return None
        items = f"groups, each counted once for each partition of its topic, and {more} more asked for"
        return _too_many(
            items, total, limits.GROUP_PARTITIONS_MAX, "delete groups that nobody reads any more"
        )

    def why_no_groups(self, topics: Sequence[Topic], group: str) -> Failed | None:
        """Return `too-large` if making a group of these topics, which have none of that name, exceeds a limit."""
        if any(self.group(topic.id, group) is None for topic in topics) and (full := self._why_no_names()):
            return full
        used = self.names_used()
        if used.groups + len(topics) > used.groups_max:
            return _too_many(
                "groups", used.groups, used.groups_max, "delete groups that nobody reads any more"
            )
        for topic in topics:
            count = self.live_groups.get(topic.id, 0)
            if count >= limits.GROUPS_PER_TOPIC_MAX:
                items = f"groups of topic {topic.name!r}"
                return _too_many(items, count, limits.GROUPS_PER_TOPIC_MAX, "delete one")
        return self._why_no_views(sum(topic.partitions for topic in topics))

    def why_not_here(self, partition: PartitionId) -> str:
        """Return why a request for a partition without a replica set fails."""
        topic = self.topics.get(partition.topic)
        if topic is not None and topic.deleted:
            return f"topic {topic.name!r} was deleted"
        return f"no partition {partition} is known to node {self.me}: was its topic deleted long ago?"

    # -------------------------------------------------------------------- merging

    def take_topic(self, topic: Topic) -> Topic | None:
        """Merge a register, and return the merged one if it changed anything, else None.

        A topic whose name had been deleted more often replaces the others. They are deleted, even if no node has said
        so. If two follow equally many deletions, one was chosen and then lost with the directories of a majority
        (RECOVERY). The later one stays.
        """
        ours = self.topics.get(topic.id)
        newest = self.register_named(topic.name)
        if ours == topic and newest is ours:
            return None  # as nearly always: each node sends each other all of them, again and again
        packed = newest is not None and topic.name not in self.names
        if newest is not None and packed and newest.id == topic.id:
            ours = newest
        merged = merge_topics(ours, topic) if ours is not None else topic
        replaces = newest is None or rank(newest) < rank(merged)
        if newest is not None and newest.id != topic.id and not replaces:
            merged = closed(merged)
        if merged == ours:
            return None
        if newest is not None and packed:
            self._restore(newest)
        if newest is not None and newest.id != topic.id and replaces:
            self.topics[newest.id] = closed(newest)
        self.topics[topic.id] = merged
        self._used = None
        self._drop_decided(instance_of(topic))
        if merged.layout_known > FIRST_LAYOUT:
            self._drop_decided(Instance(topic.id, "", merged.layout_known))
        if replaces:
            self.names[topic.name] = topic.id
            self.replaced.pop(topic.id, None)
        if newest is not None and newest.id != topic.id:
            self._replace(newest.id if replaces else topic.id)
        register = self.register_named(topic.name)
        self.sums.replace(newest, register)
        if register is None or register.deleted:
            self.living.pop(topic.name, None)
            if register is not None and self.deleted.pack(register) is not None:
                self.unpackable.pop((b"", topic.name), None)
            self._note_deleted((b"", topic.name))
        else:
            self.living[topic.name] = register.id
            self._note_alive((b"", topic.name))
        return merged

    def _note_deleted(self, name: tuple[bytes, str]) -> None:
        if name not in self.unpackable:
            self.unpacked.setdefault(name)

    def _note_alive(self, name: tuple[bytes, str]) -> None:
        self.unpacked.pop(name, None)
        self.unpackable.pop(name, None)

    def _restore(self, register: Topic | Group) -> None:
        """Keep a packed register as it is, before it changes."""
        topic = register.topic if isinstance(register, Group) else b""
        self.deleted.remove(key_of(topic, register.name))
        self.sums.replace(None, register)
        self.unpacked[(topic, register.name)] = None
        if isinstance(register, Group):
            self.groups[register[:2]] = register
        else:
            self.topics[register.id] = register
            self.names[register.name] = register.id

    def pack(self, bucket: int) -> None:
        """Pack the deleted registers of a bucket."""
        entries: list[bytes] = []
        for register in self.sums.of_bucket(bucket):
            if not register.deleted:
                continue
            name = (register.topic if isinstance(register, Group) else b"", register.name)
            entry = self.deleted.pack(register)
            self.unpacked.pop(name, None)
            if entry is None:
                self.unpackable[name] = None
                continue
            entries.append(entry)
            self.sums.replace(register, None)
            if isinstance(register, Group):
                del self.groups[name]
            else:
                del self.topics[register.id], self.names[register.name]
        self.deleted.put(bucket, entries)

    def changed(self) -> None:
        """Count the names again, after packed registers were taken in."""
        self._used = None

    def crowded(self, most: int) -> int | None:
        """Return the bucket to pack next if more than ``most`` deleted registers are not packed; else None."""
        if len(self.unpacked) <= most:
            return None
        return self.deleted.index_of(key_of(*next(iter(self.unpacked))))

    def _replace(self, topic: bytes) -> None:
        """Note that a newer topic has the name, and forget the topic for which that has been so for the longest.

        Why: a program that deletes and creates one name again and again must not fill the memory.
        """
        self.replaced[topic] = None
        if len(self.replaced) > limits.REPLACED_TOPICS_MAX:
            oldest = next(iter(self.replaced))
            del self.replaced[oldest], self.topics[oldest]

    def undecided_voters(self, decisions: Iterable[Decision]) -> ClusterLayout | None:
        """Return a layout with other voters that one of these decisions has accepted, and that may be chosen."""
        layouts = [it.cluster for it in decisions if it.cluster is not None]
        return next((it for it in layouts if it.epoch != self.cluster.epoch and self.is_newer(it)), None)

    def is_newer(self, layout: ClusterLayout) -> bool:
        """Return True if a layout of the cluster is newer than ours.

        Two have one number only if a majority of the directories was lost; the later proposal stands then.
        """
        ours = self.cluster.layout
        return (layout.number, layout.made) > (ours.number, ours.made)

    def take_cluster(self, layout: ClusterLayout) -> bool:
        """Take over a layout of the cluster if it is newer than ours, and return True if it is."""
        if not self.is_newer(layout):
            return False
        # A register that a node has made which was not known can be packed from here on, and so has another digest.
        registers: list[Topic | Group] = [*self.registers(), *self.groups.values()]
        deleted = [register for register in registers if register.deleted]
        for register in deleted:
            self.sums.replace(register, None)
        self.cluster = Members(layout)
        self.deleted.know(self.cluster.names)
        for register in deleted:
            self.sums.replace(None, register)
        self.unpacked.update(self.unpackable)
        self.unpackable.clear()
        self._drop_decided(instance_of(layout))
        return True

    def register_of(self, instance: Instance) -> Topic | Group | ClusterLayout | None:
        """Return the newest register that an instance decides about. If it is no older, the outcome is known."""
        if not instance.topic and not instance.name:
            return self.cluster.layout
        if instance.topic and not instance.name:
            return self.topics.get(instance.topic)
        if instance.topic:
            return self.group(instance.topic, instance.name)
        return self.register_named(instance.name)

    def outcome_of(self, instance: Instance) -> Topic | Group | ClusterLayout | None:
        """Return the register that was chosen in an instance, or a later one; None if none is known.

        The outcome of a layout's instance is the register of its topic, which has that layout or a later one.
        """
        known = self.register_of(instance)
        if instance.topic and isinstance(known, Topic):
            return known if known.layout_known >= instance.number or known.deleted else None
        return known if known is not None and instance_of(known).number >= instance.number else None

    def take_decision(self, decision: Decision) -> bool:
        """Merge promises and acceptances of an undecided instance, and return True if that changed anything."""
        instance = decision.instance
        ours = self.decisions.get(instance)
        merged = merge_decisions(ours, decision) if ours is not None else decision
        if merged == ours or self.outcome_of(instance) is not None:
            return False
        if instance.topic and (instance.topic not in self.topics or self.is_deleted(instance.topic)):
            return False
        self.decisions[instance] = merged
        self._used = None
        return True

    def _drop_decided(self, last: Instance) -> None:
        """Drop the decisions up to an instance, because their outcome is known."""
        for instance in list(self.decisions.irange(last._replace(number=0), last)):
            del self.decisions[instance]

    def take_group(self, group: Group) -> Group | None:
        """Merge a group's register, and return the merged one if it changed anything, else None.

        One of an unknown topic is left out: the topic may be deleted. It is sent again with its topic, the topic first.
        """
        ours = self.group(group.topic, group.name)
        if ours == group:
            return None
        merged = merge_groups(ours or group, group)
        if group.topic not in self.topics or self.is_deleted(group.topic) or merged == ours:
            return None
        if ours is not None and group[:2] not in self.groups:
            self._restore(ours)
        self.groups[group[:2]] = merged
        more = (not merged.deleted) - (ours is not None and not ours.deleted)
        self.live_groups[group.topic] = self.live_groups.get(group.topic, 0) + more
        self.sums.replace(ours, merged)
        if merged.deleted:
            self._note_deleted(group[:2])
        else:
            self._note_alive(group[:2])
        self._used = None
        self._drop_decided(instance_of(merged))
        if merged.buried > (ours.buried if ours is not None else 0):  # a majority had another life
            for key in [key for key in self.registered_groups if (key[0].topic, key[1]) == merged[:2]]:
                del self.registered_groups[key]
        return merged

    def drop_groups(self, topic: bytes) -> None:
        """Drop all groups of a deleted topic, because no client reads it any more."""
        self._used = None
        for key in self.group_keys(topic):
            self.sums.replace(self.groups.pop(key), None)
            self._note_alive(key)
        self.live_groups.pop(topic, None)
        self.deleted.drop(topic)
        for known in [known for known in self.registered_groups if known[0].topic == topic]:
            del self.registered_groups[known]
        for instance in list(self.decisions.irange(Instance(topic, "", 0), Instance(topic + b"\0", "", 0))):
            del self.decisions[instance]

    def check(self) -> None:
        self.cluster.check()
        assert len(self.topics) == len(self.names) + len(self.replaced), (
            "a topic is neither the newest nor replaced"
        )
        living = {
            topic.name: topic.id
            for topic in map(self.topics.__getitem__, self.names.values())
            if not topic.deleted
        }
        assert self.living == living, "a topic that is not deleted cannot be found by its name"
        assert len(self.replaced) <= limits.REPLACED_TOPICS_MAX, "too many replaced topics are remembered"
        self.sums.check((*self.registers(), *self.groups.values()))
        self.deleted.check()
        registers: list[Topic | Group] = [*self.registers(), *self.groups.values()]
        deleted = {(it.topic if isinstance(it, Group) else b"", it.name) for it in registers if it.deleted}
        assert {*self.unpacked, *self.unpackable} == deleted, (
            "a deleted register is not packed, and not noted"
        )
        assert not any(self.deleted.find(key_of_register(it)) for it in registers), (
            "a register is packed, too"
        )
        assert all(topic in self.topics and not self.is_deleted(topic) for topic in self.deleted.groups), (
            "packed groups outlived their topic"
        )
        counts = Counter(topic for (topic, _), register in self.groups.items() if not register.deleted)
        assert Counter(self.live_groups) == counts, "the groups of a topic are miscounted"
        for topic, group in self.groups:
            assert topic in self.topics, f"group {group!r} is of an unknown topic"
            assert not self.topics[topic].deleted, f"group {group!r} outlived its topic"
        for instance, decision in self.decisions.items():
            assert self.outcome_of(instance) is None, f"{instance} is decided"
            assert decision.promised >= decision.ballot, f"{instance}: accepted below what was promised"
            assert not instance.topic or instance.topic in self.topics, f"{instance} is of an unknown topic"
