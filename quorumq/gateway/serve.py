"""The process of a gateway: HTTP on one address, until a signal stops it."""

from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio
from hypercorn.config import Config, Sockets
from hypercorn.trio import serve as serve_http

from quorumq.client.consume.work import only
from quorumq.gateway.app import make_app
from quorumq.gateway.connections import Connections, file_limit
from quorumq.gateway.gateway import Events, running
from quorumq.gateway.settings import Settings
from quorumq.gateway.shares import Shares
from quorumq.node.tls import Certificates

GRACE_S: Final = 10.0
"""Seconds that requests under way have to end once the gateway stops. Those that wait for messages end at once."""

KEEP_ALIVE_S: Final = 75.0
"""Seconds for which a connection without a request stays open: longer than SDKs and balancers keep theirs."""


UNREAD_S: Final = 30.0
"""Seconds after which a connection is closed whose client does not read its answer, or does not acknowledge it."""

QUEUE_PARTS: Final = 2
"""Parts of a body, of 64 KiB at most, that a connection reads before its request asks for them."""

LAST_S: Final = 5.0
"""Seconds after `GRACE_S` at which a process ends whose connections do not."""


log = logging.getLogger("quorumq.gateway")


class _Context(ssl.SSLContext):
    """Context whose connections show the certificate that is in the files when they begin."""

    certificates: Certificates

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.certificates.listening().wrap_bio(*args, **options)


class _Config(Config):
    """Configuration whose connections do not wait for ever for their clients; they inherit that from the listener."""

    connections: Connections
    shares: Shares

    def create_ssl_context(self) -> ssl.SSLContext | None:
        if not self.ssl_enabled:
            return None
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.certificates = Certificates(
            str(self.certfile), str(self.keyfile), "", Events(), self.alpn_protocols
        )
        return context

    def create_sockets(self) -> Sockets:
        sockets = super().create_sockets()
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
        for listener in (*sockets.secure_sockets, *sockets.insecure_sockets):
            if option is not None:
                listener.setsockopt(socket.IPPROTO_TCP, option, int(1000 * UNREAD_S))
        return sockets


def http_config(settings: Settings, shares: Shares) -> _Config:
    config = _Config()
    config.shares = shares
    config.connections = Connections(file_limit())
    config.bind = [settings.listen]
    config.alpn_protocols = ["http/1.1"]
    config.certfile = settings.tls_cert or None
    config.keyfile = settings.tls_key or None
    config.loglevel = "WARNING"
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = 1_000_000
    config.include_server_header = False
    config.backlog = 1024
    config.max_app_queue_size = QUEUE_PARTS
    return config


async def serve(settings: Settings, started: Callable[[str], None], stop: trio.Event) -> None:
    """Serve until ``stop`` is set; requests under way then have `GRACE_S` to end.

    Args:
        started: called with the URL once requests are taken.

    Raises:
        UsageError: a file cannot be used.
        OSError: the address cannot be listened at.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)  # files that were read again
    try:
        await _serve(settings, started, stop)
    except BaseExceptionGroup as group:  # nurseries here and in hypercorn wrap it
        raise only(group) from None


async def _serve(settings: Settings, started: Callable[[str], None], stop: trio.Event) -> None:
    async with running(settings) as gateway:
        config = http_config(settings, gateway.shares)

        async def stopped() -> None:
            await stop.wait()
            gateway.stopping.set()
            config.connections.stop()

        async def say(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(
                make_app(gateway),  # type: ignore[arg-type]
                config,
                shutdown_trigger=stopped,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(say)
            gc.collect()
            gc.freeze()  # modules live as long as the gateway: without them a collection is 2 ms, with them 60
            started(url)


@contextmanager
def ending(end: Callable[[int], object] = os._exit) -> Iterator[Callable[[float], None]]:
    """Yield a function that ends the process after some seconds, if the ``with`` has not ended before.

    Why: hypercorn shields its sends from cancellation. A client that does not read its answer would keep a process
    that is to stop, for as long as its kernel keeps the connection. The gateway has nothing that is lost with it.
    """
    timers: list[threading.Timer] = []

    def give_up() -> None:
        log.warning("the gateway ends while clients do not read their answers")
        end(0)

    def end_after(seconds: float) -> None:
        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timers.append(timer)
        timer.start()

    try:
        yield end_after
    finally:
        for timer in timers:
            timer.cancel()
