"""Directory of a job's results, all of one run or nothing.

Everything is made beside OUT, in a directory of the same name with a dot in front, and becomes OUT in one rename when
it is complete. A lock file beside it keeps a second run out, and the next run removes files that a killed run left.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from quorumq.core.values.errors import NotFound, StorageError, UsageError

from ..folders import Folder

SUMMARY: Final = "summary.json"
"""Every run has one; it says which job made it, and in which version."""


def options_of_out(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options about OUT, and about the cluster that writes it."""
    for option in reversed((
        click.option("--out", required=True, metavar="OUT",
                     help="Where tables, summary.json and the report go: a directory, or a URI."),
        click.option("--overwrite", is_flag=True,
                     help="Replace OUT, at the end and as a whole, if an earlier run wrote it."),
        click.option("--previous", metavar="OUT", help="An earlier run's OUT: say what is new and gone since."),
        click.option("--master", metavar="URL",
                     help="Spark's master; else spark-submit's, spark-defaults.conf's, or this machine."),
        click.option("--shared", is_flag=True,
                     help="OUT and the input are on a mount that all executors have under the same paths."),
        click.option("--json", "as_json", is_flag=True, help="Print summary.json and nothing else."),
    )):  # fmt: skip
        command = option(command)
    return command


class Output(NamedTuple):
    """Name and version of a job's results.

    Attributes:
        job: its name: `summary.json` has the version under `quorumq_<job>`.
        version: version of the results.
    """

    job: str
    version: int

    @property
    def mark(self) -> dict[str, int]:
        """The fields that every summary of this job begins with."""
        return {f"quorumq_{self.job}": self.version}

    def check(self, out: Folder, overwrite: bool) -> None:
        """Raise UsageError if OUT may not or cannot be replaced, StorageError if it cannot be read."""
        try:
            self._check(out, overwrite)
        except OSError as error:
            raise StorageError(f"{out} cannot be read: {error}") from error

    def _check(self, out: Folder, overwrite: bool) -> None:
        here = out.local if out.session is None else None
        if here is not None:
            with suppress(FileNotFoundError):
                here.stat()  # if this cannot be known, `exists` says no from Python 3.14 on
            if here.is_mount():
                raise UsageError(
                    f"{out} is a mount point, which cannot be replaced: give --out a directory in it"
                )
        if not out.exists() or (here is not None and here.is_dir() and not any(here.iterdir())):
            return
        if not (out / SUMMARY).exists():
            raise UsageError(f"{out} exists and is not from an earlier run: give --out another directory")
        self.read_head(out)
        if not overwrite:
            raise UsageError(f"{out} exists: give --overwrite to replace it, or --out another directory")

    def read_head(self, out: Folder) -> dict[str, Any]:
        """Return the summary of a run, if it is one that can be read here."""
        path = out / SUMMARY
        try:
            if not path.exists():
                raise FileNotFoundError
            summary = json.loads(path.fetch().read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFound(f"{out} has no {SUMMARY}: it is not the --out of a run of this job") from None
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        version = summary.get(f"quorumq_{self.job}") if isinstance(summary, dict) else None
        if version != self.version:
            raise UsageError(f"{path} is of version {version!r} of this job, not {self.version}")
        assert isinstance(summary, dict)
        return summary

    @contextmanager
    def staged(self, out: Folder, overwrite: bool) -> Iterator[Folder]:
        """Yield a directory that becomes ``out``, in one rename, if nothing is raised.

        Raises:
            UsageError: another run writes to ``out``, or it is there and must not be replaced.
            StorageError: the disk, or the other file system.
        """
        try:
            if out.session is None:
                out = Folder(out.local.resolve())  # the target of a link is replaced, not the link
                out.local.parent.mkdir(parents=True, exist_ok=True)
            with locked(out.local) if out.session is None else locked_elsewhere(out):
                old, new = out.beside("old"), out.beside("new")
                if old.exists() and not out.exists():
                    old.rename(out)  # killed between the two renames below
                self.check(out, overwrite)
                old.remove()
                new.remove()
                new.local.mkdir(parents=True)
                try:
                    yield new
                    new.send()
                    if out.exists():
                        out.rename(old)
                    new.rename(out)
                finally:
                    new.remove()
                old.remove()
        except ConnectionError:
            raise  # Java has ended, which is not about the disk
        except OSError as error:
            raise StorageError(f"{out} cannot be written: {error}") from error


@contextmanager
def locked_elsewhere(out: Folder) -> Iterator[None]:
    """Lock ``out`` by a file beside it, which a killed process leaves there.

    Raises:
        UsageError: the file is there.
    """
    lock = out.beside("lock")
    if not lock.create():
        raise UsageError(
            f"another run writes to {out}, or was killed as it did: wait for it, or delete {lock}"
        )
    try:
        yield
    finally:
        lock.remove()


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock ``out`` for this process, by a file beside it: gone afterwards, and not locked by a killed process.

    Raises:
        UsageError: another run has it.
    """
    path = out.parent / f".{out.name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:  # or its owner was removing it while we opened it
            raise UsageError(f"another run writes to {out} at this moment: wait for it")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
