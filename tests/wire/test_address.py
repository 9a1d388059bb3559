"""Addresses as people write them: one rule for files, command lines and programs."""

from __future__ import annotations

import pytest

from quorumq.core.values.errors import UsageError
from quorumq.wire.address import split_address


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("h:1", ("h", 1)),
        ("127.0.0.1:7401", ("127.0.0.1", 7401)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
        ("[::1]:7401", ("::1", 7401)),
    ],
)
def test_addresses(text: str, location: tuple[str, int]) -> None:
    assert split_address(text) == location


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be host:port"),
        ("host", "must be host:port"),
        ("host:", "must be host:port"),
        (":7", "must be host:port"),
        ("[]:7", "must be host:port"),
        ("host:0", "from 1 to 65535"),
        ("host:65536", "from 1 to 65535"),
        ("host:port", "from 1 to 65535"),
        ("host:-1", "from 1 to 65535"),
        ("host:\u0663", "from 1 to 65535"),
        ("::1:7401", "brackets"),
        (f"{'x' * 64}:7401", "labels"),
    ],
)
def test_an_invalid_address_is_refused_with_advice(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        split_address(text, name="listen")
    assert str(raised.value).startswith(f"listen = {text!r}: ")
