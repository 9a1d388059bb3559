"""`quorumq gateway`: access to a cluster without the client, in the foreground."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from quorumq.cli.common import json_option, nodes_option, run, tell
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.gateway.settings import GROUP, LISTEN, Settings

existing = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@nodes_option
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect.",
)
@click.option(
    "--clients", "clients_file", type=existing, envvar="QUORUMQ_CLIENTS",
    help="The nodes' clients file. Without it everybody who reaches the gateway may do everything. "
    "[env: QUORUMQ_CLIENTS]",
)  # fmt: skip
@click.option(
    "--keys", "keys_file", type=existing,
    help="The gateways' file of keys, which `quorumq clients key` makes. SQS needs it beside --clients.",
)  # fmt: skip
@click.option("--tls-cert", type=existing, help="Certificate for clients, a PEM file; with --tls-key.")
@click.option("--tls-key", type=existing, help="The key of it, a PEM file.")
@click.option("--insecure", is_flag=True, help="Serve other machines without TLS or a clients file.")
@click.option(
    "--group",
    default=GROUP,
    show_default=True,
    metavar="NAME",
    help="The group that reads a topic as an SQS queue.",
)
@click.option(
    "--public-url", default="", metavar="URL",
    help="Scheme, host and port in URLs of queues, behind a balancer; without --clients the only public name that the "
    "gateway answers to. [default: as the client named the gateway]",
)  # fmt: skip
@click.option(
    "--console-write", is_flag=True, help="Let the console change the cluster, with its user's rights."
)
@json_option
def gateway(nodes: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Open a cluster to programs that speak SQS or JSON over HTTP, and to browsers.

    A gateway runs beside any node, and any number of them may run behind a balancer: nothing is lost when one ends. It
    needs the extra: pip install 'quorumq[gateway]'.

    An SQS queue is the topic of its name, read by the group of --group. An SDK gets the gateway's address as its
    endpoint, a client's name as the access key id, and the secret that `quorumq clients key` prints. JSON is under
    /v1, with a client's token as the bearer; the console is under /console.

    If the nodes have a clients file, give the same one by --clients, and by QUORUMQ_TOKEN the token of a client that
    may ask for others (`quorumq clients add gateway --on-behalf '*'`). The nodes then check the rights and quotas of
    the client that asks, and log its name.

    SIGTERM or Ctrl-C stops it: if a request waits for messages, it is answered at once, and others have 10 s to end.

    \b
    quorumq gateway
    quorumq gateway --clients clients.toml --keys gateway.keys --listen 0.0.0.0:443 --tls-cert c.pem --tls-key k.pem
    aws --endpoint-url http://127.0.0.1:7480 sqs create-queue --queue-name jobs
    """
    try:
        from quorumq.gateway.serve import GRACE_S, LAST_S, ending, serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "quorumq":
            raise
        raise UsageError(
            f"the gateway needs {error.name}, which is not installed: pip install 'quorumq[gateway]'"
        ) from None
    from quorumq.wire.hello import own_token
    from quorumq.wire.tls import client_context, own_ca, server_context

    files = {name: str(options[name] or "") for name in ("clients_file", "keys_file", "tls_cert", "tls_key")}
    settings = Settings(nodes=nodes, token=own_token(), tls_ca=own_ca(), **{**options, **files})
    settings.check()
    if settings.tls_cert:
        server_context(settings.tls_cert, settings.tls_key, "")  # refused here, by the names of the files
    if settings.tls_ca:
        client_context(settings.tls_ca)  # else each request would be refused, as if it were at fault

    def started(url: str) -> None:
        fields = {
            "url": url,
            "clients_file": settings.clients_file or None,
            "console_write": settings.console_write,
        }
        tell(f"Serving {url} (SQS), {url}/v1 (JSON) and {url}/console. Ctrl-C stops.", fields, as_json)

    async def until_signal() -> None:
        import trio

        stop = trio.Event()
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        if stop.is_set():
                            nursery.cancel_scope.cancel()
                        end_after(LAST_S if stop.is_set() else GRACE_S + LAST_S)
                        stop.set()

            nursery.start_soon(watch)
            try:
                await serve(settings, started, stop)
            except Exception as error:  # raised below, and not in a group
                failures.append(error)
            nursery.cancel_scope.cancel()

    failures: list[Exception] = []
    try:
        with ending() as end_after:
            run(until_signal)
        for failure in failures:
            raise failure
    except OSError as error:
        raise StorageError(
            f"the gateway cannot listen at {settings.listen}: {error.strerror or error}. If the gateway of "
            "`quorumq dev` is there, use that one; else give another address by --listen"
        ) from None
