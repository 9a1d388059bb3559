"""Receipts as bytes that only this cluster can have made.

A delivery gives the client a receipt, and any node of the cluster takes it back: the receipt names its hold, so nodes
need no table of receipts. A keyed digest over the bytes keeps a client from naming a hold that was never its own.
The key is a secret of the cluster. If there are several, the key number says which one it is.

    format 01 | key number | digest, 16 bytes | CBOR of the Receipt

Promise: `open_receipt` returns only receipts that `signature` signed under one of its keys, and raises `BadReceipt`,
never anything else, for all other bytes. `read_receipt` verifies nothing: it is for clients, who have
no secret. If they send wrong bytes, the node refuses them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from quorumq.core.messages import FetchReply, ReceiptPart, RemoteFetchReply, Slice
from quorumq.core.values.errors import BadReceipt
from quorumq.core.values.types import DERIVED, NAMED, ProducerId, Receipt, Span
from quorumq.wire import cbor
from quorumq.wire.bounds import SIGNED_BYTES_MAX
from quorumq.wire.cbor import BadValue
from quorumq.wire.values import (
    SIGNED_FORMAT,
    SIGNED_HEAD_BYTES,
    SignedNamed,
    WireSlice,
    encode_value,
    read_signed,
)

DIGEST_BYTES: Final = 16
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64

_PERSON: Final = b"quorumq receipt"
_NUMBER: Final = b"quorumq key"
_SESSION: Final = b"quorumq session"

assert SIGNED_HEAD_BYTES == 2 + DIGEST_BYTES


def _digest(secret: bytes, key: int, encoded: bytes) -> bytes:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"the cluster secret has {len(secret)} bytes: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are needed"
        )
    digest = hashlib.blake2b(
        bytes((SIGNED_FORMAT, key)), digest_size=DIGEST_BYTES, key=secret, person=_PERSON
    )
    digest.update(encoded)
    return digest.digest()


def key_number(secret: bytes) -> int:
    """Return the number of a secret in receipts, 0 to 255: the same on every node that has it, in any order."""
    return hashlib.blake2b(secret, digest_size=1, person=_NUMBER).digest()[0]


def signature(receipt: Receipt, *, secret: bytes, key: int = 0) -> bytes:
    """Return ``receipt`` as signed bytes for a client."""
    encoded = encode_value(receipt)
    return b"".join((bytes((SIGNED_FORMAT, key)), _digest(secret, key, encoded), encoded))


def open_receipt(data: bytes, *, keys: Mapping[int, bytes]) -> Receipt:
    """Return the receipt that ``data`` signs; BadReceipt if this cluster did not sign it, or it was changed."""
    if not SIGNED_HEAD_BYTES < len(data) <= SIGNED_BYTES_MAX or data[0] != SIGNED_FORMAT:
        raise BadReceipt(f"not a receipt ({cbor.shown(data)}): send back the bytes of the delivery unchanged")
    secret = keys.get(data[1])
    if secret is None:
        raise BadReceipt(f"the receipt is signed with key number {data[1]}, which this cluster does not have")
    encoded = data[SIGNED_HEAD_BYTES:]
    if not hmac.compare_digest(_digest(secret, data[1], encoded), data[2:SIGNED_HEAD_BYTES]):
        raise BadReceipt(
            "the receipt does not verify: it was altered, or is from a cluster with another secret"
        )
    try:
        return read_signed(data)
    except BadValue as exc:  # signed by us, in a way that this version does not read
        raise BadReceipt(f"the receipt was signed by another version of quorumq: {exc}") from None


def read_receipt(data: bytes) -> Receipt:
    """Read a signed receipt, unverified: clients need its span, group and token. BadReceipt if it is none."""
    try:
        return read_signed(data)
    except BadValue as exc:
        raise BadReceipt(str(exc)) from None


def open_items(items: Iterable[SignedNamed], *, keys: Mapping[int, bytes]) -> tuple[ReceiptPart, ...]:
    """Return the node's view of items that a client named: every receipt opened, every span within its receipt.

    If an item has no spans, all of its receipt's are meant.

    Raises:
        BadReceipt: a receipt does not verify, or a span is not within its receipt. Names the item; none counts.
    """
    opened: list[ReceiptPart] = []
    for index, item in enumerate(items):
        try:
            receipt = open_receipt(item.signed, keys=keys)
        except BadReceipt as exc:
            raise BadReceipt(f"item {index}: {exc}") from None
        for span in item.spans:
            if not _within(span, receipt.span):
                raise BadReceipt(
                    f"item {index}: {span} is not within its receipt, which is for {receipt.span}"
                )
        opened.append(ReceiptPart(receipt, item.spans or (receipt.span,)))
    return tuple(opened)


def sign_session(producer_id: ProducerId, *, secret: bytes, key: int) -> bytes:
    """Return the signature of a session, which shows that a client got it: key number | digest, 16 bytes."""
    digest = hashlib.blake2b(
        encode_value(producer_id), digest_size=DIGEST_BYTES, key=secret, person=_SESSION, salt=bytes((key,))
    )
    return bytes((key,)) + digest.digest()


def check_session(producer_id: ProducerId, signature: bytes, *, keys: Mapping[int, bytes]) -> None:
    """Refuse a client if it did not get the session: it would take another producer's numbers, or end them.

    Raises:
        BadReceipt: the session is another client's, or the producer id is no session's. Names the remedy.
    """
    if producer_id.node in (DERIVED, NAMED):
        raise BadReceipt(
            f"{producer_id.node}.{producer_id.n}.{producer_id.k} is no session, but the producer id of messages that "
            "are derived or named: any client publishes under it, and none closes it"
        )
    secret = keys.get(signature[0]) if signature else None
    if secret is None or not hmac.compare_digest(
        sign_session(producer_id, secret=secret, key=signature[0]), signature
    ):
        raise BadReceipt(
            f"session {producer_id.node}.{producer_id.n}.{producer_id.k} is not this client's: send the signature "
            "that came with the session, or open another one"
        )


def _within(span: Span, whole: Span) -> bool:
    return span.producer_id == whole.producer_id and whole.start <= span.start and span.stop <= whole.stop


def sign_slices(slices: tuple[Slice, ...], *, secret: bytes, key: int = 0) -> tuple[Slice, ...]:
    """Return ``slices`` with every delivery's receipt signed. The node's shell does this before it encodes them.

    If another node sent a slice, it is signed already.
    """
    return tuple(
        part
        if isinstance(part, WireSlice)
        else part._replace(
            deliveries=tuple(
                delivery._replace(signed=signature(delivery.receipt, secret=secret, key=key))
                for delivery in part.deliveries
            )
        )
        for part in slices
    )


Fetched = TypeVar("Fetched", FetchReply, RemoteFetchReply)


def sign_fetched(fetched: Fetched, *, secret: bytes, key: int = 0) -> Fetched:
    """Return ``fetched`` with every delivery's receipt signed."""
    return fetched._replace(slices=sign_slices(fetched.slices, secret=secret, key=key))
