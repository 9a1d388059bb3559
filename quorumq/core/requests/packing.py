"""Packed registers of deleted names (core/cluster/deleted_names.py): those of peers, and the pages of this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorumq.core.cluster.deleted_names import KEY_BYTES, entries_of, key_of, topic_of
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages.diskroom import is_written
from quorumq.core.messages.effects import Effect, Persist
from quorumq.core.messages.records import DeletedNoted, DeletedPage
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.placing import drop_batches
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.types import Group, PartitionId, Topic


def keep_packed(
    state: NodeState, replicas: Mapping[PartitionId, Replica], packed: bytes
) -> tuple[list[Topic | Group], list[Effect]]:
    """Merge packed registers that a peer has, of names that nothing here knows: nothing is here that could end.

    Returns:
        the registers of names that are known here, in a register, an undecided instance or a replica's views: these
        are to be merged as any register is; and the effects of the others.
    """
    catalogue, deleted = state.catalogue, state.catalogue.deleted
    registers: list[Topic | Group] = []
    new: list[bytes] = []
    names: dict[bytes, str] | None = None
    for entry in entries_of(packed):
        key, topic = entry[:KEY_BYTES], topic_of(entry)
        alive = not topic or (topic in catalogue.topics and not catalogue.is_deleted(topic))
        if not alive or not deleted.is_sound(entry):
            continue
        known = catalogue.sums.register_at(key)
        merged = deleted.merged(entry) if known is None else entry
        if merged is None:
            continue
        if names is None:
            names = _without_register(state, replicas, dict.fromkeys(map(topic_of, entries_of(packed))))
        name = known.name if known is not None else names.get(key)
        if name is not None:
            registers.append(deleted.unpack(entry, name))
            continue
        index = deleted.index_of(key)
        deleted.put(index, (merged,))
        deleted.note(index, merged)
        new.append(merged)
    if not new:
        return registers, []
    catalogue.changed()
    return registers, [Persist((DeletedNoted(b"".join(new)),))]


def _without_register(
    state: NodeState, replicas: Mapping[PartitionId, Replica], topics: Iterable[bytes]
) -> dict[bytes, str]:
    """Return names by key, of topics and groups that are undecided, and of ``topics``' groups that have a view."""
    catalogue = state.catalogue
    names = {key_of(instance.topic, instance.name): instance.name for instance in catalogue.decisions}
    for topic in topics:
        known = catalogue.topics.get(topic)
        for number in range(known.partitions if known is not None else 0):
            replica = replicas.get(PartitionId(topic, number))
            for view in replica.views.with_holds() if replica is not None else ():
                name = source_of(view.name)
                if (topic, name) not in catalogue.groups:
                    names[key_of(topic, name)] = name
    return names


def pack_deleted(state: NodeState) -> list[Effect]:
    """Pack some deleted registers if there are many, or write a page of packed ones anew: one page at a time."""
    catalogue, deleted = state.catalogue, state.catalogue.deleted
    if not is_written(DeletedPage, state.disk_shortage):
        return []
    index = catalogue.crowded(state.config.deleted_unpacked)
    if index is not None:
        catalogue.pack(index)
    else:
        index = deleted.due()
    if index is None:
        return []
    page, replaced = deleted.save(index, state.next_batch)
    state.next_batch += 1
    return [Persist((page,)), *drop_batches(list(replaced))]
