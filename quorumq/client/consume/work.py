"""Pool of workers: a handler for each message, and the settling of the message at any end.

A worker takes one message at a time, runs the handler, and settles: so a message that was handed over has been begun,
and messages not handed over are given back and counted nowhere. A message keeps its hold while its handler runs. When
stopped, a pool first gives back messages that it has not begun, then lets its handlers end until its grace is over.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import trio

from quorumq.client.base.context import Context
from quorumq.client.base.dead_letters import line_of
from quorumq.client.base.message import CALLS, Message, Outcome, not_awaited
from quorumq.client.base.times import Duration, number_of
from quorumq.client.consume.consumer import Consumer
from quorumq.client.consume.fetching import give_back
from quorumq.client.consume.settling import ACKS
from quorumq.core.values.errors import Busy, QuorumqError, TooFewReplicas, Transient, Unauthorized, UsageError

if TYPE_CHECKING:
    from quorumq.client.base.counterparts import Message as PlainMessage
    from quorumq.client.consume.fuse import Fuse

GRACE_S: Final = 10.0
CONCURRENCY_MAX: Final = 10_000
BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Longest wait of a failed message without a backoff, in seconds: doubled each time, lest attempts be over at once."""
LAST_WORD_S: Final = 2.0
"""Seconds that a message whose handler was cancelled may take to be rejected; else its hold has to run out."""
REJECT_S: Final = 5.0
"""Seconds that a failed message may take to be rejected, as when two of three disks are full: then a worker that waits
for longer does nothing for the others, and the end of the hold does as much."""
ENDING_S: Final = 1.0
"""Seconds that a cancelled handler may take to end before its hold is extended no more."""
DEAD_LETTER_WAIT_S: Final = 60.0
"""Seconds until a dead letter whose handler failed is redelivered: it cannot die twice, and has no last attempt."""
STOP_LOOK_S: Final = 0.1
"""Seconds between two looks at the event that ends a pool, as it may be one that trio cannot wait for."""
UNAUTHORIZED_LOOK_S: Final = 1.0
"""Seconds until a verdict that was refused for want of a right is sent again, while its message is held."""
WRONG_RUNTIME: Final = (
    "no running event loop",
    "no current event loop",
    "got bad yield",
    "must be called from async context",
    "unrecognized yield message",
    "unknown async library",
    "expected a sync function",
)
"""Texts of asyncio, trio and sniffio for a call that belongs to another event loop, or to none."""
CAUSES_MAX: Final = 20
CALLERS: Final = ("quorumq.client.", "trio.", "outcome.", "asyncio.")
"""Modules between a pool and its handler."""

log = logging.getLogger("quorumq.client")

Handler = Callable[[Message], Any] | Callable[["PlainMessage"], Any]
"""An ``async def``, or a plain function, whose message is that of the client for threads."""


class Unfit(UsageError):
    """The handler cannot work here with any message: no message is to blame, and the pool ends."""

    code = "unfit"


