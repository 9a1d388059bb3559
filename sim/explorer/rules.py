"""Each rule of the protocol, and how to leave it out.

The core has no switches: it always keeps every rule. Here a rule is taken out of it for the length of one
exploration, by putting another method in place of the one that keeps it, or by letting the explorer's driver do
what the rule forbids. docs/protocol.md, section 4, lists the rules; `RULES` is that table, made to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quorumq.core import fetch, nodecore, recovery, registers, remote, types
from quorumq.core.creation import CreateTopicCoordinator, vote
from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.fetch import FetchCoordinator, HoldRound, Won
from quorumq.core.groups import PurgeCoordinator
from quorumq.core.messages import (
    Accept,
    AlterTopic,
    Extended,
    Failed,
    Freed,
    HoldReply,
    PeerMessage,
    Prepare,
    Reject,
    RemoteFetched,
    Voted,
)
from quorumq.core.nodecore import NodeCore
from quorumq.core.partition.group import DeadView, GroupView
from quorumq.core.partition.holds import Held, HoldTable
from quorumq.core.partition.replica import Replica
from quorumq.core.records import BallotAtStop, CreationPut, JournalRecord, TopicPut
from quorumq.core.recovery import Recovery, Reported
from quorumq.core.registers import ChangeCoordinator, TopicCoordinator
from quorumq.core.rounds import Round
from quorumq.core.settle import AckCoordinator, Ballot, ExtendCoordinator
from quorumq.core.state import NodeState
from quorumq.core.topics import all_sets, alter, with_partitions
from quorumq.core.types import Incarnation, Kind, NodeId, Now, Owner, Record, Span, Stamp, Topic
from sim.explorer import world
from sim.explorer.scenario import Scenario
from sim.explorer.search import Script
from sim.explorer.world import NEVER, Switches

Patch = tuple[Any, str, Any]
"""A class or module, the name in it, and what to put there."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        name: for the command line.
        says: the rule, in one sentence.
        off: what is done instead when it is left out.
        scenario: small bounds in which leaving it out is fatal.
        patches: what is put in place of the core's methods.
        switch: sets the driver's part.
        promise: whether leaving it out breaks a promise to clients; False where what breaks is the stricter thing
            that a node hands out nothing that its own record calls settled.
    """

    name: str
    says: str
    off: str
    scenario: Scenario
    patches: tuple[Patch, ...] = ()
    switch: Callable[[Switches], None] | None = None
    promise: bool = True

    def switches(self) -> Switches:
        """The driver's switches with this rule left out."""
        found = Switches()
        if self.switch is not None:
            self.switch(found)
        return found


@contextmanager
def left_out(rule: Rule | None) -> Iterator[Switches]:
    """Leave ``rule`` out while the context lasts; None keeps all. Yields the driver's switches.

    Rounds of FETCH time out when the explorer says so, like all others, whatever the hold time. Two creations that
    outbid each other give up sooner than in production.
    """
    patches: list[Patch] = [
        (fetch, "ROUND_TIMEOUT_MIN_S", NEVER),
        (remote, "LEG_MARGIN_S", NEVER),
        (recovery, "ASK_FIRST_S", NEVER),
        (registers, "WRITES_MAX", 4),
    ]
    patches += rule.patches if rule is not None else ()
    before = [(place, name, getattr(place, name)) for place, name, _ in patches]
    try:
        for place, name, instead in patches:
            setattr(place, name, instead)
        yield rule.switches() if rule is not None else Switches()
    finally:
        for place, name, old in reversed(before):
            setattr(place, name, old)


# ------------------------------------------------------------- what stands in for the rules


def vote_without_quarantine(self: Replica, ballot: Stamp, now: Now) -> bool:
    """A replica that votes for others from its start on; as a coordinator it still waits."""
    if ballot.node == self.node.me:
        return not self.may_vote(now) or not self.node.clock.merge(ballot.time)
    return not self.node.vouched or not self.node.clock.merge(ballot.time)


def vote_for_itself_in_quarantine(self: Replica, ballot: Stamp, now: Now) -> bool:
    """A replica that votes for its own node from its start on; for others it still waits."""
    quarantined = self.in_quarantine(now) and ballot.node != self.node.me
    return not self.node.vouched or quarantined or not self.node.clock.merge(ballot.time)


def coordinate_in_quarantine(self: Replica, now: Now) -> bool:
    """A replica that coordinates FETCHes from its start on."""
    return self.node.vouched


_vote = HoldTable.vote


def learn_the_first(self: HoldTable, span: Span, held: Held) -> None:
    """A replica that keeps, of several owners reported, the first."""
    for part, ours in self.holds.split(span):
        if ours is None:
            self.holds.set(part, held)


_end_quarantine = Replica.end_quarantine


def drop_what_is_acked(self: Replica, reported: list[Reported], now: Now) -> None:
    """A replica that takes no reported hold over where its own record says that the message was acked."""
    kept = [
        told
        for told in reported
        if not self.group(told.hold.group).is_acked(told.hold.span, told.hold.generation)
    ]
    _end_quarantine(self, kept, now)


def hear_one(self: Recovery, replica: Replica, unheard: dict[NodeId, None]) -> bool:
    """A replica that is content with one answer."""
    return True


def vote_by_node(
    self: HoldTable, span: Span, n: int, owner: Owner, now: float, hold_time: float, *more: int
) -> tuple[list[Span], list[Any]]:
    """A HOLD of the node that holds the message already is granted again."""
    granted: list[Span] = []
    refused: list[Any] = []
    for part, held in self.holds.split(span):
        if held is not None and held.owner.node == owner.node:
            self.holds.set(part, Held(owner, max(held.deadline, now + hold_time), n))
            self.ballots.set(part, max(owner.ballot, held.owner.ballot))
            granted.append(part)
        else:
            yes, no = _vote(self, part, n, owner, now, hold_time, *more)
            granted += yes
            refused += no
    return granted, refused


