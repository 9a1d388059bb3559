"""`quorumq certificates`: the authority of a cluster and the certificates of its nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from quorumq.cli.common import json_option, tell
from quorumq.core.values.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as Key

AUTHORITY: Final = "ca"
"""Name of the authority's files: certificates of all authorities, newest first, and the newest one's key."""
AUTHORITY_DAYS: Final = 3650
DAYS: Final = 365
EARLY: Final = datetime.timedelta(days=1)
"""Certificates begin a day before they are made, because clocks of other machines may be late."""

directory_argument = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


class Authority:
    """An authority: the newest certificate in a directory's ca.pem, and its key."""

    def __init__(self, key: Key, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    @classmethod
    def make(cls, name: str) -> Authority:
        """Return a new authority, good for ten years."""
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.x509 import BasicConstraints, SubjectKeyIdentifier

        key = generate_private_key(SECP256R1())
        subject = _subject(f"{name} {os.urandom(4).hex()}")  # two authorities of one name would be mixed up
        builder = (
            _builder(subject, key.public_key(), AUTHORITY_DAYS)
            .add_extension(BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, _signed(builder, subject, key))

    @classmethod
    def read(cls, directory: Path) -> Authority:
        """Return the authority of a directory.

        Raises:
            UsageError: its files are missing, or do not belong together.
        """
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = directory / f"{AUTHORITY}.key"
        certificates = _authorities(directory)
        try:
            key: Any = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{path}: cannot be read ({error}): give the directory of `quorumq init --tls`"
            ) from None
        if certificates[0].public_key() != key.public_key():
            raise UsageError(
                f"{path} is not the key of the first certificate in {AUTHORITY}.pem: restore both"
            )
        return cls(key, certificates[0])

    def issue(self, names: Iterable[str], days: int = DAYS) -> dict[str, bytes]:
        """Return certificate and key for names and addresses, by the ends of their files' names.

        Args:
            names: DNS names and IP addresses; the first is the subject.
            days: days until the certificate ends.

        Raises:
            UsageError: the authority ends before.
        """
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.x509 import (
            AuthorityKeyIdentifier,
            BasicConstraints,
            ExtendedKeyUsage,
            SubjectAlternativeName,
        )
        from cryptography.x509.oid import ExtendedKeyUsageOID

        end = self.certificate.not_valid_after_utc
        remaining = (end - datetime.datetime.now(datetime.UTC)).days
        if days > remaining:
            shorter = f"give --days {remaining} at most, or " if remaining > 0 else ""
            raise UsageError(
                f"the authority ends on {end:%Y-%m-%d}, before certificates of {days} days: {shorter}make a new one by "
                "`quorumq certificates add-authority`"
            )
        names = list(dict.fromkeys(names))
        key = generate_private_key(SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_subject(names[0]), key.public_key(), days)
            .add_extension(SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        return {".pem": _pem(_signed(builder, self.certificate.subject, self.key)), ".key": _key_pem(key)}

    def files(self, older: Iterable[x509.Certificate] = ()) -> dict[str, bytes]:
        """Return the authority's files by name, with certificates of ``older`` authorities that are still trusted."""
        certificates = b"".join(map(_pem, (self.certificate, *older)))
        return {f"{AUTHORITY}.pem": certificates, f"{AUTHORITY}.key": _key_pem(self.key)}


def _subject(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _builder(subject: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLY).not_valid_after(now + datetime.timedelta(days=days))


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, issuer: Any, key: Key) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.issuer_name(issuer).sign(key, SHA256())


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: Key) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _authorities(directory: Path) -> list[x509.Certificate]:
    """Return the certificates of a directory's authorities, newest first.

    Raises:
        UsageError: the file is missing or has none.
    """
    from cryptography.x509 import load_pem_x509_certificates

    path = directory / f"{AUTHORITY}.pem"
    try:
        return load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error}): give the directory of `quorumq init --tls`"
        ) from None


def check_installed() -> None:
    """Check that certificates can be made here.

    Raises:
        UsageError: the package is missing.
    """
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("cryptography is not installed: pip install 'quorumq[tls]'") from None


