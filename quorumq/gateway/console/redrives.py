"""Redrives at a rate, which go on when the page is closed.

They are tasks of one gateway and end with it. Nothing is lost then: a redrive that is begun again does the rest.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Final

import trio

from quorumq.client import QuorumqError
from quorumq.client.admin.selection import Selection, chosen, redriven
from quorumq.core.values.errors import Busy, NotFound
from quorumq.core.values.printable import plural
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.identity import User

RUNNING_MAX: Final = 20
USER_MAX: Final = 4
"""Redrives of one user that run at once."""
KEPT: Final = 20
"""Redrives that are over and still shown."""
RATE_MAX: Final = 10_000

log = logging.getLogger("quorumq.gateway")


@dataclass(eq=False)
class Redrive:
    """One redrive: its user, choice of dead letters, limit of messages, and messages a second.

    Attributes:
        number: number at its gateway.
        scope: cancelled to stop it.
    """

    user: User
    selection: Selection
    limit: int | None
    rate: float
    done: int = 0
    already: int = 0
    end: str = ""
    number: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __str__(self) -> str:
        kind = self.selection.error_class or self.selection.reason or "all kinds"
        count = f"{plural(self.done, 'message')} redriven"
        passed = f", {self.already:,} had been settled" if self.already else ""
        return f"{kind}: {count}{passed}, at most {self.rate:g} a second; {self.end or 'under way'}"


@dataclass(eq=False)
class Redrives:
    """The redrives of a gateway."""

    gateway: Gateway
    all: list[Redrive] = field(default_factory=list)
    started: int = 0

    def of(self, user: User, topic: str, group: str) -> list[Redrive]:
        """Return a user's redrives of a group."""
        return [one for one in self.all if (one.user, *one.selection[:2]) == (user, topic, group)]

    def begin(self, redrive: Redrive) -> None:
        """Begin one in the background; Busy if too many run, of the user or of all."""
        running = [one for one in self.all if not one.end]
        if len(running) >= RUNNING_MAX:
            raise Busy(f"{RUNNING_MAX} redrives run at this gateway: wait for one to end", delay=5.0)
        if sum(one.user == redrive.user for one in running) >= USER_MAX:
            raise Busy(
                f"{USER_MAX} redrives of yours run at this gateway: wait for one, or stop it", delay=5.0
            )
        over = [one for one in self.all if one.end]
        for one in over[: max(0, len(over) - KEPT)]:
            self.all.remove(one)
        self.started += 1
        redrive.number = self.started
        self.all.append(redrive)
        self.gateway.nursery.start_soon(self._run, redrive)

    def stop(self, user: User, number: int) -> None:
        """Stop a user's redrive; one that is over stays as it is. NotFound if there is none of that number."""
        for one in self.all:
            if (one.user, one.number) == (user, number):
                one.scope.cancel()
                return
        raise NotFound(f"this gateway has no redrive {number} of yours: load the page again")

    async def _run(self, redrive: Redrive) -> None:
        with redrive.scope:
            await self._carry_out(redrive)
        redrive.end = redrive.end or "stopped"

    async def _carry_out(self, redrive: Redrive) -> None:
        try:
            async with self.gateway.client(redrive.user) as client:
                limit = math.inf if redrive.limit is None else redrive.limit
                topic, group, *_ = redrive.selection
                items = chosen(client, redrive.selection)
                async for done, already in redriven(
                    client, topic, group, items, rate=redrive.rate, limit=limit
                ):
                    redrive.done += done
                    redrive.already += already
            redrive.end = "over"
        except QuorumqError as error:
            redrive.end = f"ended by an error, begin it again: {error}"
        except Exception:
            log.exception("a redrive of the console failed")
            redrive.end = "ended by an error of the gateway, which its log has"
