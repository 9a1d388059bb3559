"""Anti-entropy of one partition: state that peers have sent of it, and the payload that is pulled.

Nothing is merged here: the replica merges what it receives, as it merges the content of any other message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect, Send, SendStored
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.partition.comparing import BATCHES, CLOSED, Answer, Listed, Trees, claim_states, label_of
from quorumq.core.partition.component import PartitionComponent
from quorumq.core.partition.digests import (
    BRANCHES,
    DIGEST_BYTES,
    DIGITS,
    ROOT,
    Keyed,
    bounds_of,
    depth_of,
    parts_of,
)
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.move_throttle import MoveThrottle
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.types import NodeId, Now, Span, Topic

PULL_BATCHES_MAX = 64
PULL_BYTES_MAX = 4 * limits.MIB

WAITING_MAX: Final = 1 << 16
"""Comparisons with one peer that wait at most: those left out are made again with later digests."""

RENEWED: Final = 5
"""Cost of making one digest anew, in looks."""

Table = Batches | ClosedSessions | GroupView
"""Table that replicas compare: it has `digests`, and the `content` of each producer id."""

NOTHING: Final[Listed] = {}
ALL: Final = 1 << 62


class Compare(NamedTuple):
    """A peer's sums of the parts of node ``location`` of its tree; of the root itself if that is 0.

    ``tells``: in the end the peer sends its content, and we merge it.
    """

    location: int
    sums: bytes
    tells: bool


class Tell(NamedTuple):
    """A peer's digests, all of them in the node ``location``: the peer then gets our state that differs."""

    location: int
    theirs: Listed