def replace(directory: Path, files: dict[str, bytes]) -> list[Path]:
    """Write files, each at once. If one is a key, only its owner can read it. Return their paths."""
    for name, content in files.items():
        new = directory / f".{name}.new"
        mode = 0o600 if name.endswith(".key") else 0o644
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, directory / name)
    return [directory / name for name in files]


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    return address.rpartition(":")[0].strip("[]")


def _nodes(directory: Path) -> dict[str, list[str]]:
    """Return the names in the certificate of each node that has a configuration file in a directory.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    nodes: dict[str, list[str]] = {}
    for path in sorted(directory.glob("*.toml")):
        try:
            values = tomllib.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: is not TOML: {error}") from None
        if isinstance(values.get("node"), str):
            node = values["node"]
            addresses = [values.get(table, {}).get(node, "") for table in ("nodes", "peers")]
            addresses.append(values.get("advertise", ""))
            hosts = [host_of(address) for address in addresses if address]
            # If a node joins, its file has no table of nodes: clients reach it at the address that it listens on.
            nodes[node] = [node, *(hosts or _listening_host(path, values.get("listen", "")))]
    if not nodes:
        raise UsageError(
            f"{directory} has no node's configuration: give the directory of `quorumq init --tls`"
        )
    return nodes


def _listening_host(path: Path, address: str) -> list[str]:
    """Return the host of ``listen``.

    Raises:
        UsageError: it is no address that clients can dial.
    """
    from quorumq.node.config import EVERY_ADDRESS

    host = host_of(address)
    if not host or host in EVERY_ADDRESS:
        raise UsageError(
            f'{path}: listen = {address!r} names no address for the certificate: add advertise = "HOST:PORT", the '
            "address that clients dial"
        )
    return [host]


@click.group()
def certificates() -> None:
    """Renew the certificates of nodes, and replace their authority.

    The commands change the files that `quorumq init --tls` wrote. Copy them to the nodes then: a node rereads its
    certificates when a connection begins. They need the extra quorumq[tls].
    """
    check_installed()


@certificates.command()
@directory_argument
@click.option(
    "--days",
    default=DAYS,
    show_default=True,
    type=click.IntRange(1, AUTHORITY_DAYS),
    help="Days until the new certificates end.",
)
@json_option
def renew(directory: Path, days: int, as_json: bool) -> None:
    """Write a new certificate and key for each node that has a configuration file in DIRECTORY.

    The names in a certificate are the node's id and the hosts of its addresses. The newest authority signs it.

    \b
    quorumq certificates renew orders
    """
    authority = Authority.read(directory)
    files = {
        f"{node}{end}": content
        for node, names in _nodes(directory).items()
        for end, content in authority.issue(names, days).items()
    }
    _report("copy each node's two files to its machine", replace(directory, files), as_json)


@certificates.command("add-authority")
@directory_argument
@json_option
def add_authority(directory: Path, as_json: bool) -> None:
    """Make a new authority beside the one of DIRECTORY, whose certificates stay good.

    Its certificate becomes the first one in ca.pem, and its key replaces ca.key. If every node and client has that
    ca.pem, run `quorumq certificates renew`, and at the end `drop-authorities`.

    \b
    quorumq certificates add-authority orders
    """
    older = _authorities(directory)
    files = Authority.make("quorumq").files(older)
    _report("copy ca.pem to every node and client, and nowhere ca.key", replace(directory, files), as_json)


@certificates.command("drop-authorities")
@directory_argument
@json_option
def drop_authorities(directory: Path, as_json: bool) -> None:
    """Leave only the newest authority in the ca.pem of DIRECTORY.

    When a node or client has this file, it refuses certificates of the others. So renew all nodes' certificates before.

    \b
    quorumq certificates drop-authorities orders
    """
    files = Authority.read(directory).files()
    del files[f"{AUTHORITY}.key"]
    _report("copy it to every node and client", replace(directory, files), as_json)


def _report(remedy: str, paths: list[Path], as_json: bool) -> None:
    text = f"wrote {', '.join(map(str, paths))}: {remedy}"
    tell(text, {"files": [str(path) for path in paths]}, as_json)
