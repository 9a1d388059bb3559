"""FETCH through a node that does not replicate every requested partition.

Any node serves any client. A HOLD is coordinated by a replica, because its own vote and its own record are part of
winning; so a node that has no replica of a partition, or is in quarantine, asks one that can, and passes on what that
one won. The other node owns the holds, and has checked record, hold and deadline in the step that answered. This module
decides nothing about holds; only sub-fetches are opened, limits divided, and messages given back that cannot be used.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests.context import Context
from quorumq.core.requests.deliveries import released_of
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.groupreader import GroupReader
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId, Topic

GATHER_S = 0.003
"""Seconds to wait for the other sub-fetches once enough messages are here, to include what they won."""

SUB_FETCH_MARGIN_S = 1.0
"""Seconds beyond its longest wait after which a sub-fetch to a silent node is given up."""

LOOK_S = 0.5
"""Seconds after which a FETCH that does not wait, and has found nothing at one replica, gives up another silent one."""

ASK_AGAIN_S = (0.1, 0.5)
"""Shortest and longest pause in seconds before partitions are asked for again that every node has refused, or that a
sub-fetch answered without messages within the shortest one.

Each pause is twice as long as the one before: a new slot votes after some round trips, or not for long."""

SUSPECT_SHARE = 0.5
"""Probability that suspects replace the first deliveries that another node returned before."""

CALLED_OFF_MAX = 1000
"""Cancelled sub-fetches whose late answers are still recognised. Holds that older ones won expire."""


class SubFetch(NamedTuple):
    """A part of a FETCH that another node serves.

    Attributes:
        since: time at which it was sent (monotonic seconds).
        until: time until which its answer is of use (monotonic seconds).
        partitions: partitions that it is about.
        messages, size: its share of the FETCH's limits, in messages and bytes.
        before: nodes that have had no message of these partitions, if the FETCH does not wait.
        start: start of the node that was asked; None for this node.
    """

    node: NodeId
    since: float
    until: float
    partitions: tuple[PartitionId, ...]
    messages: int
    size: int
    before: tuple[NodeId, ...] = ()
    start: Incarnation | None = None


class PollCoordinator(FetchCoordinator):
    """A FETCH that does not wait. If nothing is ready here, other replicas are asked before the answer is empty.

    Why: a publish is OK once a majority has it, and this replica may be the one that has not, or not on its disk yet.
    """

    __slots__ = ("had_round",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.had_round = False

    def open_hold(self, *arguments: Any) -> tuple[HoldRound, m.Hold]:
        self.had_round = True
        return super().open_hold(*arguments)

    def answer_empty(self, context: Context, reply: m.FetchReply, now: Now) -> list[Effect]:
        group = self.request.group
        ready = self.had_round or any(
            context.replicas[one].group(group).suspects.batches for one in self.partitions
        )
        more = tuple([one for one in self.partitions if looks_of(context, one) > 1])
        if ready or not more:
            return self.finish(context, reply)
        effects = self.finish(context, None)
        split = SplitCoordinator(self.key, self.request, more, now, before=(context.state.me,))
        split.caller = self.caller
        return effects + context.begin(split, now)


class SubFetchCoordinator(FetchCoordinator):
    """A FETCH on behalf of another node: as any other, but the answer goes to that node.

    Args:
        key: a negative number, so that it is no client's.
    """

    __slots__ = ("number", "peer")

    def __init__(
        self,
        key: int,
        message: m.RemoteFetch,
        partitions: tuple[PartitionId, ...],
        first: int,
        now: Now,
        peer: NodeId,
    ) -> None:
        super().__init__(key, message.request, partitions, first, now)
        self.peer = peer
        self.number = message.round

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        super().finish(context, None)
        context.sub_fetches.pop((self.peer, self.number), None)
        if isinstance(reply, m.FetchReply):
            return [Send(self.peer, m.RemoteFetchReply(self.number, "", "", reply.slices, reply.suspects))]
        if isinstance(reply, m.Failed):
            return [Send(self.peer, m.RemoteFetchReply(self.number, reply.code, reply.detail, ()))]
        return []


class SplitCoordinator(GroupReader):
    """One client's FETCH, split into sub-fetches: one for each node that serves some of its partitions.

    Args:
        before: nodes that have had no message of the partitions.
    """

    __slots__ = (
        "again_at", "before", "crowded", "failed", "gathering", "pause", "problem", "slices", "started", "sub_fetches",
        "unlooked", "unserved",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        request: m.Fetch,
        partitions: tuple[PartitionId, ...],
        now: Now,
        *,
        before: tuple[NodeId, ...] = (),
    ) -> None:
        super().__init__(key, request, partitions, now)
        self.before = before
        self.started = now.mono
        self.slices: list[m.Slice] = []
        self.sub_fetches: dict[int, SubFetch] = {}  # by round
        self.failed: dict[NodeId, None] = {}  # nodes that refused or did not answer
        self.unserved: list[SubFetch] = []  # not open: each node has refused their partitions
        self.unlooked = {} if before else dict.fromkeys(partitions)  # no node has answered for these yet
        self.again_at = 0.0  # when these are asked for again
        self.pause = ASK_AGAIN_S[0]  # seconds until then, the next time
        self.problem: m.Failed | None = None
        self.gathering = False  # enough is here, and the other sub-fetches have a moment more
        self.crowded = False  # a reply exceeded a limit

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self._open_all(context, now)

    def _open_all(self, context: Context, now: Now) -> list[Effect]:
        """Ask one node for each partition of the FETCH: none is asked now."""
        self.unserved.clear()
        messages = max(0, self.request.max_messages - self.won_messages)
        size = max(0, self.request.max_bytes - self.won_bytes)
        return self._open_sub_fetches(context, self.partitions, messages, size, self.before, now)

    def _open_sub_fetches(
        self,
        context: Context,
        partitions: tuple[PartitionId, ...],
        messages: int,
        size: int,
        before: tuple[NodeId, ...],
        now: Now,
    ) -> list[Effect]:
        """Ask one node for each partition, dividing the limits of ``messages`` and bytes (``size``) among them."""
        shares: dict[NodeId, list[PartitionId]] = {}
        refused: list[PartitionId] = []  # by each node
        existing = dict.fromkeys(self.partitions)  # without topics that were deleted meanwhile
        able, last = self._able(context, before, now)
        for at, partition in enumerate(one for one in partitions if one in existing):
            target = self._target(context, partition, at, before, shares, able, now) or (
                self._target(context, partition, at, before, shares, last, now) if last else None
            )
            (refused if target is None else shares.setdefault(target, [])).append(partition)
        if not shares and not self.sub_fetches:
            return self._answer(context, now)
        effects: list[Effect] = []
        remaining = len(shares) + bool(refused)
        for target, chosen in shares.items():
            # Each node is asked, however few messages are missing: one of them alone may have any.
            share = max(1, -(-messages // remaining))
            capacity = max(1, -(-size // remaining))
            messages, size, remaining = messages - share, size - capacity, remaining - 1
            wait = max(0.0, self.park_until - now.mono)
            sub_fetch = self.request._replace(
                max_messages=share,
                max_bytes=capacity,
                min_messages=max(1, min(share, self.request.min_messages - self.won_messages)),
                max_wait=wait,
                idle=self.request.idle and not self.slices,
            )
            margin = LOOK_S if before else SUB_FETCH_MARGIN_S
            round_ = self.open_round(context, (target,), now, wait + margin)
            until = now.mono + wait + min(self.request.hold_time, context.config.request_timeout)
            self.sub_fetches[round_.number] = SubFetch(
                target,
                now.mono,
                until,
                tuple(chosen),
                share,
                capacity,
                before,
                context.state.links.get(target),
            )
            if any(context.catalogue.group(one.topic, self.register_name) is None for one in chosen):
                self.unsure[round_.number] = None
            effects.append(Send(target, m.RemoteFetch(round_.number, tuple(chosen), sub_fetch)))
        if refused:
            self._set_aside(
                context, SubFetch("", 0.0, 0.0, tuple(refused), max(1, messages), max(1, size), before), now
            )
        return effects

    def _able(
        self, context: Context, before: tuple[NodeId, ...], now: Now
    ) -> tuple[dict[NodeId, None], dict[NodeId, None]]:
        """Return the nodes that may be asked, and silent ones, which are last.

        A FETCH that does not wait leaves out those that owe an answer: while all that are left do, nothing can be won.
        """
        able: dict[NodeId, None] = {}
        last: dict[NodeId, None] = {}
        for node in context.state.answering:
            if node not in self.failed and not (before and context.peers.owes_answer(node)):
                (last if context.peers.is_silent(node, now) else able)[node] = None
        return able, last

    def _target(
        self,
        context: Context,
        partition: PartitionId,
        at: int,
        before: tuple[NodeId, ...],
        asked: Container[NodeId],
        able: Container[NodeId],
        now: Now,
    ) -> NodeId | None:
        """Return the node to ask: this one if it can, else a replica that is able to.

        One that is ``asked`` for other partitions is first: the limits are divided among as few nodes as may be.
        """
        members = [node for node in context.catalogue.members_of(partition) if node not in before]
        me = context.state.me
        if context.may_coordinate(partition, now) and me not in self.failed and me not in before:
            return me
        turn = (context.fetches + at) % max(1, len(members))
        first = None
        for member in members[turn:] + members[:turn]:
            if member in able:
                if member in asked:
                    return member
                first = first or member
        return first

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.RemoteFetchReply)
        ended = self.sub_fetches.pop(message.round)
        self.close_round(context, message.round)
        self.hinted = self.hinted or message.suspects
        effects: list[Effect] = []
        suspects = any(
            map(is_suspect, message.slices)
        )  # a sub-fetch brings first-timers or a lot of suspects
        alone = suspects or any(map(is_suspect, self.slices))
        if suspects and self._takes_suspects(context):
            effects += context.releases.of_slices(self.slices, now)
            self.slices, self.won_messages, self.won_bytes = [], 0, 0
            alone = False
        for part in message.slices:
            size, count = bytes_of(part), sum(delivery.receipt.span.size for delivery in part.deliveries)
            if self.slices and not (suspects and not alone):
                # A sub-fetch returns one message at least, however small its share of the limits. Another one would
                # return it again.
                crowded = self.won_bytes + size > self.request.max_bytes
                crowded = crowded or self.won_messages + count > self.request.max_messages
                self.crowded = self.crowded or crowded
                if crowded or alone:
                    effects += context.releases.of_slices((part,), now)
                    continue
            self.slices.append(part)
            self.won_messages += count
            self.won_bytes += size
        if message.code:
            self._note_failure(ended, m.Failed(message.code, message.detail, 1, 0))
            if message.code != Code.OUTCOME_UNKNOWN:
                self.unsure.pop(message.round, None)
        else:
            for partition in ended.partitions:
                self.unlooked.pop(partition, None)
        if not message.slices:
            effects += self._look_again(context, ended, now)
            return effects if self.done else effects + self._answer_or_wait(context, now, ended)
        return effects + self._answer_or_wait(context, now)

    def _note_failure(self, ended: SubFetch, problem: m.Failed) -> None:
        """Note a node that refused or did not answer. The request is not refused if another replica has looked."""
        self.failed[ended.node] = None
        if not ended.before:
            self.problem = problem

    def _look_again(self, context: Context, ended: SubFetch, now: Now) -> list[Effect]:
        """If the FETCH does not wait, ask one more replica for partitions that had no message.

        One of `looks_of` replicas has each message whose publish is OK. A replica that refuses has not looked.
        """
        if self.request.max_wait > 0 or self.slices or self.hinted:
            return []
        before = ended.before if ended.node in self.failed else (*ended.before, ended.node)
        more = tuple([one for one in ended.partitions if len(before) < looks_of(context, one)])
        if not (more and before):
            return []
        return self._open_sub_fetches(context, more, ended.messages, ended.size, before, now)

    def _takes_suspects(self, context: Context) -> bool:
        """Return True if suspects replace the first deliveries received so far, or if there are none.

        Why by chance: ages of messages at several nodes cannot be compared, and so neither kind starves.
        """
        if not self.slices:
            return True
        share = 0.0 if self.request.had_lot or is_suspect(self.slices[0]) else SUSPECT_SHARE
        return share > 0 and context.rng.random() < share

    def _answer_or_wait(self, context: Context, now: Now, ended: SubFetch | None = None) -> list[Effect]:
        """Answer, or wait for the other sub-fetches. One that ``ended`` with no message is asked for anew meanwhile.

        Why: its node may have left the replica set, and no node would look at its partitions while others are parked.
        """
        enough = self.won_messages >= self.request.min_messages
        full = self.won_messages >= self.request.max_messages or self.won_bytes >= self.request.max_bytes
        full = full or self.crowded or any(map(is_suspect, self.slices)) or (self.hinted and not self.slices)
        at_once = (
            ended is not None and ended.node not in self.failed and now.mono < ended.since + ASK_AGAIN_S[0]
        )
        if ended is not None and at_once and not (enough or full) and now.mono < self.park_until:
            # The group may be refused there, and a pattern's FETCH goes on without the topic: no storm of sub-fetches.
            self._set_aside(context, ended, now)
            return []
        if not self.sub_fetches:
            if enough or full or now.mono >= self.park_until:
                return self._answer(context, now)
            return self._open_all(context, now)
        if full:
            return self._answer(context, now)
        if ended is not None and not enough and now.mono < self.park_until:
            return self._open_sub_fetches(context, *ended[3:7], now)
        if enough and not self.gathering:
            self.gathering = True
            context.state.at(now.mono + GATHER_S, ("gathered", self.key))
        return []

    def _set_aside(self, context: Context, ended: SubFetch, now: Now) -> None:
        """Have partitions asked for again after a pause, with those that wait already."""
        self.unserved.append(ended)
        if self.again_at <= now.mono:
            self.again_at = now.mono + self.pause
            if now.mono < self.park_until:
                self.again_at = min(self.again_at, self.park_until)
            self.pause = min(2 * self.pause, ASK_AGAIN_S[1])
            context.state.at(self.again_at, ("again", self.key))

    def go_on(self, context: Context, now: Now) -> list[Effect]:
        """Ask again for partitions that each node has refused, as a slot may vote by now, or answered at once."""
        self.failed.clear()
        if not self.sub_fetches:
            return self._answer_or_wait(context, now)
        again, self.unserved = self.unserved, []
        return [effect for ended in again for effect in self._open_sub_fetches(context, *ended[3:7], now)]

    def on_gathered(self, context: Context, now: Now) -> list[Effect]:
        """Answer: there is enough, and the other sub-fetches have had their chance."""
        return self._answer(context, now)

    def quit_topic(self, context: Context, topic: Topic, why: m.Failed, now: Now) -> list[Effect]:
        """Drop what the sub-fetches won in the deleted topic: the batches of our own are gone.

        Slices of other nodes were decoded, and only their header names the partition.
        """
        over = [part for part in self.slices if part.header.partition.topic == topic.id]
        effects = context.releases.of_slices(over, now)
        self.partitions = tuple(partition for partition in self.partitions if partition.topic != topic.id)
        self.slices = [part for part in self.slices if part.header.partition.topic != topic.id]
        if self.partitions:
            self.unlooked = {one: None for one in self.unlooked if one.topic != topic.id}
            return effects
        return effects + self._cancel(context) + self.finish(context, why)

    def on_link(self, context: Context, number: int, peer: NodeId, now: Now) -> list[Effect]:
        """Ask anew if the start that was asked is over, as it answers no more.

        Why: the node is not silent, so the sub-fetch would end much later, and nothing else asks for its partitions.
        """
        sub_fetch = self.sub_fetches[number]
        if sub_fetch.start is None or not context.state.superseded(sub_fetch.node, sub_fetch.start):
            return []
        del self.sub_fetches[number]
        self.close_round(context, number)
        return self._answer_or_wait(context, now, sub_fetch)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        sub_fetch = self.sub_fetches[number]
        silent = sub_fetch.node != context.state.me and context.peers.is_silent(sub_fetch.node, now)
        if now.mono < sub_fetch.until and not (
            silent or sub_fetch.before
        ):  # the node, or a replica that it waits for, is slow
            context.state.at(min(now.mono + SUB_FETCH_MARGIN_S, sub_fetch.until), ("round", number))
            return []
        context.peers.unanswered[sub_fetch.node] = sub_fetch.since
        del self.sub_fetches[number]
        self.close_round(context, number)
        detail = f"node {sub_fetch.node} did not answer: ask another node"
        self._note_failure(sub_fetch, m.Failed(Code.TOO_FEW_REPLICAS, detail, 1, 0))
        effects = call_off(context, number, sub_fetch.node) + self._look_again(context, sub_fetch, now)
        return effects if self.done else effects + self._answer_or_wait(context, now, sub_fetch)

    def _answer(self, context: Context, now: Now) -> list[Effect]:
        effects = self._cancel(context)
        given = [released for part in self.slices for released in released_of(part)]
        context.releases.note_unsent(self.key, given, self.started + self.request.hold_time)
        if not (self.slices or self.hinted) and self.unlooked:  # empty would say that the group has begun
            return effects + self.finish(context, self._why_unlooked(context))
        hinted = self.hinted and not self.request.idle  # a sub-fetch of an idle client may not be
        reply = m.FetchReply(self.request.sent_at, self.request.hold_time, tuple(self.slices), hinted)
        return effects + self.finish(context, reply)

    def _why_unlooked(self, context: Context) -> m.Failed:
        """Return why no node has looked at some partitions, for the client."""
        me, topic = context.state.me, self.request.topics[0]
        detail = f"no replica of {topic!r} can be reached from node {me}: ask another node"
        problem = self.problem or m.Failed(Code.TOO_FEW_REPLICAS, detail, 1, 0)
        if self.unsure and problem.code in (Code.NOT_FOUND, Code.TOO_FEW_REPLICAS):
            # One node has refused or is silent, and another one may have made the group.
            return problem._replace(code=Code.OUTCOME_UNKNOWN)
        return problem

    def _cancel(self, context: Context) -> list[Effect]:
        return [
            effect
            for number, sub_fetch in self.sub_fetches.items()
            for effect in call_off(context, number, sub_fetch.node)
        ]

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        """Give messages back, and call the sub-fetches off (LEAVE): the client is gone and no reply was begun."""
        effects = self._cancel(context) + context.releases.of_slices(self.slices, now)
        return effects + self.finish(context, None)


def looks_of(context: Context, partition: PartitionId) -> int:
    """Return how many replicas a message that a majority has cannot be missing at."""
    members = len(context.catalogue.members_of(partition))
    return members - majority_of(members) + 1


def is_suspect(part: m.Slice) -> bool:
    """Return True if these are suspects: their sub-fetch brings one lot of them and nothing else."""
    return any(delivery.suspect for delivery in part.deliveries)


def bytes_of(part: m.Slice) -> int:
    """Return a slice's bytes of records. If another node sent it, its header is cut to its records."""
    header = part.header
    if isinstance(part, m.Slice):
        return header.end_of(part.stop - 1) - header.end_of(part.first - 1)
    return header.end_of(header.size - 1)


def call_off(context: Context, number: int, target: NodeId) -> list[Effect]:
    """Call a sub-fetch off. If it is answered all the same, its messages are given back, once."""
    context.called_off[number] = None
    if len(context.called_off) > CALLED_OFF_MAX:
        del context.called_off[next(iter(context.called_off))]
    return [Send(target, m.RemoteGone(number))]
