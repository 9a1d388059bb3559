"""Dead letters, made from the exceptions of handlers.

The death is recorded once, at the place that knows the failure best, and stays with the message. The fingerprint brings
equal failures together later: class, message and innermost frame, without parts that differ from message to
message (ids, numbers, addresses). So it is computed here, once, and never again by its readers.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from typing import Final

from quorumq.core.values.limits import DEATH_TEXT_MAX
from quorumq.core.values.types import STAMP_ZERO, Death

REASON: Final = "rejected"
"""Reason of the death: a consumer rejected the message."""

SHORT_CHARS_MAX: Final = 200
LINE_CHARS_MAX: Final = 1_000
"""Characters of an exception in a line of the log."""

_UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_HEX: Final = re.compile(
    r"\b(?:0x[0-9a-fA-F]+|(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,})\b"
)
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SPACE: Final = re.compile(r"\s+")


def make_death(
    error: BaseException | None,
    *,
    reason: str = "",
    attempt: int = 0,
    interruptions: int = 0,
    published_ms: int = 0,
    delivered_ms: int = 0,
    consumer: str = "",
    consumer_version: str = "",
    host: str = "",
) -> Death:
    """Return the dead letter of a message that a consumer gives up.

    Args:
        reason: in words; stands in front of the error's text, or alone.
        attempt: number of this delivery, 1 for the first.
        interruptions: number of earlier deliveries that were given back as interrupted.
        delivered_ms: time of this delivery; milliseconds since 1970, as all times here.

    Returns:
        a death without ballot, node and time, which the node fills in. ``first_delivered_ms`` is 0 if it is not
        known, as this is not the first delivery. Texts are cut in the middle to `DEATH_TEXT_MAX`.
    """
    error_class = class_name(error) if error is not None else ""
    text = text_of(error) if error is not None else ""
    message = ": ".join(part for part in (reason, text) if part)
    return Death(
        ballot=STAMP_ZERO,
        reason=REASON,
        error_class=clean(error_class)[:SHORT_CHARS_MAX],
        message=cut(clean(message)),
        stack=cut(clean(stack_of(error))) if error is not None else "",
        fingerprint=fingerprint(error_class, text or reason, top_frame(error)),
        attempts=attempt,
        published_ms=published_ms,
        first_delivered_ms=delivered_ms if attempt == 1 and not interruptions else 0,
        last_delivered_ms=delivered_ms,
        consumer=clean(consumer)[:SHORT_CHARS_MAX],
        consumer_version=clean(consumer_version)[:SHORT_CHARS_MAX],
        host=clean(host)[:SHORT_CHARS_MAX],
        interruptions=interruptions,
    )


def class_name(error: BaseException) -> str:
    """Return the full name of its class: "package.module.Class"; without "builtins."."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return ``str(error)``, or why there is none: an exception may fail to describe itself."""
    try:
        return str(error)
    except Exception as exc:
        return f"<{type(exc).__name__} in __str__>"


def line_of(error: BaseException) -> str:
    """Return ``repr(error)`` for a log: on one line, and cut. An exception may fail to describe itself here, too."""
    try:
        text = repr(error)
    except Exception as exc:
        text = f"{class_name(error)}: <{type(exc).__name__} in __repr__>"
    return " ".join(cut(text, LINE_CHARS_MAX).splitlines())


def stack_of(error: BaseException) -> str:
    """Return the traceback as Python prints it, causes included."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as exc:
        return f"<{type(exc).__name__} while formatting the traceback>"


def top_frame(error: BaseException | None) -> str:
    """Return "module:function" of the innermost frame; "" if the error was not raised.

    Without the line, which moves with every edit above it.
    """
    frame = ""
    walk = error.__traceback__ if error is not None else None
    while walk is not None:
        code = walk.tb_frame.f_code
        frame = f"{walk.tb_frame.f_globals.get('__name__', '?')}:{code.co_qualname}"
        walk = walk.tb_next
    return frame


def normalised(message: str) -> str:
    """Remove all that differs between equal failures from ``message``: uuids, hexadecimal or other numbers, spacing."""
    text = _UUID.sub("<uuid>", message)
    text = _HEX.sub("<hex>", text)
    text = _NUMBER.sub("<n>", text)
    return _SPACE.sub(" ", text).strip()


def fingerprint(error_class: str, message: str, frame: str) -> str:
    """Return 16 hexadecimal digits, equal for equal failures: BLAKE2b over class, normalised message and frame."""
    text = "\0".join((error_class, normalised(message[:DEATH_TEXT_MAX]), frame))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def cut(text: str, most: int = DEATH_TEXT_MAX) -> str:
    """Cut ``text`` to ``most`` characters: the middle is taken out, and the text says so."""
    if len(text) <= most:
        return text
    gap = f"\n… {len(text)} characters, cut here …\n"
    capacity = max(most - len(gap), 0)
    head = (capacity + 1) // 2
    return (text[:head] + gap + text[len(text) - (capacity - head) :])[:most]


def clean(text: str) -> str:
    """Make ``text`` writable as UTF-8: lone surrogates, as file names bring them, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()
