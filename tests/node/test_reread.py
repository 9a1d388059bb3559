"""The configuration file is read again while a node runs: two keys count, others are named, faults change nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from quorumq.node.reread import ConfigFile
from sim.shell.memory import Log
from tests.node.programs import write_config


def looked(file: ConfigFile, log: Log) -> bool:
    """Look twice, as a change counts after it has stayed for two looks."""
    assert not file.refresh(log)
    return file.refresh(log)


def test_limits_of_moves_change_and_other_keys_are_named(tmp_path: Path) -> None:
    path, log = write_config(tmp_path), Log()
    file = ConfigFile(path)
    assert not looked(file, log)
    listen = file.config.listen
    write_config(
        tmp_path, listen=listen, move_bytes_per_s=5, moves_at_once=2, secret="f" * 16, sync_interval=9
    )
    assert looked(file, log)
    assert (file.config.move_bytes_per_s, file.config.moves_at_once, file.config.sync_interval) == (5, 2, 2.0)
    assert file.needs_restart == ["secret", "sync_interval"]
    expected = {"move_bytes_per_s": 5, "moves_at_once": 2, "needs_restart": ["secret", "sync_interval"]}
    assert log.of("config_file_read") == [expected], "no value of the secret"
    write_config(tmp_path, listen=listen, moves_at_once=2)
    assert looked(file, log)
    assert (file.config.move_bytes_per_s, file.needs_restart) == (0, [])
    os.utime(path, ns=(5, 5))
    assert not looked(file, log), "nothing has changed"


def test_a_file_that_cannot_be_used_changes_nothing_but_the_log(tmp_path: Path) -> None:
    path, log = write_config(tmp_path, moves_at_once=2), Log()
    file, text = ConfigFile(path), path.read_text()
    path.write_text("")
    assert not looked(file, log)
    assert "node is missing" in file.problem
    path.write_text(text.replace("moves_at_once = 2", "moves_at_once = -2"))
    assert not looked(file, log)
    assert "moves_at_once = -2" in file.problem
    for garbage in ("\x00", f"a = {'[' * 20_000}", f"a = {'9' * 5000}"):
        path.write_text(garbage)
        assert not looked(file, log)
        assert "is not TOML" in file.problem
    path.unlink()
    assert not looked(file, log)
    assert "cannot be read" in file.problem
    assert file.config.moves_at_once == 2
    assert len(log.of("config_file_ignored")) == 6
    path.write_text(text.replace("moves_at_once = 2", "moves_at_once = 3"))
    path.chmod(0o600)
    assert looked(file, log)
    assert (file.problem, file.config.moves_at_once) == ("", 3)


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    path, log = write_config(tmp_path, moves_at_once=2), Log()
    file, text = ConfigFile(path), path.read_text()
    for size in range(len(text)):
        path.write_text(text[:size])
        os.utime(path, ns=(size, size))
        assert not file.refresh(log)
    assert not file.problem
    assert not log.lines


def test_a_pipe_is_not_read_as_its_writer_may_never_come(tmp_path: Path) -> None:
    path, log = write_config(tmp_path), Log()
    file = ConfigFile(path)
    path.unlink()
    os.mkfifo(path)
    signal.alarm(5)  # ends a read that waits
    assert not looked(file, log)
    signal.alarm(0)
    path.unlink()
    write_config(tmp_path, listen=file.config.listen, moves_at_once=1)
    assert looked(file, log)


def test_addresses_of_the_command_line_are_no_change_of_the_file(tmp_path: Path) -> None:
    path, log = write_config(tmp_path), Log()
    file = ConfigFile(path, ["127.0.0.1:7409"])
    path.write_text(path.read_text() + "moves_at_once = 1\n")
    assert looked(file, log)
    assert (file.config.join, file.needs_restart) == (["127.0.0.1:7409"], [])