class Sync(PartitionComponent):
    """Anti-entropy of one partition.

    Args:
        key: key of the partition's digests.

    Attributes:
        keyed: makes the digests.
        pulling_until: a pull is under way until then (monotonic seconds).
        owed: the peers that are to have digests, and whether they are to be asked for what is absent.
        digests: the newest digests of each peer that is not answered yet, and whether the peer sends its content.
        waiting: other comparisons with each peer, and state to send to it.
    """

    __slots__ = ("digests", "keyed", "owed", "pulling_until", "waiting")

    def __init__(self, batches: Batches, views: Views, key: bytes) -> None:
        super().__init__(batches, views)
        self.keyed = Keyed(key)
        self.pulling_until = 0.0
        self.owed: dict[NodeId, bool] = {}
        self.digests: dict[NodeId, tuple[bytes, bool]] = {}
        self.waiting: dict[NodeId, deque[Compare | Tell]] = {}

    # ---------------------------------------------------------------- digests

    def tables(self) -> Iterator[tuple[bytes, Table]]:
        """Iterate over what replicas compare, by label; groups by name, so that two nodes list them alike."""
        yield BATCHES, self.batches
        yield CLOSED, self.batches.closed
        for view in self.views.sorted():
            yield label_of(view.name), view

    def trees(self) -> Trees:
        """Return the digests that there are."""
        groups = self.views.groups
        trees = [(BATCHES, self.batches.digests), (CLOSED, self.batches.closed.digests)]
        names = [name for name in groups if groups[name].digests.root is not None]
        trees += [(label_of(name), groups[name].digests) for name in sorted(names)]
        self.node.compares_left -= len(groups) / 8
        return Trees([tree for tree in trees if tree[1].root is not None])

    def rekey(self, key: bytes) -> None:
        """Compare under another key from now on."""
        if key != self.keyed.key:
            self.keyed = Keyed(key)
            for _, table in self.tables():
                digests = table.digests
                digests.clear([*digests.stale, *(producer_id for producer_id, _ in digests.items())])

    def renew(self) -> bool:
        """Make digests of changed producer ids anew, as many as this step has time for; return False if some are
        left."""
        node = self.node
        tables: list[Table] = [self.batches, self.batches.closed, *self.views.groups.values()]
        for table in tables:
            digests = table.digests
            if digests.stale:
                label = self._label(table)
                most = max(0, int(min(node.compares_left / RENEWED, ALL)))
                node.compares_left -= RENEWED * digests.renew(self.keyed, label, table.content, most)
                if digests.stale:
                    return False
        return True

    def _label(self, table: Table) -> bytes:
        if isinstance(table, GroupView):
            return label_of(table.name)
        return BATCHES if table is self.batches else CLOSED

    # ----------------------------------------------------- what peers have sent

    def take(self, sender: NodeId, message: m.SyncDigests | m.SyncListed) -> None:
        """Note a peer's message, to be worked off. Of digests of the root only the newest count."""
        if isinstance(message, m.SyncDigests) and not message.locations:
            self.digests[sender] = (message.sums, message.tells)
            return
        tasks = self.waiting.setdefault(sender, deque())
        if isinstance(message, m.SyncDigests):
            size = BRANCHES * DIGEST_BYTES
            for at, location in enumerate(message.locations):
                tasks.append(Compare(location, message.sums[at * size : (at + 1) * size], message.tells))
        else:
            listed = [(BATCHES, message.producer_ids), (CLOSED, message.closed)]
            listed += [(label_of(group), digests) for group, digests in message.groups]
            theirs = {label: dict(digests) for label, digests in listed}
            tasks += [Tell(location, theirs) for location in message.locations]
        while len(tasks) > WAITING_MAX:
            tasks.pop()

    def discard_comparisons(self) -> None:
        """Drop all comparisons with peers: they are of another layout."""
        self.pulling_until = 0.0
        self.owed, self.digests, self.waiting = {}, {}, {}

    def compare_soon(self, peers: Iterable[NodeId], now: Now) -> None:
        """Compare with peers in the next step, and pull at once what they have: STOREs were refused here until now."""
        self.batches.pull_all(now)
        self.owed.update((peer, False) for peer in peers if peer in self.node.links)
        self.node.compare_later(self.batches.partition)

    def is_left(self) -> bool:
        """Return True if something waits for a step with more time."""
        return bool(self.owed or self.digests or self.waiting)

    def work(self, topic: Topic, now: Now) -> list[Effect]:
        """Send the digests that are owed, and answer messages of peers, as far as this step has time."""
        node = self.node
        effects: list[Effect] = []
        if not self.is_left() or not self.renew():
            return effects
        trees = self.trees()
        for peer in list(dict.fromkeys([*self.waiting, *self.digests])):
            effects += self._answer(peer, trees, self.batches.epoch, now)
        while self.owed and trees.looks < node.compares_left:
            peer, absent = self.owed.popitem()
            # Where the last comparison is not worked off, another one would begin it anew.
            if peer in node.links and peer not in self.waiting and peer in self.batches.partners:
                # A replica that has just begun to vote learns first: peers may have messages whose STORE it refused.
                batches, tells = self.batches, now.mono >= self.batches.pulling_all_until
                digests = m.SyncDigests(batches.partition, batches.epoch, tells, (), trees.root())
                effects.append(Send(peer, digests))
            ages = self.batches.ages_wanted(peer, topic.ttl_s)
            if ages:
                effects.append(Send(peer, m.SyncPull(self.batches.partition, (), ages)))
            if absent:
                effects += self.ask_absent(peer, now)
        node.compares_left -= trees.looks
        return effects

    def _answer(self, peer: NodeId, trees: Trees, epoch: int, now: Now) -> list[Effect]:
        answer = Answer(trees, epoch)
        tasks = self.waiting.pop(peer, None) or deque()
        while trees.looks < self.node.compares_left and (tasks or peer in self.digests):
            task = tasks.popleft() if tasks else Compare(0, *self.digests.pop(peer))
            if isinstance(task, Compare):
                compare(task, answer)
            elif trees.is_listed(task.location):
                answer.tell(task.location, task.theirs)
            else:
                tasks.extendleft([Tell(part, task.theirs) for part in reversed(parts_of(task.location))])
        if tasks:
            self.waiting[peer] = tasks
        return [Send(peer, each) for each in answer.messages(self.batches, self.views, now)]

    def everything(self, start: int, most: int, now: Now) -> tuple[list[m.SyncState], int]:
        """Return this replica's state from place ``start`` on, of some ``most`` producer ids, and the place to go on
        from.

        It is what anti-entropy sends to a replica that has nothing, and before it all claims. 0 stands for the end.
        Nothing may be stale.
        """
        answer = Answer(self.trees(), self.batches.epoch)
        locations, following = [ROOT], 0
        while locations:
            location = locations.pop()
            _, last = bounds_of(location)
            if last > start and answer.differing >= most:
                following = bounds_of(location)[0]
                break
            if last > start and answer.trees.is_listed(location):
                answer.tell(location, NOTHING)
            elif last > start:
                locations += reversed(parts_of(location))
        states = answer.states(self.batches, self.views, now)
        for view in self.views.sorted() if not start else ():
            states += claim_states(self.batches.partition, view, self.batches.epoch, now)
        return states, following

    def check(self) -> None:
        """Assert that the digests equal those computed anew."""
        for label, table in self.tables():
            if isinstance(table, Batches):
                producer_ids = [*table.present.runs, *table.reclaimed.runs]
            else:
                producer_ids = (
                    table.blocks() if isinstance(table, ClosedSessions) else table.lasting_producer_ids()
                )
            contents = {producer_id: table.content(producer_id) for producer_id in producer_ids}
            table.digests.check(self.keyed, label, contents)

    # ------------------------------------------------------------------ pulls

    def pull(self, peer: NodeId, missing: list[Span], ends_one: bool, now: Now) -> list[Effect]:
        """Step 3, behind the records: pull missing messages from ``peer``, which has them. One pull at a time.

        Args:
            ends_one: True if it says so at the end of its answer to a pull.
        """
        if not ends_one and self.pulling_until > now.mono:
            return []
        self.pulling_until = now.mono + self.node.config.request_timeout if missing else 0.0
        few = tuple(missing[: limits.SPANS_PER_REQUEST_MAX])
        return [Send(peer, m.SyncPull(self.batches.partition, few))] if few else []

    def ask_absent(self, peer: NodeId, now: Now) -> list[Effect]:
        """Ask ``peer`` for messages that have been missing for a while, unless it has said that it does not have them.

        Mostly a peer says by itself what it has, and that is pulled; this finds out which messages no replica has.
        """
        if not self.batches.absent or self.pulling_until > now.mono:
            return []
        spans = self.batches.absent_for_long(peer, now)
        if not spans:
            return []
        self.pulling_until = now.mono + self.node.config.request_timeout
        return [Send(peer, m.SyncPull(self.batches.partition, spans))]

    def on_pull(
        self, sender: NodeId, message: m.SyncPull, now: Now, throttle: MoveThrottle | None = None
    ) -> list[Effect]:
        """Send a peer the batches that it lacks, as many as one go may have, and then the numbers of the rest.

        What is left starts the next pull, so a replica that was away for long catches up at full speed, and
        only one pull of a partition is under way at a time.

        Args:
            throttle: limits, if the peer's slot is new. Beyond them the peer gets nothing, not even numbers.
        """
        batches, epoch = self.batches, self.batches.epoch
        effects: list[Effect] = []
        numbers: dict[int, None] = {}
        rest: list[Span] = []
        size = 0
        may_give = throttle is None or throttle.begin(batches.partition, now)
        for span in message.spans if may_give else ():
            for part, location in batches.index.within(span):
                batch = batches.stored[location.number]
                if location.number in numbers or not batch.durable:
                    continue
                if not may_give:
                    break
                if len(numbers) >= PULL_BATCHES_MAX or (numbers and size >= PULL_BYTES_MAX):
                    rest.append(part)
                    continue
                numbers[location.number] = None
                size += (length := batch.header.end_of(batch.header.size - 1))
                if throttle is not None:
                    may_give = throttle.take(batches.partition, length)
                effects.append(
                    SendStored(sender, epoch, location.number, batches.age_ms(location.number, now))
                )
        if throttle is not None and may_give and not rest:
            throttle.end(batches.partition)
        ages = [
            m.Aged(part, batches.age_ms(location.number, now))
            for span in message.ages
            for part, location in batches.index.within(span)
            if location.number not in batches.uncertain
        ]
        gaps = [
            gap
            for span in message.spans
            if span.producer_id not in batches.closed
            for gap in batches.index.gaps(span)
        ]
        nowhere = [part for gap in gaps for part in subtract(gap, batches.reclaimed.within(gap))]
        reclaimed = [part for gap in gaps for part in batches.reclaimed.within(gap)]
        remainder = m.SyncState(
            partition=batches.partition,
            epoch=epoch,
            spans=merge_spans(rest) if may_give else (),
            groups=(),
            rest=bool(message.spans),
            reclaimed=merge_spans(reclaimed[: limits.SPANS_PER_REQUEST_MAX]),
            nowhere=merge_spans(nowhere[: limits.SPANS_PER_REQUEST_MAX]),
            ages=tuple(ages),
        )
        return [*effects, Send(sender, remainder)]


def compare(task: Compare, answer: Answer) -> None:
    """Go on where sums differ: the learning replica lists what is little; both go down if there is more."""
    trees = answer.trees
    locations = parts_of(task.location) if task.location else (ROOT,)
    ours = trees.sums(task.location) if task.location else trees.root()
    if ours == task.sums:
        return
    for at, location in enumerate(locations):
        few = slice(at * DIGEST_BYTES, (at + 1) * DIGEST_BYTES)
        if ours[few] == task.sums[few]:
            continue
        if task.tells and trees.is_listed(location):
            answer.list_all(location)
        elif depth_of(location) == DIGITS:
            answer.tell(location, NOTHING)
        elif task.tells or trees.has(location):  # a replica with nothing there has nothing to send
            answer.part(location, tells=not task.tells)
