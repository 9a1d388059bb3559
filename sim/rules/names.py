"""Rules of names: one name, asked for by several callers, has one id."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.requests.naming import NameCoordinator
from quorumq.core.values.types import Now
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, of_operators
from sim.rules.stand_ins import Before, around


def ask_for_one(before: Before[None], self: NameCoordinator, key: int, request: m.FindName, now: Now) -> None:
    before(self, key, request, now)
    self.spans = self.spans[:1]


RULES = (
    Rule(
        "names-of-other-windows",
        "a name is looked for in the windows around that of the node that is asked",
        (around(NameCoordinator, "__init__", ask_for_one),),
        scenario=of_operators(
            "names-two-windows",
            "a message is named through two nodes, one of which is in the next window",
            ("name", A),
            ("name", C),
            ahead=(A,),
        ),
    ),
    Rule(
        "names-ask-enough",
        "a name is new if RF - majority + 1 replicas know no message of it",
        ((Round, "is_read", lambda self, bits: bool(bits)),),
        scenario=of_operators(
            "names-missed",
            "a message is named through two nodes, one of which is in the next window and missed the message",
            ("name", B),
            ("name", C),
            ahead=(C,),
        ),
    ),
)
