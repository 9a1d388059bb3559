"""Ctrl-C and SIGTERM, sent to real commands wherever they wait: they clean up, and say nothing of Python."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.shell import Running, Shell, peeked
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.e2e

HOLD_S = 60.0
"""Longer than any test waits: a message that is ready again before was given back."""

SIGNALS = pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)


def deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@SIGNALS
def test_publish_waiting_for_lines(
    shell: Shell, start: Callable[..., Running], how: signal.Signals, code: int
) -> None:
    running = start("publish", f"lines-{code}", "--lines")
    running.type(b"first\nsecond")
    until(lambda: running.out.read_text().count("\n") == 1, "its id is told while more is awaited")
    assert running.send(how) == code
    assert running.err.read_text() == ""
    assert shell.states(f"lines-{code}") == {"ready": 1}


def test_publish_waiting_for_a_file(shell: Shell, start: Callable[..., Running]) -> None:
    running = start("publish", "file", "before", "--file", "-")
    running.type(b"the beginning of a message")
    until(lambda: running.out.read_text().count("\n") == 1, "the message before it is published")
    assert running.send(signal.SIGINT) == 130
    assert shell.states("file") == {"ready": 1}, "half a message is none"


@SIGNALS
def test_consume_gives_back_what_it_holds(
    shell: Shell, start: Callable[..., Running], how: signal.Signals, code: int
) -> None:
    topic = f"held-{code}"
    shell(f"publish {topic}", *(str(number) for number in range(20)))
    running = start("consume", topic, "--group", "g", "--exec", "sleep 60", "--hold-time", str(HOLD_S))
    until(lambda: any(line["state"] == "held" for line in peeked(shell, topic)), "something is held")
    assert running.send(how) == code
    until(lambda: {line["state"] for line in peeked(shell, topic)} == {"ready"}, "all were given back")


def test_consume_ends_what_its_command_has_started(
    shell: Shell, start: Callable[..., Running], tmp_path: Path
) -> None:
    """A shell that was ended left its child at work on a message that was given back."""
    shell("publish child m")
    child = tmp_path / "child"
    command = f"sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait"
    running = start("consume", "child", "--group", "g", "--exec", command)
    until(child.exists, "the command has a child")
    assert running.send(signal.SIGTERM) == 143
    assert not runs(int(child.read_text()))
    assert shell.states("child") == {"ready": 1}


def runs(pid: int) -> bool:
    """Return True if there is such a process, and it has not ended without a parent to see that."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, 130),
        (b"n\n", 1),
        (b"Y\n", 0),
        pytest.param(b"", 1, marks=pytest.mark.soak),
        pytest.param(b"perhaps\n", 1, marks=pytest.mark.soak),
    ],
)
def test_a_question_that_is_not_answered_is_no_yes(
    shell: Shell, start: Callable[..., Running], answer: bytes | None, code: int
) -> None:
    topic = f"asked-{'' if answer is None else answer.hex()}-{code}"
    shell(f"publish {topic} a b")
    shell(f"groups create {topic} g")
    running = start("purge", topic, "--group", "g")
    until(lambda: f"purge 2 messages of {topic}" in running.err.read_text(), "it asks")
    if answer is None:
        assert running.send(signal.SIGINT) == code
    else:
        running.process.communicate(answer, timeout=PATIENCE_S)
        assert running.process.returncode == code
    assert "Traceback" not in running.err.read_text()
    assert shell.states(topic).get("ready", 0) == (0 if code == 0 else 2)


def test_the_second_ctrl_c_ends_what_cannot_be_cancelled(shell: Shell, start: Callable[..., Running]) -> None:
    """Standard output is a pipe without a reader."""
    for _ in range(3):
        shell("publish stuck", *("x" * 50_000 for _ in range(2)))
    running = start("consume", "stuck", "--group", "g", out=subprocess.PIPE)
    until(lambda: blocked(running.process.pid), "the pipe is full")
    running.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(0.5)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)  # one before the first was handled is the same
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(1.0)
    assert running.process.poll() == -signal.SIGINT, "which a shell tells as 130"
    assert running.err.read_text() == ""


def blocked(pid: int) -> bool:
    """Return True if its main thread waits to write to a pipe."""
    return "pipe_w" in Path(f"/proc/{pid}/wchan").read_text()


def test_in_the_background_ctrl_c_stays_ignored(shell: Shell, start: Callable[..., Running]) -> None:
    running = start("publish", "deaf", "--lines", before=deaf)
    running.type(b"first\n")
    until(lambda: running.out.read_text().count("\n") == 1, "it is published")
    running.process.send_signal(signal.SIGINT)
    running.process.communicate(b"second\n", timeout=PATIENCE_S)
    assert running.process.returncode == 0
    assert shell.states("deaf") == {"ready": 2}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("publish closed --lines <&-", 64, "standard input is closed"),
        ("publish closed --file - <&-", 64, "standard input is closed"),
        ("publish closed --lines 0>/dev/null", 64, "standard input cannot be read"),
        ("purge closed --group g <&-", 64, "standard input has no answer: give --yes"),
        ("consume closed --group g --wait 0 >&-", 64, "standard output is closed"),
        ("publish closed message 2>&-", 0, ""),
        ("consume closed --group g --wait 0 2>&-", 0, ""),
    ],
)
def test_standard_files_that_are_closed(shell: Shell, command: str, code: int, said: str) -> None:
    shell("topics create closed")
    shell("groups create closed g")
    program = f"exec {sys.executable} -m quorumq {command}"
    done = subprocess.run(
        ["/bin/sh", "-c", program], env=shell.environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr


def test_waiting_for_nothing_takes_all_that_is_there(shell: Shell) -> None:
    shell("publish there", *(str(number) for number in range(20)))
    assert len(shell("consume there --group g --wait 0").out.split()) == 20


def test_a_key_that_no_environment_can_have_is_left_out(shell: Shell) -> None:
    shell("publish keyed m --key", "k" * 100_000)
    command = 'test -z "$QUORUMQ_KEY"'
    (line,) = shell("consume keyed --group g --max 1 --exec", command, "--json").lines()
    assert (line["exit_code"], line["outcome"]) == (0, "acked")


EARLY = """
import sys
class Pressed:
    def find_spec(self, name, *rest):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from quorumq.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports_shows_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
