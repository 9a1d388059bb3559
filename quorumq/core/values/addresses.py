"""Addresses of nodes, "host:port": one rule for files, command lines, programs and the list of members."""

from __future__ import annotations

from typing import Final

from quorumq.core.values.errors import UsageError

ADDRESS_CHARS_MAX: Final = 262
SHOWN_CHARS: Final = 300
"""Characters of a wrong address that its error shows."""


def split_address(address: str, *, name: str = "address") -> tuple[str, int]:
    """Return host and port of "host:port", IPv6 in brackets; UsageError, about ``name``, if it is none."""
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
    elif not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= 65_535:
        problem = problem or "must be host:port, and the port a number from 1 to 65535"
    if len(address) > ADDRESS_CHARS_MAX:
        problem = problem or f"it has {len(address)} characters, and may have {ADDRESS_CHARS_MAX}"
    elif not host.isprintable() or " " in host:
        problem = problem or "the host is not a name: it has blanks, or characters that cannot be printed"
    try:
        host.encode("idna")
    except UnicodeError:
        problem = problem or "the host is not a name: its labels have 1 to 63 characters"
    if problem:
        raise UsageError(f"{name} = {address[:SHOWN_CHARS]!r}: {problem}")
    return host, int(port)
