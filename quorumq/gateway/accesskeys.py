"""Secret access keys of clients, derived from a key of the gateways: no file has a secret of a client.

AWS signatures need a secret that both sides have, and the clients file has hashes of tokens only. A secret access key
is a keyed digest over a client's name and the hash of its token. So it ends with the token, every gateway with the
file of keys knows it, and neither that file alone nor the clients file alone gives it away (docs/decisions/0024).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any, Final

from quorumq.core.values.errors import UsageError
from quorumq.node.clients import sync_folder
from quorumq.node.reread import WatchedFile

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 64 * 1024
_PURPOSE: Final = b"quorumq secret access key\0"


def new_keys_file(path: Path) -> None:
    """Write a new file with one random key, for its owner alone; FileExistsError if there is one."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("# Keys of quorumq gateways, the newest first: docs/gateway.md.\n")
        file.write(base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode() + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path)  # else a power cut may take it, and with it all secrets that were printed


def read_keys(path: str | os.PathLike[str]) -> tuple[bytes, ...]:
    """Read a file of keys, one a line: the first derives new secrets, all others still verify.

    Raises:
        UsageError: it cannot be read, others can read it, or a line is no key.
    """
    try:
        with open(path, "rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(
            f"the file of keys {path} cannot be read ({error.strerror}): `quorumq clients key` makes one"
        ) from None
    if mode & 0o077:
        raise UsageError(f"the file of keys {path} can be read by others on this machine: chmod 600 it")
    lines = [line.strip() for line in data.decode("latin-1").splitlines()]
    keys: list[bytes] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        try:
            key = base64.b64decode(line.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"the file of keys {path} has a line that is no key of {KEY_BYTES} bytes in base64"
            )
        keys.append(key)
    if not keys:
        raise UsageError(
            f"the file of keys {path} has no key: remove it, and `quorumq clients key` makes one"
        )
    return tuple(keys)


class Keys:
    """Keys of the gateways, as their file has them now.

    Args:
        path: the file; "" for none.

    Attributes:
        present: the keys, the newest first.

    Raises:
        UsageError: the file cannot be used.
    """

    def __init__(self, path: str, log: Any) -> None:
        self._file, self._log = WatchedFile(path), log
        self.present = read_keys(path) if path else ()

    def refresh(self) -> None:
        """Read the file again if it has changed; the old keys stay if the new ones cannot be used."""
        if not self._file.has_changed():
            return
        try:
            keys = read_keys(self._file.path)
        except UsageError as error:
            self._log.error("keys_file_ignored", reason=f"{error}; the keys stay those of before")
            return
        if self._file.was_steady():
            self.present = keys
            self._log.info("keys_file_read", keys=len(keys))


def secret_access_key(key: bytes, name: str, token_hash: str) -> str:
    """Return the secret access key of a client."""
    digest = hmac.new(key, _PURPOSE + f"{name}\0{token_hash}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
