"""`quorumq init`: the configuration files of a new cluster."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from quorumq.cli.common import json_option, print_json, say
from quorumq.core.values.errors import UsageError

PORT: int = 7401
NODES: int = 3
CLIENTS: str = "clients.toml"
OPERATOR: str = "operator"
WRITTEN: tuple[str, ...] = ("node", "cluster_id", "secret", "data_dir", "nodes", "machines")
"""Keys that `init` writes itself. If --set has one, it is refused."""


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="ID=HOST:PORT",
    help="A node and its address; once for each node. Without any: n1, n2 and n3 on this machine.",
)
@click.option("--cluster-id", help="The cluster's name; the directory's own if it is not given.")
@click.option(
    "--data-dir",
    help="The data directory of every node. If it is not given: a directory beside the configuration files.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of every node's file, such as http_listen=127.0.0.1:7481. Repeatable.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Make an authority, the nodes' certificates, and a file of clients with one that may do everything.",
)
@json_option
def init(
    directory: Path,
    nodes: tuple[str, ...],
    cluster_id: str | None,
    data_dir: str | None,
    settings: tuple[str, ...],
    tls: bool,
    as_json: bool,
) -> None:
    """Write the configuration files of a new cluster into DIRECTORY, one for each node.

    The files share a fresh secret, so only their owner can read them. Copy each to its machine and run `quorumq serve
    --config FILE` there. Nothing is overwritten: if one of the files is there already, none is written. If some nodes,
    but not all, have the same host in their addresses, they share a machine: no partition has two replicas there.

    If you give --tls (extra quorumq[tls]), copy to a machine its node's three files, ca.pem and clients.toml. Keep
    ca.key elsewhere: its holder can be a node. `quorumq certificates` renews the certificates.

    \b
    quorumq init orders
    quorumq init orders --node a=10.0.0.1:7401 --node b=10.0.0.2:7401 --node c=10.0.0.3:7401 --tls
    """
    from quorumq.node.config import make_config

    addresses = _addresses(nodes)
    hosts = {node: address.rpartition(":")[0] for node, address in addresses.items()}
    machines = len({*hosts.values()})
    shared = machines < len(addresses)
    if data_dir is not None and shared:
        raise UsageError(
            f"--data-dir {data_dir}: several of these nodes are on one machine, and each needs a directory of its own; "
            "leave it out"
        )
    secret = secrets.token_hex(32)
    more = _settings(settings)
    certificates = _certificates(addresses) if tls else {}
    texts: dict[Path, str] = {}
    for node, address in addresses.items():
        values = {
            "node": node,
            "cluster_id": cluster_id or _name_of(directory),
            "secret": secret,
            "data_dir": data_dir or f"{node}-data",
            "listen": address,
            **(_tls_keys(node) if tls else {}),
            **more,
        }
        tables = {"nodes": addresses, **({"machines": hosts} if 1 < machines < len(addresses) else {})}
        exposed = make_config({**values, **tables}, f"{node}.toml").exposed
        texts[directory / f"{node}.toml"] = config_text(values, tables)
    _write(directory, texts, [*certificates, CLIENTS] if tls else [])
    token = _write_access(directory, certificates) if tls else ""
    if as_json:
        files = [
            *texts,
            *(directory / name for name in certificates),
            *([directory / CLIENTS] if tls else []),
        ]
        access = {"token": token} if tls else {}
        print_json({"files": [str(path) for path in files], "addresses": addresses, **access})
        return
    if exposed:
        say(
            "Others may reach these nodes, so they do not start without TLS and a file of clients: begin again with "
            "--tls, or add tls_cert, tls_key, tls_ca and clients_file to each file (docs/operations.md, TLS), or "
            "insecure = true if nobody else is on that network.\n"
        )
    named = "TOML, .pem and .key, ca.pem and clients.toml" if tls else "file"
    copies = "" if shared else f"Copy to each machine its {named}. "
    say(f"{copies}Start the nodes, {'in another terminal each' if shared else 'each on its machine'}:\n")
    for path in texts:
        say(f"  quorumq serve --config {shlex.quote(str(path))}")
    say("\nThen:\n")
    say(f"  export QUORUMQ_NODES={','.join(addresses.values())}")
    if tls:
        say(f"  export QUORUMQ_TLS_CA={shlex.quote(str(directory / 'ca.pem'))}")
        say(f"  export QUORUMQ_TOKEN={token}    # of the client {OPERATOR}; it is shown once")
    say("  quorumq status")
    say("  quorumq topics create jobs")
    if len(addresses) == 2:
        say(
            "\nTwo nodes keep one copy of each message, because two copies would need both nodes for every step: a "
            "disk that is lost takes its messages along. Three nodes keep three."
        )


def _addresses(nodes: tuple[str, ...]) -> dict[str, str]:
    """Return the address of each node, as the flags say."""
    if not nodes:
        return {f"n{number}": f"127.0.0.1:{PORT + number - 1}" for number in range(1, NODES + 1)}
    addresses: dict[str, str] = {}
    for given in nodes:
        node, equals, address = given.partition("=")
        if not (node and equals and address):
            raise UsageError(f"--node {given!r}: write ID=HOST:PORT, such as a=10.0.0.1:7401")
        if node in addresses:
            raise UsageError(f"--node {given!r}: node {node!r} is given twice")
        addresses[node] = address
    return addresses


def _settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that --set gives, by key: numbers and truth values as in TOML, else texts."""
    values: dict[str, Any] = {}
    for given in texts:
        key, equals, text = given.partition("=")
        if not (key and equals) or key in WRITTEN:
            raise UsageError(f"--set {given!r}: write KEY=VALUE, with a key that no other option gives")
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            values[key] = text
    return values


