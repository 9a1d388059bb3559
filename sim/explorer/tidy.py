"""Takes out of a core the parts that cannot matter here, so that states that behave alike are one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.hold_recovery import HoldRecovery
from quorumq.core.partition.lease import NO_OWNER
from quorumq.core.values.types import Now, Owner, Span


def tidy(core: NodeCore, now: Now, *, keeps_given: bool) -> None:
    """Change ``core``, and none of its behaviour.

    Hints on who else is fetching have no effect with ``steal_after = 0``; topics are placed as if all peers were up;
    a request for holds waits here until the node can answer, so it need not be repeated;
    no client acts on a hint of suspects; timers whose round, request or hold is gone do nothing when due.
    Those of holds that an ACK ended early are kept, because its hold is still reported.

    With ``keeps_given``, messages handed to a client are still looked at.
    """
    state = core.state
    state.active.clear()
    state.parked.clear()
    state.newly_ready.clear()
    core.context.peers.received_at.clear()
    core.context.peers.began_at = math.inf
    core.context.peers.reported.clear()
    core.context.peers.unanswered.clear()
    core.context.parking.announced.clear()
    core.context.fetches = 0
    if not keeps_given:
        core.context.releases.unsent.clear()
    if state.quarantine_until <= now.mono:
        state.quarantine_until = 0.0
    for peer in [peer for peer, owed in state.unconfirmed.items() if not owed]:
        del state.unconfirmed[peer]
    for replica in (*core.replicas.values(), *core.context.sources.values()):
        if replica.quarantine_until <= now.mono:
            replica.quarantine_until = 0.0
        for view in replica.views.groups.values():
            for ready in (view.available, view.suspects):
                ready.hint_after = 0.0
    state.answering = dict(state.links)  # no message is lost because it was sent too early
    state.inbound.clear()
    if not any(replica.quarantine_until for replica in core.replicas.values()):
        core.context.hold_recovery = HoldRecovery()
    _tidy_timers(core, now)


def _tidy_timers(core: NodeCore, now: Now) -> None:
    kept: dict[tuple[float, tuple[object, ...]], None] = {}
    over: dict[tuple[float, tuple[object, ...]], None] = {}
    replicas = {**core.context.sources, **core.replicas}
    grants = core.state.grants(replicas, now)
    for time, _, timer in core.state.timers:
        if _matters(core, time, timer, now):
            kept[(time, timer)] = None
    for partition, replica in replicas.items():
        ends: dict[tuple[str, Span, Owner], float] = {}
        for time, group, span, owner in grants[partition]:
            # Earlier timers of this owner would only be set again to its deadline when due.
            ends[group, span, owner] = max(time, ends.get((group, span, owner), 0.0))
        for view in replica.views.with_holds():
            # There is one message. No node asks for holds that their owner gave up, unless the owner was a rival.
            blocked = any(held.owner == NO_OWNER for _, held in view.all_held())
            gone = [] if blocked else list(view.given_up)
            for owner in gone:
                del view.given_up[owner]
            for (name, span, owner), time in ends.items():
                if name == view.name and owner not in gone:
                    timers = kept if view.held(span) else over
                    timers[(time, ("expire", partition, name, span, owner))] = None
    core.state.timers, core.state.ended_hold_timers = _in_order(kept), _in_order(over)
    core.state.timer_count = len(kept)


def _in_order(timers: Iterable[tuple[float, Any]]) -> list[tuple[float, int, Any]]:
    ordered = sorted(timers, key=lambda item: (item[0], repr(item[1])))
    return [(time, count, timer) for count, (time, timer) in enumerate(ordered, 1)]


def _matters(core: NodeCore, time: float, timer: tuple[object, ...], now: Now) -> bool:
    """Return True if a timer may still do something when it is due. One of an unknown kind may."""
    match timer:
        case ("round", number):
            return number in core.context.rounds
        case ("refresh", *_):
            return time > now.mono
        case ("again", key):
            return key in core.context.requests
        case ("advance" | "gathered", key):
            # While its rounds are open a FETCH does not advance, and when they close it does so by itself, or waits on.
            coordinator = core.context.requests.get(key)  # type: ignore[call-overload]
            return coordinator is not None and (
                timer[0] == "gathered" or not coordinator.rounds or time > now.mono
            )
        case ("forget", key):
            return key in core.context.releases.unsent
        case ("expire" | "heartbeat" | "join" | "sync" | "reclaim" | "recover", *_):
            return False  # set above; never; when the scenario says so; nothing asked is lost for good
    return True


def take_apart(core: NodeCore) -> None:
    """Cut the reference cycles in a core that is no longer needed, so that all of it is released at once."""
    del core.context.releases
    for replica in core.replicas.values():
        for view in replica.views.groups.values():
            view.dead = None
            del view.home
