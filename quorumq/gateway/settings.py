"""Settings of one gateway, as the command line gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from quorumq.core.values.errors import UsageError
from quorumq.wire.address import split_address

LISTEN: Final = "127.0.0.1:7480"
GROUP: Final = "sqs"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one gateway.

    Attributes:
        nodes: "host:port" of some nodes.
        listen: "host:port" for clients; port 0 takes a free one.
        clients_file: the clients that may ask, which the nodes have too; "" if the nodes have none.
        keys_file: keys from which secret access keys are derived; "" refuses SQS to clients of the clients file.
        token: the gateway's own token, with the right ``on_behalf``; "" if the nodes have no clients file.
        tls_ca: authorities of the nodes' certificates; "" for plain TCP.
        tls_cert, tls_key: the gateway's certificate and key, for clients; both "" for plain HTTP.
        insecure: serve other machines without TLS or without a clients file.
        group: group whose messages are an SQS queue's, and the default of JSON.
        console_write: let the console change the cluster.
        public_url: scheme, host and port of queue URLs; "" takes the Host that a client names.
    """

    nodes: tuple[str, ...]
    listen: str = LISTEN
    clients_file: str = ""
    keys_file: str = ""
    token: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    group: str = GROUP
    console_write: bool = False
    public_url: str = ""

    def check(self) -> None:
        """Refuse settings that cannot work, or that open the cluster to a network, with the remedy."""
        free = self.listen.endswith(":0")
        host, _ = split_address(self.listen.removesuffix("0") + "1" if free else self.listen)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("give --tls-cert and --tls-key together, or neither of them")
        if self.clients_file and not self.token:
            raise UsageError(
                "with a clients file the gateway needs a token of its own: make one by `quorumq clients add gateway "
                "--on-behalf '*' --file …`, and give it as QUORUMQ_TOKEN"
            )
        if self.keys_file and not self.clients_file:
            raise UsageError("--keys derives secrets of the clients of a file: give --clients, too")
        self._check_public_url()
        if is_loopback(host) or self.insecure:
            return
        missing = " and ".join(
            [*([] if self.tls_cert else ["TLS"]), *([] if self.clients_file else ["a clients file"])]
        )
        if missing:
            raise UsageError(
                f"{self.listen} can be reached by other machines, and there is no {missing}: give --tls-cert, "
                "--tls-key and --clients, or say --insecure"
            )

    def _check_public_url(self) -> None:
        scheme, host, rest = _parts(self.public_url)
        if self.public_url and (scheme not in ("http", "https") or not host or rest):
            raise UsageError(
                f"--public-url is {self.public_url!r}: give scheme, host and port, as https://queues.example.org"
            )


def _parts(url: str) -> tuple[str, str, str]:
    """Return scheme, host and the rest behind the port of a URL; texts that are none are "" if it is no URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is none
    except ValueError:
        return "", "", ""
    return parts.scheme, parts.hostname or "", parts.path.strip("/") + parts.query + parts.fragment


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches ``host``."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
