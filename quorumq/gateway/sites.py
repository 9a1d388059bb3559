"""Requests that a browser sends for a page of another site, and their signs."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Scope

from quorumq.gateway.settings import Settings, is_loopback
from quorumq.wire.address import split_address

PRIVATE: Final = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Ends of names that the public DNS does not have (RFC 6761, 6762, 8375; .internal by ICANN)."""


def why_refused(scope: Scope, settings: Settings) -> tuple[int, str] | None:
    """Return the status and the text of a refusal if a page of another site sent the request; else None.

    A browser names the site of the page in a header, which other programs do not send. But if a site points its own
    name to the gateway (DNS rebinding), the browser takes both for one site. So Host must be a private name if requests
    need no token, and a loopback name if the gateway listens on loopback.
    """
    headers = {
        name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"origin", b"host")
    }
    host, site = headers.get(b"host", ""), headers.get(b"origin", "")
    public = urlsplit(settings.public_url).netloc
    name = _name_of(f"//{host}")
    if name is None:
        return 400, f"the header Host is {host[:100]!a}: send the gateway's host and port"
    if site and (_name_of(site) is None or urlsplit(site).netloc not in {host, public} - {""}):
        text = (
            f"this was sent by a page of another site ({site[:100]!a}): a gateway answers its own pages only"
        )
        return 403, text
    listens, _ = split_address(
        settings.listen.removesuffix(":0") + (":1" if settings.listen.endswith(":0") else "")
    )
    if not host or host == public:
        return None
    if is_loopback(listens) and not is_loopback(name):
        text = f"this gateway is for its own machine, and was asked as {host[:100]!a}: give --public-url behind a proxy"
        return 403, text
    if not settings.clients_file and not is_private(name):
        text = f"without a clients file this gateway has no public name, and was asked as {host[:100]!a}"
        return 403, f"{text}: give --public-url, or ask it by its address"
    return None


def _name_of(url: str) -> str | None:
    """Return the host in a URL, "" if it has none; None if it is no URL."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return None


def is_private(name: str) -> bool:
    """Return True for names that the public DNS cannot have: an address, or a name within a network."""
    name = name.rstrip(".").lower()
    try:
        return bool(ip_address(name))
    except ValueError:
        return "." not in name or name.endswith(PRIVATE)
