"""The SDK of AWS, unchanged, with signed requests at a gateway beside three nodes with a clients file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quorumq.gateway.accesskeys import new_keys_file, read_keys, secret_access_key
from quorumq.lab.local import LocalCluster
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.wire.hello import TOKEN_VARIABLE
from tests.e2e.gateways import BOTO3, ROOT, GatewayProcess, gateways
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not (find_spec("hypercorn") and (find_spec("boto3") or BOTO3.is_dir())),
        reason="needs quorumq[gateway], and boto3, here or in build/boto3 (make soak)",
    ),
]

SHOP = "shop"


class Guarded(NamedTuple):
    """A cluster with a clients file, a gateway, and the secret of its client `SHOP`."""

    cluster: LocalCluster
    gateway: GatewayProcess
    secret: str

    def command(self, part: str) -> dict[str, Any]:
        """Return the arguments of a process that runs a part of boto3_calls.py."""
        program = [sys.executable, "-m", "tests.e2e.boto3_calls", part, self.gateway.url, SHOP, self.secret]
        path = os.pathsep.join([str(BOTO3), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"args": program, "env": {**os.environ, "PYTHONPATH": path}}


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    clients, keys = tmp_path / "clients.toml", tmp_path / "gateway.keys"
    boss, boss_entry = new_token("boss")
    gate, gate_entry = new_token("gate")
    _, shop_entry = new_token(SHOP)
    everything: dict[str, Any] = {"publish": ("*",), "consume": (("*", "*"),), "admin": ("*",)}
    entries = {
        "boss": Entry(boss_entry, **everything),
        "gate": Entry(gate_entry, on_behalf=("*",)),
        SHOP: Entry(shop_entry, **everything),
    }
    write_clients(clients, entries)
    new_keys_file(keys)
    secret = secret_access_key(read_keys(keys)[0], SHOP, shop_entry)
    monkeypatch.setenv(TOKEN_VARIABLE, boss)
    arguments: Sequence[str] = ("--clients", str(clients), "--keys", str(keys))
    with (
        LocalCluster(3, hold_time_max=30.0, settings={"clients_file": str(clients)}) as cluster,
        gateways(cluster, 1, arguments, gate) as (gateway,),
    ):
        yield Guarded(cluster, gateway, secret)


@pytest.mark.parametrize("part", ["actions", "signatures", "cancelled"])
def test_an_sdk_gets_what_it_gets_from_aws(guarded: Guarded, part: str) -> None:
    subprocess.run(**guarded.command(part), check=True, timeout=PATIENCE_S)


def test_repetitions_of_an_sdk_lose_no_message_while_node_and_gateway_are_killed(guarded: Guarded) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(**guarded.command("repeated"), **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() in ("5", "20"):
                guarded.gateway.end(signal.SIGKILL)
                guarded.cluster.kill("n1" if line.strip() == "5" else "n2")
                guarded.gateway.start()
            if line.strip() == "10":
                guarded.cluster.start("n1")
            if line.strip() == "39":
                break
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
