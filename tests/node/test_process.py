"""The process itself: refusals and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from quorumq.cli.probe import status_of
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.lab.ports import free_ports
from quorumq.node import serve
from quorumq.node.node import EXIT_BUG, EXIT_REFUSED, EXIT_STORAGE
from quorumq.node.reread import ConfigFile
from tests import patience
from tests.e2e.raw import Raw, size_of
from tests.node.programs import address, start, until, write_config
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


def ends(path: Path, *options: str) -> tuple[int, str]:
    process = start(path, *options)
    _, text = process.communicate(timeout=PATIENCE_S)
    return process.returncode, text


@contextmanager
def running(
    path: Path, word: str = "node_started", files: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node, once there is a word in its log, and that line; in the end it is stopped."""
    process = start(path, files=files)
    try:
        yield process, until(process, word)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_a_bad_configuration_is_refused_with_all_its_mistakes(tmp_path: Path) -> None:
    code, text = ends(write_config(tmp_path, hold_time_mx=5, connections_max=0))
    assert code == 78
    assert "did you mean 'hold_time_max'?" in text
    assert "connections_max = 0" in text
    assert "Traceback" not in text


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    code, text = ends(write_config(tmp_path), "-O")
    assert code == 78
    assert "-O" in text


def test_a_port_in_use_and_an_address_of_another_machine_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = ends(write_config(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        assert (code, "something else listens there" in text) == (78, True)
    code, text = ends(write_config(tmp_path, listen="192.0.2.1:7401"))
    assert (code, "192.0.2.1:7401" in text) == (78, True)


def test_a_node_that_others_reach_without_tls_and_clients_has_to_be_told_that_it_may(tmp_path: Path) -> None:
    listen = f"0.0.0.0:{free_ports(1)[0]}"
    code, text = ends(write_config(tmp_path, listen=listen))
    assert (code, "insecure = true" in text) == (EXIT_REFUSED, True)
    path = write_config(tmp_path, listen=listen)
    path.write_text(path.read_text() + "insecure = true\n")
    with running(path, '"insecure"') as (_, said):
        assert "may do everything" in said


def test_a_process_is_seen_from_outside_where_it_is_told_to_and_ends_with_that(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = write_config(tmp_path, http_listen=f"127.0.0.1:{port}")
    with running(path) as (process, _):
        for endpoint, word in (("live", b"live"), ("ready", b"ready"), ("metrics", b"quorumq_up 1.0")):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{endpoint}", timeout=PATIENCE_S) as answer:
                assert word in answer.read()
    assert process.returncode == 0
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code, text = ends(path)
    assert code == 78
    assert "(http_listen)" in text


def test_a_process_goes_by_new_limits_of_moves_without_a_restart(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with running(path) as (process, _):
        assert status_of(address(path), PATIENCE_S)["move_bytes_per_s"] == 0
        path.write_text(path.read_text() + "move_bytes_per_s = 1000\nheartbeat = 0.4\n")
        assert '"needs_restart":["heartbeat"]' in until(process, "config_file_read").replace(" ", "")
        status = status_of(address(path), PATIENCE_S)
        assert (status["move_bytes_per_s"], status["needs_restart"]) == (1000, ["heartbeat"])
        assert status["config_file_problem"] == ""


def test_a_node_that_listens_where_no_one_dials_it_says_so(tmp_path: Path) -> None:
    port, other = free_ports(2)
    path = write_config(tmp_path, listen=f"127.0.0.1:{port}")
    with path.open("a") as file:
        file.write(f'[nodes]\na = "127.0.0.1:{other}"\n')
    with running(path, "listens_elsewhere") as (_, said):
        assert f"127.0.0.1:{other}" in said
        assert f"127.0.0.1:{port}" in said


@pytest.mark.parametrize(
    ("error", "code"),
    [(OverflowError("int too big to convert"), EXIT_BUG), (ValueError("an integer of 65 bits"), EXIT_BUG),
     (UsageError("another node's directory"), EXIT_REFUSED), (StorageError("damaged"), EXIT_STORAGE)],
)  # fmt: skip
def test_only_what_a_configuration_mends_is_called_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(serve, "open_node", Mock(side_effect=error))
    assert serve.run(ConfigFile(write_config(tmp_path))) == code


def test_a_data_directory_that_is_none_a_linked_lock_and_a_huge_segment_are_refused(tmp_path: Path) -> None:
    code, text = ends(write_config(tmp_path, data_dir="node.toml"))
    assert (code, "Not a directory" in text, "Traceback" in text) == (74, True, False)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "LOCK").symlink_to(kept)
    code, text = ends(write_config(tmp_path))
    assert (code, "LOCK is a link" in text, kept.read_text()) == (74, True, "kept")
    code, text = ends(write_config(tmp_path, segment_bytes=1 << 40))
    assert (code, "segment_bytes = 1099511627776" in text, "Traceback" in text) == (78, True, False)


def test_an_interrupted_start_is_no_bug(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history")  # to open it waits for a reader
    node = start(write_config(tmp_path, history="history"))
    try:
        patience.until((tmp_path / "data" / "LOCK").exists, "it has opened its directory", node)
        sent, end = 0, time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            sent += 1
            node.send_signal(signal.SIGINT)  # one just before it waits is seen after that
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=0.5)
                break
    finally:
        node.kill()
    _, text = node.communicate(timeout=PATIENCE_S)
    assert ("interrupted" in text, "bug" in text) == (True, False)
    # The second signal may be sent when it has said so, and is ending.
    assert node.returncode == 130 or (sent > 1 and node.returncode == -signal.SIGINT)


def test_more_connections_than_the_system_has_files_for_stop_nothing(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (
        running(write_config(tmp_path, listen=address), '"file_limit"', 320) as (node, said),
        contextlib.ExitStack() as stack,
    ):
        assert "2328 files may be needed, and 320 may be open: raise LimitNOFILE" in said
        until(node, "node_started")
        client = stack.enter_context(Raw(address))
        topic, producer_id = client.topic("jobs", rf=1), client.session()
        client.publish(topic, producer_id, 0, [b"x"])
        for _ in range(100):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(Raw(address))
        until(node, '"event": "connections_max"')  # some were refused
        assert size_of(client.fetch("jobs", "g")) == 1, "for which the journal is opened"
    assert node.returncode == 0


def test_one_process_per_directory_and_one_node_and_both_signals_stop_it_cleanly(tmp_path: Path) -> None:
    with running(write_config(tmp_path)) as (first, _):
        code, text = ends(write_config(tmp_path))
        assert (code, f"pid {first.pid}" in text) == (74, True)
    assert first.returncode == 0
    code, text = ends(write_config(tmp_path, node="b"))
    assert (code, "'a'" in text and "'b'" in text) == (74, True), text
    with running(write_config(tmp_path)) as (again, said):
        assert '"quarantine_s": 0.0' in said
        again.send_signal(signal.SIGINT)
        assert again.wait(PATIENCE_S) == 0
    with running(write_config(tmp_path)) as (killed, _):
        killed.kill()
    with running(write_config(tmp_path)) as (_, said):
        assert 50 < json.loads(said)["quarantine_s"] <= 61.2


def test_a_node_that_starts_imports_no_terminal_and_no_second_loop() -> None:
    """Half of the CPU time of a start is imports."""
    code = "import sys, quorumq.node.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "asyncio", "click", "prometheus_client", "h11"} & {*done.stdout.split()}
