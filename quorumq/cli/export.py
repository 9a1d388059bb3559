"""`quorumq export`: messages out of a data directory, without a cluster."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorumq.cli.common import print_json, say, text_fields
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.storage.offline import Found


@click.command()
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A node's data directory.",
)
@click.option("--topic", help="Only this topic, by name or id. [default: all]")
@click.option("--group", help="Leave out what this group has acked, or what was skipped or purged for it.")
def export(data: Path, topic: str | None, group: str | None) -> None:
    """Write the messages in a stopped node's data directory to standard output, one JSON object a line.

    Each has a line: id, topic, partition, published_ms, key, headers, payload, and in groups what each group makes of
    it: open, acked, dead, skipped or purged. A key or payload that is no UTF-8 is written as base64, under
    key_base64 or payload_base64, and a header of bytes as {"base64": …}. They come partition by partition, oldest
    first. What nobody needed any more was deleted, and is not there. A node has what its own replicas have: of a
    cluster, export every directory that is left, and take each id once.

    The directory is only read, so a copy or a read-only mount does as well. It must not be in use. From a damaged
    one comes whatever can be read: then what cannot is said on standard error, acks may be lost with it, and the
    exit code is 74.
    """
    from quorumq.core.values.errors import StorageError
    from quorumq.core.values.types import Now
    from quorumq.storage.offline import OfflineDirectory

    count = bad = 0
    with OfflineDirectory(data, Now(time.monotonic(), int(time.time() * 1000))) as directory:
        for note in directory.notes:
            say(note, err=True)
        names = {found.id: name for name, found in directory.topics().items()}
        for found in directory.messages(topic, group):
            if found.message is None:
                bad += 1
                say(found.problem, err=True)
            else:
                count += 1
                print_json(line_of(found, names[found.partition.topic]))
        say(
            f"{plural(count, 'message')} of node {directory.node} of cluster {directory.cluster_id}", err=True
        )
        if directory.damage or bad:
            what = [directory.damage] if directory.damage else []
            what += [f"{plural(bad, 'message')} cannot be read"] if bad else []
            raise StorageError(f"{'; '.join(what)}. What could be read was written")


def line_of(found: Found, topic: str) -> dict[str, Any]:
    """Return a message for JSON."""
    from quorumq.client.base.message import MessageId

    assert found.message is not None
    return {
        "id": str(MessageId(found.partition, found.producer_id, found.seq)),
        "topic": topic,
        "partition": found.partition.number,
        "published_ms": found.published_ms,
        **text_fields("key", found.message.key),
        "headers": {name: _header(value) for name, value in found.message.headers.items()},
        **text_fields("payload", found.message.payload),
        "groups": found.groups,
    }


def _header(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    return value
