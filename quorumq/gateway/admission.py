"""Admission of requests: beside others a user begins one, and the next one when the others' are done.

A gateway has one loop, and a request takes many of its turns. Without admission a user with a hundred short requests
has a hundred steps in each turn, in front of the one step of another user. Refused requests are work too, so a request
is admitted before its signature is checked: by the name that it claims and its address. Once the claim is proven,
requests of that name from there are its user's.

A request that waits for a node is no work. So the next ones of all users are admitted, too, when the loop has nothing
to do, and a request that is not answered soon counts as one that waits.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

import trio
from trio.testing import wait_all_tasks_blocked

from quorumq.core.values.errors import Busy
from quorumq.gateway.identity import User
from quorumq.gateway.requests import Owner

WORK_S: Final = 0.01
"""Seconds after which a request that is not answered counts as one that waits for a node."""

IDLE_S: Final = 0.001
"""Seconds without work of the loop, after which the next requests are admitted."""

ROUND: Final = 4
"""Requests of one user until those of the others are done, if it sends one after another."""

IDLE: Final = 16
"""Requests of one user that begin together when the loop has nothing to do."""

ALONE: Final = 8
"""Requests of one user that work at a time while no other one is there: the next one to come has to wait for them."""

BESIDE_S: Final = 1.0
"""Seconds after its last request for which a user counts as there."""

WAITING_MAX: Final = 1000
"""Requests of one user that wait to be admitted."""

PROVEN_MAX: Final = 10_000
"""Owners whose users are known."""

ADMISSION: Final = "quorumq.admission"
"""Key of a request's admission in its ASGI scope."""

Who = User | Owner
"""A user, or the owner of a request whose user is not certain yet."""


class Admission:
    """Admission of one request, for the length of an ``async with``. Made by `Admissions.of`."""

    __slots__ = ("_admissions", "_owner", "_who", "admitted")

    def __init__(self, admissions: Admissions, owner: Owner, who: Who) -> None:
        self._admissions = admissions
        self._owner = owner
        self._who = who
        self.admitted = trio.Event()

    async def __aenter__(self) -> Admission:
        await self._admissions.enter(self._who, self)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._admissions.release(self._who, self)

    async def prove(self, user: User) -> None:
        """Go on as a request of ``user``, who has proven to be its owner. The owner's next requests begin as such."""
        if user.name and self._who != user:
            self._admissions.note(self._owner, user)
            self._admissions.release(self._who, self)
            self._who, self.admitted = user, trio.Event()
            await self._admissions.enter(user, self)


class Admissions:
    """Requests of all users of a gateway: those under way, and those that wait to be admitted."""

    def __init__(self) -> None:
        self._proven: dict[Owner, User] = {}
        self._under_way: dict[Who, dict[Admission, float]] = {}  # requests, and when each was admitted
        self._lines: dict[Who, deque[Admission]] = {}
        self._there: dict[Who, float] = {}  # time of the last request; the latest is last
        self._had: dict[Who, int] = {}  # requests that were admitted in this round
        self._waits = trio.Event()

    def of(self, owner: Owner, user: User | None = None) -> Admission:
        """Return the admission of a request.

        Args:
            user: the user, if it is certain already. All users of an open gateway are one, and count by address.
        """
        return Admission(self, owner, self._proven.get(owner, owner) if user is None else user)

    def note(self, owner: Owner, user: User) -> None:
        """Note that an owner has proven to be a user."""
        if len(self._proven) >= PROVEN_MAX:
            self._proven.clear()
        self._proven[owner] = user

    def drop(self, owner: Owner) -> None:
        """Note that the claim of an owner was wrong."""
        self._proven.pop(owner, None)

    async def enter(self, who: Who, admission: Admission) -> None:
        """Wait until a request is admitted.

        Raises:
            Busy: too many of the user's requests wait.
        """
        self._there.pop(who, None)
        self._there[who] = trio.current_time()
        if who not in self._lines and self._may_begin(who):
            self._admit(who, admission)
            return
        line = self._lines.setdefault(who, deque())
        self._waits.set()
        if len(line) >= WAITING_MAX:
            text = f"{WAITING_MAX} requests of this client wait at this gateway: wait for some of them"
            raise Busy(text, delay=1.0)
        line.append(admission)
        try:
            await admission.admitted.wait()
        except trio.Cancelled:
            if admission.admitted.is_set():
                self.release(who, admission)
            else:
                line.remove(admission)
            raise

    def release(self, who: Who, admission: Admission) -> None:
        """Note that a request is done, and admit the next ones if no other one works."""
        times = self._under_way.get(who, {})
        times.pop(admission, None)
        if not times:
            self._under_way.pop(who, None)
        if self._is_alone() or not any(map(self._working, self._under_way)):
            self._next_round()

    def _admit(self, who: Who, admission: Admission) -> None:
        self._under_way.setdefault(who, {})[admission] = trio.current_time()
        self._had[who] = self._had.get(who, 0) + 1
        admission.admitted.set()

    def _working(self, who: Who) -> int:
        """Return how many requests of a user work, up to `ALONE`."""
        times = self._under_way.get(who)
        if times is None:
            return 0
        since = trio.current_time() - WORK_S
        return sum(at > since for at in islice(reversed(times.values()), ALONE))

    def _is_alone(self) -> bool:
        """Return True if one user is there at most."""
        oldest = trio.current_time() - BESIDE_S
        while self._there and next(iter(self._there.values())) < oldest:
            del self._there[next(iter(self._there))]
        return len(self._there) <= 1

    def _may_begin(self, who: Who) -> bool:
        if self._is_alone():
            return self._working(who) < ALONE
        return not self._working(who) and self._had.get(who, 0) < ROUND

    def _next_round(self, most: int = 1) -> None:
        """Admit the next requests of each user that waits, up to ``most``, or all that may work if one is there."""
        self._had.clear()
        for who, line in list(self._lines.items()):
            for _ in range(min(most, len(line))):
                self._admit(who, line.popleft())
            while line and self._may_begin(who):
                self._admit(who, line.popleft())
            if not line:
                del self._lines[who]

    async def run(self) -> None:
        """Admit requests when the loop has nothing to do, and some in any case. Runs until cancelled."""
        while True:
            if not self._lines:
                self._waits = trio.Event()
                await self._waits.wait()
            with trio.move_on_after(WORK_S) as scope:
                await wait_all_tasks_blocked(IDLE_S)
            # In an idle loop several at once: nodes store what comes together by one fsync.
            self._next_round(1 if scope.cancelled_caught else IDLE)
