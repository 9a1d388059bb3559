"""Directory of a job's results, all of one run or nothing.

Everything is made beside OUT, in a directory of the same name with a dot in front, and becomes OUT in one rename when
it is complete. A lock file beside it keeps a second run out, and the next run removes files that a killed run left.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from quorumq.core.values.errors import NotFound, StorageError, UsageError

SUMMARY: Final = "summary.json"
"""Every run has one; it says which job made it, and in which version."""


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

    def check(self, out: Path, overwrite: bool) -> None:
        """Raise UsageError if OUT may not or cannot be replaced, StorageError if it cannot be read."""
        try:
            self._check(out, overwrite)
        except OSError as error:
            raise StorageError(f"{out} cannot be read: {error}") from error

    def _check(self, out: Path, overwrite: bool) -> None:
        with suppress(FileNotFoundError):
            out.stat()  # if this cannot be known, `exists` says no from Python 3.14 on
        if out.is_mount():
            raise UsageError(
                f"{out} is a mount point, which cannot be replaced: give --out a directory in it"
            )
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
        if not (out / SUMMARY).is_file():
            raise UsageError(f"{out} exists and is not from an earlier run: give --out another directory")
        self.read_head(out)
        if not overwrite:
            raise UsageError(f"{out} exists: give --overwrite to replace it, or --out another directory")

    def read_head(self, out: Path) -> dict[str, Any]:
        """Return the summary of a run, if it is one that can be read here."""
        path = out / SUMMARY
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
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
    def staged(self, out: Path, overwrite: bool) -> Iterator[Path]:
        """Yield a directory that becomes ``out``, in one rename, if nothing is raised.

        Raises:
            UsageError: another run writes to ``out``, or it is there and must not be replaced.
            StorageError: the disk.
        """
        try:
            out = out.resolve()  # the target of a link is replaced, not the link
            out.parent.mkdir(parents=True, exist_ok=True)
            with locked(out):
                old, new = out.parent / f".{out.name}.old", out.parent / f".{out.name}.new"
                if old.exists() and not out.exists():
                    os.rename(old, out)  # killed between the two renames below
                self.check(out, overwrite)
                shutil.rmtree(old, ignore_errors=True)
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir()
                try:
                    yield new
                    if out.exists():
                        os.rename(out, old)
                    os.rename(new, out)
                finally:
                    shutil.rmtree(new, ignore_errors=True)
                shutil.rmtree(old, ignore_errors=True)
        except ConnectionError:
            raise  # Java has ended, which is not about the disk
        except OSError as error:
            raise StorageError(f"{out} cannot be written: {error}") from error


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
