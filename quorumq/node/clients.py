"""The file of clients that may connect, with their rights. It is reread when it changes.

A client shows a token, NAME.SECRET, in HELLO. The file has the secret's SHA-256, which is enough: a secret is 32 random
bytes, beyond guessing, however fast the hash. If the file becomes unreadable, or is wrong, the clients stay those of
the last one that was right, and log and status say so: a slip of an editor must not stop a cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.values.errors import Unauthorized, UnknownToken, UsageError
from quorumq.core.values.limits import HOLD_TIME_MAX_DEFAULT_S, MIB
from quorumq.node.config import NOT_TOML, plain
from quorumq.node.quotas import Begun, Quotas, Usage
from quorumq.node.reread import WatchedFile
from quorumq.wire.rights import Client, check_rights, check_seen, covers

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
FAULTY: Final = re.compile(r"at `\$\.(\w+)")
"""Place of a faulty key in an error of msgspec."""

NO_TOKEN: Final = "sha256:" + 64 * "0"
"""Hash to compare with a token that names no client: it takes as long, and so reveals no names."""
FILE_BYTES_MAX: Final = 4 * MIB
SECRET_BYTES: Final = 32
REVOKE_ALL: Final = "revoke_all"
"""The key of a file that names no client and means it."""
NAMES_SHOWN: Final = 20
LOCK_WAIT_S: Final = 10.0
LOCK_LOOK_S: Final = 0.1


class Entry(Quotas, frozen=True, forbid_unknown_fields=True):
    """Entry of the file for one client: its token, rights, and quotas."""

    token: str
    publish: tuple[str, ...] = ()
    consume: tuple[tuple[str, str], ...] = ()
    admin: tuple[str, ...] = ()
    on_behalf: tuple[str, ...] = ()  # patterns of names of clients for which it may ask, as gateways do


def new_token(name: str) -> tuple[str, str]:
    """Return a token for a client, to be shown once, and its hash for the file."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return f"{name}.{secret}", hashed(secret)


def hashed(secret: str) -> str:
    """Return the hash of a secret as the file keeps it."""
    return "sha256:" + hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def read_clients(path: str | os.PathLike[str], *, empty: bool = False) -> dict[str, Entry]:
    """Read a file of clients.

    Args:
        empty: accept a file that names no client. Otherwise it has to say so by `revoke_all`, because a file that a
            copy has just begun to write is empty, and valid.

    Raises:
        UsageError: it cannot be read, or has an error. Names it, and the remedy.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(
            f"clients_file {path} cannot be read ({error.strerror}): `quorumq clients add` makes one"
        ) from None
    if mode & 0o002:
        raise UsageError(
            f"clients_file {path} can be written by everybody on this machine, who so has any right: chmod o-w it"
        )
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"clients_file {path} has more than {FILE_BYTES_MAX} bytes: is it the right file?")
    try:
        values = tomllib.loads(data.decode())
    except NOT_TOML as error:
        raise UsageError(f"clients_file {path} is not TOML: {error}") from None
    revokes_all = values.pop(REVOKE_ALL, False) if isinstance(values.get(REVOKE_ALL), bool) else False
    if revokes_all and values:
        raise UsageError(f"clients_file {path} has {REVOKE_ALL} = true, and clients: remove either")
    if not (values or revokes_all or empty):
        raise UsageError(
            f"clients_file {path} names no client: where nobody may connect any more, write {REVOKE_ALL} = true into it"
        )
    return {name: entry_of(path, name, value) for name, value in values.items()}


def entry_of(path: str | os.PathLike[str], name: str, value: Any) -> Entry:
    """Return the entry that the file at ``path`` has, or shall have, for a client; UsageError if it is wrong."""
    where = f"clients_file {path}: [{name}]"
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{where}: the name of a client has 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'"
        )
    try:
        entry = msgspec.convert(value, Entry)
    except msgspec.ValidationError as error:
        key = FAULTY.search(str(error))
        shown = f"{key[1]} = {str(value[key[1]])[:60]!r}: " if key is not None and key[1] in value else ""
        raise UsageError(
            f"{where}: {shown}{plain(str(error))}: a client has token, publish and admin (patterns of topics), "
            "consume (pairs of patterns, of topics and of groups), on_behalf (patterns of clients), and quotas "
            f"({', '.join(Quotas.__struct_fields__)})"
        ) from None
    if not HASH.fullmatch(entry.token):
        raise UsageError(f"{where}: token is no hash of one: make the client by `quorumq clients add {name}`")
    return entry


def quotas_of(entry: Entry) -> dict[str, Any]:
    quotas = {field: getattr(entry, field) for field in Quotas.__struct_fields__}
    return {field: most for field, most in quotas.items() if most is not None}


def write_clients(path: str | os.PathLike[str], entries: Mapping[str, Entry]) -> None:
    """Replace a file of clients, at once and durably. Who could read and write it still can: nodes, of another user.

    Raises:
        OSError: it cannot be written; the old one is as it was.
    """
    lines = [
        "# The clients of a quorumq cluster: `quorumq clients --help`. Nodes reread this file when it changes."
    ]
    if not entries:
        lines += ["", f"{REVOKE_ALL} = true"]
    for name, entry in entries.items():
        lines += ["", f"[{name}]"]
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in msgspec.to_builtins(entry).items() if value
        ]
    target = Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        try:
            with contextlib.suppress(FileNotFoundError):
                _belong_as(file.fileno(), os.stat(target))
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
            os.replace(new, target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    sync_folder(target)  # else a power cut may bring the old file back, and revoked clients


def sync_folder(path: Path) -> None:
    """Make the name of a file durable."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _belong_as(descriptor: int, old: os.stat_result) -> None:
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & 0o775)


