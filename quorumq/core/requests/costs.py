"""Highest cost of a client's request, as far as it is known before the request is looked at.

The unit is a thing looked at: a partition or a name, some two microseconds each. A request that is not here costs
little, or in proportion to its bytes. Within `limits.CHEAP` a request is served in the step that receives it; the
others wait for their turn (core/values/fairqueue.py). The cost need not be exact. An overrated request waits for
others, and an underrated one is served in fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.patterns import is_pattern

RUN: Final = 8
"""Cost of a run of messages to vote on, to release or to close."""
UNKNOWN: Final = 4
"""Cost of comparing one known name with an unknown one, to ask what was meant."""
PATTERN_SHARE: Final = 4
"""Number of names that a pattern is compared with at the cost of looking at one."""
GROUP: Final = 4
"""Cost of a group in an answer: it is compared with the client's rights, and encoded."""


def runs(count: int) -> int:
    """Return the cost of ``count`` runs. One step takes at most `limits.RUNS_PER_STEP` of them."""
    return RUN * min(count, limits.RUNS_PER_STEP)


def _of_fetch(catalogue: Catalogue, request: m.Fetch) -> int:
    topics, named = request.topics, runs(len(request.spans)) if request.spans else 0
    if len(topics) != 1 or topics[0] not in catalogue.living:
        return max(named, _of_several(catalogue, request))
    topic, group = catalogue.living[topics[0]], request.group.removesuffix(DEAD_SUFFIX)
    register = catalogue.groups.get((topic, group))
    if register is None and group == request.group:
        return limits.COSTLY_PER_STEP  # it makes the group, as SetGroup does
    if register is None or register.deleted:
        return limits.CHEAP + UNKNOWN * catalogue.live_groups.get(topic, 0)  # the answer has a hint
    return max(named, len(request.partitions) or len(catalogue.topics[topic].replicas))


def _of_several(catalogue: Catalogue, request: m.Fetch) -> int:
    """Return the cost of looking for the partitions that a FETCH of several topics reads."""
    topics = request.topics
    looked_at = _of_names(catalogue, topics)
    if looked_at >= limits.COSTLY_PER_STEP:
        return looked_at
    if any(map(is_pattern, topics)):
        topics = tuple(catalogue.living)
    return looked_at + sum(len(request.partitions) or catalogue.partitions_of(name) for name in topics)


def _of_names(catalogue: Catalogue, names: tuple[str, ...]) -> int:
    """Return the cost of looking for topics by names and patterns."""
    known = len(catalogue.living)
    patterns = sum(map(is_pattern, names)) if len(names) <= limits.CHEAP else len(names)
    if max(len(names), patterns * known) > limits.CHEAP:
        return max(limits.COSTLY_PER_STEP, patterns * known // PATTERN_SHARE)
    unknown = sum(name not in catalogue.living for name in names) - patterns
    return len(names) + patterns * known + unknown * UNKNOWN * min(known, limits.MEANT_MAX)


def _of_metadata(catalogue: Catalogue, request: m.Metadata) -> int:
    cost = _of_names(catalogue, request.topics or ("*",))
    if cost >= limits.COSTLY_PER_STEP:
        return cost
    named = [request.topics] if not any(map(is_pattern, request.topics or "*")) else [catalogue.living]
    ids = [catalogue.living[name] for names in named for name in names if name in catalogue.living]
    cost += sum(len(catalogue.topics[topic].replicas) for topic in ids)
    return cost + (GROUP * sum(catalogue.live_groups.get(topic, 0) for topic in ids) if request.groups else 0)


COSTS: Final[dict[type, Callable[[Catalogue, Any], int]]] = {
    m.Fetch: _of_fetch,
    m.Metadata: _of_metadata,
    m.FindName: lambda catalogue, request: RUN,
    m.CloseSession: lambda catalogue, request: runs(len(request.partitions)),
    m.DescribeGroups: lambda catalogue, request: sum(
        2 * catalogue.partitions_of(topic) for topic, _ in request.groups
    ),
    **dict.fromkeys(m.SETTLING, lambda catalogue, request: runs(len(request.items))),
    **dict.fromkeys(
        (m.StatusRequest, m.PeekRequest, m.ShowRequest, m.PurgeRequest, m.RedriveRequest, m.SetGroup,
         m.DeleteGroup, m.CreateTopic, m.AlterTopic, m.DeleteTopic, m.MovePartition, m.LabelsRequest, m.PauseGroup,
         m.LimitGroup, m.ChangeMembers),
        lambda catalogue, request: limits.COSTLY_PER_STEP,
    ),
}  # fmt: skip
