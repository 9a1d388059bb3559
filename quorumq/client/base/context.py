"""Nodes, clocks, history and names, shared by a client's producers, consumers and calls.

It has the nodes, the clocks, the history, and the known topics and nodes by name. It knows nothing of its
users: a producer or a consumer gets this, and not the client.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol, cast

import trio

from quorumq.client.base.background import Background
from quorumq.client.base.history import Calling, History, Settled
from quorumq.client.base.names import check_texts
from quorumq.client.base.times import Duration, number_of, timeout_of
from quorumq.client.transport.nodes import Nodes, Watch, left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import NotFound, QuorumqError, StaleGeneration, UsageError
from quorumq.core.values.limits import HOLD_TIME_DEFAULT_S
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.core.values.types import MemberState, Topic

RF_DEFAULT: Final = 3
REFRESH_S: Final = 5.0
"""Seconds between two looks of a consumer for more partitions of its topic, which it alone may read."""

LOOKS: Final = 8
"""Times that something is looked up for one change of it."""

PRODUCED_S: Final = 50.0
"""Seconds between two looks of a client for more partitions of all topics that it has producers to. It is below that of
`nodes.REFRESH_S`, as each look has the addresses of the nodes too."""

NAMES: Final = 100
"""Topics that one such look names, at most."""

EACH_S: Final = 3.0
"""Seconds to wait for a node that may be down, while the others have answered."""

OPEN_MAX: Final = 1000
"""Producers of one client that are not closed, at most: a program that makes one for every message gets an error."""


class Flushed(Protocol):
    """Producer: it has something to finish before the client is left."""

    topic: str

    async def close(self) -> None: ...

    def _learn(self, register: Topic) -> None:
        """Take note of its topic as a node has just named it."""


@dataclass(eq=False)
class Context:
    """The cluster, as one client sees it."""

    nodes: Nodes  # addresses and connections of the cluster
    tasks: Background  # run in the background as long as the client lives
    _: KW_ONLY
    timeout: float  # seconds for an operation that does not say otherwise, all its attempts included
    history: History | None  # the client's history
    topic_names: dict[bytes, str] = field(default_factory=dict)  # by id, of known topics
    _open: dict[Flushed, None] = field(default_factory=dict)
    _producers: dict[str, dict[Flushed, None]] = field(default_factory=dict)  # the open ones, by topic
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # each is had once

    def __post_init__(self) -> None:
        self.clock = self.nodes.clock  # for every deadline, in seconds
        self.wall_ms = self.nodes.wall_ms  # the time of day in milliseconds since 1970
        self.rng = self.nodes.rng  # for jitter and choices
        self.log = self.nodes.log  # for events that reach no caller
        self.host = socket.gethostname()[:100]  # this machine, and a consumer without a name

    async def start(self, task: Callable[..., Awaitable[None]]) -> None:
        """Run a background task as long as the client lives; returns when it says it has started."""
        self.nodes.check_open()
        await self.tasks.start(task)

    def open(self, flushed: Flushed) -> None:
        """Close this before the client is left, unless it is `closed` before; UsageError if too many are open."""
        if len(self._open) >= OPEN_MAX:
            raise UsageError(
                f"{OPEN_MAX} producers of this client are open: keep one for a topic, or close them"
            )
        self._open[flushed] = None
        self._producers.setdefault(flushed.topic, {})[flushed] = None

    def closed(self, flushed: Flushed) -> None:
        """Remove a closed object from those to close."""
        if flushed in self._open:
            del self._open[flushed]
            del self._producers[flushed.topic][flushed]
            if not self._producers[flushed.topic]:
                del self._producers[flushed.topic]

    async def flush(self) -> None:
        """Close all open producers, in the order in which they were opened; raises the first error."""
        errors: list[QuorumqError] = []
        for flushed in list(self._open):
            try:
                await flushed.close()
            except QuorumqError as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    # -------------------------------------------------------------------- asking

    def time(self, timeout: float | None) -> float:
        """Return the seconds of an operation with this ``timeout``; UsageError if it is none."""
        return self.timeout if timeout is None else timeout_of(timeout)

    def end(self, timeout: float | None) -> float:
        """Return the end of an operation that begins now, by trio's clock."""
        return trio.current_time() + self.time(timeout)

    async def ask(self, request: m.ClientRequest, action: str, timeout: float | None, **more: Any) -> Any:
        """Ask one node after the other until one does it: see `Nodes.ask`."""
        self.nodes.check_open()
        reply, _ = await self.nodes.ask(lambda: request, action=action, timeout=self.time(timeout), **more)
        return reply

    async def ask_for_change(
        self,
        request: Any,
        action: str,
        timeout: float | None,
        look: Callable[[Any, float], Awaitable[Any]] | None = None,
        **more: Any,
    ) -> Any:
        """Have something changed as it is now, so that no attempt that arrives late undoes a later change.

        A creation begins as if nothing had ever been deleted under its name; the refusal says how often it was.

        Args:
            look: returns the request with the present state; its second argument is the timeout of that, in seconds.
            more: arguments of `Nodes.ask`.

        Raises:
            StaleGeneration: others have changed it each time between look and change.
        """
        end, looks = self.end(timeout), LOOKS
        while True:
            if look is not None:
                request = await look(request, left_of(end))
            try:
                return await self.ask(request, action, left_of(end), writes=True, **more)
            except StaleGeneration as error:
                looks -= 1
                if not looks:
                    raise
                if isinstance(request, m.CreateTopic):
                    request = request._replace(deletions=error.number)
                elif isinstance(request, m.SetGroup):
                    request = request._replace(generation=error.number)

    async def ask_each(
        self,
        nodes: Iterable[str],
        request: m.ClientRequest,
        action: str,
        timeout: float | None,
        *,
        enough: float = math.inf,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask these nodes at once; return the replies by node, and the errors of the others.

        Each has ``timeout`` seconds: if None the client's, and at most `EACH_S`. With ``enough`` replies none is waited
        for any more.

        Raises:
            UsageError: all of them refuse the request for good.
        """
        replies: dict[str, Any] = {}
        errors: dict[str, str] = {}
        refusals: list[UsageError] = []
        each = min(EACH_S, self.timeout) if timeout is None else timeout

        async def ask(node: str) -> None:
            only = self.nodes.addresses_of((node,))
            try:
                replies[node] = await self.ask(request, f"{action} at {node}", each, writes=False, only=only)
            except QuorumqError as error:
                errors[node] = str(error)
                if isinstance(error, UsageError):
                    refusals.append(error)
            if len(replies) >= enough:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        if refusals and not replies and len(refusals) == len(errors):
            raise refusals[0]
        return replies, errors

    def watch(self, kind: str, **fields: object) -> Watch | None:
        """Make an observer for the attempts of a request that names messages, if a history is written."""
        return None if self.history is None else Settled(self.history, kind, self.topic_names, fields)

    def calling(self, kind: str, topic: str, **fields: object) -> Calling | None:
        """Make an observer for the attempts of a request that names a topic, if a history is written."""
        return None if self.history is None else Calling(self.history, kind, topic, fields)

    # --------------------------------------------------------------------- names

    async def metadata(
        self, *topics: str, groups: bool = True, timeout: float | None = None
    ) -> m.MetadataReply:
        """Ask for metadata, like `Client.metadata`; without ``groups`` for nodes and topics alone."""
        check_texts(topics)
        end = self.end(timeout)
        ask = m.Metadata(topics, groups)
        reply = cast("m.MetadataReply", await self.ask(ask, "metadata", timeout, writes=False))
        self.nodes.learn(reply)
        while reply.more is not None:
            page = await self.ask(ask._replace(after=reply.more), "metadata", left_of(end), writes=False)
            known = {topic.id: topic for topic in (*reply.topics, *page.topics)}
            listed = (*reply.groups, *page.groups)
            reply = reply._replace(topics=tuple(known.values()), groups=listed, more=page.more)
        return reply

    async def topic(self, name: str, *, create: bool = False, timeout: float | None = None) -> Topic:
        """Return a topic, like `Client.topic`."""
        end = self.end(timeout)
        try:
            return self.known(topic_of(await self.metadata(name, groups=False, timeout=left_of(end)), name))
        except NotFound:
            if not create:
                raise
        # Only now that no node knows it: a creation that overtakes the news of an earlier one would write
        # the default settings over chosen ones.
        rf = await self.default_rf(left_of(end))
        request = m.CreateTopic(name, rf, implicit=True, deletions=0)
        watch = self.calling("set_topic", name)
        made = await self.ask_for_change(request, f"create topic {name!r}", left_of(end), watch=watch)
        return self.known(made.topic)

    async def keep_looking(self) -> None:
        """Look for more partitions of the topics that have producers, all in one request. Runs until cancelled.

        Why: a producer each would ask as often, and a process may have a thousand that are idle.
        """
        while True:
            await trio.sleep(PRODUCED_S)
            await self.present(list(self._producers))

    async def present(self, names: Sequence[str], timeout: float | None = None) -> list[Topic]:
        """Return those of these topics that are there, `NAMES` of them in a request; none of these if it fails."""
        topics: list[Topic] = []
        for at in range(0, len(names), NAMES):
            part = names[at : at + NAMES]
            try:
                topics += map(self.known, (await self.metadata(*part, groups=False, timeout=timeout)).topics)
            except NotFound:  # publishing to that topic, or fetching from it, raises it
                half = len(part) // 2
                for smaller in (part[:half], part[half:]) if half else ():
                    topics += await self.present(smaller, timeout)
            except QuorumqError:
                await trio.lowlevel.checkpoint()  # the next look is soon enough
        return topics

    def known(self, topic: Topic) -> Topic:
        """Remember a topic that a node named, pass it to its producers, and return it."""
        self.topic_names[topic.id] = topic.name
        for producer in self._producers.get(topic.name, ()):
            producer._learn(topic)
        if self.history is not None:
            self.history.learn(topic)
        return topic

    async def default_rf(self, timeout: float | None) -> int:
        """Return the default number of nodes that keep a topic: an odd number, as far as nodes and machines go."""
        nodes = (await self.metadata(NO_TOPIC, timeout=timeout)).nodes
        locations = {it.machine or it.node for it in nodes if it.state == MemberState.JOINED}
        count = min(RF_DEFAULT, len(locations))
        return count if count % 2 else max(1, count - 1)

    async def hold_time_of(self, given: Duration | None, timeout: float | None) -> float:
        """Return the hold time to ask for: ``given``, or the default as far as the cluster allows it."""
        if given is not None:
            return number_of("hold_time", given)
        return min(HOLD_TIME_DEFAULT_S, await self.hold_time_max(timeout))

    async def hold_time_max(self, timeout: float | None) -> float:
        """Return the longest hold of the cluster, in seconds."""
        if self.nodes.hold_time_max is None:
            await self.metadata(NO_TOPIC, timeout=timeout)
        most = self.nodes.hold_time_max
        return HOLD_TIME_DEFAULT_S if most is None else most

    async def address_of(self, node: str, timeout: float | None) -> str:
        """Return the address of a node named by its id or its address; NotFound if no node knows it."""
        if not isinstance(node, str):
            raise UsageError(f"node is {node!r:.60}: give its id or its address")
        if node not in self.nodes.ids and node not in self.nodes.addresses:
            await self.metadata(NO_TOPIC, timeout=timeout)
        return self.nodes.address_of(node)


def topic_of(reply: m.MetadataReply, name: str) -> Topic:
    """Return the one topic that was asked for; NotFound for a pattern, which stands for any number of topics."""
    for topic in reply.topics:
        if topic.name == name:
            return topic
    raise NotFound(
        f"there is no topic {name!r}: patterns are for consumers, and this needs the name of one topic"
    )


def check_group(reply: m.MetadataReply, topic: str, group: str) -> None:
    """Raise NotFound if no such group reads the topic that was asked for."""
    groups = [known.name for known in reply.groups]
    if group not in groups:
        from quorumq.wire.hints import unknown_group  # not imported by programs that only publish

        raise NotFound(unknown_group(topic, group, groups))


class Calls:
    """Calls of a client that need its context and nothing else of it."""

    def __init__(self, context: Context) -> None:
        self.context = context
