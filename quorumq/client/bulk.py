"""Many messages that are published by one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from quorumq.client.batches import Pending
from quorumq.client.message import MessageId
from quorumq.client.options import NewMessage, Options, Outgoing
from quorumq.core.errors import Conflict, QuorumqError, TooLarge, UsageError
from quorumq.core.printable import plural

NAMED: Final = 5
"""The text of `NotAllStored` says of so many messages what became of them."""


class NotAllStored(QuorumqError):
    """Of many messages that were published by one call, some were not stored, or may not be.

    Attributes:
        ids: of each message in its place: its id, or None where it is not known to be stored.
        errors: by its place, from 0, why each other one was given up. `NotStored` and what is wrong with the message
            itself (`TooLarge`, TypeError …): it is not stored. `OutcomeUnknown`: it may be.
        untaken: the place from which on nothing was taken, all of it is not stored, for ``errors[untaken]``; None
            where all messages were taken.
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
        """The error that says so in words."""
        stored = len(ids) - ids.count(None)
        some = sorted(errors.items())[:NAMED]
        reasons = "; ".join(f"number {place}: {type(error).__name__}: {error}" for place, error in some)
        more = f"; and {len(errors) - NAMED} more, see `errors`" if len(errors) > NAMED else ""
        rest = "" if untaken is None else f"; from number {untaken} on nothing was taken"
        are = plural(stored, f"message to {topic!r} is", f"messages to {topic!r} are")
        text = f"{are} stored, and not all: {reasons}{more}{rest} (counted from 0)"
        return cls(text, ids, errors, untaken)


class Bulk:
    """Publishes messages in their order, and keeps batches in flight meanwhile.

    Args:
        topic: where they go.
        take: takes one message, waits while too much is buffered.
        options: of all messages. With ``derived_from`` they are its outputs ``index``, ``index + 1`` …
    """

    def __init__(self, topic: str, take: Callable[..., Awaitable[Pending]], options: Options[Any]) -> None:
        self._topic = topic
        self._take = take
        self._options = options
        self._outputs: Iterator[int] | None = None
        if options.get("derived_from") is not None:
            self._outputs = count(options.get("index", 0))
        self._ids: list[MessageId | None] = []
        self._errors: dict[int, Exception] = {}
        self._untaken: int | None = None
        self._waiting: deque[tuple[int, Pending]] = deque()

    async def take(self, messages: Iterable[Outgoing]) -> bool:
        """Take messages; whether more may come: not where no more can be stored."""
        for message in messages:
            place = len(self._ids)
            self._ids.append(None)
            options: dict[str, Any] = {**self._options}
            if self._outputs is not None:
                options["index"] = next(self._outputs)
            payload: Any = message
            if isinstance(message, NewMessage):
                payload = message.payload
                options.update(message.options)
            try:
                pending = await self._take(payload, **options)
            except (TypeError, ValueError, TooLarge, Conflict) as error:
                self._errors[place] = error
            except QuorumqError as error:
                self._errors[place] = error
                if type(error) is not UsageError:  # it is not this message that is wrong
                    self._untaken = place
                    return False
            else:
                self._waiting.append((place, pending))
                self._harvest()
        return True

    def _harvest(self) -> None:
        """Note the outcomes that are there."""
        waiting = self._waiting
        while waiting and waiting[0][1].done:
            place, pending = waiting.popleft()
            try:
                self._ids[place] = pending._outcome()
            except QuorumqError as error:
                self._errors[place] = error

    async def finish(self) -> list[MessageId]:
        """Wait for those that were taken.

        Raises:
            NotAllStored: as it says.
        """
        while self._waiting:
            with suppress(QuorumqError):
                await self._waiting[0][1].wait()
            self._harvest()
        if self._errors:
            raise NotAllStored.of(self._topic, self._ids, self._errors, self._untaken)
        return [found for found in self._ids if found is not None]

    async def end_by(self, error: Exception) -> None:
        """The messages ended by ``error``: wait for those before, and note at it which of them are not stored."""
        try:
            await self.finish()
        except NotAllStored as besides:
            error.add_note(str(besides))

    def abandon(self) -> None:
        """Nobody wants to hear of the rest: the caller was cancelled."""
        for _, pending in self._waiting:
            pending._abandon()
