"""Requests that a browser sends for a page of another site, and their signs."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import Scope

from quorumq.gateway.settings import Settings, is_loopback
from quorumq.wire.address import split_address


def why_foreign(scope: Scope, settings: Settings) -> str:
    """Return why a request comes from a page of another site, or "".

    A browser names the site of the page in a header, which other programs do not send. If only its own machine
    reaches a gateway, a Host of another name is a site whose name was made to lead here.
    """
    headers = {
        name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"origin", b"host")
    }
    host = headers.get(b"host", "")
    hosts = {host, urlsplit(settings.public_url).netloc} - {""}
    site = headers.get(b"origin", "")
    if site and urlsplit(site).netloc not in hosts:
        return f"this was sent by a page of another site ({site[:100]}): a gateway answers its own pages only"
    name = urlsplit(f"//{host}").hostname or ""
    listens, _ = split_address(
        settings.listen.removesuffix(":0") + (":1" if settings.listen.endswith(":0") else "")
    )
    if (
        host
        and is_loopback(listens)
        and not is_loopback(name)
        and host != urlsplit(settings.public_url).netloc
    ):
        return f"this gateway is for its own machine, and was asked as {host[:100]}: give --public-url behind a proxy"
    return ""
