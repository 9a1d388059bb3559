"""Addresses of nodes as people write them: in files, on command lines, in programs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from quorumq.core.values.addresses import split_address as split_address
from quorumq.core.values.errors import UsageError

NODES_VARIABLE: Final = "QUORUMQ_NODES"
"""The environment variable that has addresses of nodes if the program does not give them."""


def names_of_nodes(addresses: object) -> list[str]:
    """Return the addresses that a program gave; those of the environment if it gave None. One text may have several.

    Raises:
        UsageError: an address is no text.
    """
    given = os.environ.get(NODES_VARIABLE, "") if addresses is None else addresses
    if isinstance(given, str):
        return given.replace(",", " ").split()
    names: list[str] = []
    for one in given if isinstance(given, Iterable) else [given]:
        if not isinstance(one, str):
            raise UsageError(f"address = {one!r}: must be text, host:port, such as '127.0.0.1:7401'")
        names.append(one)
    return names
