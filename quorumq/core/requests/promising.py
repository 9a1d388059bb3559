"""Changes of settings: compare and set, at the stamp of the register (docs/registers.md, SETTINGS).

A change draws its stamp, and has voters promise it: one of every majority, each with the register that it knows. Then
it knows every change that was OK before, and refuses if its client did not. No change under a lower stamp is OK any
more, unless its voters had it before they promised. So what is OK is never undone by a request that is older.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.cluster.promises import RegisterKey
from quorumq.core.messages import Failed, RegistersRequest
from quorumq.core.messages.effects import Done, Effect, Send
from quorumq.core.messages.records import Reserved
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.proposing import PAUSE_FIRST_S, PAUSE_MAX_S
from quorumq.core.values.clock import RESERVE_STEP, reserve_token
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import STAMP_LAST
from quorumq.core.values.types import Group, Now, Stamp

Promised = tuple[tuple[Reserved, ...], tuple[Done, ...]]
"""A record, and what follows once it is durable, if there is one."""


def ask_for_promises(
    owner: Coordinator, context: Context, register: RegisterKey, ballot: Stamp, now: Now
) -> list[Effect]:
    """Ask all voters for a register, and to promise ``ballot`` for it; the owner gets the answers."""
    owner.close_rounds(context)
    round_ = owner.open_voter_round(context, now)
    topic, group = register
    groups = (Group(topic, group, 0),) if group else ()
    ask = RegistersRequest(round_.number, (), () if group else (topic,), groups, ballot=ballot)
    return [Send(node, ask) for node in round_.members]


def promise(context: Context, registers: Iterable[RegisterKey], ballot: Stamp | None) -> Promised:
    """Promise the stamp of a change of these registers; None asks for nothing.

    Returns:
        what an answer has to wait for: a higher reserve of the clock, if a crash might forget the promise else.
    """
    clock = context.state.clock
    if ballot is None:
        return (), ()
    for register in registers:
        context.state.promises.make(register, ballot)
    if clock.merge(ballot.time):
        return (), ()
    reserve = clock.requested_reserve = min(
        max(ballot.time + RESERVE_STEP, clock.requested_reserve), STAMP_LAST
    )
    return (Reserved(reserve),), (Done(reserve_token(reserve)),)


def note_promised(context: Context, register: RegisterKey, promised: Stamp | None) -> None:
    """Note that a voter has promised a higher stamp than that of the written register: it is promised here, too."""
    if promised is not None:
        context.state.promises.make(register, promised)
        context.state.clock.merge(promised.time)


def is_outbid(context: Context, register: RegisterKey, written: Stamp) -> bool:
    """Return True if a voter that counts, or this node, has promised a higher stamp than the one that was written."""
    return context.state.promises.of(register, 0) > written


def ask_later(owner: Coordinator, context: Context, tries: int, now: Now) -> list[Effect]:
    """Start the owner again after a random pause, so that two changes do not outbid each other for ever."""
    owner.close_rounds(context)
    longest = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2**tries)
    context.state.at(now.mono + context.rng.random() * longest, ("again", owner.key))
    return []


def overtaken(name: str) -> Failed:
    """Return the answer to a change of settings that were changed since its client looked."""
    return Failed(
        Code.STALE_GENERATION, f"{name} was changed since: look at it, then change it if that is still right"
    )
