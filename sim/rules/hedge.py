"""Rules of who is asked later: nothing that counts depends on when a message is sent, but for these."""

from __future__ import annotations

from quorumq.core.hedge import Hedge
from quorumq.core.holdround import HoldRound
from quorumq.core.messages import Store
from sim.explorer.scenario import Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, C

LATER = "nothing that is promised: a message that comes late, or not at all, is nothing new"


def counts_who_is_asked_later(self: HoldRound, yes: int, mine: int) -> bool:
    return bool(yes & mine) and self.is_majority(yes | self.late)


RULES: tuple[Rule, ...] = (
    Rule(
        "asked-later-is-no-vote",
        "who is asked later has not voted yet",
        ((HoldRound, "is_won", counts_who_is_asked_later),),
        off="who is asked later will say OK, too",
        scenario=Scenario(
            "later-vote",
            "2 attempts; only a majority is asked at once",
            late=True,
            coordinators=(A, C),
            give_up=False,
        ),
    ),
    Rule(
        "rest-is-asked",
        "who is not asked at once is sent the same within `late_after`",
        ((Hedge, "put", lambda self, rounds, peer, message, now, runs=1: []),),
        survives=LATER,
        test="test_hedge::test_a_hold_that_lasts_reaches_everyone_and_is_not_answered",
    ),
    Rule(
        "undecided-asks-the-rest",
        "where the answers of those that were asked decide nothing, the rest are asked at once",
        ((Hedge, "ask_rest", lambda self, rounds, this, now: []),),
        survives=LATER,
        test="test_hedge::test_a_store_that_is_refused_goes_to_the_others_at_once",
    ),
    Rule(
        "silent-are-asked-last",
        "who has kept a round waiting is asked last from then on",
        ((Hedge, "ask_last", lambda self, this: None),),
        survives=LATER,
        test="test_hedge::test_who_does_not_answer_keeps_one_publish_waiting_and_is_asked_last",
    ),
    Rule(
        "ages-while-it-waits",
        "what is stored later has aged meanwhile",
        ((Store, "aged", lambda self, seconds: self),),
        survives="nothing that is promised: it is due `late_after` late at one replica",
        test="test_hedge::test_what_was_published_with_a_delay_has_aged_while_it_waited",
    ),
    Rule(
        "settled-is-not-held-later",
        "a hold that is over is withdrawn from what waits",
        ((Hedge, "withdraw", lambda self, owner, spans: None),),
        survives="nothing that is promised: a message waits for one hold time beside a replica that is down",
        test="test_hedge::test_a_hold_that_is_given_back_elsewhere_before_it_reaches_everyone_never_does",
    ),
)
