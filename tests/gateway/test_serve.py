"""The process of a gateway: its sockets, its start and its end."""

from __future__ import annotations

import signal
import socket
import time
from typing import Any

import pytest
import trio

pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")

from quorumq.gateway import serve as process
from quorumq.gateway.serve import ending, http_config, serve
from quorumq.gateway.settings import Settings
from tests.patience import PATIENCE_S


def test_connections_do_not_wait_for_ever_for_their_clients() -> None:
    (listener,) = (
        http_config(Settings(nodes=("a:1",), listen="127.0.0.1:0")).create_sockets().insecure_sockets
    )
    with listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            listener.setblocking(True)
            with listener.accept()[0] as accepted:
                timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout == 1000 * process.UNREAD_S


def test_a_process_ends_at_last_unless_it_has_ended_before() -> None:
    ends: list[int] = []
    with ending(ends.append) as end_after:
        end_after(3600)
    assert ends == []
    with ending(ends.append) as end_after:
        end_after(0)
        give_up = time.monotonic() + PATIENCE_S
        while not ends and time.monotonic() < give_up:
            time.sleep(0.001)
    assert ends == [0]


async def test_an_address_in_use_is_one_error_and_no_group() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            await serve(Settings(nodes=("a:1",), listen=listen), lambda url: None, trio.Event())


@pytest.mark.soak
@pytest.mark.e2e
def test_a_client_that_does_not_read_keeps_no_gateway_from_its_end(gateway_process: Any) -> None:
    url, gateway = gateway_process
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        client.settimeout(1)
        with pytest.raises(TimeoutError):  # the gateway reads no more, as it cannot write
            client.sendall(200_000 * request)
        began = time.monotonic()
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(process.GRACE_S + process.LAST_S + PATIENCE_S) == 0
        assert time.monotonic() - began < process.UNREAD_S
