"""Ports that are held: no other process gets them, and a node can listen there."""

from __future__ import annotations

import socket
import sys

import pytest

from quorumq.lab import ports
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import HeldPorts, free_ports
from quorumq.node.transport import listen


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a port be held")
def test_a_held_port_is_given_to_no_one_else_and_a_node_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldPorts(3)
    first = min(held.numbers)
    monkeypatch.setattr(ports, "PORTS", (first, first + 60))
    assert not {*free_ports(10)} & {*held.numbers}
    for _ in range(2):
        (sock,) = listen("127.0.0.1", first)
        sock.listen()
        client = socket.create_connection(("127.0.0.1", first))
        there, _ = sock.accept()
        for one in (there, client, sock):
            one.close()
    held.release()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # just closed connections linger there
        sock.bind(("127.0.0.1", held.numbers[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a port be held")
def test_a_cluster_holds_its_ports_until_it_is_closed() -> None:
    cluster = LocalCluster(3)
    port = int(cluster.addresses[0].rpartition(":")[2])
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("127.0.0.1", port))
    cluster.close()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
