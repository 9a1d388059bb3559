"""Configuration of a node, from one TOML file.

Why by hand around msgspec: if an operator makes three mistakes, the error has all three, each with its key, the
value and the remedy. If a key is misspelt, it names the right one. If the configuration is uncertain, the node
does not start, because a guess about quorums or directories may lose data.

docs/operations.md lists every key; a test compares the two.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import msgspec
from msgspec import Meta

from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.records import ClusterMade
from quorumq.core.values import limits
from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import MIB
from quorumq.core.values.types import ClusterLayout
from quorumq.storage.journal import RESERVE_BYTES
from quorumq.storage.segments import SEGMENT_BYTES
from quorumq.wire.address import split_address
from quorumq.wire.receipts import SECRET_BYTES_MAX, SECRET_BYTES_MIN, key_number

NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")
HIDDEN: Final = ("secret",)
"""Values that no error text and no log shows."""
SECRETS_MAX: Final = 4
"""Most secrets of a node. When they are changed, there are two."""
SECRET_FILE_BYTES_MAX: Final = 4096

SECONDS_MAX: Final = 366 * 86400.0
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
EVERY_ADDRESS: Final = ("0.0.0.0", "::")
"""Hosts of `listen` if a node listens on all addresses of its machine."""

BYTES_MAX: Final = 1 << 50
"""More than any machine has, and less than any counter of the system takes."""

SEGMENT_BYTES_MAX: Final = 1 << 30
"""A start reads the newest segment whole, and space is reclaimed by whole segments."""
SecondsOrZero = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]


NOT_TOML: Final = (ValueError, RecursionError)
"""Errors if a text is not TOML, or nested too deeply, or has a number of thousands of digits."""


class ConfigError(UsageError):
    """The configuration cannot be used. The text names every wrong key, and the remedy for each."""

    code = "config"
    exit_code = 78


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration for `serve.run`. Times in seconds, sizes in bytes; docs/operations.md explains each key."""

    node: str
    cluster_id: str
    secret: str = ""
    secret_file: str = ""
    data_dir: str
    nodes: dict[str, str] = {}
    join: list[str] = []
    listen: str = "127.0.0.1:7401"
    machines: dict[str, str] = {}
    peers: dict[str, str] = {}
    peer_listen: str = ""
    advertise: str = ""
    http_listen: str = ""
    hold_time_max: Annotated[float, Meta(ge=limits.HOLD_TIME_MIN_S, le=SECONDS_MAX)] = (
        limits.HOLD_TIME_MAX_DEFAULT_S
    )
    request_timeout: Seconds = limits.REQUEST_TIMEOUT_S
    auto_create_topics: bool = False
    heartbeat: Seconds = 0.5
    sync_interval: Seconds = 2.0
    sync_grace: SecondsOrZero = 2.0
    steal_after: SecondsOrZero = 0.05
    move_bytes_per_s: Annotated[int, Meta(ge=0, le=BYTES_MAX)] = 0
    moves_at_once: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    segment_bytes: Annotated[int, Meta(ge=MIB, le=SEGMENT_BYTES_MAX)] = SEGMENT_BYTES
    disk_reserve_bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)] = RESERVE_BYTES
    connections_max: Annotated[int, Meta(ge=1, le=100_000)] = 2_000
    connections_per_address: Annotated[int, Meta(ge=1, le=100_000)] = 1_500
    inflight_bytes_max: Annotated[int, Meta(ge=16 * MIB, le=BYTES_MAX)] = 256 * MIB
    memory_max: Annotated[int, Meta(ge=64 * MIB, le=BYTES_MAX)] | None = None
    link_bytes_max: Annotated[int, Meta(ge=limits.FRAME_BYTES_MAX, le=BYTES_MAX)] = 32 * MIB
    hello_timeout: Seconds = 5.0
    stall_timeout: Seconds = 30.0
    stop_timeout: SecondsOrZero = 1.0
    clients_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    insecure: bool = False
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    history: str = ""

    @property
    def advertised(self) -> str:
        """The address that clients get for this node."""
        return self.advertise or self.nodes.get(self.node, "") or self.listen

    @property
    def dialled(self) -> dict[str, str]:
        """Addresses at which the nodes reach each other, by id."""
        return self.peers or self.nodes

    @property
    def elsewhere(self) -> tuple[str, str]:
        """The address of its own that others dial and the one at which it listens for them, if they differ."""
        here = self.peer_listen or self.listen
        dialled = self.dialled.get(self.node, "")
        host, port = split_address(here)
        same = not dialled or split_address(dialled) == (host, port)
        if same or (host in EVERY_ADDRESS and split_address(dialled)[1] == port):
            return "", ""
        return dialled, here

    @property
    def exposed(self) -> str:
        """The address that other machines reach without credentials, or without encryption; "" if there is none."""
        for address, asked in ((self.listen, self.clients_file), (self.peer_listen, self.tls_ca)):
            host = split_address(address)[0] if address else "localhost"
            here = host == "localhost" or host == "::1" or host.startswith("127.")
            if not (here or (self.tls_cert and asked)):
                return address
        return ""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Secret that signs receipts and is shown to peers, and after it the others that are trusted as well."""
        return tuple(line.encode() for line in lines_of(self.secret))

    def core(self, made: ClusterMade | None = None, layout: ClusterLayout | None = None) -> NodeConfig:
        """Return the part that the node core decides by.

        Args:
            made: first settings of the cluster, from the journal or from the node that has let this one in.
            layout: layout of the cluster that the journal has. If there is one, ``nodes`` give addresses only.
        """
        names, machines = tuple(sorted(self.nodes)) or (self.node,), tuple(sorted(self.machines.items()))
        addresses, hold_time_max = {**self.nodes, self.node: self.advertised}, self.hold_time_max
        if made is not None and layout is not None:
            names, machines = made.nodes, made.machines
        if self.join:
            assert made is not None, "a node that was not let in has no core"
            addresses, hold_time_max = (
                {self.node: self.advertise} if self.advertise else {},
                made.hold_time_max,
            )
        return NodeConfig(
            node=self.node,
            nodes=names,
            layout=layout,
            cluster_id=self.cluster_id,
            addresses=tuple(sorted(addresses.items())),
            peer_addresses=tuple(sorted(self.peers.items())),
            machines=machines,
            hold_time_max=hold_time_max,
            request_timeout=self.request_timeout,
            auto_create_topics=self.auto_create_topics,
            heartbeat=self.heartbeat,
            sync_interval=self.sync_interval,
            sync_grace=self.sync_grace,
            steal_after=self.steal_after,
            move_bytes_per_s=self.move_bytes_per_s,
            moves_at_once=self.moves_at_once,
            registers_key=hashlib.blake2b(b"registers\0" + b"".join(self.secrets[:1])).digest(),
        )


def load_config(path: str | os.PathLike[str]) -> ServeConfig:
    """Read and check a node's configuration file.

    If a path in it is relative, it counts from the directory that the file is in.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has keys or values that cannot be used: all of them.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
            if "secret" in values and (problem := exposed(file)):
                raise ConfigError(
                    f"{path}: has the cluster's secret, and {problem}: chmod 600 it, or keep the secret in a file "
                    "of its own (secret_file)"
                )
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of a node's TOML file"
        ) from None
    except NOT_TOML as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    base = Path(path).absolute().parent  # links of a mounted secret change their target
    for key in ("data_dir", "history", "secret_file", "clients_file", "tls_cert", "tls_key", "tls_ca"):
        if isinstance(values.get(key), str) and values[key]:
            values[key] = str(base / values[key])
    return make_config(values, str(path))


