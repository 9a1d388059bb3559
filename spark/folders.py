"""Directories of results, on this machine or on any file system that Spark writes.

Executors write tables there by the directory's URI. The driver's own files are made on this machine, and copied.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession


def system_of(session: SparkSession, name: str) -> tuple[Any, Any]:
    """Return a name as a path of Hadoop, and its file system."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(session._jsc.hadoopConfiguration())


class Folder:
    """A directory or a file.

    Attributes:
        local: its path on this machine; for another file system, that of its copy.
        uri: its name for Spark, with nothing escaped: Hadoop takes `%20` for a name.
        session: the session that knows the other file system; None on this machine.
    """

    def __init__(self, local: Path, uri: str = "", session: SparkSession | None = None) -> None:
        self.local = local
        self.uri = uri or f"file:{local.absolute()}"
        self.session = session

    def __truediv__(self, name: str) -> Folder:
        uri = f"{self.uri}/{name}" if self.session else ""
        return Folder(self.local / name, uri, self.session)

    def __str__(self) -> str:
        return self.uri if self.session else str(self.local)

    def beside(self, end: str) -> Folder:
        """Return the hidden file or directory beside it that serves its making."""
        head, _, name = self.uri.rpartition("/")
        return Folder(self.local.parent / f".{name}.{end}", f"{head}/.{name}.{end}", self.session)

    @property
    def _system(self) -> tuple[Any, Any]:
        assert self.session is not None
        return system_of(self.session, self.uri)

    def exists(self) -> bool:
        if self.session is None:
            return self.local.exists()
        path, system = self._system
        return bool(system.exists(path))

    def fetch(self) -> Path:
        """Return its path on this machine, after a copy of it is there."""
        if self.session is not None:
            path, system = self._system
            self.local.parent.mkdir(parents=True, exist_ok=True)
            system.copyToLocalFile(False, path, system_of(self.session, f"file:{self.local}")[0], True)
        return self.local

    def send(self) -> None:
        """Copy what the driver made in it to its file system, if that is another one."""
        if self.session is None:
            return
        for file in sorted(path for path in self.local.rglob("*") if path.is_file()):
            target, system = (self / str(file.relative_to(self.local)))._system
            system.copyFromLocalFile(False, True, system_of(self.session, f"file:{file}")[0], target)

    def create(self) -> bool:
        """Make an empty file; return False if it is there."""
        path, system = self._system
        return bool(system.createNewFile(path))

    def rename(self, target: Folder) -> None:
        """Give it another name.

        Raises:
            OSError: its file system refuses.
        """
        if self.session is None:
            self.local.rename(target.local)
            return
        path, system = self._system
        if not system.rename(path, target._system[0]):
            raise OSError(f"{self} cannot be renamed to {target}")

    def remove(self) -> None:
        shutil.rmtree(self.local, ignore_errors=True)
        if self.session is not None:
            path, system = self._system
            system.delete(path, True)


def is_elsewhere(name: str) -> bool:
    """Return True if a name is a URI of another file system than that of this machine."""
    return re.match(r"(?!file:)[A-Za-z][\w+.-]+:/", name) is not None


def folder_of(name: str, session: SparkSession | None = None) -> Folder:
    """Return a directory by its path or URI. What is fetched of another file system is kept until the process ends."""
    if not is_elsewhere(name):
        return Folder(Path(name.removeprefix("file:")))
    copies = TemporaryDirectory(prefix="quorumq-")
    _COPIES.append(copies)
    return Folder(Path(copies.name, "folder"), name.rstrip("/"), session)


def folders_of(session: Callable[[], SparkSession], *names: str | None) -> tuple[Any, ...]:
    """Return a session, or None if no directory is elsewhere, and the directory of each name, or None."""
    spark = session() if any(is_elsewhere(name or "") for name in names) else None
    return spark, *(None if name is None else folder_of(name, spark) for name in names)


_COPIES: list[TemporaryDirectory[str]] = []
