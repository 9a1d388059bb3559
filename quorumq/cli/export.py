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

    Each has a line: id, topic, partition, published_ms, key, headers, payload, and in groups its state for each group:
    open, acked, dead, skipped or purged. If a key or payload is no UTF-8, it is written as base64, under
    key_base64 or payload_base64, and a header of bytes as {"base64": …}. The order is partition by partition, oldest
    first. If all groups had settled a message, it may be deleted. A node has the messages of its own replicas: of a
    cluster, export every directory that is left, and take each id once.

    The directory is only read, so a copy or a read-only mount does as well. It must not be in use. If it is damaged,
    the readable part is written, and standard error names the rest. Acks may be lost then. The exit code is 74.
    """
    from quorumq.core.values.errors import StorageError
    from quorumq.core.values.types import Now
    from quorumq.storage.offline import OfflineDirectory

    count = bad = 0
    with OfflineDirectory(data, Now(time.monotonic(), int(time.time() * 1000))) as directory:
        for note in directory.notes:
            say(note, err=True)
        names = {known.id: name for name, known in directory.topics().items()}
        for stored in directory.messages(topic, group):
            if stored.message is None:
                bad += 1
                say(stored.problem, err=True)
            else:
                count += 1
                print_json(line_of(stored, names[stored.partition.topic]))
        say(
            f"{plural(count, 'message')} of node {directory.node} of cluster {directory.cluster_id}", err=True
        )
        if directory.damage or bad:
            problems = [directory.damage] if directory.damage else []
            problems += [f"{plural(bad, 'message')} cannot be read"] if bad else []
            raise StorageError(f"{'; '.join(problems)}. What could be read was written")


def line_of(stored: Found, topic: str) -> dict[str, Any]:
    """Return a message for JSON."""
    from quorumq.client.base.message import MessageId

    assert stored.message is not None
    return {
        "id": str(MessageId(stored.partition, stored.producer_id, stored.seq)),
        "topic": topic,
        "partition": stored.partition.number,
        "published_ms": stored.published_ms,
        **text_fields("key", stored.message.key),
        "headers": {name: _header(value) for name, value in stored.message.headers.items()},
        **text_fields("payload", stored.message.payload),
        "groups": stored.groups,
    }


def _header(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    return value