def make_config(values: Mapping[str, Any], where: str = "configuration") -> ServeConfig:
    """Return the configuration in values out of TOML. If some are wrong, raise ConfigError with every one."""
    problems: list[str] = []
    settings: dict[str, Any] = {}
    fields = {field.name: field for field in msgspec.structs.fields(ServeConfig)}
    for table in ("nodes", "peers", "machines"):
        rows = values.get(table)
        keys = [key for key in rows if key in fields and "_" in key] if isinstance(rows, dict) else []
        if keys:  # appended to a file that ends with a table
            raise ConfigError(
                f"{where}: {', '.join(keys)} stands in the table [{table}]: keys of the file go above its first [table]"
            )
    for name, value in values.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else "docs/operations.md lists the keys; remove it"
            problems.append(f"unknown key {name!r}: {hint}")
        else:
            try:
                settings[name] = msgspec.convert(value, fields[name].type)
            except msgspec.ValidationError as error:
                shown = "" if name in HIDDEN else f" = {_shown(value)}"
                problems.append(f"{name}{shown}: {plain(str(error))}")
    for name, field in fields.items():
        if field.required and name not in values:
            problems.append(f"{name} is missing: {_REQUIRED[name]}")
    if not {"secret", "secret_file"} & values.keys():
        problems.append(f"secret is missing: {_SECRET}")
    if settings.get("secret_file"):
        if "secret" in settings:
            problems.append("secret and secret_file are both given: keep one")
        else:
            problems += _read_secret(settings)
    problems += _problems(settings)
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems))
    if "listen" not in settings and settings["node"] in settings.get("nodes", {}):
        settings["listen"] = settings["nodes"][settings["node"]]
    if "peer_listen" not in settings and settings.get("peers"):
        settings["peer_listen"] = settings["peers"][settings["node"]]
    return ServeConfig(**settings)


