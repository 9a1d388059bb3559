"""Files that a node reads again when they change, such as its configuration file."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from quorumq.node.config import ConfigError, ServeConfig, load_config, with_join
from quorumq.wire.tls import look_at

CHANGEABLE: Final = ("move_bytes_per_s", "moves_at_once")
"""Keys of the configuration file that count without a restart."""


class WatchedFile:
    """A file that is looked at again and again.

    It has changed once it differs from the last time that it was read, and stayed the same since the look before: it
    may be half copied.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._read = self._seen = look_at(path)

    def has_changed(self) -> bool:
        """Look at the file. Return True if it is to be read again, and take it as read.

        A pipe or a device never is, because the process would wait for its writer, or for its end.
        """
        status, seen = look_at(self.path), self._seen
        self._seen = status
        if status == self._read or status != seen:
            return False
        if status and not (stat.S_ISREG(status[-1]) or stat.S_ISDIR(status[-1])):
            return False
        self._read = status
        return True

    def was_steady(self) -> bool:
        """Return True if the file did not change while it was read. Otherwise it is to be read again."""
        if look_at(self.path) == self._read:
            return True
        self._read = (-1,)
        return False


class ConfigFile:
    """The configuration file of a node. Keys of `CHANGEABLE` count while it runs, all others at its next start.

    Args:
        path: the file.
        join: addresses that the command line has in addition, as `with_join` takes them.

    Attributes:
        config: settings in use.
        problem: description of the error in the present file, whose settings do not count; "" without one.
        needs_restart: keys whose present values count at the next start.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], join: Sequence[str] = ()) -> None:
        self._file, self._join = WatchedFile(os.fspath(path)), join
        self.config = self._load()
        self.problem = ""
        self.needs_restart: list[str] = []

    def _load(self) -> ServeConfig:
        return with_join(load_config(self._file.path), self._join)

    def refresh(self, log: Any) -> bool:
        """Read the file again if it has changed. Return True if settings in use are others now."""
        if not self._file.has_changed():
            return False
        try:
            new = self._load()
        except ConfigError as error:
            self.problem = str(error)
            log.error("config_file_ignored", reason=f"{error}; the settings stay those of before")
            return False
        if not self._file.was_steady():
            return False
        self.problem, before = "", self.config
        changed = [
            name for name in ServeConfig.__struct_fields__ if getattr(new, name) != getattr(before, name)
        ]
        self.needs_restart = [name for name in changed if name not in CHANGEABLE]
        self.config = msgspec.structs.replace(before, **{name: getattr(new, name) for name in CHANGEABLE})
        log.info(
            "config_file_read",
            **{name: getattr(new, name) for name in changed if name in CHANGEABLE},
            needs_restart=self.needs_restart,
        )
        return self.config != before
