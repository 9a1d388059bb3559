"""Names of messages, and receipts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client import MessageId
from quorumq.core.types import Origin, PartitionId

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
    name = MessageId(PartitionId(topic, number), Origin(node, n, nonce, k), seq)
    assert MessageId.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "jobs/0/a.1.2.3/4", "00/0/a.1.0000000000000002.3/4", "x" * 500])
def test_what_is_no_id_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        MessageId.parse(text)