_SECRET: Final = (
    f"give the cluster a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, the same on every node, or a "
    "secret_file with it (`openssl rand -hex 32` makes one, `quorumq init` all files)"
)
_REQUIRED: Final = {
    "node": 'give this node its id, such as node = "a"',
    "cluster_id": "give the cluster a name, the same on every node",
    "data_dir": "give this node a directory of its own, on a disk that honours fsync",
}


def _problems(settings: Mapping[str, Any]) -> list[str]:
    """Return the problems of values that have their types."""
    problems: list[str] = []
    node, nodes = settings.get("node"), settings.get("nodes", {})
    for name in dict.fromkeys((*([node] if node is not None else []), *nodes)):
        if not NODE_ID.fullmatch(name):
            problems.append(f"node id {name!r}: must be 1 to 32 characters of a-z, 0-9 and '-'")
    if nodes and node is not None and node not in nodes:
        close = difflib.get_close_matches(node, nodes, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        problems.append(
            f"node = {node!r} is not in nodes ({', '.join(nodes)}): {hint}nodes lists all, this one too"
        )
    problems += _problems_of_join(settings.get("join", []), settings)
    if "cluster_id" in settings and not 1 <= len(settings["cluster_id"].encode()) <= limits.NAME_BYTES_MAX:
        problems.append(
            f"cluster_id = {settings['cluster_id']!r}: must have 1 to {limits.NAME_BYTES_MAX} bytes"
        )
    if "secret" in settings:
        problems += _problems_of_secret(settings["secret"])
    if settings.get("tls_cert") and not settings.get("tls_ca") and (len(nodes) > 1 or settings.get("join")):
        problems.append("tls_ca is missing: nodes know each other by certificates of these authorities")
    problems += _problems_of_peers(settings.get("peers", {}), settings)
    machines = settings.get("machines", {})
    if machines and (differ := sorted({*machines} ^ {*nodes})):
        problems.append(
            f"machines and nodes differ in {', '.join(map(repr, differ))}: machines has every node, or is left out"
        )
    problems += [
        f"machines.{name} = {machine!r}: must be 1 to 64 characters that can be printed"
        for name, machine in machines.items()
        if not (1 <= len(machine) <= 64 and machine.isprintable())
    ]
    for key in ("tls_key", "tls_ca"):
        if settings.get(key) and not settings.get("tls_cert"):
            problems.append(f"{key} without tls_cert: give the node's certificate, too")
    if "data_dir" in settings and not settings["data_dir"]:
        problems.append(f"data_dir is empty: {_REQUIRED['data_dir']}")
    addresses = {"listen": settings.get("listen")}
    addresses |= {key: settings.get(key) or None for key in ("advertise", "peer_listen", "http_listen")}
    for table in ("nodes", "peers"):
        addresses |= {f"{table}.{name}": address for name, address in settings.get(table, {}).items()}
    for key, address in addresses.items():
        if address is not None:
            try:
                host, _ = split_address(address, name=key)
                if host in EVERY_ADDRESS and not key.endswith("listen"):
                    problems.append(
                        f"{key} = {address!r}: others cannot dial that: give the machine's own address here, and "
                        "this one as listen"
                    )
            except UsageError as error:
                problems.append(str(error))
    users: dict[str, str] = {}
    for key in [key for key in addresses if key.startswith(("nodes.", "peers."))]:
        other = users.setdefault(str(addresses[key]), key)
        if other != key:
            problems.append(f"{other} and {key} are both {addresses[key]!r}: each node has its own addresses")
    return problems


def _problems_of_peers(peers: Mapping[str, str], settings: Mapping[str, Any]) -> list[str]:
    if not peers:
        return ["peer_listen without peers: give the address at which each node is dialled"] * bool(
            settings.get("peer_listen") and not settings.get("join")
        )
    if differ := sorted({*peers} ^ {*settings.get("nodes", {})}):
        return [
            f"peers and nodes differ in {', '.join(map(repr, differ))}: peers has every node, or is left out"
        ]
    if settings.get("peer_listen") and settings.get("peer_listen") == settings.get("listen"):
        return [f"listen and peer_listen are both {settings['listen']!r}: one of them is for nodes alone"]
    return []


def with_join(config: ServeConfig, join: Sequence[str]) -> ServeConfig:
    """Return the configuration with addresses to ask, if there are any; ConfigError if the file has ``nodes``."""
    if not join:
        return config
    values = {field: getattr(config, field) for field in ServeConfig.__struct_fields__}
    kept = {
        key: value for key, value in values.items() if value not in ({}, [], None) and key != "secret_file"
    }
    return make_config({**kept, "join": list(join)}, "--join")


def _problems_of_join(join: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    if join and settings.get("nodes"):
        problems.append(
            "nodes and join are both given: keep join for a node that is added to a running cluster, or nodes, which "
            "is the same on all nodes that the cluster was made with"
        )
    if join and (settings.get("machines") or settings.get("peers")):
        problems.append(
            "join and machines or peers are both given: a node that is added learns them from the others"
        )
    for at, address in enumerate(join):
        try:
            split_address(address, name=f"join[{at}]")
        except UsageError as error:
            problems.append(str(error))
    return problems


def _problems_of_secret(text: str) -> list[str]:
    if "…" in text:
        return [f"secret is the placeholder of the documentation: {_SECRET}"]
    secrets = lines_of(text)
    for secret in secrets or [""]:
        if not SECRET_BYTES_MIN <= (size := len(secret.encode())) <= SECRET_BYTES_MAX:
            return [f"secret has {size} bytes: it must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}"]
    if len(secrets) > SECRETS_MAX:
        return [
            f"{len(secrets)} secrets, one a line: at most {SECRETS_MAX}; remove those that are not used any more"
        ]
    if len({key_number(secret.encode()) for secret in secrets}) < len(secrets):
        return ["two of the secrets have one key number (one in 256 pairs has): make another one"]
    return []


def _read_secret(settings: dict[str, Any]) -> list[str]:
    """Take the secret from its file; return the problems of that."""
    path = settings["secret_file"]
    try:
        with open(path, "rb") as file:
            if problem := exposed(file):
                return [f"secret_file {path}: {problem}: chmod 600 it"]
            settings["secret"] = file.read(SECRET_FILE_BYTES_MAX).decode()
    except OSError as error:
        return [f"secret_file {path} cannot be read ({error.strerror}): put the cluster's secret there"]
    except ValueError:  # bytes that are no UTF-8, or a path with a null character
        return [f"secret_file {path} is not text: {_SECRET}"]
    return []


def exposed(file: BinaryIO) -> str:
    """Return, as text, the other users that can open a secret file; "" if there are none. root's group may."""
    status = os.fstat(file.fileno())
    if status.st_mode & 0o007:
        return "everybody on this machine can open it"
    return "its group can open it, and it is not root's" if status.st_mode & 0o070 and status.st_uid else ""


def lines_of(text: str) -> list[str]:
    """Return the secrets in a text, one a line."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def plain(text: str) -> str:
    """Return msgspec's sentence in the words of a TOML file."""
    for old, new in (("`str`", "text"), ("`int`", "an integer"), ("`float`", "a number"), ("`bool`", "true or false"),
                     ("`object`", "a table"), ("`array`", "an array"), ("`null`", "nothing")):  # fmt: skip
        text = text.replace(old, new)
    return text[:1].lower() + text[1:]
