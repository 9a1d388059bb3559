"""A node that leaves the cluster answers its clients at once, so that they ask another node.

Once it is removed, its peers answer nothing any more, and each request would wait for its timeout. A RELEASE would
reach no node, and what a FETCH holds would wait until its hold runs out. So a drained node coordinates no publishes and
deliveries: when it is removed, nothing is held through it (docs/layouts.md, MEMBERS).
"""

from __future__ import annotations

from typing import Final

from quorumq.core import messages as m
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages.effects import Effect, Reply
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.groupreader import GroupReader
from quorumq.core.values.errors import Code
from quorumq.core.values.types import MemberState, Now

FLOW: Final = (m.Publish, m.FindName, m.Fetch, m.AckRequest, m.RejectRequest, m.ExtendRequest)
"""Requests that a drained node refuses. It takes part in others, *because* an operator may drain it through itself."""


def refusal(state: NodeState, request: m.ClientRequest) -> m.Failed | None:
    """Return the answer to a request that this node does not coordinate because it leaves; None if it does."""
    standing = state.standing
    if standing == MemberState.JOINED or (standing == MemberState.DRAINING and not isinstance(request, FLOW)):
        return None
    return m.Failed(Code.NOT_STORED, f"{why(state)}: ask another node. Nothing was done")


def why(state: NodeState) -> str:
    """Return why this node serves no clients, for its answers."""
    removed = state.standing == MemberState.REMOVED
    return f"node {state.me} was {'removed from the cluster' if removed else 'drained'}"


def end_requests(context: Context, now: Now) -> list[Effect]:
    """Answer the requests of clients that cannot go on: FETCHes, which give back what they hold, and if removed all."""
    removed = context.state.standing == MemberState.REMOVED
    effects: list[Effect] = []
    for key, pending in list(context.requests.items()):
        if key <= 0 or pending.done or not isinstance(pending, Coordinator):
            continue
        detail = f"{why(context.state)} meanwhile: ask another node"
        if isinstance(pending, GroupReader):
            code = Code.OUTCOME_UNKNOWN if pending.unsure else Code.TOO_FEW_REPLICAS
            effects += pending.on_gone(context, now)
            effects.append(Reply(key, m.Failed(code, detail)))
        elif removed:
            effects += pending.fail(context, Code.OUTCOME_UNKNOWN, f"{detail}. It may have happened")
        if pending.done:
            context.costly.drop(key)
    return effects
