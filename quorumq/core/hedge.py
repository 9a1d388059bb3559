"""Who is asked at once, and what the others are sent a little later.

HOLD, STORE and ACK need the answers of a majority, and are decided by them. So they go to the nearest majority at once,
and to the rest within ``late_after``, together with whatever else waits for that peer: then a third replica costs a
step, a frame and an fsync for many messages instead of for each.

Nothing that counts depends on it. To who is asked later it is a message that was on its way for longer; where this node
dies before, it is one that was lost (docs/protocol.md, ASKED LATER).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from quorumq.core import limits
from quorumq.core.effects import Effect, Send
from quorumq.core.messages import Ack, Hold, Owned, Part, Store
from quorumq.core.rounds import Round
from quorumq.core.spans import subtract
from quorumq.core.state import NodeState
from quorumq.core.types import NodeId, Now, Owner, Span, Stamp

HEDGE_SHARE = 0.25
"""Of ``late_after``, for how long a round waits for those that were asked at once, before it asks the rest."""

EVERYONE_EACH = 64
"""Of so many rounds one asks everyone at once: who answers it first is asked first from then on."""


class Asking(Protocol):
    """A request that is under way."""

    @property
    def rounds(self) -> dict[int, Round]:
        """Its open rounds, by number."""


Rounds = Mapping[int, Asking]
"""Whose each open round is."""


class Later:
    """What waits to be sent to one peer.

    Attributes:
        since: when the oldest of it came (monotonic seconds).
        stores: rounds of STORE, since when they wait, and what to send.
        holds: rounds of HOLD and what to send, by ballot.
        acks: rounds of ACK likewise, and how many runs of messages each names.
        parts: batches in all STOREs.
        bytes: of these.
    """

    __slots__ = ("acks", "bytes", "holds", "parts", "since", "stores")

    def __init__(self, since: float) -> None:
        self.since = since
        self.stores: list[tuple[int, float, Store]] = []
        self.holds: dict[Stamp, tuple[int, Hold]] = {}
        self.acks: list[tuple[int, Ack, int]] = []
        self.parts = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it goes now, as more would be too much for one step."""
        count = len(self.holds) + len(self.acks) + self.parts
        return count >= limits.LATE_MESSAGES_MAX or self.bytes >= limits.STORE_BYTES_MAX