def is_async(handler: Any) -> bool:
    """Return True if the handler is awaited; else it is run in a thread."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


def check_handler(handler: Any) -> None:
    """Refuse a handler that cannot be called with a message.

    Raises:
        UsageError: it is no function of one message; says why.
    """
    if not callable(handler):
        raise UsageError(f"the handler is {handler!r}: give a function that takes a message")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise UsageError(f"the handler {handler!r} has a yield: called, it would do nothing; let it return")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(
            f"the handler {handler!r} cannot be called with a message and nothing else: {error}"
        ) from None


class Stop(Protocol):
    """An event of `trio`, `asyncio` or `threading`."""

    def is_set(self) -> bool:
        """Return True if the pool is to end."""
        ...


@dataclass(frozen=True)
class Task:
    """Subscription of a handler: topic, group and options, whose meaning `Client.work` has."""

    topic: str | Sequence[str]
    group: str
    handler: Handler
    concurrency: int = field(default=1, kw_only=True)
    retry: type[Exception] | tuple[type[Exception], ...] = field(default=(), kw_only=True)
    timeout: Duration | None = field(default=None, kw_only=True)
    hold_time: Duration | None = field(default=None, kw_only=True)
    start: Literal["earliest", "latest"] = field(default="earliest", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    version: str = field(default="", kw_only=True)

    def check(self) -> None:
        """Raise UsageError if it can never work."""
        check_handler(self.handler)
        if not isinstance(self.concurrency, int) or not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise UsageError(f"concurrency is {self.concurrency!r}: give 1 to {CONCURRENCY_MAX}")
        for kind in self.retries:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise UsageError(
                    f"retry has {kind!r}: give classes of exceptions, as (TimeoutError, ConnectionError)"
                )
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"timeout is {self.timeout!r}: give seconds above 0, or None for no limit")

    @property
    def retries(self) -> tuple[type[Exception], ...]:
        """The classes in ``retry``."""
        return self.retry if isinstance(self.retry, tuple) else (self.retry,)

    @property
    def seconds(self) -> float | None:
        """``timeout`` in seconds."""
        return None if self.timeout is None else number_of("timeout", self.timeout)

    @property
    def is_async(self) -> bool:
        """Return True if the handler is awaited; else it is run in a thread."""
        return is_async(self.handler)

    def retries_on(self, error: BaseException) -> bool:
        """Return True if a failure is one to try again after; a group is one if all failures in it are.

        If a call to the cluster failed for the time being, the message is not to blame.
        """
        if isinstance(error, (Transient, *self.retries)):
            return True
        return isinstance(error, BaseExceptionGroup) and all(map(self.retries_on, error.exceptions))


TASK_OPTIONS: Final = tuple(one.name for one in fields(Task) if one.kw_only)


@dataclass
class Worked:
    """Messages that a pool worked on until it was stopped, by outcome.

    Attributes:
        done: acked, with the hold certain until then as far as is known.
        late: acked when the hold was over: another worker may have done the same.
        retried: rejected, for another delivery: an exception in ``retry``, or ``timeout``.
        interrupted: cancelled at the end of the grace, and given back. That costs no attempt, up to 10 times a message.
        dead_lettered: given up, with the exception.
        given_back: fetched and not begun, therefore given back and counted nowhere.
        lost: handled, but the verdict did not reach the cluster within the hold: they may be redelivered.
        signal: the number of the signal that stopped it, or None.
    """

    done: int = 0
    late: int = 0
    retried: int = 0
    interrupted: int = 0
    dead_lettered: int = 0
    given_back: int = 0
    lost: int = 0
    signal: int | None = None

    def count(self, outcome: Outcome | None, *, over: bool = False) -> None:
        """Count one more message that ended like this; None if its verdict did not arrive.

        Args:
            over: True if its hold was over, by the client's clock, before it was settled.
        """
        if outcome is Outcome.REQUEUED:
            self.retried += 1
        elif outcome is Outcome.DEAD_LETTERED:
            self.dead_lettered += 1
        elif outcome is None or outcome is Outcome.REWOUND:
            self.lost += 1
        elif outcome is Outcome.ACKED_AFTER_EXPIRY or (over and outcome is Outcome.ACKED_UNPROVEN):
            self.late += 1
        else:
            self.done += 1


@dataclass(eq=False)
class Pool:
    """Handlers of some tasks at work; made for one `run`."""

    context: Context  # the client's
    consume: Callable[..., Consumer]  # makes a consumer, as `Client.consumer` does
    tasks: Sequence[Task]
    grace: Duration  # seconds that handlers have to end, once `stop` was called
    stop_signal: Stop | None = None  # calls `stop` when it is set
    _consumers: list[Consumer] = field(default_factory=list)
    _started: int = 0  # messages whose handlers run
    _stop: trio.Event = field(default_factory=trio.Event)
    _handling: trio.CancelScope = field(default_factory=trio.CancelScope)
    _worked: Worked = field(default_factory=Worked)

    def __post_init__(self) -> None:
        if not (isinstance(self.tasks, Sequence) and all(isinstance(task, Task) for task in self.tasks)):
            raise UsageError(f"tasks is {self.tasks!r:.80}: give a list of Task(topic, group, handler)")
        if not self.tasks:
            raise UsageError("no task is given: there would be nothing to work on")
        for task in self.tasks:
            task.check()
        self._grace_s = number_of("grace", self.grace)
        if not self._grace_s >= 0:
            raise UsageError(f"grace is {self.grace!r}: give 0 seconds or more")
        if self.stop_signal is not None and not callable(getattr(self.stop_signal, "is_set", None)):
            raise UsageError(f"stop is {self.stop_signal!r}: give an event of trio, asyncio or threading")

    def stop(self, number: int | None = None) -> None:
        """Begin to end; called again, cancel running handlers. In the thread of trio; ``number`` is the signal's."""
        if self._stop.is_set():
            self._handling.cancel()
        else:
            self._worked.signal = number
            self._stop.set()

    async def run(self) -> Worked:
        """Work until the pool is stopped.

        Raises:
            errors of `Consumer` if fetching can never work; exceptions of a handler that are no Exception.
        """
        try:
            async with AsyncExitStack() as stack:
                for task in self.tasks:
                    made = self._consumer_of(task)
                    made.expects_topics = True
                    self._consumers.append(await stack.enter_async_context(made))
                await self._serve()
        except BaseExceptionGroup as group:
            error = only(group)
            unfit, others = group.split(Unfit)
            if unfit is not None and others is None:  # from several workers at once
                error = leaf_of(unfit)
            if error is group:
                raise
            raise error from None
        finally:
            self._worked.given_back = sum(consumer.given_back for consumer in self._consumers)
        return self._worked

    def _consumer_of(self, task: Task) -> Consumer:
        return self.consume(
            task.topic,
            task.group,
            hold_time=task.hold_time,
            start=task.start,
            max_unsettled=task.concurrency,
            max_extend=float("inf"),  # as long as the handler runs; `timeout` bounds that
            name=task.name,
            version=task.version,
        )

    async def _serve(self) -> None:
        from quorumq.client.consume.fuse import Fuse  # not imported by programs that only publish

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_told)
            if self.stop_signal is not None:
                nursery.start_soon(self._listen, self.stop_signal)
            with self._handling:
                async with trio.open_nursery() as workers:
                    for task, consumer in zip(self.tasks, self._consumers, strict=True):
                        limiter, fuse = trio.CapacityLimiter(task.concurrency), Fuse()
                        for _ in range(task.concurrency):
                            workers.start_soon(self._work, task, consumer, limiter, fuse)
            nursery.cancel_scope.cancel()

    async def _listen(self, stop_signal: Stop) -> None:
        while not stop_signal.is_set():
            await trio.sleep(STOP_LOOK_S)
        if not self._stop.is_set():
            self.stop()

    async def _end_when_told(self) -> None:
        await self._stop.wait()
        log.info("told to stop: %d messages that are begun have %g s to end", self._started, self._grace_s)
        self._handling.deadline = min(self._handling.deadline, trio.current_time() + self._grace_s)
        async with trio.open_nursery() as nursery:
            for consumer in self._consumers:
                nursery.start_soon(consumer.drain)

    # ---------------------------------------------------------------- one message

    async def _work(self, task: Task, consumer: Consumer, limiter: trio.CapacityLimiter, fuse: Fuse) -> None:
        while True:
            while trio.current_time() < fuse.paused_until:
                with trio.move_on_at(fuse.paused_until):
                    await self._stop.wait()
                    return
            try:
                message = await anext(consumer)
            except StopAsyncIteration:
                return
            except (TooFewReplicas, Busy) as error:  # after the client's timeout; nodes start again
                log.warning("no work for group %r: %s", task.group, error)
                continue
            self._started += 1
            try:
                # In a task of its own: a handler's changes of its context variables are hidden from the next one.
                async with trio.open_nursery() as own:
                    own.start_soon(self._handle, task, consumer, limiter, fuse, message)
            finally:
                self._started -= 1

    async def _handle(
        self, task: Task, consumer: Consumer, limiter: trio.CapacityLimiter, fuse: Fuse, message: Message
    ) -> None:
        try:
            error, again = await self._attempt(task, consumer, limiter, message)
        except Unfit:
            consumer.let_go(message)
            if message.outcome is None:  # counted, restarts would use up the deliveries of a sound message
                with trio.CancelScope(shield=True):
                    await give_back(self.context, [message.receipt])
            raise
        except BaseException as ended:  # cancelled, or the handler ends the program
            consumer.let_go(message)
            is_told = trio.current_effective_deadline() == -math.inf  # to end, with any exception
            interrupted = is_told or isinstance(ended, KeyboardInterrupt)
            if not interrupted:
                log.error("the handler ends this process at %r by %s", message, line_of(leaf_of(ended)))
                self._handling.cancel()  # else another worker could take the message as soon as it is given back
            # A thread cannot be stopped and may still work on the message: it stays held until its hold is over.
            has_ended = task.is_async or not isinstance(leaf_of(ended), trio.Cancelled | KeyboardInterrupt)
            if has_ended and message.outcome is None:
                await self._give_back(message, interrupted=interrupted)
            else:
                self._worked.count(message.outcome)
            raise
        try:
            await self._settle(consumer, message, error, again)
        except trio.Cancelled:  # it may have happened or not; done twice, it is done once
            with trio.move_on_after(LAST_WORD_S, shield=True):
                await self._settle(consumer, message, error, again)
            raise
        self._tell_fuse(fuse, message, error)

    def _tell_fuse(self, fuse: Fuse, message: Message, error: Exception | None) -> None:
        if error is None or message.outcome in ACKS:
            fuse.succeeded()
        elif message.outcome is Outcome.DEAD_LETTERED:
            now = trio.current_time()
            if pause := fuse.died(error, now):
                text = (
                    "messages of group %r become dead letters of one kind, and none succeeds: this process "
                    "pauses for %g s; mend the handler, then `quorumq deadletters redrive`. The last one: %s"
                )
                log.error(text, message.group, pause, line_of(error))

    async def _give_back(self, message: Message, *, interrupted: bool) -> None:
        """Have a message redelivered at once if its handler has ended without a verdict."""
        with trio.move_on_after(LAST_WORD_S, shield=True), suppress(QuorumqError):
            await (message.reject(interrupted=True) if interrupted else message.reject(0.0))
        if interrupted and message.outcome is Outcome.REQUEUED:
            self._worked.interrupted += 1
        else:
            self._worked.count(message.outcome)

    async def _attempt(
        self, task: Task, consumer: Consumer, limiter: trio.CapacityLimiter, message: Message
    ) -> tuple[Exception | None, bool]:
        """Run the handler; return its exception, if it failed, and True if to try again."""
        limit = float("inf") if task.seconds is None else task.seconds
        end = trio.current_time() + limit
        try:
            if not task.is_async:
                await self._in_thread(task, consumer, limiter, message, end)
                late = trio.current_time() >= end
            else:
                calls: list[Any] = []
                CALLS.set(calls)
                if task.seconds is None:
                    await cast("Any", task.handler)(message)
                    late = False
                else:
                    late = await self._cancelled_at(task, consumer, message, end)
                if missed := [call.__qualname__ for call in not_awaited(calls)]:
                    raise UsageError(f"the handler called {missed[0]} without await: write `await` before it")
        except Exception as error:
            if task.is_async:  # a cancelled handler may raise anything: it is interrupted, and has not failed
                await trio.lowlevel.checkpoint_if_cancelled()
            if (cause := of_wrong_runtime(error)) is not None:
                raise Unfit(
                    f"the handler {task.handler!r} does not fit what runs it ({cause}): an async def for asyncio "
                    "belongs to quorumq.client.aio or `quorumq work --runtime asyncio`, one for trio to quorumq.client "
                    "or --runtime trio, and a plain function returns no coroutine. The message was given back"
                ) from error
            return error, trio.current_time() >= end or task.retries_on(error)
        if not late:
            return None, False
        return TimeoutError(f"the handler ran for more than {limit:g} s"), True

    async def _cancelled_at(self, task: Task, consumer: Consumer, message: Message, end: float) -> bool:
        """Run a handler that is awaited, and cancel it at ``end``; return True if that ended it.

        If it does not end then, its hold is left to run out: it blocks its event loop, or goes on all the same.
        """

        async def let_go() -> None:
            await trio.sleep_until(end + ENDING_S)
            text = (
                "the handler of %r was cancelled after %g s and has not ended: it blocks its event loop, or ignores "
                "the cancellation; its hold is extended no more, and the message comes again. Make it a plain function"
            )
            log.error(text, message, task.seconds)
            consumer.let_go(message)

        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            with trio.move_on_at(end) as scope:
                try:
                    await cast("Any", task.handler)(message)
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return scope.cancelled_caught

    async def _in_thread(
        self, task: Task, consumer: Consumer, limiter: trio.CapacityLimiter, message: Message, end: float
    ) -> None:
        """Run a plain function. Beyond its time it cannot be cancelled: its hold is left to run out meanwhile."""
        from quorumq.client.base.counterparts import for_thread  # not imported by programs that only publish

        async def let_go() -> None:
            await trio.sleep_until(end)
            consumer.let_go(message)

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            try:
                await trio.to_thread.run_sync(
                    cast("Any", task.handler), for_thread(message), limiter=limiter, abandon_on_cancel=True
                )
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _settle(
        self, consumer: Consumer, message: Message, error: Exception | None, again: bool
    ) -> None:
        """Send the verdict to the cluster, if the handler has not done so, and count."""
        over = not message.is_live
        while True:
            try:
                if message.outcome is None:
                    await self._tell(message, error, again)
            except QuorumqError as exc:
                # The file of clients may be in change: what is done already is worth more than one question.
                if isinstance(exc, Unauthorized) and message.is_live:
                    await trio.sleep(UNAUTHORIZED_LOOK_S)
                    continue
                log.warning("%r could not be settled and may come again: %s", message, exc)
                consumer.let_go(message)
            break
        if error is not None:
            became = NEXT.get(message.outcome, "may come again")
            log.warning(
                "%r failed at attempt %d, and %s: %s", message, message.attempt, became, line_of(error)
            )
        self._worked.count(message.outcome, over=over)

    async def _tell(self, message: Message, error: Exception | None, again: bool) -> None:
        if error is None:
            await message.ack()
        elif message.death is not None:
            await self._reject(message, DEAD_LETTER_WAIT_S)
        elif again:
            await self._again(message, error)
        else:
            await message.dead_letter(from_the_handler(error))

    async def _again(self, message: Message, error: Exception) -> None:
        """Have it redelivered; after its last attempt it is a dead letter, which is to have the exception."""
        try:
            topic = await self.context.topic(message.topic)
        except QuorumqError:
            await self._reject(message, None)
            return
        if message.attempt >= topic.max_deliveries:
            await message.dead_letter(from_the_handler(error))
        else:
            doubled = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(message.attempt - 1, 10))
            await self._reject(message, None if topic.backoff else doubled)

    async def _reject(self, message: Message, delay: float | None) -> None:
        await message.reject(delay, timeout=min(REJECT_S, self.context.timeout))


NEXT: Final[dict[Outcome | None, str]] = {
    Outcome.DEAD_LETTERED: "is a dead letter",
    Outcome.REQUEUED: "comes again",
    **dict.fromkeys(ACKS, "was acked by its handler"),
}
"""Log texts for a message whose handler failed, by its outcome."""


def of_wrong_runtime(error: BaseException) -> BaseException | None:
    """Return the error that says that something in the handler wants another event loop, or is in none; else None.

    The causes of an error count, and the members of a group: libraries wrap.
    """
    walk: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if isinstance(walk, BaseExceptionGroup):
            return next(filter(None, map(of_wrong_runtime, walk.exceptions)), None)
        if isinstance(walk, RuntimeError | TypeError) and any(text in str(walk) for text in WRONG_RUNTIME):
            return walk
        if walk is None:
            break
        walk = walk.__cause__ or (None if walk.__suppress_context__ else walk.__context__)
    return None


def from_the_handler(error: Exception) -> Exception:
    """Return the exception with a traceback that begins in the handler, without the callers that all failures share."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(CALLERS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def leaf_of(error: BaseException) -> BaseException:
    """Return the first exception in a group that is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def only(error: BaseException) -> BaseException:
    """Return the exception of a group that has only one; else ``error`` itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
