"""Names in a change for the state in which its client saw a topic or a group, so that it undoes nothing later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.types import STAMP_ZERO, Group, Topic


def as_seen(request: Any, topic: Topic, groups: Iterable[Group] = ()) -> Any:
    """Return a change of a topic or a group with the id, and the stamp, generation or epoch, that it has now.

    A creation of a group names the topic alone: its generation is that of a deletion, which a refusal says.

    Args:
        groups: groups as the same answer has them.
    """
    if isinstance(request, m.AlterTopic):
        return request._replace(seen=m.TopicSeen(topic.id, topic.stamp, topic.layout_number))
    request = request._replace(id=topic.id)
    if isinstance(request, m.MovePartition):
        there = isinstance(request.partition, int) and 0 <= request.partition < topic.partitions
        return request._replace(epoch=topic.epoch_of(request.partition)) if there else request
    if isinstance(request, m.SetGroup) and not request.rewind:
        return request
    changes_setting = isinstance(request, m.PauseGroup | m.LimitGroup)
    if changes_setting:
        # The node may not know a group yet that others have paused through other nodes.
        request = request._replace(seen=STAMP_ZERO)
    for group in groups:
        if (group.topic, group.name) == (topic.id, source_of(request.group)):
            request = request._replace(generation=group.generation)
            if changes_setting:
                setting = group.pause if isinstance(request, m.PauseGroup) else group.limit
                request = request._replace(seen=setting.stamp)
    return request
