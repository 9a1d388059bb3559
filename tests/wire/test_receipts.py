"""receipts.py: only receipts signed by this cluster are opened (docs/protocol.md, section 1, "receipt")."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values.errors import BadReceipt
from quorumq.core.values.types import Receipt
from quorumq.wire.cbor import BadValue
from quorumq.wire.receipts import open_receipt, read_receipt, signature
from quorumq.wire.values import encode_value
from tests.wire.strategies import SECRET, receipts


@given(receipts, st.integers(0, 255))
def test_a_signed_receipt_is_opened_and_read(receipt: Receipt, key: int) -> None:
    signed = signature(receipt, secret=SECRET, key=key)
    assert open_receipt(signed, keys={key: SECRET}) == receipt
    assert read_receipt(signed) == receipt
    assert signed == signature(receipt, secret=SECRET, key=key), (
        "the same receipt is the same bytes everywhere"
    )


@given(receipts, st.data())
def test_a_changed_receipt_is_not_opened(receipt: Receipt, data: st.DataObject) -> None:
    signed = bytearray(signature(receipt, secret=SECRET))
    at = data.draw(st.integers(0, len(signed) - 1))
    signed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadReceipt):
        open_receipt(bytes(signed), keys={0: SECRET, 1: b"another secret of this cluster"})


@given(st.binary(max_size=120), st.booleans())
def test_any_other_bytes_are_a_bad_receipt(data: bytes, headed: bool) -> None:
    data = b"\x01\x00" + data if headed else data
    with pytest.raises(BadReceipt):
        open_receipt(data, keys={0: SECRET})
    with contextlib.suppress(BadReceipt):
        assert isinstance(read_receipt(data), Receipt)


@given(receipts)
def test_each_reason_is_told(receipt: Receipt) -> None:
    signed = signature(receipt, secret=SECRET, key=2)
    with pytest.raises(BadReceipt, match="key number 2, which this cluster does not have"):
        open_receipt(signed, keys={0: SECRET})
    with pytest.raises(BadReceipt, match="does not verify"):
        open_receipt(signed, keys={2: b"the secret of somebody else"})
    with pytest.raises(BadReceipt, match="not a receipt"):
        open_receipt(b"\x02" + signed[1:], keys={2: SECRET})
    with pytest.raises(BadReceipt, match="not a receipt"):
        open_receipt(signed + bytes(2000), keys={2: SECRET})


def test_a_signature_of_a_newer_version_is_distinguished_from_a_forgery() -> None:
    encoded = b"\x80"
    digest = hashlib.blake2b(
        b"\x01\x00" + encoded, digest_size=16, key=SECRET, person=b"quorumq receipt"
    ).digest()
    with pytest.raises(BadReceipt, match="another version"):
        open_receipt(b"\x01\x00" + digest + encoded, keys={0: SECRET})


@given(receipts)
def test_the_layout_is_the_documented_one(receipt: Receipt) -> None:
    encoded = encode_value(receipt)
    digest = hashlib.blake2b(
        b"\x01\x05" + encoded, digest_size=16, key=SECRET, person=b"quorumq receipt"
    ).digest()
    assert signature(receipt, secret=SECRET, key=5) == b"\x01\x05" + digest + encoded


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_secret_of_the_wrong_length_is_refused(size: int) -> None:
    from quorumq.core.values.types import Incarnation, Owner, Span, Stamp
    from tests.wire.strategies import PARTITION, PRODUCER_ID

    receipt = Receipt(
        PARTITION, "g", 0, 0, Span(PRODUCER_ID, 0, 1), Owner("b", Incarnation(1, 2), Stamp(3, "b"))
    )
    with pytest.raises(ValueError, match=f"secret has {size} bytes") as caught:
        signature(receipt, secret=bytes(size))
    assert not isinstance(caught.value, BadValue)
