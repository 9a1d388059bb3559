"""Limits of one request of a client, checked before anything is done for it.

These limits are well below those of a frame: a request has to fit one also in its longer forms for the peers and for
the journal. Between nodes each record of a dead letter has its cause in it, so a cause counts once for each of its
spans.
"""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.errors import Code, PeerError, QuorumqError, TooLarge
from quorumq.core.values.patterns import is_pattern
from quorumq.wire import cbor
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import TYPE_OF
from quorumq.wire.frames import Frame


def check_header(header: bytes | memoryview) -> None:
    """Raise PeerError if a request takes long to read because of its bytes or its items."""
    size = len(header)
    if size > limits.CLIENT_HEADER_BYTES_MAX:
        raise PeerError(
            f"a request with a header of {size} bytes: at most {limits.CLIENT_HEADER_BYTES_MAX} are allowed"
        )
    if cbor.takes_long(header):
        raise PeerError(
            f"a request with a header of more than {limits.CLIENT_HEADER_ITEMS_MAX} items in {size} bytes: "
            "name less at once, in several requests"
        )


def check_request(message: Any) -> None:
    """Raise TooLarge, with the limit and the remedy, if a request asks for too much."""
    if isinstance(message, m.Metadata | m.Fetch):
        _limit(len(message.topics), limits.NAMES_PER_REQUEST_MAX, "names of topics")
        _limit(sum(map(is_pattern, message.topics)), limits.PATTERNS_PER_REQUEST_MAX, "patterns of names")
        if isinstance(message, m.Fetch):
            _limit(len(message.partitions), limits.PARTITIONS_MAX, "partitions")
    elif isinstance(message, m.RedriveRequest):
        _limit(len(message.entries), limits.SPANS_SETTLED_MAX, "dead letters")
    elif isinstance(message, m.CloseSession):
        _limit(len(message.partitions), limits.PARTITIONS_MAX, "partitions")
    elif isinstance(message, m.PurgeRequest):
        _limit(len(message.spans), limits.SPANS_SETTLED_MAX, "spans")
    elif isinstance(message, m.SETTLING):
        spans = sum([len(item.spans) or 1 for item in message.items])
        _limit(spans, limits.SPANS_SETTLED_MAX, "spans")
        if isinstance(message, m.RejectRequest) and message.death is not None:
            size = message.death.text_bytes
            if size > limits.DEATH_BYTES_MAX:
                raise TooLarge(
                    f"a dead letter with {size} bytes of text: at most {limits.DEATH_BYTES_MAX}; cut it"
                )
            if spans > 1 and spans * size > limits.DEATHS_BYTES_MAX:
                raise TooLarge(
                    f"a dead letter with {size} bytes of text for {spans} spans: at most {limits.DEATHS_BYTES_MAX} "
                    "in all; send fewer deliveries at once"
                )


def _limit(count: int, most: int, noun: str) -> None:
    if count > most:
        raise TooLarge(f"{count} {noun}: at most {most} at once; send several requests")


def oversize(frame: Frame) -> m.Failed | None:
    """Return the answer if a well-formed PUBLISH was refused only for its size, else None."""
    try:
        data = cbor.load(frame.header)
        if not isinstance(data, tuple) or len(data) < 4 or data[0] != TYPE_OF[m.Publish]:
            return None
        batch = cbor.load(data[3], "a batch header")
        ends = memoryview(batch[5]).cast("B")
        sizes = [int.from_bytes(ends[at : at + 4], "little") for at in range(0, len(ends) - len(ends) % 4, 4)]
        largest = max((after - before for before, after in zip([0, *sizes], sizes, strict=False)), default=0)
    except (BadValue, QuorumqError, TypeError, IndexError, ValueError):
        return None
    if largest > limits.MESSAGE_BYTES_MAX:
        detail = f"a message of {largest} bytes: at most {limits.MESSAGE_BYTES_MAX}, key and headers included"
        return m.Failed(Code.TOO_LARGE, detail)
    if sizes and sizes[-1] > limits.BATCH_BYTES_MAX:
        detail = f"a batch of {sizes[-1]} bytes: at most {limits.BATCH_BYTES_MAX}; send it as several"
        return m.Failed(Code.TOO_LARGE, detail)
    return None
