"""A cluster loses a node and a worker in the middle of real work, and no message.

Everything is real: three node processes on loopback, three worker processes that parse Python source, SIGKILL for
a node that holds messages, SIGSTOP for a worker that works on some. The result is judged from the histories of the
processes (demo_verdict.py). If the faults did not happen, the demo fails, as it does if a message was lost.

Promises: it needs nothing but quorumq and works from any directory without a network. All that it started is
stopped when it ends, by Ctrl-C too. If --keep is not given, nothing is left behind.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from quorumq.cli.common import console, ended_by_sigterm, json_option, print_json, run
from quorumq.core.values.errors import UsageError
from quorumq.lab.demo_run import GROUP, TOPIC, Run
from quorumq.lab.demo_verdict import Verdict
from quorumq.lab.demo_view import verdict_table
from quorumq.lab.gateways import INSTALL, is_installed


@click.command()
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Leave data directories, logs and histories in DIR, a new or empty directory.",
)
@json_option
def demo(keep: Path | None, as_json: bool) -> None:
    """Watch a cluster lose a node and no message. Takes about half a minute.

    Three nodes store the Python source of this installation; three worker processes parse it, and make files that
    do not parse dead letters. In the middle of it a worker is stopped (SIGSTOP) for longer than its holds, and a
    node that holds messages, and that messages are being published through, is killed (SIGKILL) and started again.
    Then every message is accounted for.

    With --json the last line of the output is one object with the numbers. The exit code is 0 only if nothing was
    lost, nothing was delivered after its ack, and the node and the worker really held messages at that moment.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(
            f"{keep} is not empty: give --keep a new directory, so that one demo's messages are in it"
        )
    out = console(stderr=as_json)
    with ended_by_sigterm(), _directory(keep) as directory:
        verdict = run(Run(directory, out).main)
    out.print()
    out.print(verdict_table(verdict))
    out.print()
    _say_more(out, verdict, keep)
    if as_json:
        print_json(verdict.as_json())
    if not verdict.passed:
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
    else:
        with tempfile.TemporaryDirectory(prefix="quorumq-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def _say_more(out: Any, verdict: Verdict, keep: Path | None) -> None:
    for sentence in verdict.missing:
        out.print(f"Not shown: {sentence}.", markup=False)
    if verdict.passed:
        out.print(f"Every message is acked or a dead letter, after {verdict.seconds:.0f} s.", markup=False)
    install = "" if is_installed() else f"{INSTALL}, and then "
    out.print(f"For a console in a browser: {install}quorumq dev.", markup=False)
    if keep is None:
        out.print("To look further, run it with --keep DIR.", markup=False)
        return
    out.print(
        f"Everything is in {keep}: nodes in n1 to n3, histories in histories. To look further:\n",
        markup=False,
    )
    out.print(
        f"  quorumq dev --dir {keep}     # starts these nodes again; then, in another terminal:", markup=False
    )
    out.print(f"  quorumq deadletters list {TOPIC} --group {GROUP}", markup=False)
    out.print(f"  quorumq peek {TOPIC} --group {GROUP} --which acked --limit 10", markup=False)
    out.print("  quorumq status", markup=False)
    out.print(
        f"  quorumq audit --drained {keep / 'histories'}     # every promise, checked again\n", markup=False
    )
