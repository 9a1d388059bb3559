"""Addresses of nodes as people write them: in files, on command lines, in programs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from quorumq.core.values.errors import UsageError


def split_address(address: str, *, name: str = "address") -> tuple[str, int]:
    """Host and port of "host:port"; an IPv6 address stands in brackets.

    Args:
        name: name of the value, for the error.

    Raises:
        UsageError: it is something else; names it, and says what to write.
    """
    host, colon, port = address.rpartition(":")
    problem = ""
    if "://" in address:
        problem = "must be host:port, without a scheme, such as '127.0.0.1:7401'"
    elif "," in address:
        problem = "must be one host:port: give several as several"
    elif address.startswith("[") and address.endswith("]"):
        problem = f"the port is missing, as in '{address}:7401'"
    elif host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        problem = "an IPv6 address stands in brackets, such as '[::1]:7401'"
    if not colon or not host:
        problem = problem or "must be host:port, such as '127.0.0.1:7401'"
    elif not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        problem = problem or "must be host:port, and the port a number from 1 to 65535"
    try:
        host.encode("idna")
    except UnicodeError:
        problem = problem or "the host is not a name: its labels have 1 to 63 characters"
    if problem:
        raise UsageError(f"{name} = {address!r}: {problem}")
    return host, int(port)


NODES_VARIABLE: Final = "QUORUMQ_NODES"
"""The environment variable that has addresses of nodes if the program does not say them."""


def names_of_nodes(addresses: object) -> list[str]:
    """Return the addresses that a program gave, or the environment has: one, several, or several in one text.

    Raises:
        UsageError: there are none, or they are no text.
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
