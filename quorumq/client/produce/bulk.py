"""Many messages that are published by one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from types import MappingProxyType
from typing import Any, Final, cast

from quorumq.client.base.message import MessageId, again
from quorumq.client.base.options import NewMessage, Options, Outgoing
from quorumq.client.produce.batches import Run
from quorumq.core.values.errors import Conflict, QuorumqError, TooLarge, UsageError
from quorumq.core.values.printable import plural

NAMED: Final = 5
"""Messages whose outcome the text of `NotAllStored` names, at most."""


class NotAllStored(QuorumqError):
    """Some messages of one call that published many were not stored, or may not be.

    Attributes:
        ids: id of each message in its place; None if it is not known to be stored.
        errors: reason why each other one was given up, by its place from 0. `NotStored` and errors of the message
            itself (`TooLarge`, TypeError …): it is not stored. `OutcomeUnknown`: it may be.
        untaken: the place from which on nothing was taken, all of it is not stored, for ``errors[untaken]``; None
            if all messages were taken.
    """

    code = "not-all-stored"
    exit_code = 75

    def __init__(
        self,
        text: str = "",
        ids: Sequence[MessageId | None] = (),
        errors: Mapping[int, Exception] = MappingProxyType({}),
        untaken: int | None = None,
    ) -> None:
        super().__init__(text)
        self.ids = list(ids)
        self.errors = dict(sorted(errors.items()))
        self.untaken = untaken

    @classmethod
    def of(
        cls, topic: str, ids: list[MessageId | None], errors: dict[int, Exception], untaken: int | None
    ) -> NotAllStored:
        """Return the error that says so in words."""
        stored = len(ids) - ids.count(None)
        named = sorted(errors.items())[:NAMED]
        reasons = "; ".join(
            f"number {', '.join(str(position) for position, _ in alike)}: {text}"
            for text, alike in groupby(named, key=lambda one: f"{type(one[1]).__name__}: {one[1]}")
        )
        more = f"; and {len(errors) - NAMED} more, see `errors`" if len(errors) > NAMED else ""
        rest = "" if untaken is None else f"; from number {untaken} on nothing was taken"
        are = plural(stored, f"message to {topic!r} is", f"messages to {topic!r} are")
        text = f"{are} stored, and not all: {reasons}{more}{rest} (counted from 0)"
        return cls(text, ids, errors, untaken)


def outgoing_of(messages: Iterable[Outgoing]) -> Iterator[Outgoing]:
    """Return an iterator over messages.

    Raises:
        TypeError: they are one payload, whose bytes would be published one by one.
    """
    if isinstance(messages, bytes | bytearray | memoryview | str):
        raise TypeError(f"{messages!r:.60} is one payload: publish_many takes several, `publish` one")
    return iter(messages)


RUN_MESSAGES: Final = 1024
"""Messages that are taken together, at most."""

SHARED: Final = frozenset({"key", "headers", "partition", "delay", "not_before", "ttl", "timeout"})
"""Options that many messages share without each being looked at."""


@dataclass(eq=False)
class Bulk:
    """Publication of messages in their order, with batches in flight meanwhile."""

    topic: str
    put: Callable[..., Awaitable[Run]]  # takes one message, waits while too much is buffered
    put_run: Callable[
        ..., Awaitable[list[Run]]
    ]  # takes payloads of the same options: all, or none if it raises
    options: (
        Options  # for all messages; with ``derived_from`` they are its outputs ``index``, ``index + 1`` …
    )
    run_bytes: int  # bytes of payloads taken together, at most; 0 takes each message alone
    _count: int = 0
    _errors: dict[int, Exception] = field(default_factory=dict)
    _untaken: int | None = None
    _runs: list[tuple[int, Run]] = field(default_factory=list)  # by the place of the first message

    def __post_init__(self) -> None:
        self.run_bytes = self.run_bytes if self.options.keys() <= SHARED else 0
        is_derived = self.options.get("derived_from") is not None
        self._outputs = count(self.options.get("index", 0)) if is_derived else None

    async def take(self, messages: Iterable[Outgoing]) -> bool:
        """Take messages, and return True if more may arrive. False: no more can be stored."""
        most = self.run_bytes
        run: list[bytes] = []
        size = 0
        try:
            for message in messages:
                if type(message) is bytes and most:
                    run.append(message)
                    size += len(message)
                    if size < most and len(run) < RUN_MESSAGES:
                        continue
                    taken, run, size = run, [], 0
                    if not await self._take_payloads(taken):
                        return False
                else:
                    taken, run, size = run, [], 0
                    if not (await self._take_payloads(taken) and await self._take_one(message)):
                        return False
        except Exception:  # raised by ``messages``: those before are stored
            await self._take_payloads(run)
            raise
        return await self._take_payloads(run)

    async def _take_payloads(self, payloads: list[bytes]) -> bool:
        """Take payloads together; if that cannot be, one by one, as only some may be wrong."""
        if not payloads:
            return True
        try:
            runs = await self.put_run(payloads, **self.options)
        except (TypeError, ValueError, TooLarge, UsageError):
            for payload in payloads:
                if not await self._take_one(payload):
                    return False
            return True
        except QuorumqError as error:
            self._give_up(error)
            return False
        for run in runs:
            self._runs.append((self._count, run))
            self._count += run.size
        return True

    async def _take_one(self, message: Outgoing) -> bool:
        options: dict[str, Any] = {**self.options}
        if self._outputs is not None:
            options["index"] = next(self._outputs)
        payload: Any = message
        if isinstance(message, NewMessage):
            payload = message.payload
            options.update(message.options)
        try:
            run = await self.put(payload, **options)
        except (TypeError, ValueError, TooLarge, Conflict) as error:
            self._errors[self._count] = error
        except QuorumqError as error:
            if type(error) is not UsageError:  # it is not this message that is wrong
                self._give_up(error)
                return False
            self._errors[self._count] = error
        else:
            self._runs.append((self._count, run))
        self._count += 1
        return True

    def _give_up(self, error: QuorumqError) -> None:
        """Take nothing from here on."""
        self._errors[self._count] = error
        self._untaken = self._count
        self._count += 1

    async def finish(self) -> list[MessageId]:
        """Wait for those that were taken; NotAllStored if some are not stored, or may not be."""
        ids: list[MessageId | None] = [None] * self._count
        runs, self._runs = deque(self._runs), []
        try:
            while runs:
                position, (record_batch, index, length) = runs[0]
                if not record_batch.done:
                    await record_batch.event.wait()
                if record_batch.error is None and not record_batch.refused:
                    ids[position : position + length] = record_batch.ids(index, length)
                else:
                    for at in range(length):
                        error = record_batch.failure(index + at)
                        if error is None:
                            ids[position + at] = record_batch.id_of(index + at)
                        else:
                            self._errors[position + at] = again(error)
                runs.popleft()
        finally:
            self._runs += runs
        if self._errors:
            raise NotAllStored.of(self.topic, ids, self._errors, self._untaken)
        return cast("list[MessageId]", ids)

    async def end_by(self, error: Exception) -> None:
        """End by an ``error`` of ``messages``: wait for those before, and note at it which of them are not stored."""
        try:
            await self.finish()
        except NotAllStored as besides:
            error.add_note(str(besides))

    def abandon(self) -> None:
        """Drop the outcomes of the rest: the caller was cancelled."""
        for _, (record_batch, index, length) in self._runs:
            record_batch.reported.update(range(index, index + length))
