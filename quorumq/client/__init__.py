"""The client library, on trio: publish, consume, settle. See docs/client.md.

async with connect(["127.0.0.1:7401", "127.0.0.1:7402"]) as client:
    await client.publish("jobs", b"payload")
    async with client.consumer("jobs", group="workers") as consumer:
        async for message in consumer:
            await message.ack()
"""

import sys

if "eventlet.patcher" in sys.modules:  # trio could not be imported, and says so in words of its own
    from quorumq.client.host import check_host

    check_host()

from quorumq.client.admin.backlog import Backlog, GroupConsumer, PartitionBacklog
from quorumq.client.admin.counts import DeadLetterCounts, DeadLetterKind, Match, RewindCount, Search
from quorumq.client.admin.show import Life, Replica, Seen
from quorumq.client.base.message import Message, MessageId, Outcome, receipt_from_text, receipt_to_text
from quorumq.client.base.options import NewMessage, Options
from quorumq.client.client import Client, Peek, Redriven, connect
from quorumq.client.consume.consumer import Consumer, ConsumerOptions
from quorumq.client.consume.work import Task, Worked
from quorumq.client.produce.batches import Pending
from quorumq.client.produce.bulk import NotAllStored
from quorumq.client.produce.partitioner import DefaultPartitioner, Partitioner, partition_of_key
from quorumq.client.produce.producer import Producer, ProducerOptions
from quorumq.client.transport.nodes import Closed
from quorumq.core.values.errors import (
    AlreadySettled,
    BadReceipt,
    Busy,
    ClusterMismatch,
    Conflict,
    HoldLost,
    NotFound,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    SessionClosed,
    StaleGeneration,
    StorageFull,
    TooFewReplicas,
    TooLarge,
    Transient,
    Unauthorized,
    UsageError,
)
from quorumq.core.values.types import Death, Group, Stamp, Topic

__all__ = [
    "connect",
    "Client",
    "Producer",
    "ProducerOptions",
    "Pending",
    "NewMessage",
    "Options",
    "Consumer",
    "ConsumerOptions",
    "Message",
    "MessageId",
    "Outcome",
    "Peek",
    "Redriven",
    "Backlog",
    "GroupConsumer",
    "PartitionBacklog",
    "DeadLetterCounts",
    "DeadLetterKind",
    "RewindCount",
    "Search",
    "Match",
    "Life",
    "Replica",
    "Seen",
    "Task",
    "Worked",
    "receipt_from_text",
    "receipt_to_text",
    "DefaultPartitioner",
    "Partitioner",
    "partition_of_key",
    "Group",
    "Death",
    "Stamp",
    "Topic",
    "AlreadySettled",
    "BadReceipt",
    "Closed",
    "ClusterMismatch",
    "Conflict",
    "HoldLost",
    "NotAllStored",
    "NotFound",
    "NotStored",
    "SessionClosed",
    "OutcomeUnknown",
    "QuorumqError",
    "StaleGeneration",
    "Busy",
    "StorageFull",
    "TooFewReplicas",
    "TooLarge",
    "Transient",
    "Unauthorized",
    "UsageError",
]
