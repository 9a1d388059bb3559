"""Rules of limited groups."""

from __future__ import annotations

from quorumq.core.cluster.buckets import Bucket
from quorumq.core.requests import holdround
from sim.rules.rule import Rule
from sim.rules.stand_ins import given

RULES = (
    Rule(
        "limit-takes-tokens",
        "a HOLD of a limited group takes a token for each message",
        (given(Bucket, "take", lambda self, count, now: (self, 0, now)),),
        profile="limits",
    ),
    Rule(
        "limit-votes",
        "a vote for more messages than there were tokens does not count",
        ((holdround, "suffice", lambda tokens, count: True),),
        profile="limits",
        survives="a node that does not know a limit for seconds, with clients that fetch much",
        test="test_limits::test_voters_hold_a_coordinator_to_a_limit_that_it_does_not_know",
    ),
)
