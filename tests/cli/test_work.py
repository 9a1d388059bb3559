"""`quorumq work`: what it imports. What the pool does is in tests/client/test_work.py."""

from __future__ import annotations

import json

import pytest

from quorumq.cli.work import named
from quorumq.core.errors import UsageError


def test_what_cannot_be_imported_is_named() -> None:
    assert named("TimeoutError") is TimeoutError
    assert named("json:JSONDecodeError") is json.JSONDecodeError
    with pytest.raises(UsageError, match="'nowhere:f' cannot be imported"):
        named("nowhere:f")
    with pytest.raises(UsageError, match="'json:nothing' is not there"):
        named("json:nothing")