def release_by_node(self: HoldTable, span: Span, owner: Owner) -> list[tuple[Span, Held]]:
    """A RELEASE that names no ballot removes whatever hold its node has."""
    gone = [(part, held) for part, held in self.holds.within(span) if held.owner.node == owner.node]
    for part, _ in gone:
        self.holds.remove(part)
    return gone


def deliver_what_was_won(self: FetchCoordinator, replica: Replica, won: Won, now: Now) -> list[Span]:
    """A coordinator that does not look at its own record again before it delivers."""
    return [] if now.mono >= won.expires else [won.span]


_extend_answer = ExtendCoordinator.answer


def release_on_failed_extend(self: ExtendCoordinator, core: NodeCore) -> list[Effect]:
    """An EXTEND that fails releases the hold that it wanted to extend."""
    effects: list[Effect] = []
    if not self.ballots:
        now = Now(core.state.timers[0][0] if core.state.timers else 0.0, 0)
        for verdict in self.verdicts:
            if verdict.outcome != "ok":
                receipt = self.request.items[verdict.item].receipt
                freed = Freed(receipt.partition, receipt.group, receipt.owner, (verdict.span,))
                effects += core.free(freed, now)
    return effects + _extend_answer(self, core)


_on_reply = NodeCore._on_reply


def count_for_any_round(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    """A reply whose round is over counts for another one that asked the same kind of thing."""
    if message.round not in self.rounds and isinstance(message, HoldReply | Extended):
        for number, coordinator in self.rounds.items():
            this = coordinator.rounds[number]
            fits = isinstance(this, HoldRound) == isinstance(message, HoldReply) and (
                isinstance(message, HoldReply) or isinstance(coordinator, ExtendCoordinator)
            )
            if fits:
                return _on_reply(self, sender, incarnation, message._replace(round=number), now)
    return _on_reply(self, sender, incarnation, message, now)


def replace_lower(self: HoldTable, held: Held, owner: Owner) -> bool:
    """A higher ballot takes a hold over."""
    return owner.ballot > held.owner.ballot


def revive(self: HoldTable, span: Span, owner: Owner, deadline: float) -> tuple[list[Span], list[Span]]:
    """EXTEND is granted wherever nobody else holds the message now."""
    granted: list[Span] = []
    refused: list[Span] = []
    for part, held in self.holds.split(span):
        if held is not None and not self.is_owner(held, owner):
            refused.append(part)
            continue
        self.holds.set(part, Held(owner, deadline, held.n if held is not None else 0))
        for piece, highest in self.ballots.split(part):
            self.ballots.set(piece, max(owner.ballot, highest or owner.ballot))
        granted.append(part)
    return granted, refused


def count_every_incarnation(self: Round, state: NodeState, sender: NodeId, incarnation: Incarnation) -> bool:
    """A reply counts whatever became of the start that gave it."""
    return False


def drop_hold_of_the_dead(self: GroupView, span: Span) -> None:
    """A DEAD learned from a peer ends the hold on the message."""
    self.holds.holds.remove(span)


def dead_without_hold(
    self: Replica, view: GroupView, span: Span, message: Reject
) -> tuple[list[Span], list[Span]]:
    """A REJECT to the dead letters is applied whoever holds the message, or nobody."""
    if message.letter is not None:
        view.merge(span, Record(message.generation, message.n, Kind.DEAD, message.letter))
    return [span], []


def vote_by_n(
    self: HoldTable, span: Span, n: int, owner: Owner, now: float, hold_time: float, *more: int
) -> tuple[list[Span], list[Any]]:
    """Holds are kept by redrive number: one under another n does not stand in the way."""
    for part, held in self.holds.within(span):
        if held.n != n:
            self.holds.remove(part)
    return _vote(self, span, n, owner, now, hold_time, *more)


def rank_by_n(record: Record) -> tuple[int, int, int]:
    """Records merge by n before anything else, so a redrive overtakes an ACK."""
    return (record.generation, record.n, int(record.kind))


def hints_vote(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    """A NOK that names another owner overwrites the hold here with that owner's, whenever it comes."""
    if isinstance(message, HoldReply) and sender != self.state.me:
        replica = self.replicas[message.partition]
        view = replica.group(message.group)
        for span, highest, remaining in message.refused:
            if remaining > 0:
                held = Held(
                    Owner(highest.node, self.state.known[highest.node], highest), now.mono + remaining, 0
                )
                view.holds.holds.set(span, held)
                view.holds.ballots.set(span, highest)
                replica.refresh(view, span, now)
    return _on_reply(self, sender, incarnation, message, now)


def give_back_every_late_answer(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    """An answer of another node to a round that is over is given back, as if its leg had been called off."""
    if isinstance(message, RemoteFetched) and message.round not in self.rounds:
        return [effect for part in message.slices for effect in remote.free_slice(self, part, now)]
    return _on_reply(self, sender, incarnation, message, now)


def any_ballot(self: HoldTable, ballot: Stamp, highest: Stamp | None, floor: int) -> bool:
    """A HOLD is granted whatever was granted before."""
    return True


def drop_any_hold(self: GroupView, span: Span) -> None:
    """An ACK ends whatever hold is on the message, also that of a later delivery."""
    self.holds.holds.remove(span)


_is_stale = Replica.is_stale


def stale_but_in_holds(
    self: Replica, view: GroupView, generation: int, spans: Sequence[Span], *, unseen: bool = False
) -> bool:
    """A replica that votes on a HOLD (which alone says what to take `unseen` messages for) of any generation."""
    return not unseen and _is_stale(self, view, generation, spans)


def grant_any_dead(self: DeadView, span: Span, asked: Record) -> list[tuple[Span, Record, bool]]:
    """A replica that takes the asker's word for it that the message is a dead letter."""
    return [(span, asked, False)]


def next_start(n: int) -> int:
    """Without `wiped-begins-far-above`: of the starts that are reported, the highest is the last one that there was."""
    return n


def ask_one(self: PurgeCoordinator, members: int) -> int:
    """Without `purge-asks-enough`: what one replica knows is all that there is."""
    return 1


def await_every_copy(self: Round, sender: NodeId) -> bool:
    """Without `one-answer-counts-once`: a second copy of a member's answer is one more answer."""
    return sender in self.members


def settled_at_one(self: PurgeCoordinator, this: Round, bits: int) -> bool:
    """Without `purge-at-a-majority`: one replica that has the record is enough."""
    return bool(bits)


def acked_once_durable(
    self: AckCoordinator, ballot: Ballot, span: Span, yes: int, no: int, valid: int, *, last: bool
) -> str | None:
    """Without `acked-needs-exclusive`: every ACK that is durable is `acked`."""
    if ballot.round.is_majority(ballot.answered & valid):
        return "acked"
    return self.unknown(ballot) if last else None


def exclusive_without_memory(self: HoldTable, span: Span, owner: Owner) -> tuple[list[Span], list[Span]]:
    """Without `floor-is-not-exclusive`: who remembers no ballot has granted none."""
    split = self.ballots.split(span)
    exclusive = [part for part, highest in split if highest is None or highest <= owner.ballot]
    return exclusive, [part for part, highest in split if highest is not None and highest > owner.ballot]


def restore_the_floor_alone(self: HoldTable, floor: int, kept: Iterable[BallotAtStop]) -> None:
    """Without `clean-stop-keeps-ballots`: as if nothing had been granted since the floor."""
    self.floor = floor


def never_acked(self: GroupView, span: Span, generation: int) -> bool:
    """Without `extend-looks-at-acked`: a hold is extended whatever became of the message."""
    return False


_accept = CreateTopicCoordinator.accept
_snapshot = NodeCore.snapshot
_on_put_topic = NodeCore._on_put_topic


def propose_ours(self: CreateTopicCoordinator, core: NodeCore, now: Now) -> list[Effect]:
    """A proposer that asks for its own register, whatever may have been chosen already."""
    self.accepted = None
    return _accept(self, core, now)


def serve_ours(self: CreateTopicCoordinator, core: NodeCore, now: Now) -> list[Effect]:
    """A proposer that takes its own register in before anybody has accepted it."""
    effects = _accept(self, core, now)
    assert self.value is not None
    return core.take_in_topic(self.value, now) + effects


_on_voted = CreateTopicCoordinator.on_reply


def refuse_outbid(
    self: CreateTopicCoordinator,
    core: NodeCore,
    sender: NodeId,
    incarnation: Incarnation,
    message: PeerMessage,
    now: Now,
) -> list[Effect]:
    """A proposer that takes a higher ballot for the end of its proposal, which others may have accepted."""
    theirs = message.creation if isinstance(message, Voted) else None
    if theirs is not None and theirs.promised > self.ballot and self.value is not None:
        return self.finish(core, Failed("conflict", "somebody else creates it"))
    return _on_voted(self, core, sender, incarnation, message, now)


def accept_below_promise(core: NodeCore, sender: NodeId, message: Prepare | Accept) -> list[Effect]:
    """An acceptor that accepts under any ballot."""
    if isinstance(message, Accept):
        key = (message.topic.name, message.topic.deletions)
        ours = core.creations.get(key)
        if ours is not None and ours.promised > message.ballot:
            core.creations[key] = ours._replace(promised=message.ballot)
    return vote(core, sender, message)


def serve_accepted(core: NodeCore, sender: NodeId, message: Prepare | Accept) -> list[Effect]:
    """An acceptor that takes in what it accepts."""
    effects = vote(core, sender, message)
    if isinstance(message, Accept):
        mine = core.creations.get((message.topic.name, message.topic.deletions))
        if mine is not None and mine.topic == message.topic:
            core._take_topic(message.topic)
            effects.append(Persist((TopicPut(message.topic),)))
    return effects


def vote_again(core: NodeCore, sender: NodeId, message: Prepare | Accept) -> list[Effect]:
    """An acceptor that knows what was chosen, and votes as if it had never heard of the name."""
    decided, core.names = core.names, {}
    try:
        return vote(core, sender, message)
    finally:
        core.names = decided


def never_check(self: NodeCore, now: Now) -> None:
    """Without `decided-is-told` a node knows both what was chosen and what it has promised since."""


def vote_before_sync(core: NodeCore, sender: NodeId, message: Prepare | Accept) -> list[Effect]:
    """An acceptor that says what it has promised or accepted before that is on disk."""
    return say_at_once(vote(core, sender, message))


def put_before_sync(self: NodeCore, *told: Any) -> list[Effect]:
    """A node that says it has a register before that is on disk."""
    return say_at_once(_on_put_topic(self, *told))


_on_changed = ChangeCoordinator.on_written


def enough_as_known(self: TopicCoordinator, core: NodeCore, this: Round) -> bool:
    """A DELETE that is done where its own node knows partitions, whatever the answers tell."""
    bits = self.stored & this.valid(core.state)
    sets = all_sets(self.topic, core.config.nodes) if self.step == "bury" else self.sets
    return this.is_majority(bits) and this.is_majority_of_each(bits, sets)


def delete_what_is_known(self: TopicCoordinator, core: NodeCore, now: Now) -> list[Effect]:
    """Nor does it ask for more, once that has been done."""
    return self.on_buried(core, now)


def alter_at_once(topic: Topic, request: AlterTopic, stamp: Stamp) -> Topic:
    """Partitions that begin where the first node has heard of them."""
    return with_partitions(alter(topic, request, stamp), request.partitions or 0, (A, B, C))


def confirm_deleted(self: ChangeCoordinator, core: NodeCore, now: Now) -> list[Effect]:
    """An ALTER that confirms what it has proposed, even where it was answered that the topic is deleted."""
    if self.step != "change":
        return _on_changed(self, core, now)
    self.pages, self.merged = [], self.topic
    return self.carry(core, now)


def say_at_once(effects: list[Effect]) -> list[Effect]:
    """The same effects, where nothing waits for the disk."""
    said = [then for effect in effects if isinstance(effect, Persist) for then in effect.then]
    return [
        *[effect._replace(then=()) if isinstance(effect, Persist) else effect for effect in effects],
        *[then for then in said if isinstance(then, Send)],
    ]


def forget_creations(self: NodeCore, now: Now) -> list[JournalRecord]:
    """A node that tells one that was wiped nothing of what it has promised and accepted."""
    return [record for record in _snapshot(self, now) if not isinstance(record, CreationPut)]


def no_hint(self: FetchCoordinator, replica: Replica, span: Span, remaining: float, now: Now) -> None:
    """Hints are elsewhere (see `hints_vote`)."""


# ------------------------------------------------------------------------ scripts


def delivered_and_expired(script: Script, coordinator: NodeId = "a") -> None:
    """a0 is delivered, every replica grants it, and its hold runs out."""
    script.do("fetch", coordinator)
    script.settle()
    script.do("tick")
    script.do("tick")


def voter_restarted(script: Script) -> None:
    """a wins a0 with b's vote; its HOLD to c is still under way; b is started again and linked to both others."""
    script.do("fetch", "a")
    script.deliver("Hold", "a", "b")
    script.deliver("HoldReply", "b", "a")
    script.do("crash", "b")
    script.do("link", "a", "b")
    script.do("link", "b", "c")


def half_acked(script: Script, via: NodeId = "d", wiped: NodeId = "b") -> None:
    """a0 is delivered and runs out; its ACK, through ``via``, which has no replica, reaches one, which is wiped."""
    delivered_and_expired(script, "c")
    script.do("ask", via, "ack", 0)
    script.deliver("Ack", via, wiped)
    script.deliver("Tombed", wiped, via)
    script.do("wipe", wiped)


def half_acked_of_five(script: Script) -> None:
    """The same with five replicas, none of them b; d, which is wiped, has heard the others' holds since."""
    half_acked(script, "b", "d")
    for peer in ("a", "c", "e", "f"):
        script.deliver("HoldsAsk", "d", peer)
        script.deliver("HoldsTold", peer, "d")


def acked_by_a_start_unseen(script: Script) -> None:
    """a0 is delivered through c and runs out; d is started again, and linked to b alone; a0's ACK, through b, reaches
    d, which is wiped, resyncs from a, c and e, and may vote again; then it reaches a."""
    delivered_and_expired(script, "c")
    script.do("crash", "d")
    script.do("link", "b", "d")
    script.do("ask", "b", "ack", 0)
    script.deliver("Ack", "b", "d")
    script.deliver("Tombed", "d", "b")
    script.do("wipe", "d")
    for _ in range(3):
        script.do("tick")
    script.deliver("Ack", "b", "a")
    script.deliver("Tombed", "a", "b")


def clean_stop_of_b(script: Script) -> None:
    """b stops cleanly, starts again, and is linked to both others."""
    script.do("clean stop", "b")
    script.do("link", "a", "b")
    script.do("link", "b", "c")


def dead_at_one(script: Script) -> None:
    """a0 is delivered through a and dead-lettered at b only; its hold runs out; a1 is delivered through a and c."""
    script.do("fetch", "a")
    script.settle()
    script.do("ask", "b", "dead", 0)
    script.do("tick")
    script.do("tick")
    script.do("fetch", "a")
    script.deliver("Hold", "a", "c")
    script.deliver("HoldReply", "c", "a")


def delivered_late(script: Script) -> None:
    """a0 is delivered through a, and its hold runs out; a1 is delivered through a by the vote of c."""
    delivered_and_expired(script)
    script.do("fetch", "a")
    script.deliver("Hold", "a", "c")
    script.deliver("HoldReply", "c", "a")


def voter_forgot_the_second(script: Script) -> None:
    """a0 is delivered through a and runs out; a1 is delivered through c by the vote of b, which is started again."""
    delivered_and_expired(script)
    script.do("fetch", "c")
    script.deliver("Hold", "c", "b")
    script.deliver("HoldReply", "b", "c")
    script.do("crash", "b")
    script.do("link", "a", "b")
    script.do("link", "b", "c")


def both_ran_out(script: Script) -> None:
    """a0 is delivered through a and runs out; a1 likewise, through c by the vote of b."""
    delivered_and_expired(script)
    script.do("fetch", "c")
    script.deliver("Hold", "c", "b")
    script.deliver("HoldReply", "b", "c")
    script.do("tick")
    script.do("tick")


def acked_beside_the_second(script: Script) -> None:
    """As `delivered_late`, with b's vote; the ACK of a0 is durable at a and b, and b is started again."""
    delivered_and_expired(script)
    script.do("fetch", "a")
    script.deliver("Hold", "a", "b")
    script.deliver("HoldReply", "b", "a")
    script.do("ask", "b", "ack", 0)
    script.deliver("Ack", "b", "a")
    script.deliver("Tombed", "a", "b")
    script.do("crash", "b")
    script.do("link", "a", "b")
    script.do("link", "b", "c")


def accepted_unsynced(script: Script) -> None:
    """c0, through a, is promised by a and b and accepted by a; b has accepted it, and not synced that."""
    script.do("ask", "a", "create", 0)
    script.deliver("Prepare", "a", "b")
    script.do("fsync", "b")
    script.deliver("Voted", "b", "a")
    script.deliver("Accept", "a", "b")


def accepted_and_wiped(script: Script) -> None:
    """c0, through a, is promised by a, b and c; b accepts it and is wiped; b, d and e promise c1, through e."""
    script.do("ask", "a", "create", 0)
    for acceptor in ("b", "c"):
        script.deliver("Prepare", "a", acceptor)
        script.deliver("Voted", acceptor, "a")
    script.deliver("Accept", "a", "b")
    script.do("wipe", "b")
    script.do("ask", "e", "create", 1)
    for acceptor in ("b", "d"):
        script.deliver("Prepare", "e", acceptor)
        script.deliver("Voted", acceptor, "e")


def dead_everywhere(script: Script) -> None:
    """a0 is delivered through a and dead-lettered through b, at every replica."""
    script.do("fetch", "a")
    script.settle()
    script.do("ask", "b", "dead", 0)
    script.settle()


# -------------------------------------------------------------------------- the table

A, B, C = "a", "b", "c"


def _leave(switches: Switches) -> None:
    switches.leave_delivered = True


def _late(switches: Switches) -> None:
    switches.late_replies = True


def _reorder(switches: Switches) -> None:
    switches.reorder_journal = True


def _speak(switches: Switches) -> None:
    switches.speak_before_sync = True


def scenario(name: str, about: str, **bounds: Any) -> Scenario:
    return Scenario(name=name, about=about, **bounds)


TWO_CREATIONS = scenario(
    "creations",
    "2 creations of one name",
    attempts=0,
    operators=(("create", A), ("create", C)),
    give_up=False,
)

FORGETFUL_ACCEPTOR = scenario(
    "creations-unsynced",
    "2 creations of one name, 1 crash of a node whose fsyncs are steps of their own",
    attempts=0,
    operators=(("create", A), ("create", C)),
    restarts=1,
    restart_nodes=(B,),
    give_up=False,
    unsynced=True,
    script=accepted_unsynced,
)

WIPED_OF_FIVE = scenario(
    "creations-wipe-of-five",
    "2 creations of one name, and one of five disks lost meanwhile, whose node hears three of the others",
    nodes=(A, B, C, "d", "e"),
    attempts=0,
    operators=(("create", A), ("create", "e")),
    wipes=1,
    restart_nodes=(B,),
    wiped_hears=(C, "d", "e"),
    give_up=False,
    script=accepted_and_wiped,
)

ALTERED_AND_DELETED = scenario(
    "alter-delete",
    "one more partition and a DELETE, through two nodes",
    attempts=0,
    operators=(("alter", A), ("delete", B)),
    give_up=False,
)

WIPED_ACCEPTOR = scenario(
    "creations-wipe",
    "2 creations of one name, and a disk lost meanwhile",
    attempts=0,
    operators=(("create", A), ("create", C)),
    wipes=1,
    restart_nodes=(B,),
    give_up=False,
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="quarantine",
        says="after a restart a replica abstains until no hold that it forgot can live",
        off="the replica votes at once",
        patches=((Replica, "abstains", vote_without_quarantine),),
        scenario=scenario(
            "restart",
            "2 attempts, 1 crash",
            attempts=2,
            restarts=1,
            ticks=1,
            coordinators=(A, C),
            restart_nodes=(B,),
        ),
    ),
    Rule(
        name="quarantine-coordinator",
        says="a restarted node coordinates no FETCH until then either",
        off="it coordinates, with its own vote, at once",
        patches=(
            (Replica, "abstains", vote_for_itself_in_quarantine),
            (Replica, "may_vote", coordinate_in_quarantine),
        ),
        scenario=scenario(
            "restart-coordinator",
            "2 attempts through the node that crashes",
            attempts=2,
            restarts=1,
            ticks=1,
            coordinators=(A,),
            restart_nodes=(A,),
        ),
    ),
    Rule(
        name="owner-is-an-attempt",
        says="a hold belongs to one ballot of one incarnation; the same node asking again gets nothing",
        off="a HOLD from the node that holds is granted",
        patches=((HoldTable, "vote", vote_by_node),),
        scenario=scenario(
            "same-node",
            "2 attempts through one node, 1 EXTEND",
            attempts=2,
            extends=1,
            ticks=2,
            give_up=False,
            coordinators=(A,),
            via=(B,),
        ),
    ),
    Rule(
        name="release-carries-ballot",
        says="RELEASE removes the hold of exactly the ballot that it names",
        off="it removes whatever its node holds",
        patches=((HoldTable, "release", release_by_node),),
        scenario=scenario("release", "3 attempts through 2 nodes", attempts=3, coordinators=(A, C)),
    ),
    Rule(
        name="recovery-keeps-union",
        says="all holds that the others report are kept; what two owners hold is blocked until both are gone",
        off="of two owners the one that is reported first is kept",
        patches=((HoldTable, "learn", learn_the_first),),
        scenario=scenario(
            "recovery",
            "a delivery by the word of a replica that then crashes, and a second attempt",
            attempts=2,
            restarts=1,
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=voter_restarted,
        ),
    ),
    Rule(
        name="recovery-hears-all",
        says="every other replica must have told its holds before a quarantine ends early",
        off="one of them is enough",
        patches=((Recovery, "has_heard_enough", hear_one),),
        scenario=scenario(
            "recovery",
            "a delivery by the word of a replica that then crashes, and a second attempt",
            attempts=2,
            restarts=1,
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=voter_restarted,
        ),
    ),
    Rule(
        name="recovery-keeps-acked",
        says="a hold that is reported is kept, whatever our own record says: another delivery may have been acked",
        off="what our record calls acked is not taken over",
        patches=((Replica, "end_quarantine", drop_what_is_acked),),
        scenario=scenario(
            "recovery-acked",
            "a late ACK beside a live delivery whose voter is started again, and a rewind",
            attempts=3,
            acks=1,
            restarts=1,
            rewinds=1,
            ticks=2,
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(B,),
            rewind_via=(B,),
            give_up=False,
            script=acked_beside_the_second,
        ),
    ),
    Rule(
        name="own-tombstone",
        says="before it delivers, a coordinator looks at its own record and hold once more",
        off="it delivers whatever won",
        promise=False,
        patches=((FetchCoordinator, "still_ours", deliver_what_was_won),),
        scenario=scenario(
            "late-ack",
            "an expired delivery is acked while the next is under way",
            attempts=2,
            acks=1,
            ticks=2,
            coordinators=(A, C),
            via=(A,),
            script=delivered_and_expired,
        ),
    ),
    Rule(
        name="failed-extend-releases-nothing",
        says="an EXTEND that misses the majority changes nothing",
        off="it releases the hold",
        patches=((ExtendCoordinator, "answer", release_on_failed_extend),),
        scenario=scenario(
            "failed-extend",
            "2 attempts, 1 EXTEND",
            attempts=2,
            extends=1,
            ticks=1,
            coordinators=(A, C),
            via=(C,),
        ),
    ),
    Rule(
        name="replies-for-their-round",
        says="a reply counts for the round that asked, and no other",
        off="a late reply counts for the next round of its kind",
        patches=((NodeCore, "_on_reply", count_for_any_round),),
        switch=_late,
        scenario=scenario("late-reply", "3 attempts through 2 nodes", attempts=3, coordinators=(A, C)),
    ),
    Rule(
        name="no-replacing",
        says="no hold is replaced, whatever the ballot",
        off="a higher ballot replaces",
        patches=((HoldTable, "may_replace", replace_lower),),
        scenario=scenario("two", "2 attempts through 2 nodes", attempts=2, ticks=2, coordinators=(A, C)),
    ),
    Rule(
        name="extend-never-revives",
        says="EXTEND is granted only where exactly this owner still holds",
        off="it is granted where nobody holds",
        patches=((HoldTable, "extend", revive),),
        scenario=scenario(
            "revive",
            "an EXTEND comes after the hold ran out and another delivery was made",
            attempts=2,
            extends=1,
            ticks=4,
            coordinators=(A, C),
            via=(A,),
            script=delivered_and_expired,
        ),
    ),
    Rule(
        name="superseded-do-not-count",
        says="a reply from a start that anyone in the round knows to be superseded does not count",
        off="it counts",
        patches=((Round, "is_superseded", count_every_incarnation),),
        scenario=scenario(
            "wipe",
            "an ACK through a node without a replica, and a disk lost meanwhile",
            nodes=(A, B, C, "d"),
            attempts=2,
            acks=1,
            wipes=1,
            ticks=2,
            coordinators=(C,),
            restart_nodes=(B,),
            via=("d",),
            give_up=False,
            script=half_acked,
        ),
    ),
    Rule(
        name="superseded-of-five",
        says="nor does it with five replicas, where an ACK counts three answers",
        off="it counts",
        patches=((Round, "is_superseded", count_every_incarnation),),
        scenario=scenario(
            "wipe-of-five",
            "an ACK through a node without a replica, and one of five disks lost meanwhile",
            nodes=(A, B, C, "d", "e", "f"),
            rf=5,
            attempts=2,
            acks=1,
            wipes=1,
            ticks=2,
            coordinators=(C,),
            restart_nodes=("d",),
            via=(B,),
            give_up=False,
            script=half_acked_of_five,
        ),
    ),
    Rule(
        name="wiped-begins-far-above",
        says="an empty directory begins far above the starts that it is told of: there may have been later ones",
        off="it begins with the next one",
        patches=((world, "far_above", next_start),),
        scenario=scenario(
            "wipe-unseen",
            "an ACK through the only node that knows the second start of another, whose disk is lost meanwhile",
            nodes=(A, B, C, "d", "e"),
            rf=5,
            attempts=2,
            acks=1,
            restarts=1,
            wipes=1,
            ticks=5,
            coordinators=(C,),
            restart_nodes=("d",),
            wiped_hears=(A, C, "e"),
            via=(B,),
            script=acked_by_a_start_unseen,
        ),
    ),
    Rule(
        name="clean-stop-once",
        says="the hold table of a clean stop is used once",
        off="it is found again at every start",
        switch=_reorder,
        scenario=scenario(
            "clean-stop",
            "2 attempts; b stops cleanly first and crashes once",
            attempts=2,
            clean_stops=1,
            restarts=1,
            ticks=1,
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=clean_stop_of_b,
        ),
    ),
    Rule(
        name="leave-only-undelivered",
        says="LEAVE gives back only what certainly nobody works on",
        off="a connection that dies leaves what was delivered over it",
        switch=_leave,
        scenario=scenario("leave", "2 attempts, 1 LEAVE", attempts=2, leaves=1, coordinators=(A, C)),
    ),
    Rule(
        name="dead-needs-the-hold",
        says="DEAD is written only where exactly the owner of the receipt holds",
        off="a REJECT is applied whoever holds",
        patches=((Replica, "_already_rejected", dead_without_hold),),
        scenario=scenario(
            "late-reject",
            "an expired delivery is dead-lettered while the next is under way",
            attempts=2,
            rejects=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            script=delivered_and_expired,
        ),
    ),
    Rule(
        name="learned-dead-drops-no-hold",
        says="a DEAD that is learned from a peer ends no hold",
        off="a learned DEAD ends the hold there",
        patches=((GroupView, "on_learned_dead", drop_hold_of_the_dead),),
        scenario=scenario(
            "dead-spreads",
            "a minority's DEAD spreads beside a live delivery, and is redriven",
            attempts=3,
            rejects=1,
            redrives=1,
            offers=2,
            ticks=3,
            coordinators=(A, B),
            via=(B,),
            script=dead_at_one,
        ),
    ),
    Rule(
        name="holds-by-message",
        says="holds belong to the message, whatever its redrive number",
        off="a HOLD at another n does not see them",
        patches=((HoldTable, "vote", vote_by_n),),
        scenario=scenario(
            "redrive-beside",
            "a minority's DEAD is redriven beside a live delivery",
            attempts=3,
            rejects=1,
            redrives=1,
            offers=1,
            ticks=3,
            coordinators=(A, B),
            via=(B,),
            script=dead_at_one,
        ),
    ),
    Rule(
        name="nothing-overtakes-acked",
        says="ACKED is above every other record, whatever its n",
        off="a redrive at n + 1 is above it",
        patches=((types, "record_rank", rank_by_n),),
        scenario=scenario(
            "overtake",
            "a minority's DEAD is redriven after another delivery was acked",
            attempts=3,
            rejects=1,
            redrives=1,
            acks=1,
            ticks=2,
            coordinators=(A, B),
            via=(B,),
            script=dead_at_one,
        ),
    ),
    Rule(
        name="hints-never-vote",
        says="what a NOK says of another's hold is used in choosing, and changes no hold",
        off="it overwrites the hold here, whenever it comes",
        patches=((NodeCore, "_on_reply", hints_vote), (FetchCoordinator, "_hint", no_hint)),
        switch=_late,
        scenario=scenario("hints", "3 attempts through 2 nodes", attempts=3, coordinators=(A, C)),
    ),
    Rule(
        name="ballots-only-rise",
        says="a HOLD is granted only above the highest ballot ever granted for the message",
        off="any ballot is granted",
        patches=((HoldTable, "is_above", any_ballot),),
        scenario=scenario(
            "late-hold",
            "2 attempts, the later one rejected at once",
            attempts=2,
            rejects=1,
            reject_as=("now",),
            coordinators=(A, C),
            via=(C,),
        ),
    ),
    Rule(
        name="sync-before-answering",
        says="an answer that promises something durable waits for its fsync",
        off="it is sent before the fsync, which a crash may prevent",
        switch=_speak,
        scenario=scenario(
            "unsynced",
            "RF 1, 1 ACK, 1 crash before or after the fsync",
            nodes=(A,),
            rf=1,
            attempts=2,
            acks=1,
            restarts=1,
            ticks=5,
            unsynced=True,
        ),
    ),
    Rule(
        name="give-back-only-called-off",
        says="what another node won for us is given back only if its leg was called off, and once",
        off="it is given back whenever its round is over, so also when a second copy of the answer comes",
        patches=((NodeCore, "_on_reply", give_back_every_late_answer),),
        scenario=scenario(
            "relay",
            "FETCH through a node without a replica, and through one with",
            nodes=(A, B, C, "d"),
            attempts=2,
            coordinators=("d", A),
        ),
    ),
    Rule(
        name="ack-ends-own-hold",
        says="an ACK ends the hold of its own delivery, and no other",
        off="it ends whatever hold there is",
        patches=((GroupView, "on_acked", drop_any_hold),),
        scenario=scenario(
            "ack-rewind",
            "an expired delivery is acked beside a live one, and the group is rewound",
            attempts=3,
            acks=1,
            rewinds=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            rewind_via=(B,),
            give_up=False,
            script=delivered_late,
        ),
    ),
    Rule(
        name="stale-generation-refused",
        says="a HOLD of a generation that was rewound is refused",
        off="it is voted on as if that were the current one",
        patches=((Replica, "is_stale", stale_but_in_holds),),
        scenario=scenario(
            "rewind",
            "2 attempts and a rewind",
            attempts=2,
            rewinds=1,
            coordinators=(A, C),
            give_up=False,
            rewind_via=(B,),
        ),
    ),
    Rule(
        name="dead-granted-at-its-n",
        says="a dead letter is granted to a reader only where the record is DEAD at exactly that n",
        off="it is granted whatever the record says",
        patches=((DeadView, "on_asked", grant_any_dead),),
        scenario=scenario(
            "dead-reads",
            "a dead letter is redriven beside its readers",
            attempts=1,
            rejects=1,
            redrives=1,
            dead_reads=2,
            coordinators=(A,),
            via=(B,),
            dead_via=(A, C),
            give_up=False,
            script=dead_everywhere,
        ),
    ),
    Rule(
        name="purge-asks-enough",
        says="a purge settles what RF - majority + 1 replicas know, one of which has whatever was confirmed",
        off="it settles what one replica knows",
        patches=((PurgeCoordinator, "enough", ask_one),),
        scenario=scenario(
            "purge-missing",
            "a purge through a replica that has not got the message, 1 attempt",
            attempts=1,
            backlog_purges=1,
            stored_on=(A, B),
            coordinators=(A,),
            purge_via=(C,),
            give_up=False,
        ),
    ),
    Rule(
        name="one-answer-counts-once",
        says="a replica's answer to a round counts once, however often it arrives",
        off="every copy counts",
        patches=((Round, "awaits", await_every_copy),),
        scenario=scenario(
            "purge-elsewhere",
            "1 attempt, one replica has no copy of the message; a purge through a node without a replica",
            nodes=(A, B, C, "d"),
            attempts=1,
            backlog_purges=1,
            stored_on=(A, B),
            coordinators=(A,),
            purge_via=("d",),
            give_up=False,
        ),
    ),
    Rule(
        name="purge-at-a-majority",
        says="a purge says OK once a majority has each record, or one above it",
        off="it says OK once one replica has it",
        patches=((PurgeCoordinator, "is_settled", settled_at_one),),
        scenario=scenario(
            "purge",
            "a purge beside 1 attempt",
            attempts=1,
            backlog_purges=1,
            coordinators=(A,),
            purge_via=(B,),
            give_up=False,
        ),
    ),
    Rule(
        name="acked-needs-exclusive",
        says="`acked` is said only where a majority has granted no higher ballot",
        off="it is said whenever the ACK is durable",
        patches=((AckCoordinator, "judge", acked_once_durable),),
        scenario=scenario(
            "late-verdict",
            "an expired delivery is acked beside the next one, which may be extended",
            attempts=2,
            acks=1,
            extends=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=delivered_and_expired,
        ),
    ),
    Rule(
        name="floor-is-not-exclusive",
        says="a replica that was started again is exclusive only for ballots above its floor",
        off="it has granted what it remembers, and nothing else",
        patches=((HoldTable, "exclusivity", exclusive_without_memory),),
        scenario=scenario(
            "forgotten-verdict",
            "an expired delivery is acked, and a live one extended, after the live one's voter was started again",
            attempts=2,
            acks=1,
            extends=1,
            restarts=1,
            ticks=2,
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(A,),
            give_up=False,
            script=voter_forgot_the_second,
        ),
    ),
    Rule(
        name="clean-stop-keeps-ballots",
        says="a clean stop hands over its floor only together with all ballots granted above it",
        off="the next start has the floor, and the ballots of live holds",
        patches=((HoldTable, "restore_memory", restore_the_floor_alone),),
        scenario=scenario(
            "handed-over-verdict",
            "2 deliveries ran out, and are acked; a voter of the second stops cleanly",
            attempts=2,
            acks=2,
            clean_stops=1,
            ticks=4,
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(A,),
            give_up=False,
            script=both_ran_out,
        ),
    ),
    Rule(
        name="extend-looks-at-acked",
        says="an EXTEND is refused where the message was acked, by whatever delivery",
        off="the hold is extended",
        patches=((GroupView, "is_acked", never_acked),),
        scenario=scenario(
            "extend-acked",
            "an expired delivery is acked beside a live one, which is extended",
            attempts=2,
            acks=1,
            extends=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=delivered_late,
        ),
    ),
    Rule(
        name="creation-takes-over",
        says="what was accepted under the highest ballot heard of is proposed, whoever asked for it",
        off="everybody proposes the register that its own client wants",
        patches=((CreateTopicCoordinator, "accept", propose_ours),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="creation-keeps-promise",
        says="an acceptor accepts nothing under a ballot below its promise",
        off="it accepts whatever comes",
        patches=((nodecore, "vote", accept_below_promise),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="decided-is-told",
        says="who knows what was chosen answers with that, and votes no more",
        off="it votes as if it had never heard of the name",
        patches=((nodecore, "vote", vote_again), (NodeCore, "check", never_check)),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="accepted-is-not-served",
        says="what is accepted is no register before it is chosen",
        off="an acceptor takes it in",
        patches=((nodecore, "vote", serve_accepted),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="proposed-is-not-served",
        says="nor is what is proposed: a creation that loses leaves nothing behind",
        off="the node that was asked takes it in, as of old",
        patches=((CreateTopicCoordinator, "accept", serve_ours),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="conflict-once-chosen",
        says="`conflict` is answered only once another topic was chosen",
        off="a proposal that is outbid is answered with it",
        patches=((CreateTopicCoordinator, "on_reply", refuse_outbid),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        name="votes-are-durable",
        says="what is promised or accepted is on disk before it is said",
        off="the answer does not wait for the fsync",
        patches=((nodecore, "vote", vote_before_sync),),
        scenario=FORGETFUL_ACCEPTOR,
    ),
    Rule(
        name="registers-are-durable",
        says="a register is on disk before it is answered for",
        off="the answer does not wait for the fsync",
        patches=((NodeCore, "_on_put_topic", put_before_sync),),
        scenario=FORGETFUL_ACCEPTOR,
    ),
    Rule(
        name="resync-brings-votes",
        says="a resync brings what others have promised and accepted",
        off="it brings registers only",
        patches=((NodeCore, "snapshot", forget_creations),),
        scenario=WIPED_ACCEPTOR,
    ),
    Rule(
        name="superseded-votes",
        says="votes of a start that is known to be superseded do not count",
        off="they count",
        patches=((Round, "is_superseded", count_every_incarnation),),
        scenario=WIPED_OF_FIVE,
    ),
    Rule(
        name="delete-hears-of-partitions",
        says="a DELETE goes to the replicas of all partitions that anybody proposed before it",
        off="it goes to those that its own node knows of",
        patches=(
            (TopicCoordinator, "is_enough", enough_as_known),
            (TopicCoordinator, "on_read", delete_what_is_known),
        ),
        scenario=ALTERED_AND_DELETED,
    ),
    Rule(
        name="alter-hears-of-deletion",
        says="an ALTER confirms nothing where any of the majority that has its proposal says that the topic is gone",
        off="it confirms them all the same",
        patches=((ChangeCoordinator, "on_written", confirm_deleted),),
        scenario=ALTERED_AND_DELETED,
    ),
    Rule(
        name="partitions-are-confirmed",
        says="a partition takes messages only once a majority of the nodes knows that it was proposed",
        off="it does where it is first heard of",
        patches=((registers, "alter", alter_at_once),),
        scenario=ALTERED_AND_DELETED,
    ),
)


def rule_named(name: str) -> Rule:
    """The rule of that name. KeyError, with the names there are, if there is none."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise KeyError(f"no rule is called {name!r}; there are: {', '.join(rule.name for rule in RULES)}")


__all__ = ["RULES", "Rule", "left_out", "rule_named"]
