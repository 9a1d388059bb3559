"""Commands whose output cannot be written or encoded print one sentence, never a traceback."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from quorumq.lab.local import LocalCluster
from tests.cli.shell import QUORUMQ, Shell
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

LOOKS = pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(command.split(), id=command, marks=marks)
        for command, marks in {
            "--help": (),
            "status --json": (),
            "groups list": (),
            "peek jobs --group g --which all": (),
            "topics --help": pytest.mark.soak,
            "status": pytest.mark.soak,
            "topics list": pytest.mark.soak,
            "deadletters list jobs --group g": pytest.mark.soak,
        }.items()
    ],
)


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with LocalCluster(1, hold_time_max=60.0) as cluster:
        shell = Shell(cluster)
        shell("publish jobs 世界 --key", "\x1b[31mred", "--header", "\x07=\x1b]0;title\x07")
        shell("consume jobs --group g --max 1 --dead-letter '世 is broken'")
        yield shell


def run(
    shell: Shell, arguments: Sequence[str], out: str = "", **more: str
) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own, its standard output redirected as ``out`` says."""
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {out}', "sh", *QUORUMQ, *arguments],
        env={**shell.environ, **more},
        capture_output=True,
        timeout=PATIENCE_S,
    )


def test_fingerprints_and_addresses_fit_80_columns(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    for module in ("status", "common"):  # imported before the other is replaced
        monkeypatch.setattr(f"quorumq.cli.{module}.console", lambda: Console(file=shown, width=80))
    (kind,) = shell("deadletters list jobs --group g --json").lines()
    shell("deadletters list jobs --group g")
    shell("status")
    assert f" {kind['fingerprint']} " in shown.getvalue()
    assert f" {shell.cluster.addresses[0]} " in shown.getvalue()


@LOOKS
def test_a_full_disk_under_the_output_is_said(shell: Shell, arguments: Sequence[str]) -> None:
    done = run(shell, arguments, ">/dev/full")
    assert done.stderr == b"quorumq: the output cannot be written: No space left on device\n"
    assert done.returncode == 74


@pytest.mark.parametrize("more", [(), ("--max", "1")])
def test_messages_that_cannot_be_printed_are_given_back(shell: Shell, more: tuple[str, ...]) -> None:
    """They were held for 30 s, as an attempt of each: after five such ends a message was a dead letter."""
    topic = f"unprinted-{len(more)}"
    shell(f"publish {topic} one")
    done = run(shell, ("consume", topic, "--group", "g", *more), ">/dev/full")
    assert (done.returncode, b"cannot be written" in done.stderr) == (74, True)
    (line,) = shell(f"consume {topic} --group g --max 1 --wait 10 --json").lines()
    assert (line["payload"], line["attempt"]) == ("one", 1)


@LOOKS
def test_a_closed_output_is_no_error(shell: Shell, arguments: Sequence[str]) -> None:
    done = run(shell, arguments, ">&-")
    assert (done.returncode, done.stderr) == (0, b"")


@LOOKS
def test_characters_outside_the_encoding_are_numbers(shell: Shell, arguments: Sequence[str]) -> None:
    done = run(shell, arguments, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"\\u4e16 is broken" in done.stdout) == (arguments[0] in ("peek", "deadletters"))


def test_peek_lets_no_control_characters_of_keys_and_headers_through(shell: Shell) -> None:
    shown = shell("peek jobs --group other --bodies").out
    assert "key \\x1b[31mred" in shown
    assert "\\x07 = \\x1b]0;title\\x07" in shown
    assert not [char for char in shown if char != "\n" and not char.isprintable()]


def test_status_watched_through_a_pipe_is_printed_each_time(shell: Shell) -> None:
    arguments = ["status", "--watch", "--every", "0.1", "--node", shell.cluster.addresses[0]]
    with subprocess.Popen([*QUORUMQ, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            heads = (line for line in process.stdout if line.startswith("cluster "))
            assert next(heads) == next(heads)
        finally:
            process.terminate()
