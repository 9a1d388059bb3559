"""Tests of programs that use quorumq: fake messages, and clusters in the process of the test. See docs/patterns.md.

async with cluster() as client:
    await client.publish("jobs", b"payload")
"""

from quorumq.testing.clock import Clock, run
from quorumq.testing.clusters import Cluster, cluster
from quorumq.testing.message import BlockingMessage, Message, Settlement

__all__ = ["BlockingMessage", "Clock", "Cluster", "Message", "Settlement", "cluster", "run"]
