"""What `quorumq status` shows of a node."""

from __future__ import annotations

from quorumq.core.context import Context
from quorumq.core.partition.tally import tally
from quorumq.core.state import NodeConfig
from quorumq.core.types import Kind, Now
from quorumq.core.vouching import Vouching


def status(context: Context, vouching: Vouching, now: Now) -> dict[str, object]:
    """What `quorumq status` shows of this node; plain values only (docs/operations.md)."""
    state, peers = context.state, context.peers
    p99 = context.hold_times.p99()
    others = {
        node: {
            "up": node in state.links,
            "incarnation": state.known[node].n if node in state.known else 0,
            "heard_s_ago": round(now.mono - peers.heard_at[node], 3) if node in peers.heard_at else None,
            **peers.facts.get(node, {}),
        }
        for node in state.config.nodes
        if node != state.config.node
    }
    partitions = [
        {
            "topic": replica.topic.name,
            "partition": partition.number,
            "replicas": list(replica.members),
            "messages": replica.batches.present.messages,
            "missing": replica.batches.absent.messages,
            "lost": replica.batches.lost,
            "reclaimed": replica.batches.reclaimed.messages,
            "batches": len(replica.batches.stored),
            "groups": {
                view.name: {
                    "available": view.available.messages + view.suspects.messages,
                    "held": view.held_count,
                    **tally(replica.batches, view, now),
                    "tombstone_spans": view.records.spans,
                    "resolved": sum(
                        span.size for span, record in view.records.items() if record.kind != Kind.OPEN
                    ),
                    "dead": sum(
                        span.size for span, record in view.records.items() if record.letter is not None
                    ),
                }
                for view in replica.views.sorted()
            },
        }
        for partition, replica in sorted(context.replicas.items())
    ]
    return {
        "node": state.config.node,
        "cluster_id": state.config.cluster_id,
        "incarnation": state.incarnation.n,
        "vouched": state.vouched,
        "resync": f"{vouching.resync.reason}; {vouching.resync.explain(context)}" if vouching.resync else "",
        "suspected": vouching.explain_suspicion(),
        "placed": vouching.placed.why if vouching.placed is not None else "",
        "placed_by": vouching.placed.n if vouching.placed is not None else 0,
        "quarantine_s": round(context.quarantine_left(now), 3),
        "hold_time_max": state.config.hold_time_max,
        "disk_full": state.disk_full,
        "requests": len(context.requests),
        "hold_reply_p99_ms": round(1000 * p99, 3) if p99 is not None else None,
        "slow_answers": slow_answers(p99, state.config),
        "peers": others,
        "partitions": partitions,
    }


def slow_answers(p99: float | None, config: NodeConfig) -> str:
    """What to know and do where peers answer HOLDs so late that deliveries suffer; "" where they do not."""
    if p99 is None or p99 <= min(config.hold_time_max / 10, config.request_timeout / 5):
        return ""
    return (
        f"its peers take up to {p99:.2g} s to answer a HOLD: each delivery takes as long, and a hold needs "
        f"{2.5 * p99:.2g} s or more. Let consumers ask for longer holds (hold_time, hold_time_max), or look for "
        "what is slow: the network, or nodes that have too much to do"
    )
