"""Topic registers: what they may say (docs/protocol.md, "settings")."""

from __future__ import annotations

import math

import pytest

from quorumq.core import limits
from quorumq.core.messages import CreateTopic
from quorumq.core.topics import check_topic_request

NODES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"retention_s": -1.0}, "retention_s is -1.0 s"),
        ({"retention_s": math.nan}, "retention_s is nan s"),
        ({"ttl_s": limits.TOPIC_TIME_MAX_S * 2}, "ttl_s is"),
        ({"backoff": (1.0, -2.0)}, "a step of -2.0 s"),
        ({"backoff": (limits.BACKOFF_MAX_S + 1,)}, "each must be from 0 to"),
        ({"backoff": (1.0,) * (limits.BACKOFF_STEPS_MAX + 1)}, "backoff has 33 steps"),
        ({"max_deliveries": 0}, "max_deliveries is 0"),
        ({"durability": "raid"}, "durability is 'raid'"),
        ({"partitions": limits.PARTITIONS_MAX + 1}, "partitions is 1025"),
        ({"rf": 5}, "rf is 5"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    assert named in check_topic_request(CreateTopic("jobs", **settings), NODES)  # type: ignore[arg-type]


def test_what_is_within_bounds_is_taken() -> None:
    request = CreateTopic("jobs", retention_s=limits.TOPIC_TIME_MAX_S, ttl_s=0.5, backoff=(0.0, 1.0, 600.0))
    assert check_topic_request(request, NODES) == ""
