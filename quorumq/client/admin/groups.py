"""Calls about groups: making, rewinding and deleting them, and purging messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from quorumq.client.base.context import Calls
from quorumq.client.base.message import MessageId
from quorumq.client.base.names import names_of, spans_of
from quorumq.client.base.sight import as_seen
from quorumq.client.base.times import positive_of
from quorumq.client.transport.nodes import after_some
from quorumq.core import messages as m
from quorumq.core.values.errors import Unanswered, UsageError
from quorumq.core.values.limits import RATE_MAX
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Group

Start = Literal["earliest", "latest"] | datetime
"""Position where a group begins: the oldest message, the next one published from now on, or a time of day."""


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
AHEAD_MAX_MS: Final = 60_000
"""Milliseconds by which a beginning may be ahead of this program's clock, which may be behind those of producers."""


def start_fields(start: Start, now_ms: int) -> tuple[str, int]:
    """Return ``start`` and ``from_ms`` of a SetGroup.

    Raises:
        UsageError: neither of the words, nor a past datetime with a time zone.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError(f"{start} has no time zone: give a datetime with tzinfo, such as timezone.utc")
        # Rounded down, as publish times are: else it would skip a message of the same millisecond.
        from_ms = max(0, (start - EPOCH) // MILLISECOND)
        if from_ms > now_ms + AHEAD_MAX_MS:
            raise UsageError(
                f"{start} is {(from_ms - now_ms) / 1000:,.0f} s ahead: a group would skip all that is published until "
                "then; give a time that has come, or 'latest'"
            )
        return "time", from_ms
    if start not in ("earliest", "latest"):
        raise UsageError(f"{start!r} is no place to begin: give 'earliest', 'latest' or a datetime")
    return start, 0


class GroupCalls(Calls):
    """Calls that create, rewind and delete groups, and purge messages that they have not read."""

    async def create_group(
        self, topic: str, group: str, *, start: Start = "earliest", timeout: float | None = None
    ) -> Group:
        """Create a group before it has consumers. One that is there stays as it is.

        Args:
            group: its name, without "!".
            start: "earliest", "latest" (messages published from now on), or a datetime with a time zone: messages
                published at or after it, by the producers' clocks.

        Returns:
            the group: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic.
            UsageError: a name or a start that cannot be.
            NotStored, OutcomeUnknown: too few replicas answered; do it again.
        """
        return await self._set_group(topic, group, start, rewind=False, timeout=timeout)

    async def rewind(self, topic: str, group: str, to: Start, *, timeout: float | None = None) -> Group:
        """Have a group read again from ``to``, in a new generation; its consumers go on by themselves.

        Each message from there on that the topic still has (`retention`) is delivered again, also if it was acked or is
        a dead letter; a held message, once its hold is over. Earlier messages are not delivered any more, and their
        dead letters stay. Messages delivered before the rewind cannot be acked any more: `Outcome.REWOUND`. If called
        twice, it rewinds twice.

        To "latest" it makes no generation: messages published before the call are passed over, as by `purge`, and
        messages in hand can be acked.

        Args:
            to: new position, like ``start`` in `create_group`.

        Returns:
            the group in its generation: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic, or no such group of it.
            UsageError: a time that cannot be.
            NotStored, OutcomeUnknown: too few replicas answered; rewind again.
        """
        return await self._set_group(topic, group, to, rewind=True, timeout=timeout)

    async def pause_group(self, topic: str, group: str, *, timeout: float | None = None) -> Group:
        """Pause a group: its consumers get nothing more until `resume_group`, and go on by themselves then.

        No fetch that begins after this has returned gets messages, through any node. Messages delivered before may be
        worked on, extended and settled. Messages neither expire nor become dead letters by themselves meanwhile. The
        group's dead letters can be read. If called twice, it changes nothing more.

        Returns:
            the group: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic, or no such group of it.
            NotStored, OutcomeUnknown: too few replicas answered; do it again.
        """
        return await self._pause(topic, group, paused=True, timeout=timeout)

    async def resume_group(self, topic: str, group: str, *, timeout: float | None = None) -> Group:
        """Resume a paused group; arguments, result and errors are those of `pause_group`."""
        return await self._pause(topic, group, paused=False, timeout=timeout)

    async def _pause(self, topic: str, group: str, *, paused: bool, timeout: float | None) -> Group:
        request = m.PauseGroup(topic, group, paused)
        verb = "pause" if paused else "resume"
        return await self._change(verb, request, "pause_group", timeout, paused=paused)

    async def limit_group(
        self,
        topic: str,
        group: str,
        per_second: float | None,
        *,
        burst: int | None = None,
        timeout: float | None = None,
    ) -> Group:
        """Limit the messages that all consumers of a group get in a second; they wait for more by themselves.

        Each delivery counts, also if it is a redelivery. The group's dead letters can be read without a
        limit. A consumer may have fetched messages before it hands them to a handler. docs/registers.md, LIMIT, says
        what is exact.

        Args:
            per_second: messages a second, from 0.001 to 1,000,000; no limit if None.
            burst: messages that may arrive at once after a quiet time; a tenth of ``per_second``, 1 at least, if None.

        Returns:
            the group: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic, or no such group of it.
            UsageError: a number that cannot be.
            NotStored, OutcomeUnknown: too few replicas answered; do it again.
        """
        if per_second is not None and not (
            isinstance(per_second, float | int) and 0 < per_second <= RATE_MAX
        ):
            raise UsageError(
                f"per_second is {per_second!r:.60}: give a number above 0, up to {RATE_MAX}, or None for no limit"
            )
        if burst is not None:
            positive_of("burst", burst)
        rate, most = float(per_second or 0), burst or 0
        request = m.LimitGroup(topic, group, rate, most)
        return await self._change("limit", request, "limit_group", timeout, per_second=rate, burst=most)

    async def delete_group(self, topic: str, group: str, *, timeout: float | None = None) -> Group:
        """Delete a group, with all that is recorded for it and its dead letters, for good.

        Messages that only this group kept are reclaimed. Its consumers, and clients that still ack or reject one, get
        `NotFound`; no consumer makes it again. `create_group` makes a new one of the name, which reads from its own
        start and knows nothing of this one. Messages being worked on meanwhile are delivered to it once their holds are
        over. The last group of a topic deleted, its messages are kept, as for a topic that never had one.

        Args:
            group: its name, without "!". One that is deleted already is deleted.

        Returns:
            the group as deleted: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic, or there never was such a group of it.
            NotStored, OutcomeUnknown: too few replicas answered: it may be deleted, or become so. Repeat it.
        """
        return await self._change("delete", m.DeleteGroup(topic, group), "delete_group", timeout)

    async def _set_group(
        self, topic: str, group: str, start: Start, *, rewind: bool, timeout: float | None
    ) -> Group:
        word, from_ms = start_fields(start, self.context.wall_ms())
        request = m.SetGroup(topic, group, word, from_ms, rewind)
        return await self._change(
            "rewind" if rewind else "create", request, "set_group", timeout, rewind=rewind
        )

    async def _change(
        self, verb: str, request: Any, kind: str, timeout: float | None, **fields: object
    ) -> Group:
        """Have a group changed; ``kind`` and ``fields`` are of its line in the history."""
        topic, group = request.topic, request.group
        watch = self.context.calling(kind, topic, group=group, **fields)
        action = f"{verb} group {group!r} of {topic!r}"
        reply = await self.context.ask_for_change(request, action, timeout, self._look_at_group, watch=watch)
        return cast("Group", reply.group)

    async def _look_at_group(self, request: Any, timeout: float) -> Any:
        """Return the request with the group's generation, and the stamp of the setting that it changes."""
        if isinstance(request, m.SetGroup) and not request.rewind:
            return as_seen(request, await self.context.topic(request.topic, timeout=timeout))
        known = await self.context.metadata(request.topic, timeout=timeout)
        return as_seen(request, known.topics[0], known.groups)

    async def purge(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        ids: Iterable[MessageId | str] | MessageId | str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Settle a group's backlog unread, or its dead letters (group "g!dead", or topic "t.deadletters").

        Messages being delivered may still be acked; those published meanwhile may stay. Other groups are
        not concerned. Interrupted and done again, it does the rest.

        Args:
            partition: only this one; all if None.
            ids: only these messages, or this one, if they are not settled yet, or are dead letters; all if None. Ids
                may be text. Delayed messages are called back so.
            timeout: seconds for each partition; the client's if None.

        Returns:
            how many messages were settled, as the last node that was asked counted them.

        Raises:
            NotFound: no such topic, group or partition.
            UsageError: an id is of another topic, or there are ids and a partition.
            NotStored: too few replicas answered, and nothing was purged.
            OutcomeUnknown: too few replicas answered, and some may be purged: purge again, which does the rest.
        """
        (topic,), group = names_of((topic,), group)
        register = await self.context.topic(topic, timeout=timeout)
        if ids is not None and partition is not None:
            raise UsageError("ids name their partitions: give no other one beside them")
        numbers = range(register.partitions) if partition is None else (partition,)
        asked = [(number, ()) for number in numbers] if ids is None else spans_of(register, ids)
        count = 0
        for number, spans in asked:
            request = m.PurgeRequest(topic, number, group, spans)
            action = f"purge of group {group!r} in {topic!r}/{number}"
            watch = self.context.calling("purge", topic, partition=number, group=group)
            try:
                reply = await self.context.ask_for_change(
                    request, action, timeout, self._look_at_group, watch=watch
                )
                count += reply.messages
            except Unanswered as exc:
                if not count:
                    raise
                raise after_some(exc, f"purged {plural(count, 'message')}") from exc
        return count
