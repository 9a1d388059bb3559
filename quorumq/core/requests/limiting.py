"""Limits of deliveries on one node: the tokens of its groups, and the FETCHes that wait for them.

The voters decide (core/partition/replica.py). A coordinator asks for no more messages than there are tokens, so that
few rounds are lost, and no node is asked while there are none.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

from quorumq.core import messages as m
from quorumq.core.cluster.buckets import Bucket
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.values.latency import Latency
from quorumq.core.values.types import Group, NodeId, Now, PartitionId

APART_MIN_S: Final = 0.02
"""Seconds within which nodes wake after a token was added, at least."""


Parked = Collection[tuple[PartitionId, str]]
"""Partitions and groups for which FETCHes are parked on this node."""


class Limiting:
    """The limits of all groups on one node."""

    __slots__ = ("hold_times", "state")

    def __init__(self, state: NodeState, hold_times: Latency) -> None:
        self.state = state
        self.hold_times = hold_times

    def limit(self, register: Group, now: Now, parked: Parked) -> None:
        """Take over the limit of a group: this node's share is that of its replicas in all partitions of the topic."""
        replicas = self.state.catalogue.topics[register.topic].replicas
        mine, limit = sum(self.state.me in members for members in replicas), register.limited
        group = (register.topic, register.name)
        if limit is not None and mine:
            bucket = self.state.buckets.setdefault(group, Bucket(now.mono))
            bucket.alter(limit, mine / len(replicas), now.mono)
        else:
            self.state.buckets.pop(group, None)
        self.wake(*group, parked)

    def drop(self, topic: bytes) -> None:
        for key in [key for key in self.state.buckets if key[0] == topic]:
            del self.state.buckets[key]

    def spare(self, partition: PartitionId, group: str, now: Now, rng: random.Random) -> int | None:
        """Return the number of messages that the group's limit lets through now; None if it has no limit.

        If there are none, the FETCHes that are parked here are woken when there is a token. Nodes wake at different
        times, *because* all would lose if they asked for the same token at once.
        """
        bucket = self.state.bucket_of(partition.topic, group)
        if bucket is None:
            return None
        spare = bucket.spare(now.mono)
        if not spare and bucket.alarm <= now.mono:
            members = self.state.catalogue.members_of(partition)
            parked, _ = self.state.fetchers(partition, group, members, now)
            within = max(APART_MIN_S, 2 * (self.hold_times.p99() or 0.0))
            apart = rng.uniform(0.0, within) if len(parked) > 1 else 0.0
            bucket.alarm = bucket.ready_at(now.mono) + apart
            self.state.at(bucket.alarm, ("tokens", partition.topic, group))
        return spare

    def wake(self, topic: bytes, group: str, parked: Parked) -> None:
        """Wake the FETCHes of a limited group, in each partition of the topic."""
        bucket = self.state.bucket_of(topic, group)
        if bucket is not None:
            bucket.alarm = 0.0
        for number in range(self.state.catalogue.topics[topic].partitions):
            reader = (PartitionId(topic, number), group)
            if reader in parked:
                self.state.newly_ready[reader] = None

    def learn(
        self, sender: NodeId, partition: PartitionId, group: str, tokens: float | None, now: Now
    ) -> list[Effect]:
        """Note the tokens that the others have of a group's limit; ask ``sender`` for its register if we know no limit.

        Args:
            tokens: those of the member that completes a majority; None if too few have answered.
        """
        bucket = self.state.bucket_of(partition.topic, group)
        register = self.state.catalogue.groups.get((partition.topic, group))
        if bucket is None and register is not None and sender != self.state.me:
            return [Send(sender, m.PutGroup(0, register))]  # it answers with the newer one
        if bucket is not None and tokens is not None:
            bucket.learn(tokens, now.mono)
        return []
