"""Every table that quorumq shows to Spark, column by column.

The tables are the contract between the data source, which fills them, and all that query them: our own jobs, a
notebook, a user's SQL. So names are those of the protocol (docs/protocol.md, "Words"), and a name means one thing in
every table. The meaning of a column stands here once, and `python -m spark columns` prints it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import types as T

TEXT: Final = T.StringType()
TEXTS: Final = T.ArrayType(T.StringType(), containsNull=False)
NUMBER: Final = T.LongType()
SMALL: Final = T.IntegerType()
GENERATION: Final = T.DecimalType(20, 0)
"""A generation counts the changes of a group's register."""

BYTES: Final = T.BinaryType()
TIME: Final = T.TimestampType()
SECONDS: Final = T.DoubleType()


class Column(NamedTuple):
    """A column: its name, its type, its meaning, and True if it may be null."""

    name: str
    type: T.DataType
    meaning: str
    nullable: bool = False


_NAME: Final = (
    Column("id", TEXT, "the message's id, as the command line and the client write it"),
    Column("topic", TEXT, "the topic's name; its id in hex if no register has the name"),
    Column("topic_id", TEXT, "the topic's id in hex; it changes if the topic is deleted and created again"),
    Column("partition", SMALL, "the partition's number"),
    Column("producer_id", TEXT, "its producer id, as in a history: `node.n.nonce.k`"),
    Column("seq", NUMBER, "the message's number within its producer id and partition"),
)
_CONTENT: Final = (
    Column("key", BYTES, "the message's key", True),
    Column("headers", T.MapType(T.StringType(), T.StringType()), "its headers", True),
    Column("payload", BYTES, "its payload; null if no intact copy was found", True),
    Column("size", NUMBER, "bytes of the payload", True),
    Column("crc", TEXT, "CRC-32C of the record's bytes, 8 hex digits, as `crcs` in a history", True),
)
TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "messages": (
        *_NAME,
        *_CONTENT,
        Column("published_at", TIME, "when the batch was made, by its producer's time of day"),
        Column(
            "delay_ms",
            NUMBER,
            "milliseconds from `published_at` before which it is not delivered; null live",
            True,
        ),
        Column(
            "ttl_ms", NUMBER, "milliseconds after which it expires; 0: as the topic says; null live", True
        ),
        Column("replicas", TEXTS, "the nodes with an intact copy, sorted"),
        Column(
            "damaged", TEXTS, "the nodes whose only copies are damaged, sorted; live they count as absent"
        ),
        Column("reclaimed", TEXTS, "the nodes that dropped it because no group needs it, sorted; empty live"),
        Column("asked", TEXTS, "the nodes of `replica_set` that were read, or that answered, sorted"),
        Column("replica_set", TEXTS, "the nodes that the topic assigns to the partition, sorted"),
    ),
    "deadletters": (
        *_NAME,
        Column("group", TEXT, "the group for which the message is a dead letter"),
        Column("generation", GENERATION, "the group's generation in which it died"),
        Column("n", SMALL, "number of earlier redrives"),
        Column(
            "resolution",
            TEXT,
            "its end: `dead` (still a dead letter), `redriven`, `acked`, `purged`, `reopened` by a rewind, or `closed` "
            "(settled, and nothing else is known)",
        ),
        Column("reason", TEXT, "`rejected`, `max-deliveries` or `expired`"),
        Column("error_class", TEXT, "the class of the error that the consumer reported"),
        Column("message", TEXT, "its text"),
        Column("stack", TEXT, "its traceback"),
        Column("fingerprint", TEXT, "16 hex digits, equal for equal failures; computed when it died"),
        Column("attempts", SMALL, "number of its deliveries"),
        Column("published_at", TIME, "when the batch was made", True),
        Column("first_delivered_at", TIME, "when it was first delivered; null if unknown", True),
        Column("last_delivered_at", TIME, "when it was last delivered; null if unknown", True),
        Column(
            "died_at", TIME, "when it died, by the time of day of the node that wrote the dead letter", True
        ),
        Column("consumer", TEXT, "the consumer's name"),
        Column("consumer_version", TEXT, "and its version"),
        Column("host", TEXT, "the consumer's host"),
        Column("node", TEXT, "the node that wrote the dead letter"),
        *_CONTENT,
        Column("digest", TEXT, "SHA-256 of the payload in hex: equal for equal payloads", True),
        Column("replicas", TEXTS, "the nodes that have the record, sorted"),
    ),
    "problems": (
        Column("node", TEXT, "the directory's node; empty if nothing in it says"),
        Column("path", TEXT, "the directory; empty if it was not given"),
        Column("segment", NUMBER, "the segment of its journal", True),
        Column("offset", NUMBER, "its offset in that file", True),
        Column("bytes", NUMBER, "number of unreadable bytes", True),
        Column(
            "kind",
            TEXT,
            "`torn` (the last write, which was never confirmed), `body` (a batch's), `record` (a message's), `damage`, "
            "`hole` (found when the directory was salvaged), `missing` (a file), `not-trusted`, or `absent` (dead "
            "letters may be missing because the directory of this node was not read)",
        ),
        Column("reason", TEXT, "the finding, in words"),
        Column("impact", TEXT, "contents that the tables lack because of it"),
    ),
}
"""Every table by its name in `option("table", …)`."""


def schema(table: str) -> T.StructType:
    """Return the schema of a table of `TABLES`, each column with its meaning as the comment that Spark shows."""
    result = T.StructType()
    for column in TABLES[table]:
        result.add(column.name, column.type, column.nullable, {"comment": column.meaning})
    return result
