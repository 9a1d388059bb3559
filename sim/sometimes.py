"""What a campaign must have seen at least once: a fault that never happens proves nothing.

Hosts and clients call `World.saw` with these names when one of them happens. A campaign of `ENOUGH_SEEDS` or
more of the default profile in which one of them was never seen fails.
"""

from __future__ import annotations

ENOUGH_SEEDS = 1000

SOMETIMES: tuple[str, ...] = (
    "a hold expired",
    "a node went down while it held",
    "a tombstone was on a minority",
    "read repair fired",
    "a HOLD met another's hold",
    "a message of a superseded incarnation came",
    "a replica in quarantine abstained",
    "a node could not vouch, and began again",
    "a quarantine ended early",
    "a hold was learned from a peer",
    "a clean stop's holds were restored",
    "a delivery was left",
    "a reply was never begun",
    "an ACK heard acked",
    "an ACK heard acked_after_expiry",
    "an ACK heard acked_unproven",
    "an ACK heard unknown",
    "an ACK heard stale-generation",
    "an ACK of a dead letter heard acked",
    "an ACK of a dead letter heard already-resolved",
    "a delivery of a new generation",
    "two rewinds at once",
    "a group was created from latest",
    "a backlog was purged",
    "dead letters were purged",
    "a dead letter was fetched",
    "a redrive came too late",
    "a redrive of a redrive",
    "a HOLD asked for what was not due",
    "a replica voted on what it had not seen",
    "a message expired",
    "an origin was closed",
    "a producer heard that its session is closed",
    "a batch waited for no fsync",
    "a power cut took what was only written",
    "two changes of a topic at once",
    "a change of a topic was confirmed",
    "partitions were added",
    "a partition that was added was published to",
    "a node asked for a topic that it did not know",
    "a message expired by the topic's TTL",
    "a start found a damaged batch",
    "a damaged batch was not served",
    "a damaged directory was started from",
    "a consumer died between its outputs and the ACK",
    "an output was published again",
    "outputs were published again in other batches",
)