def _tls_keys(node: str) -> dict[str, str]:
    return {
        "tls_cert": f"{node}.pem",
        "tls_key": f"{node}.key",
        "tls_ca": "ca.pem",
        "clients_file": CLIENTS,
    }


def _certificates(addresses: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a new authority and of each node's certificate, by name."""
    from quorumq.cli.certificates import Authority, check_installed, host_of

    check_installed()
    authority = Authority.make("quorumq")
    files = authority.files()
    for node, address in addresses.items():
        issued = authority.issue([node, host_of(address)])
        files |= {f"{node}{end}": content for end, content in issued.items()}
    return files


def _write_access(directory: Path, certificates: dict[str, bytes]) -> str:
    """Write certificates, and a file of one client with all rights; return that client's token."""
    from quorumq.cli.certificates import replace
    from quorumq.node.clients import entry_of, new_token, write_clients

    replace(directory, certificates)
    token, kept = new_token(OPERATOR)
    rights = {"token": kept, "publish": ["*"], "consume": [["*", "*"]], "admin": ["*"]}
    path = directory / CLIENTS
    write_clients(path, {OPERATOR: entry_of(path, OPERATOR, rights)})
    return token


def _name_of(directory: Path) -> str:
    """Return a cluster's name from that of its directory."""
    return re.sub(r"[^\w.-]+", "-", directory.resolve().name) or "cluster"


def config_text(values: Mapping[str, Any], tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return a node's configuration file. Texts, numbers and truth values are in TOML as in JSON.

    Tables are written as dotted keys, so that a line that a person appends is a key of the file, and not of the last
    table.
    """

    def line(name: str, value: Any) -> str:
        return f"{name} = {json.dumps(value, ensure_ascii=False)}"

    lines = [line(name, value) for name, value in values.items()]
    for table, rows in tables.items():
        lines += ["", *(line(f"{table}.{name}", value) for name, value in rows.items())]
    return "\n".join(lines) + "\n"


def _write(directory: Path, texts: dict[Path, str], others: list[str]) -> None:
    """Write all the files, or none if one of them or of ``others`` is there already."""
    for path in [*texts, *(directory / name for name in others)]:
        if path.exists():
            raise UsageError(f"{path} is there already: nothing was written; give another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