class Hedge:
    """Chooses for each round who is asked at once, and keeps what the others are to be sent.

    Attributes:
        order: the other nodes, the nearest first.
        silent: those that kept a round waiting, and were not heard from since.
        later: what waits, by peer.
    """

    __slots__ = ("_state", "later", "order", "silent")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        nodes = sorted(state.config.nodes)
        at = nodes.index(state.me)
        self.order = nodes[at + 1 :] + nodes[:at]
        self.silent: dict[NodeId, None] = {}
        self.later: dict[NodeId, Later] = {}

    # ---------------------------------------------------------------- who is asked

    def split(self, this: Round, keen: Sequence[NodeId], now: Now) -> None:
        """Choose who is asked later: nobody, where fewer than a majority were heard from when they were asked.

        Args:
            this: the round; nobody was asked yet.
            keen: members that have a use of their own for the message: they are asked at once, too.
        """
        state, members, silent = self._state, this.members, self.silent
        if not state.config.late_after or not this.number % EVERYONE_EACH:
            return
        needed = this.majority - (state.me in members)
        for peer in keen:
            if peer not in silent and peer in state.links:
                needed -= 1
        late = 0
        for peer in self.order:
            if peer in members and peer in state.links and peer not in keen:
                if needed > 0 and peer not in silent:
                    needed -= 1
                else:
                    late |= 1 << members.index(peer)
        if late and needed <= 0:
            this.late = late
            state.at(now.mono + HEDGE_SHARE * state.config.late_after, ("hedge", this.number))

    def answers_first(self, this: Round, sender: NodeId) -> None:
        """Of all members, who were asked at once, ``sender`` answers first: it is the nearest."""
        if sender in self.order and not any(node in this.heard for node in self.order):
            self.order.remove(sender)
            self.order.insert(0, sender)

    def ask_last(self, this: Round) -> None:
        """Who was asked and has not answered in time is asked last from now on."""
        for at, member in enumerate(this.members):
            asked = not (this.late | this.unasked) & 1 << at
            if asked and member not in this.heard and member in self.order:
                self.silent[member] = None
                self.order.remove(member)
                self.order.append(member)

    # ------------------------------------------------------------------ what waits

    def put(
        self, rounds: Rounds, peer: NodeId, message: Store | Hold | Ack, now: Now, runs: int = 1
    ) -> list[Effect]:
        """Keep what ``peer`` is to be sent; all of it goes now where that is enough.

        ``runs``: of messages, that an ACK names.
        """
        number = message.round
        later = self.later.get(peer)
        if later is None:
            later = self.later[peer] = Later(now.mono)
            self._state.at(now.mono + self._state.config.late_after, ("late", peer, now.mono))
        if isinstance(message, Store):
            later.stores.append((number, now.mono, message))
            later.parts += 1 + len(message.more)
            for part in message.parts:
                later.bytes += len(part.batch.raw) + len(part.batch.body)
        elif isinstance(message, Hold):
            later.holds[message.ballot] = (number, message)
        else:
            later.acks.append((number, message, runs))
        return self.flush(rounds, peer, now) if later.is_full else []

    def unaware(self, owner: Owner) -> list[NodeId]:
        """Who has not heard of this hold of ours, and waits for it."""
        return [peer for peer, later in self.later.items() if owner.ballot in later.holds]

    def withdraw(self, owner: Owner, spans: Sequence[Span]) -> None:
        """The hold of ``owner`` on these is over: who has not heard of it need not."""
        for later in self.later.values():
            found = later.holds.get(owner.ballot)
            if found is not None:
                number, hold = found
                wants = [
                    want._replace(span=part) for want in hold.wants for part in subtract(want.span, spans)
                ]
                if wants:
                    later.holds[owner.ballot] = (number, hold._replace(wants=tuple(wants)))
                else:
                    del later.holds[owner.ballot]

    def withdraw_settled(self, entries: Iterable[Owned]) -> None:
        """Likewise, of what an ACK or a REJECT names."""
        for span, owner, _ in entries:
            self.withdraw(owner, (span,))

    def ask_rest(self, rounds: Rounds, this: Round, now: Now) -> list[Effect]:
        """Those that were asked do not decide it: ask the rest now."""
        effects: list[Effect] = []
        for at, member in enumerate(this.members):
            if this.late & 1 << at:
                effects += self.flush(rounds, member, now)
        this.late = 0  # or they cannot be asked any more
        return effects

    def on_silence(self, rounds: Rounds, number: int, now: Now) -> list[Effect]:
        """Round ``number`` has waited for those that were asked at once: ask the rest, and these last from now on."""
        this = rounds[number].rounds[number]
        if this.late:
            self.ask_last(this)
        return self.ask_rest(rounds, this, now)

    def flush_all(self, rounds: Rounds, now: Now) -> list[Effect]:
        """Send all that waits."""
        return [effect for peer in list(self.later) for effect in self.flush(rounds, peer, now)]

    def flush(self, rounds: Rounds, peer: NodeId, now: Now) -> list[Effect]:
        """Send what waits for ``peer``: first what is stored, then what is held, then what is acked.

        Answers matter to rounds that are still open. What is of others is joined where it may be, and ACKs and HOLDs
        have no number then: they are not answered.
        """
        later = self.later.pop(peer, None)
        if later is None:
            return []
        effects: list[Effect] = []
        parts: list[Part] = []
        over = 0
        for number, since, store in later.stores:
            aged = store.aged(now.mono - since)
            if self._is_open(rounds, number, peer):
                effects.append(Send(peer, aged))
            else:
                over = number
                parts += aged.parts
        if parts:
            effects.append(Send(peer, Store(over, *parts[0], tuple(parts[1:]))))
        owed = self._state.releases_owed(peer, now) if later.holds else ()
        for number, hold in later.holds.values():
            is_open = self._is_open(rounds, number, peer)
            effects.append(Send(peer, hold._replace(round=number if is_open else 0, freed=owed)))
            owed = ()
        joined: dict[tuple[object, ...], tuple[Ack, int]] = {}
        for number, ack, runs in later.acks:
            if self._is_open(rounds, number, peer):
                effects.append(Send(peer, ack))
                continue
            key = ack[1:5]
            before, sum_of_runs = joined.get(key, (None, 0))
            if before is not None and sum_of_runs + runs > limits.RUNS_PER_STEP:
                effects.append(Send(peer, before))
                before, sum_of_runs = None, 0
            entries = (*before.entries, *ack.entries) if before is not None else ack.entries
            joined[key] = (ack._replace(round=0, entries=entries), sum_of_runs + runs)
        return effects + [Send(peer, ack) for ack, _ in joined.values()]

    def _is_open(self, rounds: Rounds, number: int, peer: NodeId) -> bool:
        """Whether round ``number``, of which ``peer`` is asked now, is still open."""
        pending = rounds.get(number)
        if pending is None:
            return False
        this = pending.rounds[number]
        this.late &= ~(1 << this.members.index(peer))
        return True

    def check(self) -> None:
        """Assert what holds between any two events."""
        assert sorted([*self.order, self._state.me]) == sorted(self._state.config.nodes)
        for later in self.later.values():
            assert not later.is_full
