"""Names of messages, and receipts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client import HoldLost, MessageId
from quorumq.core.values.types import PartitionId, ProducerId
from tests.client.fake import connected, fake_cluster

NODES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32)
BITS = st.integers(0, (1 << 64) - 1)


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 1023),
    NODES,
    BITS,
    BITS,
    BITS,
    st.integers(0, 1 << 62),
)
def test_an_id_is_read_back(
    topic: bytes, number: int, node: str, n: int, nonce: int, k: int, seq: int
) -> None:
    name = MessageId(PartitionId(topic, number), ProducerId(node, n, nonce, k), seq)
    assert MessageId.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "", "jobs/0/a.1.2.3/4", "00/0/a.1.0000000000000002.3/4", "x" * 500,
        f"{32 * '0'}/0/a.1.{16 * '0'}.3/{1 << 64}", f"{32 * '0'}/0/a.1.{16 * '0'}.3/{5000 * '1'}",
    ],
)  # fmt: skip
def test_a_text_that_is_no_id_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        MessageId.parse(text)


@pytest.mark.parametrize("late", ["reject", "dead_letter", "extend"])
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("ack", r"was acked before \(ACKED\): that is final, and this did nothing"),
        ("reject", "was rejected before, which ended its hold"),
        ("dead_letter", "was made a dead letter before, which ended its hold"),
    ],
)
async def test_settling_it_again_says_what_was_done_before(first: str, late: str, said: str) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        name = await client.publish("jobs", b"x")
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        await getattr(message, first)()
        outcome = message.outcome
        if late == first:
            await getattr(message, late)()  # done twice, it is done once
            return
        with pytest.raises(HoldLost, match=rf"{name.producer_id}\[0\] of 'jobs' {said}"):
            await getattr(message, late)()
        assert message.outcome is outcome
