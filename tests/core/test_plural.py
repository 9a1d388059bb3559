"""Counts with their nouns."""

from __future__ import annotations

import pytest

from quorumq.core.messages.client import RequestRefused
from quorumq.core.values.printable import plural
from tests.core.steps import with_messages


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 deliveries"), (1, "1 delivery"), (2, "2 deliveries"), (1500, "1,500 deliveries")],
)
def test_a_noun_goes_with_its_count(count: int, said: str) -> None:
    assert plural(count, "delivery", "deliveries") == said
    assert plural(count, "step") == f"{count:,} step{'' if count == 1 else 's'}"


def test_a_refusal_speaks_of_one_partition_as_one() -> None:
    cluster = with_messages()
    with pytest.raises(RequestRefused, match="'jobs' has 1 partition: there is no 7"):
        cluster.nodes["a"].catalogue.partition_named("jobs", 7)
