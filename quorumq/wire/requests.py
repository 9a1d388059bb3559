"""What one request of a client may ask for, checked before anything is done for it.

These limits are well below those of a frame: what a request grows into for the peers and for the journal has to fit
one, too. A record of a dead letter has its letter in it, so a letter counts once for each span that it is for.
"""

from __future__ import annotations

from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.errors import TooLarge
from quorumq.core.limits import (
    CLIENT_HEADER_BYTES_MAX,
    LETTER_BYTES_MAX,
    LETTERS_BYTES_MAX,
    NAMES_PER_REQUEST_MAX,
    SPANS_PER_REQUEST_MAX,
)

_SETTLING: Final = (m.AckRequest, m.RejectRequest, m.ExtendRequest, m.LeaveRequest)


def check_request(message: Any, header_bytes: int) -> None:
    """Refuse what asks for too much.

    Args:
        message: a request, decoded.
        header_bytes: of its frame.

    Raises:
        TooLarge: with what it asks for, the limit, and what to do.
    """
    if header_bytes > CLIENT_HEADER_BYTES_MAX:
        raise TooLarge(
            f"a request with a header of {header_bytes} bytes: at most {CLIENT_HEADER_BYTES_MAX}; ask for less at once"
        )
    if isinstance(message, m.Metadata):
        if len(message.topics) > NAMES_PER_REQUEST_MAX:
            raise TooLarge(
                f"{len(message.topics)} names of topics: at most {NAMES_PER_REQUEST_MAX} at once; send several requests"
            )
    elif isinstance(message, _SETTLING):
        spans = sum([len(item.spans) or 1 for item in message.items])
        if spans > SPANS_PER_REQUEST_MAX:
            raise TooLarge(f"{spans} spans: at most {SPANS_PER_REQUEST_MAX} at once; send several requests")
        if isinstance(message, m.RejectRequest) and message.letter is not None:
            size = message.letter.text_bytes
            if size > LETTER_BYTES_MAX:
                raise TooLarge(f"a dead letter with {size} bytes of text: at most {LETTER_BYTES_MAX}; cut it")
            if spans > 1 and spans * size > LETTERS_BYTES_MAX:
                raise TooLarge(
                    f"a dead letter with {size} bytes of text for {spans} spans: at most {LETTERS_BYTES_MAX} in all; "
                    "send fewer deliveries at once"
                )
