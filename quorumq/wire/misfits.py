"""The values of a message that its encoder cannot write. They are sought when it has failed: it checks none itself."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Final

from quorumq.wire.values import hints_of

SHOWN_CHARS: Final = 60
"""Characters of a value in an error."""

INTEGERS: Final = range(-(1 << 64), 1 << 64)
"""Integers that can be written."""


def misfits(message: Any) -> Iterator[str]:
    """Yield the fields of a message whose values do not fit their types, each with its value and the rule."""
    hints = hints_of(type(message))
    for field, value in message._asdict().items():
        if rule := rule_broken(hints[field], value):
            shown = "secret" if field == "token" else repr(value)[:SHOWN_CHARS]
            yield f"{field} is {shown}: it must be {rule}"


def rule_broken(hint: Any, value: Any) -> str:
    """Return the rule for values of type ``hint`` if the given one breaks it, else ""."""
    args = typing.get_args(hint)
    if type(None) in args:
        inner = next(arg for arg in args if arg is not type(None))
        return "" if value is None else rule_broken(inner, value)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return ""
    if hint is int:
        return "" if isinstance(value, int) and value in INTEGERS else "an integer of at most 64 bits"
    if hint is float:
        return "" if isinstance(value, float | int) and abs(value) < 1e308 else "a number"
    if hint is str:
        is_text = isinstance(value, str) and not any(0xD800 <= ord(char) < 0xE000 for char in value)
        return "" if is_text else "text, and Unicode"
    if hint is bytes:
        return "" if isinstance(value, bytes | bytearray | memoryview) else "bytes"
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        if not isinstance(value, hint):
            return f"a {hint.__name__}"
        hints = hints_of(hint)
        return next(
            filter(None, (rule_broken(hints[field], value[at]) for at, field in enumerate(hint._fields))), ""
        )
    if typing.get_origin(hint) is tuple and args[-1] is Ellipsis:
        if not isinstance(value, tuple | list):
            return "a list"
        return next(filter(None, (rule_broken(args[0], one) for one in value)), "")
    return ""
