"""Trust in a node's data directory: it is trusted if it still holds everything that the node ever promised to others.

A directory is not trusted if it is new, may be an old copy, or lacks something according to a peer. The node's answers
from it count only once the others have answered (docs/protocol.md, RECOVERY; core/recovery/resync.py).

At a start, `Replay` reads the journal and gives `Trust.replay` the records of the directory. Then `Trust.begin` decides
in which of four ways the node becomes trusted:

- Intact: it was trusted before, and lies where it lay, or an operator says that it is the newest. It is trusted at
  once, also after a crash.
- New: the journal has no record of trust. `Trust.confirm` counts each peer when its link is made. Once every other node
  that the cluster was made with was counted, `Trusted` is persisted.
- Moved: it was trusted before, and lies elsewhere, so it may be an old copy. Every other member confirms it.
- Lost: its last record of trust is a `TrustLost`, or the node was added to the cluster. `Resync` asks the others. When
  no answer is missing, `Trust.end_resync` persists `Trusted`.

Once that `Trusted` is durable, `Trust.on_trusted` has the node's answers count. A node without others asks none.

In all cases, `Trust.compare` compares the starts and the position that a peer knows with the directory, each time a
link is made. If something is missing, `Trust.lose` persists `TrustLost`, and the node restarts above all known
starts: the directory is a lost one.

Quarantine is another matter: it is about forgotten holds. `Replay.state` begins it for a directory that was trusted
before, and `Trust.on_trusted` after a resync. After a clean stop, only the rest of an earlier one is left.
partition/hold_recovery.py may end it early.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumq.core.cluster.members import VOTERS
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages import Failed
from quorumq.core.messages import records as r
from quorumq.core.messages.effects import Done, Effect, LinkUp, Persist
from quorumq.core.recovery.resync import Resync, adopt_chosen, far_above
from quorumq.core.requests.answers import ResyncAnswers
from quorumq.core.requests.context import Context
from quorumq.core.values import limits
from quorumq.core.values.clock import RESERVE_STEP, reserve_token
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId

TOKEN_STARTED = -1
TOKEN_TRUSTED = -2
TOKEN_LOST = -3
TOKEN_POSITION = -4

STARTS_KEPT = 256
"""Last starts of a directory that its journal has. If a peer was down during all of them, it may report
an older one, which is not looked for."""

FIRST_ABOVE = far_above(0)
"""Start count above which a node that was added begins. A node that lost trust later begins above a higher one."""

IF_ALL_WERE_RESTORED = (
    "if the whole cluster was restored from a backup, what was acked since that was taken is delivered again"
)


@dataclass(slots=True, eq=False)
class Trust:
    """Knowledge of a node about its own data directory, in one start.

    Attributes:
        location: location of the directory at this start, as a number; 0 if the driver does not know it.
        journal_location: location of the directory by the journal; None if it names none.
        starts: the last starts of this directory, this one last.
        was_trusted: True if it was trusted in this start or one before, and has not lost trust since.
        declared: True if it was ever trusted after a declaration of survivors: topics that it knew may be gone.
        moved: True if it may be an old copy: no vote until every other node has confirmed that it is the newest.
        resync: the resync in progress; None if none is needed.
        covered_up_to: start count up to which missing starts are covered by an earlier resync.
        is_pending: True if the record of trust is on its way to the disk, and not durable yet.
        lost: True if trust was lost in this start: the node is silent, and restarts once TrustLost is durable.
        min_ballot: minimum ballot that takes effect when the resync ends.
        joined: slots that this node votes in from the end of the resync on, with the layouts since which it has them.
        confirmed_by: peers that know no other directory of this node.
    """

    config: NodeConfig
    location: int
    journal_location: r.DirectoryLocation | None = None
    starts: tuple[r.Started, ...] = ()
    was_trusted: bool = False
    declared: bool = False
    moved: bool = False
    resync: Resync | None = None
    covered_up_to: int = 0
    is_pending: bool = False
    lost: bool = False
    min_ballot: int = 0
    joined: dict[PartitionId, int] = field(default_factory=dict)
    confirmed_by: dict[NodeId, None] = field(default_factory=dict)

    # ------------------------------------------------------------------- the journal

    def note_start(self, start: r.Started) -> None:
        self.starts = (*(earlier for earlier in self.starts if earlier != start), start)[-STARTS_KEPT:]

    def replay(self, record: r.Trusted | r.TrustLost | r.DirectoryLocation, start_count: int) -> int:
        """Take in a record of the journal, which has ``start_count`` starts so far; return their count after it."""
        if isinstance(record, r.Trusted):
            self.was_trusted, self.resync = True, None
            self.declared |= record.declared
        elif isinstance(record, r.DirectoryLocation):
            self.journal_location = record
        else:
            self.was_trusted, self.resync = False, Resync(record.reason)
            self.covered_up_to = max(self.covered_up_to, record.above or far_above(start_count))
            return max(start_count, self.covered_up_to)
        return start_count

    def snapshot(self, *, trusted: bool) -> list[r.JournalRecord]:
        records: list[r.JournalRecord] = []
        if self.covered_up_to or self.resync is not None:
            reason = self.resync.reason if self.resync is not None else "before the last resync"
            records.append(r.TrustLost(self.covered_up_to, reason))
        if trusted or self.is_pending or (self.moved and self.was_trusted):
            records.append(r.Trusted(self.declared))
        if self.journal_location is not None:
            records.append(self.journal_location)
        return records

    # ------------------------------------------------------------------ the location

    @property
    def is_elsewhere(self) -> bool:
        """Return True if the data directory was found elsewhere than the journal says."""
        known = self.journal_location
        return bool(self.location) and known is not None and known.location != self.location

    def begin(self, start_count: int, *, newest: bool) -> tuple[int, bool]:
        """Begin the way in which the directory becomes trusted, once the journal is replayed.

        Returns:
            the start to begin above, and True if the directory is trusted at once.

        Args:
            start_count: count of starts that the journal has seen.
            newest: True if an operator says that this directory is the newest there is, wherever it lies.
        """
        if self.has_joined and not self.was_trusted and self.resync is None:
            self.resync = Resync("it was added to the cluster, and its directory is empty")
            self.covered_up_to = far_above(start_count)
            start_count = self.covered_up_to
        elif self.is_elsewhere and self.resync is not None:
            self.covered_up_to = far_above(start_count)  # an old copy may lack the last starts
            return self.covered_up_to, False
        if self.resync is not None:
            self.resync.is_first = self.has_joined and self.covered_up_to == FIRST_ABOVE
        self.moved = self.is_elsewhere and not newest
        return start_count, self.was_trusted and not self.moved

    def first_records(self, context: Context) -> list[r.JournalRecord]:
        """Adopt the location if nothing speaks against it, and return the records for the first Persist of this start.

        If `Trusted` is one of them, it is pending from now on.
        """
        records: list[r.JournalRecord] = []
        start = context.state.incarnation.n
        if self.resync is not None and self.is_elsewhere:
            records.append(r.TrustLost(self.covered_up_to, self.resync.reason))
        if not self.moved:
            records += self._adopt_location(
                start,
                "it could not be trusted anyway, and resyncs"
                if self.resync is not None
                else "an operator said that it is the newest there is",
            )
        if self.has_joined and not self.was_trusted:
            assert self.resync is not None
            records.append(r.TrustLost(self.covered_up_to, self.resync.reason))
        if self.is_alone(context) and not context.state.trusted:
            why = f"there is no other node to ask; {IF_ALL_WERE_RESTORED}"
            self.is_pending = True
            records += [*self._adopt_location(start, why), r.Trusted(self.declared)]
        return records

    def after_first_commit(self, context: Context) -> None:
        """Go on after the first Persist is durable. A node that is alone has no other to ask."""
        if self.is_alone(context):
            context.state.trusted = self.was_trusted = True
            self.moved = self.is_pending = False

    @property
    def has_joined(self) -> bool:
        """Return True if this node was added to a cluster that was made without it."""
        return self.config.node not in self.config.nodes

    @property
    def was_lost(self) -> bool:
        """Return True if the directory ever lost trust. A node that joins begins untrusted, and has lost none."""
        resyncs = self.resync is not None and not self.resync.is_first
        return resyncs or self.covered_up_to > (FIRST_ABOVE if self.has_joined else 0)

    def is_alone(self, context: Context) -> bool:
        """Return True if there is no other node to ask."""
        return context.catalogue.cluster.present == (self.config.node,)

    def _adopt_location(self, start: int, why: str) -> list[r.JournalRecord]:
        """Adopt this start's location, which later starts compare with theirs; return its record if it is a new one."""
        known = self.journal_location
        if not self.location or (known is not None and known.location == self.location):
            return []
        why = f"it was copied here, or restored from a backup; {why}" if known is not None else ""
        self.journal_location = r.DirectoryLocation(self.location, start, why)
        return [self.journal_location]

    # -------------------------------------------------------------------- gaining it

    def unconfirmed(self, context: Context) -> list[NodeId]:
        """Return the other nodes that have not yet reported their view of this one.

        A directory that may be an old copy asks all members, because one that joined may alone know of more. An empty
        one asks the nodes that the cluster was made with: they knew this node before it ever voted.
        """
        nodes = context.catalogue.cluster.present if self.moved else self.config.nodes
        return [node for node in nodes if node not in (*self.confirmed_by, self.config.node)]

    def confirm(self, context: Context, peer: NodeId) -> list[Effect]:
        """Count a peer's confirmation; once no other is needed, persist `Trusted`.

        A directory that may be an old copy is the newest once every other node has said that it knows of no more: each
        new link begins with a comparison of starts, directories and positions.
        """
        if context.state.trusted or self.resync is not None:
            return []
        self.confirmed_by[peer] = None
        if self.unconfirmed(context):
            return []
        why = f"every other node was heard, and none knew of more; {IF_ALL_WERE_RESTORED}"
        moved = self._adopt_location(context.state.incarnation.n, why)
        self.is_pending = True
        return [Persist((*moved, r.Trusted(self.declared)), (Done(TOKEN_TRUSTED),))]

    def end_resync(self, context: Context, now: Now) -> list[Effect]:
        """Regain trust once every needed answer is merged. The Trusted record follows all of them in the journal.

        If our old start granted a ballot and a majority won under it, a node that has answered knows: it is in our
        clock by now, which is therefore the minimum ballot of grants that may be forgotten here.
        """
        state = context.state
        if self.resync is None or state.trusted or self.resync.lacks(context):
            return []
        if adopted := adopt_chosen(context, now):
            return adopted
        self.min_ballot = state.clock.highest
        reserve = max(self.min_ballot + RESERVE_STEP, state.clock.requested_reserve)
        state.clock.requested_reserve = reserve
        done = (Done(reserve_token(reserve)), Done(TOKEN_TRUSTED))
        self.joined = {
            partition: replica.slot_layout
            for partition, replica in context.replicas.items()
            if replica.placement and replica.slot_layout and not self.resync.is_first
        }
        if since := context.catalogue.cluster.since(state.me):
            self.joined[VOTERS] = context.slots[VOTERS] = since
        slots = [r.PartitionTrusted(partition, since) for partition, since in self.joined.items()]
        absent = [record for replica in context.replicas.values() for record in replica.recall.note_absent()]
        self.is_pending = True
        self.declared |= bool(self.resync.survivors)
        return [Persist((r.Reserved(reserve), *absent, r.Trusted(self.declared), *slots), done)]

    def on_trusted(self, context: Context, now: Now) -> bool:
        """Have this node's answers count from now on. Return True if a resync ended, which starts a quarantine.

        A node that was added and was never trusted needs none: it has granted no hold. One that lost trust while the
        record was on its way to the disk is about to restart.
        """
        if self.lost:
            return False
        self.is_pending = False
        context.state.trusted = self.was_trusted = True
        self.moved = False
        if not self.declared:
            context.state.note_earlier()
        if self.resync is None:
            return False
        is_first, self.resync = self.resync.is_first, None
        context.state.voter_since = self.joined.get(VOTERS, 0)
        context.resync_answers = ResyncAnswers()
        clock = context.state.clock
        clock.min_ballot = max(clock.min_ballot, self.min_ballot)
        until = now.mono + (0.0 if is_first else limits.QUARANTINE_SHARE * self.config.hold_time_max)
        context.state.quarantine_until = until
        for replica in context.replicas.values():
            replica.trust_slot(self.joined.get(replica.partition, 0))
            replica.batches.pull_all(now)
            replica.quarantine_until = until
            for view in replica.views.with_holds():
                view.min_ballot = max(view.min_ballot, clock.min_ballot)
            context.hold_recovery.await_holds(replica, now)
        return True

    # --------------------------------------------------------------------- losing it

    def compare(self, context: Context, event: LinkUp) -> str:
        """Return the reason if what a peer knows of this node shows that the directory lacks something; else ""."""
        state, positions = context.state, context.peers.positions
        for seen in event.seen:
            if seen.n > self.covered_up_to and not self._is_ours(seen):
                return (
                    f"{event.peer} has seen start {seen.n} of node {state.me!r}, which the data directory of start "
                    f"{state.incarnation.n} does not have: it was emptied, or is an old copy"
                )
        after = next((start for start in self.starts if start.incarnation.n > event.position_by), None)
        if (
            not positions.counting
            or self.resync is not None
            or after is None
            or event.position_by <= self.covered_up_to
        ):
            return ""
        if event.position > after.records:
            return (
                f"start {event.position_by} of node {state.me!r} told {event.peer} of {event.position} records, and "
                f"start {after.incarnation.n} found {after.records}: the data directory is an old copy"
            )
        return ""

    def _is_ours(self, start: Incarnation) -> bool:
        """Return True if a start was of this directory, by its own knowledge.

        The number alone does not say: an old copy that is started counts on from its own, and uses numbers again.
        """
        return start.n < self.starts[0].incarnation.n or any(
            earlier.incarnation == start for earlier in self.starts
        )

    def lose(self, context: Context, seen_n: int, reason: str) -> list[Effect]:
        """Give up trust and restart above the start count that a peer has seen: the directory lacks a start, so it
        may lack promises.

        Far above: another peer, which is away, may have seen later starts of this node. If one of their numbers were
        used again, votes of that start would pass for ours, or ours for theirs. This start sends and counts nothing
        any more.
        """
        self.lost, self.is_pending = True, False
        context.state.trusted = False
        self.resync = Resync(reason)
        above = max(self.covered_up_to, far_above(seen_n))
        moved = self._adopt_location(context.state.incarnation.n, f"it was an old copy: {reason}")
        self.moved = False
        return [Persist((*moved, r.TrustLost(above, reason)), (Done(TOKEN_LOST),))]

    # --------------------------------------------------------------------- for people

    def explain_moved(self, context: Context) -> str:
        """Return why this node does not trust its directory yet, and what would have it go on; "" if it does."""
        if not self.moved:
            return ""
        return (
            "the data directory lies elsewhere than at its last start: it was copied, or restored from a backup, and "
            "may lack what was promised since. Every other node has to say first what it knows: still missing "
            f"{', '.join(self.unconfirmed(context)) or 'nothing but its own disk'}. Start these; or empty the "
            "directory, and the node learns from the others; or, if nothing has run from another copy of it since, "
            "start this node once with --directory-is-newest"
        )

    def refusal(self, context: Context) -> Failed:
        """Return the answer to clients while this node is not trusted."""
        me = self.config.node
        if self.resync is not None:
            detail = (
                f"node {me} is not trusted ({self.resync.reason}) and asks "
                f"the others: {self.resync.explain(context)}"
            )
            return Failed(Code.NOT_STORED, detail)
        detail = (
            f"node {me} is new and waits until every other node has said that it never saw it: "
            f"still missing {', '.join(self.unconfirmed(context)) or 'nothing but its own disk'}"
        )
        if self.moved:
            detail = f"node {me} takes part in nothing yet: {self.explain_moved(context)}"
        return Failed(Code.NOT_STORED, detail, len(self.config.nodes), len(self.confirmed_by) + 1)
