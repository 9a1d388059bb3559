"""The driver by itself: the order of its effects, over a core scripted by the test and a disk that waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from quorumq.core.messages import ClientReply, PeerMessage, ReleaseReply
from quorumq.core.messages.effects import (
    CleanStop,
    Done,
    DropBatches,
    Durable,
    Effect,
    Event,
    Gone,
    Ours,
    Persist,
    Raised,
    Restart,
    Send,
    SendStored,
    Stop,
)
from quorumq.core.messages.records import JournalRecord, Reserved
from quorumq.core.values.types import Incarnation, Now
from quorumq.driver import LAZY_COMMIT_S, Driver

MESSAGE = ReleaseReply(1)
OTHER = ReleaseReply(2)
RECORD = Reserved(1)


class World:
    """Port, journal and core at once; ``answers`` are the effects of the core's next steps."""

    def __init__(self) -> None:
        self.mono = 100.0
        self.answers: list[list[Effect]] = []
        self.steps: list[list[Event]] = []
        self.done: list[Any] = []  # external effects, in order
        self.serving = False
        self.state = SimpleNamespace(me="a", incarnation=Incarnation(1, 1), clock=SimpleNamespace(value=7))
        self.ticket = self.durable = self.target = 0
        self.driver = Driver(self, self, self, random.Random(0))  # type: ignore[arg-type]

    def step(self, events: Sequence[Event], now: Now, rng: random.Random) -> list[Effect]:
        self.steps.append(list(events))
        return self.answers.pop(0) if self.answers else []

    def next_deadline(self) -> float | None:
        return None

    def rest(self, mono: float) -> None:
        self.done.append(("rest", mono))

    def does(self, *effects: Effect) -> None:
        """Have the core answer an event with these."""
        self.answers.append(list(effects))
        self.driver.feed(Gone(1))

    def sync(self) -> None:
        """The fsync that is under way is over."""
        self.durable = self.target
        self.driver.synced()
        self.driver.feed()

    @property
    def position(self) -> int:
        return self.durable

    @property
    def needs_sync(self) -> bool:
        return self.ticket > self.durable

    def now(self) -> Now:
        return Now(self.mono, 0)

    def send(self, to: str, message: PeerMessage) -> None:
        self.done.append(message)

    def send_stored(self, effect: SendStored) -> None:
        self.done.append(effect)

    def reply(self, key: int, reply: ClientReply) -> None:
        self.done.append(reply)

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        self.done.append("kept")

    def end(self, effect: Stop | Restart) -> None:
        self.driver.ended = True

    def raised(self, effect: Raised) -> None:
        self.done.append(effect)

    def flush(self) -> None:
        if self.done[-1:] != ["flush"]:
            self.done.append("flush")

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        self.ticket += len(records)
        return self.ticket

    def drop(self, numbers: tuple[int, ...]) -> None:
        self.ticket += 1

    def begin_sync(self, here: bool) -> None:
        self.target = self.ticket
        self.done.append("sync")


def test_replies_that_need_the_disk_follow_its_fsync_and_others_precede_it() -> None:
    world = World()
    world.does(Persist((RECORD,), (Send("b", MESSAGE),)), Send("c", OTHER))
    assert world.done[:3] == [OTHER, "flush", "sync"]
    world.done.clear()
    world.sync()
    assert world.done[:2] == ["kept", MESSAGE]


def test_one_fsync_covers_what_the_step_appended_and_the_next_what_came_meanwhile() -> None:
    world = World()
    world.does(Persist((RECORD,), (Send("b", MESSAGE),)), Persist((RECORD,), (Send("b", OTHER),)))
    world.does(Persist((RECORD,), (Send("c", MESSAGE),)))
    assert world.done.count("sync") == 1
    world.sync()
    assert [item for item in world.done if isinstance(item, ReleaseReply)] == [MESSAGE, OTHER]
    assert world.done.count("sync") == 2
    world.sync()
    assert [item for item in world.done if isinstance(item, ReleaseReply)] == [MESSAGE, OTHER, MESSAGE]


def test_the_rest_of_a_costly_request_begins_when_its_effects_are_done() -> None:
    world = World()
    world.does(Send("b", MESSAGE))
    assert world.done == [MESSAGE, "flush"], "there was nothing costly"
    world.done.clear()

    def slow(to: str, message: PeerMessage) -> None:
        world.mono += 0.03
        world.done.append(message)

    world.send, world.serving = slow, True  # type: ignore[method-assign]
    world.does(Send("b", MESSAGE), Send("c", OTHER))
    assert world.done[:3] == [MESSAGE, OTHER, ("rest", 100.06)]


def test_an_answer_without_records_waits_for_what_stands_before_it() -> None:
    world = World()
    world.does(Persist((), (Send("b", OTHER),)))
    assert OTHER in world.done, "nothing stands before it"
    world.does(Persist((RECORD,)))
    world.does(Persist((), (Send("b", MESSAGE),)))
    assert MESSAGE not in world.done
    world.sync()
    assert MESSAGE in world.done


def test_tokens_and_messages_to_ourselves_are_the_next_step() -> None:
    world = World()
    world.does(Persist((RECORD,), (Done(5), Send("a", MESSAGE))))
    world.steps.clear()
    world.sync()
    ((token, ours),) = world.steps
    assert token == Durable(5, 1)
    assert ours == Ours(MESSAGE)


def test_the_core_is_not_entered_twice() -> None:
    world = World()
    world.send = lambda to, message: world.driver.feed(Gone(9))  # type: ignore[method-assign]
    world.does(Send("b", MESSAGE), Send("c", OTHER))
    assert world.steps == [[Gone(1)], [Gone(9), Gone(9)]]


def test_entries_without_a_waiter_are_synced_soon() -> None:
    for effect in (Persist((RECORD,)), DropBatches((1,))):
        world = World()
        world.does(effect)
        assert "sync" not in world.done
        assert world.driver.next_deadline() == world.mono + LAZY_COMMIT_S
        world.mono += LAZY_COMMIT_S
        world.driver.feed()
        assert "sync" in world.done
        assert world.driver.next_deadline() is None


def test_a_client_that_met_a_bug_gets_an_error_and_the_node_goes_on() -> None:
    world = World()
    bug = Raised("Fetch", ZeroDivisionError())
    world.does(bug, Send("b", MESSAGE))
    assert world.done[:2] == [bug, MESSAGE]
    assert not world.driver.ended


def test_a_silent_node_appends_and_sends_nothing() -> None:
    world = World()
    world.does(Persist((RECORD,), (Send("b", MESSAGE),)))
    world.driver.silent = True
    world.answers.append([Persist((RECORD,)), Send("c", OTHER)])
    world.driver.feed(CleanStop())
    world.sync()
    assert world.ticket == 2
    assert not any(isinstance(item, ReleaseReply) for item in world.done)


def test_nothing_is_taken_in_after_the_end() -> None:
    world = World()
    world.does(Stop("because"))
    world.does(Send("b", MESSAGE))
    assert world.steps == [[Gone(1)]]
    assert MESSAGE not in world.done
