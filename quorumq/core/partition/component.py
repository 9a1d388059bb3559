"""Components that work on the tables of one partition."""

from __future__ import annotations

from quorumq.core.partition.batches import Batches
from quorumq.core.partition.views import Views


class PartitionComponent:
    """Has the batches of the partition, its groups, and the state that all replicas of the node share."""

    __slots__ = ("batches", "node", "views")

    def __init__(self, batches: Batches, views: Views) -> None:
        self.batches = batches
        self.views = views
        self.node = batches.node
