"""Durability on a real process: nothing is confirmed before its fsync (docs/protocol.md, G1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.core import messages as m
from quorumq.wire.codec import signed_items
from tests.e2e.raw import Raw, publish
from tests.node.programs import address, until, write_config
from tests.patience import PATIENCE_S

HANGING = """
import os, runpy, sys, time
flag, sync = sys.argv.pop(1), os.fdatasync
def fdatasync(fd):
    while os.path.exists(flag):
        time.sleep(0.01)
    sync(fd)
os.fdatasync = fdatasync
runpy.run_module("quorumq.node", run_name="__main__", alter_sys=False)
"""


def test_nothing_is_confirmed_while_an_fsync_hangs(tmp_path: Path) -> None:
    path = write_config(tmp_path, auto_create_topics="true")
    path.write_text(path.read_text().replace('"true"', "true"))
    flag = tmp_path / "hang"
    command = [sys.executable, "-c", HANGING, str(flag), "--config", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(process, "node_started")
        with Raw(address(path)) as raw:
            topic = raw.topic("jobs", rf=1)
            producer_id = raw.session()
            assert isinstance(raw.publish(topic, producer_id, 0, [b"first"]), m.PublishReply)
            given = raw.take("jobs", "g", 1, hold_time=60.0)
            flag.touch()
            acked = raw.send(m.AckRequest(signed_items(given)))
            numbers = [raw.send(publish(topic, producer_id, seq, [b"x"])) for seq in range(1, 50)]
            raw.sock.settimeout(3.0)
            with pytest.raises(TimeoutError):
                raw.receive(acked)
            raw.sock.settimeout(PATIENCE_S)
            assert not raw.replies
            flag.unlink()
            for number in numbers:
                assert isinstance(raw.receive(number), m.PublishReply)
            assert isinstance(raw.receive(acked), m.SettleReply)
    finally:
        flag.unlink(missing_ok=True)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
