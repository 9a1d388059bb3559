"""Tasks that serve a body: they outlive its cancellation, and never it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from quorumq.client.base.background import IDLE_MAX, Crew, background


async def serve(log: list[str], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    task_status.started()
    try:
        await trio.sleep_forever()
    finally:
        log.append("served")


@pytest.mark.parametrize("how", ["spawn", "start"])
async def test_a_cancelled_body_is_served_to_its_end(how: str) -> None:
    log: list[str] = []
    with trio.move_on_after(1.0):
        async with background() as tasks:
            if how == "spawn":
                tasks.spawn(serve, log)
            else:

                async def task(*, task_status: trio.TaskStatus[None]) -> None:
                    await serve(log, task_status=task_status)

                await tasks.start(task)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1.0)
                    log.append("body")
    assert log == ["body", "served"]


async def test_tasks_started_by_an_ending_task_end_too() -> None:
    log: list[str] = []
    with trio.fail_after(1.0):
        async with background() as tasks:

            async def last() -> None:
                try:
                    await serve(log)
                finally:
                    tasks.spawn(serve, log)

            tasks.spawn(last)
            await trio.testing.wait_all_tasks_blocked()
    assert log == ["served", "served"]


async def test_a_task_that_fails_ends_the_body_and_the_others() -> None:
    log: list[str] = []

    async def fails() -> None:
        raise ZeroDivisionError

    async def body() -> None:
        async with background() as tasks:
            tasks.spawn(serve, log)
            await trio.testing.wait_all_tasks_blocked()
            tasks.spawn(fails)
            await trio.sleep_forever()

    with trio.fail_after(1.0), pytest.raises(ExceptionGroup) as caught:
        await body()
    assert caught.group_contains(ZeroDivisionError)
    assert log == ["served"]


async def test_an_exception_of_the_body_propagates_unchanged() -> None:
    async def body() -> None:
        async with background() as tasks:
            tasks.spawn(serve, [])
            raise KeyError

    with pytest.raises(KeyError):
        await body()


async def test_in_a_cancelled_scope_nothing_is_begun() -> None:
    """Otherwise no scope would cancel it, and the end of the body would wait for ever."""
    log: list[str] = []

    async def task(*, task_status: trio.TaskStatus[None]) -> None:
        await serve(log, task_status=task_status)

    with trio.fail_after(1.0):
        async with background() as tasks:
            with trio.CancelScope() as scope:
                scope.cancel()
                await tasks.start(task)
            assert scope.cancelled_caught
    assert log == []


async def test_a_task_that_begins_while_its_caller_is_cancelled_ends_with_the_body() -> None:
    log: list[str] = []
    with trio.fail_after(1.0):
        async with background() as tasks:
            with trio.CancelScope() as scope:

                async def task(*, task_status: trio.TaskStatus[None]) -> None:
                    scope.cancel()
                    await serve(log, task_status=task_status)

                await tasks.start(task)
            assert log == []
    assert log == ["served"]


async def test_a_crew_does_each_job_once_in_tasks_that_it_keeps_and_as_many_as_are_needed() -> None:
    async with trio.open_nursery() as nursery:
        crew = Crew(nursery.start_soon)
        done: list[tuple[int, trio.lowlevel.Task]] = []
        release = trio.Event()

        async def job(number: int) -> None:
            if number < 0:
                await release.wait()
            done.append((number, trio.lowlevel.current_task()))

        for number in range(5):
            crew.do(job, number)
            await trio.testing.wait_all_tasks_blocked()
        assert [number for number, _ in done] == [0, 1, 2, 3, 4]
        assert len({task for _, task in done}) == 1
        done.clear()
        for number in range(20):
            crew.do(job, -1 - number)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(number for number, _ in done) == [*range(-20, 0)]
        assert len(nursery.child_tasks) == IDLE_MAX, "the others are gone"
        done.clear()
        for number in range(IDLE_MAX + 1):
            crew.do(job, number)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(number for number, _ in done) == [*range(IDLE_MAX + 1)]
        nursery.cancel_scope.cancel()
        await trio.lowlevel.cancel_shielded_checkpoint()
        crew.do(job, 1)  # no task waits any more: one begins, and is cancelled
    assert done[-1][0] == 1
