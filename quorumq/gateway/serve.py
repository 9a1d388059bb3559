"""The process of a gateway: HTTP on one address, until a signal stops it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http

from quorumq.gateway.app import make_app
from quorumq.gateway.gateway import running
from quorumq.gateway.settings import Settings

GRACE_S: Final = 10.0
"""Seconds that requests under way have to end once the gateway stops. Those that wait for messages end at once."""

KEEP_ALIVE_S: Final = 75.0
"""Seconds for which a connection without a request stays open: longer than SDKs and balancers keep theirs."""


def http_config(settings: Settings) -> Config:
    """Return the configuration of the HTTP server."""
    config = Config()
    config.bind = [settings.listen]
    config.certfile = settings.tls_cert or None
    config.keyfile = settings.tls_key or None
    config.loglevel = "WARNING"
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = 1_000_000
    config.include_server_header = False
    config.backlog = 1024
    return config


async def serve(settings: Settings, started: Callable[[str], None], stop: trio.Event) -> None:
    """Serve until ``stop`` is set; requests under way then have `GRACE_S` to end.

    Args:
        settings: checked ones.
        started: called with the URL once requests are taken.
        stop: set to stop.

    Raises:
        UsageError: a file cannot be used.
        OSError: the address cannot be listened at.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    async with running(settings) as gateway:

        async def stopped() -> None:
            await stop.wait()
            gateway.stopping.set()

        async def say(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(
                make_app(gateway),  # type: ignore[arg-type]
                http_config(settings),
                shutdown_trigger=stopped,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(say)
            started(url)
