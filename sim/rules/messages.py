"""Rules of the messages themselves: publishing, spreading, delays and expiry."""

from __future__ import annotations

import itertools
from typing import Any

from quorumq.core.cluster.rounds import Round
from quorumq.core.node.upkeep import Upkeep
from quorumq.core.node.vote_router import VoteRouter
from quorumq.core.partition import batches, fate
from quorumq.core.partition.replica import Replica
from quorumq.core.partition.storing import Storing
from quorumq.core.requests.context import Context
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.requests.publish import StoreCoordinator
from sim.clients import outputs
from sim.rules.rule import Rule
from sim.rules.stand_ins import Before, after, around, given, say_at_once


def published_at_one(
    before: Before[Any], self: StoreCoordinator, context: Context, round_: Round, *, timed_out: bool
) -> Any:
    if self.stored:
        round_.majority = 1
    return before(self, context, round_, timed_out=timed_out)


def without_delay(self: Storing, record: Any, ttl_s: float, now: Any) -> tuple[Any, ...]:
    return self, record._replace(age_ms=record.batch.header.delay_ms), ttl_s, now


def anew(source: Any, group: str, output: bytes, index: int) -> tuple[Any, str, bytes, int]:
    return source, group, output, index + next(_attempts)


_attempts = itertools.count(2)

RULES: tuple[Rule, ...] = (
    Rule(
        "store-majority-1",
        "a publish is durable on a majority",
        (around(StoreCoordinator, "_decide", published_at_one),),
    ),
    Rule(
        "publish-unsynced",
        "a publish waits for the fsync",
        (after(VoteRouter, "_on_store", say_at_once),),
    ),
    Rule(
        "no-anti-entropy",
        "what differs is exchanged",
        ((Upkeep, "on_compared", lambda self, sender, message, now: []),),
    ),
    Rule(
        "due-by-one-clock",
        "what is not due is voted against",
        (given(fate, "not_due", lambda lease, context, asked: (lease, context._replace(early=0.0), asked)),),
        profile="clocks",
    ),
    Rule(
        "unseen-votes-on-due",
        "a replica without a delayed message does not vote that it is due",
        ((Replica, "delayed_parts", lambda self, span: []),),
        profile="clocks",
    ),
    Rule(
        "one-flag-expires",
        "a majority says that a message has expired",
        ((HoldRound, "is_expired", lambda self, expired: bool(expired)),),
        survives="the flag of one clock in a round that it decides: none in 800 seeds",
        profile="clocks",
        test="test_time::test_the_flag_of_a_minority_delivers_when_too_few_answer",
    ),
    Rule(
        "copied-clock",
        "a batch from a peer is as old as enough replicas say",
        ((batches, "majority_of", lambda members: members),),
        profile="clocks",
    ),
    Rule(
        "delay-forgotten",
        "delays survive a restart",
        (given(Storing, "load", without_delay),),
    ),
    Rule(
        "output-named-anew",
        "an output's id is made from its input's alone",
        (given(outputs, "derived_producer_id", anew),),
    ),
)
