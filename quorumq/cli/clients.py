"""`quorumq clients`: the file of clients that may connect to the nodes, with their rights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from quorumq.cli.common import json_option, print_json, print_table, tell
from quorumq.core.values.errors import NotFound, StorageError, UsageError
from quorumq.gateway.accesskeys import new_keys_file, read_keys, secret_access_key
from quorumq.node.clients import NAME, Entry, changing, entry_of, new_token, quotas_of, read_clients

PATTERNS = "a name, or a pattern such as 'orders.*'; '*' is every"


file_option = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="QUORUMQ_CLIENTS",
    help="The clients file, as the nodes' `clients_file` names it. [env: QUORUMQ_CLIENTS]",
)


@click.group()
def clients() -> None:
    """Choose the clients that may connect to a cluster, and their rights.

    The commands read and write a file. Give its path to each node as `clients_file`, and copy it to all of them: a node
    rereads it within two seconds. If a node has it, it serves only clients that show a token of the file. Tokens travel
    as they are, so let the nodes speak TLS if others can listen.
    """


@clients.command()
@click.argument("name")
@file_option
@click.option(
    "--publish", multiple=True, metavar="TOPICS", help=f"May publish to these: {PATTERNS}. Repeatable."
)
@click.option(
    "--consume", multiple=True, nargs=2, type=str, metavar="TOPICS GROUPS",
    help="May consume these topics in these groups, and their dead letters. Repeatable.",
)  # fmt: skip
@click.option(
    "--admin", multiple=True, metavar="TOPICS",
    help="May create, change, delete, purge, redrive and rewind these; with '*' see the status, too. Repeatable.",
)  # fmt: skip
@click.option(
    "--on-behalf", multiple=True, metavar="CLIENTS",
    help="A gateway: may ask for these clients, with their rights and quotas: a name or a pattern. Repeatable.",
)  # fmt: skip
@click.option(
    "--requests-per-s", type=float, metavar="N", help="Requests a second that one node takes of it."
)
@click.option(
    "--bytes-per-s", type=float, metavar="BYTES",
    help="Bytes a second of its requests to one node, and of the answers.",
)  # fmt: skip
@click.option(
    "--unsettled", type=int, metavar="N",
    help="Messages that one node hands over to it, all its connections together, before it settles some.",
)  # fmt: skip
@click.option(
    "--delay-max", type=float, metavar="SECONDS",
    help="It may put messages off for so long, when it publishes or rejects them; 15 days if not given.",
)  # fmt: skip
@click.option(
    "--topics", type=int, metavar="N", help="It makes no topic where there are N to which it has a right."
)
@click.option(
    "--groups", type=int, metavar="N", help="It makes no group where there are N to which it has a right."
)
@click.option(
    "--producer-ids-per-s", type=float, metavar="N",
    help="Sessions and derived producer ids a second that may begin in a partition by what one node takes of it.",
)  # fmt: skip
@json_option
def add(
    name: str,
    path: Path,
    publish: tuple[str, ...],
    consume: tuple[tuple[str, str], ...],
    admin: tuple[str, ...],
    on_behalf: tuple[str, ...],
    as_json: bool,
    **quotas: float | None,
) -> None:
    """Add a client NAME, and print its token, which is kept nowhere.

    The client shows it as `token=` of the library, or as QUORUMQ_TOKEN, which these commands read too. If it has no
    quotas, it may ask as much as it likes. When it is over a quota, it waits: the library does so by itself, within the
    timeout of a call.

    \b
    quorumq clients add billing --file clients.toml --publish invoices --consume 'orders.*' billing
    quorumq clients add operator --file clients.toml --publish '*' --consume '*' '*' --admin '*'
    quorumq clients add guest --file clients.toml --consume news guest --requests-per-s 50 --unsettled 100
    quorumq clients add gateway --file clients.toml --on-behalf '*'
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r}: a client's name has 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'")
    if not (publish or consume or admin or on_behalf):
        raise UsageError(
            f"{name!r} may do nothing: give at least one of --publish, --consume, --admin and --on-behalf"
        )
    token, kept = new_token(name)
    given = {quota: most for quota, most in quotas.items() if most is not None}
    rights = {"publish": publish, "consume": consume, "admin": admin, "on_behalf": on_behalf}
    entry = {"token": kept, **rights, **given}
    with _changing(path) as entries:
        if name in entries:
            raise UsageError(f"{path} has a client {name!r}: revoke it first, or edit its rights in the file")
        entries[name] = entry_of(path, name, entry)
    tell(token, {"client": name, "token": token, "file": str(path)}, as_json)


@clients.command("list")
@file_option
@json_option
def list_(path: Path, as_json: bool) -> None:
    """List the clients of a file.

    Each has its name, the topics and groups to which it has a right, and its quotas. Tokens are not in the file.

    \b
    quorumq clients list --file clients.toml
    """
    entries = read_clients(path)
    if as_json:
        for name, entry in entries.items():
            rights = {right: getattr(entry, right) for right in ("publish", "consume", "admin", "on_behalf")}
            print_json({"client": name, **rights, "quotas": quotas_of(entry)})
        return
    rows = []
    for name, entry in entries.items():
        consume = ", ".join(f"{topics} as {groups}" for topics, groups in entry.consume)
        limits = ", ".join(f"{quota} {most:g}" for quota, most in quotas_of(entry).items())
        patterns = [", ".join(names) for names in (entry.publish, entry.admin, entry.on_behalf)]
        rows.append((name, patterns[0], consume, *patterns[1:], limits))
    print_table(("client", "publish", "consume", "admin", "on behalf", "quotas"), rows)


@clients.command()
@click.argument("name")
@file_option
@click.option(
    "--keys", "keys_file", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The gateways' file of keys. It is made if it is not there: copy it to all gateways, and keep it secret.",
)  # fmt: skip
@json_option
def key(name: str, path: Path, keys_file: Path, as_json: bool) -> None:
    """Print the access key of a client NAME for SQS through a gateway.

    The secret is derived from the client's token and the gateways' file of keys. It ends when the token does, and can
    be printed again.

    \b
    quorumq clients key shop --file clients.toml --keys gateway.keys
    """
    entry = read_clients(path).get(name)
    if entry is None:
        raise NotFound(f"{path} has no client {name!r}: make it by `quorumq clients add`")
    if not keys_file.exists():
        try:
            new_keys_file(keys_file)
        except OSError as error:
            raise StorageError(f"{keys_file} cannot be written ({error.strerror})") from None
    secret = secret_access_key(read_keys(keys_file)[0], name, entry.token)
    text = f"AWS_ACCESS_KEY_ID={name}\nAWS_SECRET_ACCESS_KEY={secret}"
    if as_json:
        print_json({"access_key_id": name, "secret_access_key": secret, "file": str(path)})
    else:
        click.echo(text)


@clients.command()
@click.argument("name")
@file_option
@json_option
def revoke(name: str, path: Path, as_json: bool) -> None:
    """Remove a client NAME from the file.

    When a node has read the file again, it closes the connections of this client.

    \b
    quorumq clients revoke shop --file clients.toml
    """
    read_clients(path)  # raises if there is no file
    with _changing(path) as entries:
        if entries.pop(name, None) is None:
            raise NotFound(f"{path} has no client {name!r}: it has {', '.join(entries) or 'none'}")
    text = f"{name} may not connect any more, once each node has this {path}."
    tell(text, {"client": name, "revoked": True, "file": str(path)}, as_json)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[dict[str, Entry]]:
    try:
        with changing(path) as entries:
            yield entries
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); it is as it was") from None
