"""Shares of processor time: beside others, a user that is ahead of them rests.

A gateway has one loop, in which a user with many steps, or with long ones, would leave little time to others. So each
step of a task counts for the user that the task works for: a task of a request, of a connection of HTTP, or of one to
a node. A request asks for its user's turn (`turn`) before it begins, before each part of its body, and within long
work. A user that has used more than another one that is there rests in its turn, and its other requests wait behind.
A user alone never rests.

When a request begins, those under way count with the average cost of their user's requests: else many would begin
before the first one has cost anything. Refused requests are work too. So a request counts for the name that it claims,
at its address. Once the claim is proven, requests of that name from there are its user's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

import trio
from trio.testing import wait_all_tasks_blocked

from quorumq.core.values.errors import Busy
from quorumq.gateway.identity import Owner, User

AHEAD_S: Final = 0.001
"""Seconds by which a user may be ahead without a rest. A system sleeps for a millisecond at least."""

LONG_S: Final = 0.003
"""Seconds of one pass of the loop, after which a user goes on in the next one, so that a new user gets a turn."""

THERE_S: Final = 0.05
"""Seconds after its last step for which a user counts as there."""

ALONE_S: Final = 0.01
"""Seconds that requests under way may cost if their user is alone: the longest wait of a new user."""

PART_S: Final = 0.002
"""Seconds that a part of a rest pays."""

REST: Final = 2.0
"""Seconds of rest that pay one second."""

IDLE: Final = 0.5
"""Seconds that pay one second if the loop has nothing to do."""

AVERAGE: Final = 8
"""Requests over which costs are averaged."""

PACE_ITEMS: Final = 16
"""Messages or receipts that are worked on from one turn to the next, about half a millisecond."""

WAITING_MAX: Final = 1000
"""Requests of one user that wait to begin."""

PROVEN_MAX: Final = 10_000
"""Owners whose users are known."""

Who = User | Owner
"""A user, or the owner of a request whose user is not certain yet."""

T = TypeVar("T")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """One user's share of the processor.

    Attributes:
        worked: seconds that it has used.
        used: the same, less those that rests have paid. Only differences to other shares count.
        ended: value of ``worked`` when its last request ended.
        cost: seconds of a request, on average.
        starts: times at which requests began that are under way, the latest last. Those that wait for a node for long
            are left out.
        seen: time of its last step, by trio's clock.
        line: its requests under way that wait for their turn; the one that has the lock rests.
        begins: its requests that wait to begin.
    """

    worked: float = 0.0
    used: float = 0.0
    ended: float = 0.0
    cost: float = 0.0
    starts: dict[object, float] = field(default_factory=dict)
    seen: float = 0.0
    line: trio.Lock = field(default_factory=trio.Lock)
    begins: trio.Lock = field(default_factory=trio.Lock)

    def due(self, now: float) -> float:
        """Return the seconds that its requests under way will cost, on average."""
        while self.starts and next(iter(self.starts.values())) < now - THERE_S:
            del self.starts[next(iter(self.starts))]
        return len(self.starts) * self.cost


@dataclass(slots=True, eq=False)
class Payer:
    """The share for which tasks count that have this in their context: a task, and those that it starts.

    Attributes:
        share: None if they count for no user.
        serves: the tasks are a connection's of HTTP. It has the share of the last request on it.
    """

    shares: Shares
    share: Share | None
    serves: bool


PAYER: Final[ContextVar[Payer | None]] = ContextVar("payer", default=None)


class Shares(trio.abc.Instrument):
    """Shares of all users of a gateway."""

    def __init__(self) -> None:
        self._shares: WeakValueDictionary[Who, Share] = WeakValueDictionary()
        self._proven: dict[Owner, User] = {}
        self._there: dict[Share, None] = {}
        self._pass = self._began = 0.0  # when the pass of the loop began, and the step that runs

    def after_io_wait(self, timeout: float) -> None:
        self._pass = self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        now = time.perf_counter()
        payer = task.context.get(PAYER)
        if payer is not None and (share := payer.share) is not None:
            self._enter(share)
            share.seen = trio.current_time()
            share.used += now - self._began
            share.worked += now - self._began
        self._began = now

    def _enter(self, share: Share) -> None:
        """Have a user begin with those that are there. If it was ahead when it was there last, time has paid."""
        if share not in self._there:
            now = trio.current_time()
            self._drop_gone(now)
            share.used = self._least() + max(0.0, share.used - (now - share.seen))
            share.seen = now
            self._there[share] = None

    def _drop_gone(self, now: float) -> None:
        gone = [share for share in self._there if share.seen < now - THERE_S]
        if gone:
            least = self._least()
            for share in gone:
                share.used -= least
                del self._there[share]

    def _least(self) -> float:
        return min((share.used for share in self._there), default=0.0)

    def ahead(self, share: Share, due: bool = False) -> float:
        """Return the seconds that a user has used more than the least of others that are there.

        Args:
            due: its requests under way count with the average cost.
        """
        now = trio.current_time()
        self._drop_gone(now)
        self._enter(share)
        others = [one.used for one in self._there if one is not share]
        more = share.due(now) if due else 0.0
        if not others:
            return max(0.0, more - ALONE_S)
        return share.used + more + time.perf_counter() - self._began - min(others)

    def of(self, who: Who) -> Share:
        """Return the share of a user, or of an owner whose user is not certain."""
        share = self._shares.get(who)
        if share is None:
            share = self._shares[who] = Share()
        return share

    def pay(self, who: Who | None, *, serves: bool = False) -> None:
        """Have this task, and those that it starts from now on, count for a user, or for none."""
        PAYER.set(Payer(self, None if who is None else self.of(who), serves))

    @asynccontextmanager
    async def request(self, owner: Owner, user: User | None = None) -> AsyncIterator[None]:
        """Wait until a request may begin. Its task counts for its user.

        Args:
            user: the user, if it is certain already. All users of an open gateway are one, and count by address.

        Raises:
            Busy: too many of the user's tasks wait.
        """
        connection = PAYER.get()
        who = self._proven.get(owner, owner) if user is None else user
        share = self.of(who)
        self.pay(who)
        if connection is not None and connection.serves:
            connection.share = share
        if share.begins.statistics().tasks_waiting >= WAITING_MAX:
            text = f"{WAITING_MAX} requests of this client wait at this gateway: wait for some of them"
            raise Busy(text, delay=1.0)
        await self.turn(share, begins=True)
        share.starts[request := object()] = trio.current_time()
        try:
            yield
        finally:
            share.starts.pop(request, None)
            share.cost += (share.worked - share.ended - share.cost) / AVERAGE
            share.ended = share.worked

    async def prove(self, owner: Owner, user: User) -> None:
        """Go on as a request of ``user``, who has proven to be its owner. The owner's next requests begin as such."""
        if not user.name or self._proven.get(owner) == user:
            return
        if len(self._proven) >= PROVEN_MAX:
            self._proven.clear()
        self._proven[owner] = user
        self._there.pop(self.of(owner), None)  # the user is no other one beside it
        self.pay(user)
        await turn()

    def drop(self, owner: Owner) -> None:
        """Note that the claim of an owner was wrong."""
        self._proven.pop(owner, None)

    async def turn(self, share: Share, *, begins: bool = False) -> None:
        """Wait behind the user's tasks that wait, and rest if it is ahead of others.

        A rest pays for the time that the user is ahead. If others use more meanwhile, it goes on beside them, and not
        before them.

        Args:
            begins: a request begins. Those under way count with the average cost.
        """
        is_short = time.perf_counter() - self._pass <= LONG_S
        line = share.begins if begins else share.line
        if is_short and not line.locked() and self.ahead(share, begins) <= AHEAD_S:
            return
        async with line:  # others run, and each pass of the loop has one long step of a user
            while (ahead := self.ahead(share, begins)) > AHEAD_S:
                before, worked, paid = self.ahead(share), share.worked, min(ahead, PART_S)
                with trio.move_on_after(REST * paid) as scope:
                    await wait_all_tasks_blocked(IDLE * paid)
                more, after = share.worked - worked, self.ahead(share)  # its other tasks went on
                share.used += more + max(0.0, min(before - paid, after - more)) - after
                if not scope.cancelled_caught and self.ahead(share) <= AHEAD_S:
                    return


async def turn() -> None:
    """Let others work if this task's user is ahead of them, or if this step is long already."""
    payer = PAYER.get()
    if payer is not None and payer.share is not None:
        await payer.shares.turn(payer.share)


async def pace(number: int) -> None:
    """Ask for the turn after each `PACE_ITEMS` items. Not cancelled here, a batch is published whole."""
    if number % PACE_ITEMS == PACE_ITEMS - 1:
        with trio.CancelScope(shield=True):
            await turn()


async def each(make: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """Return the result of ``make`` for each item of a long answer, with turns in between."""
    made: list[T] = []
    for number, item in enumerate(items):
        made.append(make(item))
        await pace(number)
    return made


async def finish(steps: Generator[None, None, T]) -> T:
    """Return the result of a generator, with turns between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        await turn()
