"""The messages in the data directory of a node that is stopped.

Why: after a disaster one directory may be all that is left of a cluster. This module reads it as a start of the node
does, with the node's own core, so acks, rewinds and deletions mean the same. If the directory is damaged, it reads each
message whose own checksum matches. It writes nothing. As in a node, the headers of all batches are in memory, but only
one payload at a time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quorumq.core.cluster.members import first_layout
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages import records as r
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.replica import Replica
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import NotFound, StorageError, UsageError
from quorumq.core.values.limits import HOLD_TIME_MAX_DEFAULT_S
from quorumq.core.values.types import STAMP_ZERO, BatchHeader, Kind, Now, PartitionId, ProducerId, Span, Topic
from quorumq.storage.disk import RealDisk
from quorumq.storage.salvage import read_directory
from quorumq.storage.scan import start_of
from quorumq.storage.segment import NAME_SUFFIX, segment_name
from quorumq.storage.segments import FoundBatch
from quorumq.wire.batch import Corrupt, Message, records_of

SETTLED = ("acked", "skipped", "purged")
"""States of a message that is left out if only the messages of one group are wanted."""


class Found(NamedTuple):
    """A message in a directory."""

    partition: PartitionId
    producer_id: ProducerId  # producer that numbered it
    seq: int  # its number
    published_ms: int  # time of its publish by the producer's clock, milliseconds since 1970
    message: Message | None  # the message; None if it cannot be read
    groups: dict[str, str]  # state in each group: open, acked, dead, skipped or purged
    problem: str = ""  # the reason if it cannot be read


class ReadOnlyDisk(RealDisk):
    """A directory that is only read. Others may read it meanwhile. If a node starts in it, the node is refused."""

    def lock(self) -> None:
        try:
            fd = self._open_lock(os.O_RDONLY)
        except FileNotFoundError:
            return  # a copy has no lock
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise StorageError(
                f"{self.directory} is in use by a node: stop it first, or read a copy of the directory"
            ) from None
        self._lock_fd = fd


class OfflineDirectory:
    """A data directory. If it is damaged, the rest of it is read. Close it, or use it as a context manager.

    The time of day in ``now`` decides if delays and TTLs are over.

    Raises:
        UsageError: it is no data directory.
        StorageError: it is in use or of a newer version, or no segment has a first record that can be read.
    """

    def __init__(self, path: str | os.PathLike[str], now: Now) -> None:
        segments = sorted(Path(path).glob(f"*{NAME_SUFFIX}"), reverse=True)
        if not segments:
            raise UsageError(f"{path} has no journal segment (*{NAME_SUFFIX}): give a node's data directory")
        start = next((first for first in map(start_of, segments) if first is not None), None)
        if start is None:
            raise StorageError(f"{path}: no segment begins with a record that can be read")
        self.node = start.node
        self.cluster_id = start.cluster_id
        self._disk = ReadOnlyDisk(path)
        read = read_directory(
            self._disk, node=start.node, cluster_id=start.cluster_id, new_directory_id=lambda: 1, salvage=True
        )
        # Damage besides the bodies of batches, "" if there is none. If there is any, records of acks may be lost, and
        # topics may be named by their ids.
        self.damage = read.damage
        self.notes = read.replay.notes  # other findings, in words, as a last write that was torn
        self._batches: dict[int, FoundBatch] = {}
        records: list[r.JournalRecord] = []
        for item in read.entries:
            if not isinstance(item, FoundBatch):
                records.append(item)
            elif isinstance(item.record, r.DeletedPage):
                records.append(item.record)
            elif not item.damaged or item.record.number not in self._batches:
                self._batches[item.record.number] = item
        try:
            self._core = self._build(records, now)
        except BaseException:
            self.close()
            raise

    def _build(self, records: list[r.JournalRecord], now: Now) -> NodeCore:
        """Build the node's core. If damage took the register of a topic, it gets a new one, with its id as the name."""
        known = {record.topic.id for record in records if isinstance(record, r.TopicPut)}
        sizes: dict[bytes, int] = {}
        for item in self._batches.values():
            assert isinstance(item.record, r.BatchStored), "pages are among the records"
            topic, number = item.record.batch.header.partition
            if topic not in known:
                sizes[topic] = max(sizes.get(topic, 0), number + 1)
        for topic, count in sorted(sizes.items()):
            replicas = ((self.node,),) * count
            records.append(r.TopicPut(Topic(topic, topic.hex(), 1, replicas, 1, STAMP_ZERO)))
        made = next((record for record in records if isinstance(record, r.ClusterMade)), None)
        layouts = [record.layout for record in records if isinstance(record, r.ClusterPut)]
        if made is not None and self.node not in made.nodes:  # it was added; the record may be lost
            layouts.append(first_layout(made.nodes, made.machines))
        config = NodeConfig(
            node=self.node,
            layout=max(layouts, default=None),
            nodes=(self.node,) if made is None else made.nodes,
            cluster_id=self.cluster_id,
            hold_time_max=HOLD_TIME_MAX_DEFAULT_S if made is None else made.hold_time_max,
            machines=() if made is None else made.machines,
        )
        # If batches overlap, the first has the message. A damaged one, which is last, has the rest.
        batches = sorted(self._batches.values(), key=lambda item: (item.damaged, item.record.number))
        return NodeCore(
            config,
            [*records, *(item.record for item in batches)],
            nonce=0,
            directory=1,
            now=now,
            rng=random.Random(0),
        )

    def __enter__(self) -> OfflineDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back."""
        self._disk.unlock()

    def topics(self) -> dict[str, Topic]:
        """Return the topics that are not deleted, by name."""
        return {topic.name: topic for topic in self._core.catalogue.topics_matching("*")}

    def messages(self, topic: str | None = None, group: str | None = None) -> Iterator[Found]:
        """Return every message whose payload is here, partition by partition, oldest first.

        Args:
            topic: name or id (hex) of the topic; if None, messages of all topics.
            group: if it is given, messages that are acked, skipped or purged for this group are left out.

        Raises:
            NotFound: there is no such topic or group. The call itself raises it.
            StorageError: the directory cannot be read any more. The iterator raises it.
        """
        topics = self.topics()
        if topic is not None:
            topics = {name: known for name, known in topics.items() if topic in (name, known.id.hex())}
        if not topics and topic is not None:
            names = ", ".join(sorted(self.topics())[:20]) or "none"
            raise NotFound(f"there is no topic {topic!r} in {self._disk}: there are {names}")
        ids = {known.id for known in topics.values()}
        replicas = [replica for key, replica in sorted(self._core.replicas.items()) if key.topic in ids]
        groups = dict.fromkeys(name for replica in replicas for name in replica.views.groups)
        if group is not None and group not in groups:
            names = ", ".join(name for name in groups if not name.endswith(DEAD_SUFFIX)) or "none"
            raise NotFound(f"no group {group!r} has read anything in {self._disk}: the groups are {names}")
        return self._messages(replicas, group)

    def _messages(self, replicas: list[Replica], group: str | None) -> Iterator[Found]:
        for replica in replicas:
            for _, number in replica.batches.order:
                header = replica.batches.stored[number].header
                for section in header.spans:
                    for part, slot in replica.batches.index.within(section):
                        if slot.number == number:
                            yield from self._part(replica, header, number, part, slot.shift, group)

    def _part(
        self, replica: Replica, header: BatchHeader, number: int, part: Span, shift: int, group: str | None
    ) -> Iterator[Found]:
        """Yield the messages of ``part``. Message ``seq`` is record ``seq + shift`` of a batch."""
        views = [
            view for name, view in sorted(replica.views.groups.items()) if not name.endswith(DEAD_SUFFIX)
        ]
        states = {view.name: states_of(view, part, header.published_ms) for view in views}
        for seq in range(part.start, part.stop):
            groups = {name: by_seq[seq - part.start] for name, by_seq in states.items()}
            if group is not None and groups.get(group) in SETTLED:
                continue
            message, problem = self._read(header, number, seq + shift)
            yield Found(
                replica.partition, part.producer_id, seq, header.published_ms, message, groups, problem
            )

    def _read(self, header: BatchHeader, number: int, index: int) -> tuple[Message | None, str]:
        """Return record ``index`` of a batch, or None and the reason if it cannot be read."""
        position = self._batches[number].position
        first, stop = header.end_of(index - 1), header.end_of(index)
        name = segment_name(position.segment)
        try:
            data = self._disk.read(name, position.offset + first, stop - first)
            return records_of(header, index, index + 1, data)[0], ""
        except Corrupt as error:
            return None, f"{name}: {error}"
        except OSError as error:
            if error.errno != errno.EIO:
                raise StorageError(f"{self._disk}/{name} cannot be read: {error}") from error
            return None, f"{name}, byte {position.offset + first}: {error.strerror}"


def states_of(view: GroupView, span: Span, published_ms: int) -> list[str]:
    """Return the state in a group of each message of ``span``, of one batch."""
    covered = view.covers(span.producer_id, published_ms)
    states = ["skipped"] * span.size  # OPEN and not readable: before the start of the generation
    for part, record in view.shown(span, covered):
        if record.kind != Kind.OPEN:
            states[part.start - span.start : part.stop - span.start] = [record.kind.name.lower()] * part.size
    for part, _ in view.readable(span, covered):
        states[part.start - span.start : part.stop - span.start] = ["open"] * part.size
    return states
