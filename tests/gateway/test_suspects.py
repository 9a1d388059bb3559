"""Messages that may end their consumers: each is delivered alone, and none is lost by that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from quorumq.core.values.errors import TooFewReplicas
from quorumq.gateway.sqs.receiving import first_alone

SUSPECTS: list[Any] = [SimpleNamespace(name=name, suspect=True) for name in "abc"]


class Rejecting:
    """The rejects of a client, which fail or never end."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self.client = self
        self.fails, self.hangs = fails, hangs
        self.given_back: list[str] = []

    async def reject(self, messages: list[Any], *, interrupted: bool) -> None:
        """Note the messages."""
        assert interrupted
        if self.hangs:
            self.hangs = False
            await trio.sleep_forever()
        self.given_back = [message.name for message in messages]
        if self.fails:
            raise TooFewReplicas("no node answers")


async def test_a_suspect_comes_alone_also_if_the_others_cannot_be_given_back() -> None:
    for fails in (False, True):
        call: Any = Rejecting(fails=fails)
        assert await first_alone(call, SUSPECTS) == SUSPECTS[:1]
        assert call.given_back == ["b", "c"]


async def test_all_messages_are_given_back_when_the_request_is_cancelled() -> None:
    call: Any = Rejecting(hangs=True)
    with trio.move_on_after(1):
        await first_alone(call, SUSPECTS)
    assert call.given_back == ["a", "b", "c"]
