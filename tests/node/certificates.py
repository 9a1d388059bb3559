"""Make certificates for tests of TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trustme


class Files:
    """An authority's file, and certificates of it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / f"{name}.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, file: str = "", **more: Any) -> tuple[str, str]:
        """Files of a certificate for these names, and of its key."""
        made = self.authority.issue_cert(*names, **more)
        cert, key = (str(self.folder / f"{file or names[0]}.{kind}") for kind in ("cert", "key"))
        made.private_key_pem.write_to_path(key)
        Path(cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return cert, key