@contextlib.contextmanager
def changing(path: str | os.PathLike[str]) -> Iterator[dict[str, Entry]]:
    """Yield the clients of a file, to be changed: the block's end writes them. Other writers wait meanwhile.

    Else the later of two writers of the same file would undo the earlier one's change, as that a client is revoked.

    Raises:
        UsageError: the file is there and cannot be used, or another program has kept its directory locked for 10 s.
        OSError: it cannot be written; the old one is as it was.
    """
    target = Path(os.path.realpath(path))
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(folder, target)
        entries = read_clients(target, empty=True) if target.exists() else {}
        yield entries
        write_clients(target, entries)
    finally:
        os.close(folder)


def _lock(folder: int, target: Path) -> None:
    for _ in range(round(LOCK_WAIT_S / LOCK_LOOK_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_LOOK_S)
    raise UsageError(f"{target} was not changed: another program keeps {target.parent} locked")


def _some(names: Iterable[str]) -> str:
    """Return the names as text for the log."""
    listed = list(names)
    return ", ".join(listed[:NAMES_SHOWN]) + (", …" if len(listed) > NAMES_SHOWN else "")


class Clients:
    """Clients that may connect, as the file says now.

    Args:
        hold_time_max: seconds of the cluster's longest hold (quotas.py).

    Attributes:
        version: counts the changes.
        problem: description of the error in the present file; "" if there is none.

    Raises:
        UsageError: the file cannot be used.
    """

    def __init__(self, path: str, log: Any, hold_time_max: float = HOLD_TIME_MAX_DEFAULT_S) -> None:
        self.version = 0
        self._hold_time_max = hold_time_max
        self.problem = ""
        self._log = log
        self._file = WatchedFile(path)
        self._entries = read_clients(path)
        self._usages: dict[str, Usage] = {}

    def refresh(self) -> bool:
        """Read the file again if it has changed. Return True if the clients are others now."""
        if not self._file.has_changed():
            return False
        try:
            entries = read_clients(self._file.path)
        except UsageError as error:
            self.problem = str(error)
            self._log.error("clients_file_ignored", reason=f"{error}; the clients stay those of before")
            return False
        self.problem = ""
        if not self._file.was_steady():
            return False
        before, self._entries = self._entries, entries
        self.version += 1
        self._usages = {name: usage for name, usage in self._usages.items() if name in entries}
        self._log.info(
            "clients_file_read",
            clients=len(entries),
            added=_some(name for name in entries if name not in before),
            changed=_some(name for name in entries if before.get(name, entries[name]) != entries[name]),
            revoked=_some(name for name in before if name not in entries),
        )
        return True

    def find(self, token: str) -> Client | None:
        """Return the client that has this token; None if no client has it."""
        name, _, secret = token.partition(".")
        if not hmac.compare_digest(hashed(secret), self.token_hash(name) or NO_TOKEN):
            return None
        return self.named(name)

    def named(self, name: str) -> Client | None:
        entry = self._entries.get(name)
        return None if entry is None else Client(name, entry.publish, entry.consume, entry.admin)

    def token_hash(self, name: str) -> str | None:
        """Return the hash of a client's token; None if there is no such client."""
        entry = self._entries.get(name)
        return None if entry is None else entry.token

    def named_by(self, agent: str, name: str) -> Client:
        """Return the client ``name`` that ``agent`` asks for; Unauthorized if it may not, or there is none."""
        if not any(covers(pattern, name) for pattern in self._entries[agent].on_behalf):
            raise Unauthorized(
                f"client {agent!r} lacks the right on_behalf for client {name!r}, which it names: rights are in the "
                "nodes' clients file (`quorumq clients`)"
            )
        client = self.named(name)
        if client is None:
            raise Unauthorized(f"the nodes' clients file has no client {name!r}, for which {agent!r} asks")
        return client

    def usage(self, name: str, now: float) -> Usage:
        """Return the use of a known client's quotas, by all of its connections."""
        entry = self._entries[name]
        quotas = Quotas(**quotas_of(entry))
        known = self._usages.get(name)
        if known is None or known.quotas != quotas:
            known = self._usages[name] = Usage(quotas, now, self._hold_time_max)
        return known


@dataclass(eq=False)
class Credentials:
    """Credentials that one connection has shown, and the client that they name in the present file."""

    clients: Clients
    token: str = field(repr=False)  # as HELLO had it
    clock: Callable[[], float]  # monotonic seconds
    on_behalf: str = ""  # name of the client for which a gateway asks, as HELLO had it
    agent: str = ""  # name of that gateway, once it is known
    _usage: Usage | None = None
    _version: int = -1  # version of the file at the last look
    _client: Client | None = None
    _problem: Unauthorized | None = None

    @property
    def client(self) -> Client:
        """The client whose rights and quotas count; only if there is no `problem`."""
        assert self._client is not None
        return self._client

    @property
    def who(self) -> str:
        """The client for the log, with the gateway that asks for it."""
        return f"{self.client.name} by {self.agent}" if self.agent else self.client.name

    def problem(self) -> Unauthorized | None:
        """Return why it may not be here; None if it may."""
        if self._version != self.clients.version:
            self._version = self.clients.version
            self._client = self._problem = None
            try:
                self._client = self._identify()
                self._usage = self.clients.usage(self._client.name, self.clock())
            except Unauthorized as error:
                self._problem = error.with_traceback(None)
        return self._problem

    def _identify(self) -> Client:
        """Return the client of the token, or the one that it asks for; Unauthorized if there is none."""
        client = self.clients.find(self.token)
        if client is None:
            shown = "a token that it does not know" if self.token else "no token"
            raise UnknownToken(
                f"the node was shown {shown}: it serves the clients of its clients file only. Give the client a token "
                "that `quorumq clients add` printed (token=, or QUORUMQ_TOKEN)"
            )
        if not self.on_behalf:
            return client
        self.agent = client.name
        return self.clients.named_by(client.name, self.on_behalf)

    @property
    def usage(self) -> Usage:
        """The use of the client's quotas; only if there is no `problem`."""
        assert self._usage is not None
        return self._usage

    def allow(self, request: Any, catalogue: Catalogue) -> None:
        """Refuse a request for which the client has no right, by the file as it is now.

        Raises:
            Unauthorized: names the missing right.
            NotStored: this node cannot say.
        """
        if unknown := self.problem():
            raise type(unknown)(str(unknown))
        topics = catalogue.topics
        check_rights(self.client, request, lambda id: topics[id].name if id in topics else None)
        if isinstance(request, m.Metadata):
            check_seen(self.client, request)

    def begin(self, request: Any, size: int) -> None:
        """Charge a request of ``size`` bytes before anything is looked at, even if it is refused then.

        Raises:
            Unauthorized: no client has the token any more.
            Busy: it is beyond a rate.
        """
        if unknown := self.problem():
            raise type(unknown)(str(unknown))
        self.usage.begin(self.client, request, size, self.clock())

    def check(self, request: Any, catalogue: Catalogue, new_producer_ids: Begun) -> Any:
        """Refuse a request for which the client has no right, or no quota left.

        Returns:
            the request as it is to be carried out.

        Raises:
            Unauthorized: names the missing right.
            Busy, TooLarge: it is beyond a quota.
        """
        self.allow(request, catalogue)
        return self.usage.take(self.client, request, catalogue, self.clock(), new_producer_ids)
