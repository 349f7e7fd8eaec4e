"""One owner of a deadline, whatever the work does (SPEC 6.5)."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import ClassVar

import pytest
from turnkeeper.wire.budgets import Detached, parse_budget, within


@pytest.mark.spec("6.5")
@pytest.mark.parametrize("text", [None, "", "x", "nan", "inf", "-inf", "0", "-1", "1e999", "2s"])
def test_what_is_not_finite_and_positive_is_the_default(text: str | None) -> None:
    assert parse_budget(text, 2.0) == 2.0


@pytest.mark.spec("6.5")
@pytest.mark.parametrize(("text", "seconds"), [("1", 1.0), ("0.25", 0.25), (" 3 ", 3.0), ("1e2", 100.0)])
def test_a_budget_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_budget(text, 2.0) == seconds


class Work:
    """Work that waits at a gate, and may take its time to notice that it was cancelled."""

    made: ClassVar[list["Work"]] = []

    def __init__(self, *, stubborn: bool = False) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.ended = asyncio.Event()
        self.noticed = asyncio.Event()
        self.stubborn = stubborn
        self.cancelled = 0
        Work.made.append(self)

    async def __call__(self) -> str:
        self.entered.set()
        try:
            while True:
                try:
                    await self.gate.wait()
                    return "done"
                except asyncio.CancelledError:
                    self.cancelled += 1
                    self.noticed.set()
                    if not self.stubborn:
                        raise
        finally:
            self.ended.set()


@pytest.fixture(autouse=True)
async def _no_work_is_left() -> AsyncIterator[None]:
    """Stubborn work that a failed test left behind would keep the loop from closing."""
    yield
    while Work.made:
        Work.made.pop().gate.set()


@pytest.mark.spec("6.5")
async def test_work_in_time_is_answered() -> None:
    work, detached = Work(), Detached(1)
    work.gate.set()
    assert await within(5, work, detached) == "done"
    assert len(detached) == 0


@pytest.mark.spec("6.5")
async def test_work_that_is_late_is_cancelled_and_waited_for() -> None:
    work, detached = Work(), Detached(1)
    with pytest.raises(TimeoutError):
        await within(0.01, work, detached, grace=5)
    assert work.ended.is_set()
    assert len(detached) == 0


@pytest.mark.spec("6.5")
async def test_work_that_will_not_end_is_detached_held_and_let_go() -> None:
    work, detached = Work(stubborn=True), Detached(2)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await within(0.01, work, detached, grace=0.01)
    assert time.monotonic() - started < 2
    assert (len(detached), work.cancelled) == (1, 1)
    gc.collect()
    assert not work.ended.is_set()
    work.gate.set()
    await work.ended.wait()
    await asyncio.sleep(0)
    assert len(detached) == 0


@pytest.mark.spec("6.5")
async def test_no_more_work_is_begun_while_too_much_hangs() -> None:
    work, detached = Work(stubborn=True), Detached(1)
    with pytest.raises(TimeoutError):
        await within(0.01, work, detached, grace=0.01)
    more = Work()
    with pytest.raises(TimeoutError, match="earlier work"):
        await within(5, more, detached)
    assert not more.entered.is_set()
    work.gate.set()
    await work.ended.wait()


@pytest.mark.spec("6.5")
async def test_a_synchronous_raise_is_an_outcome_like_any_other() -> None:
    def broken() -> Awaitable[None]:
        raise LookupError("before any await")

    with pytest.raises(LookupError, match="before"):
        await within(5, broken, Detached(1))


@pytest.mark.spec("6.5")
async def test_work_is_called_inside_the_boundary() -> None:
    def work() -> Awaitable[object]:
        return asyncio.sleep(0, asyncio.current_task())

    assert await within(5, work, Detached(1)) is not asyncio.current_task()


@pytest.mark.spec("6.5")
async def test_work_that_raises_is_heard() -> None:
    async def broken() -> None:
        raise LookupError("after")

    with pytest.raises(LookupError, match="after"):
        await within(5, broken, Detached(1))


@pytest.mark.spec("6.5")
async def test_work_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def broken() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled itself"):
        await within(5, broken, Detached(1))


@pytest.mark.spec("6.5")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancellation_from_outside_propagates(stubborn: bool) -> None:
    work, detached = Work(stubborn=stubborn), Detached(1)
    task = asyncio.create_task(within(60, work, detached, grace=0.01))
    await work.entered.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert (work.cancelled, work.ended.is_set(), len(detached)) == (1, not stubborn, int(stubborn))
    work.gate.set()
    await work.ended.wait()


@pytest.mark.spec("6.5")
async def test_it_propagates_when_the_clean_up_raises_too() -> None:
    entered = asyncio.Event()

    async def messy() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("in the clean-up")

    task = asyncio.create_task(within(60, messy, Detached(1)))
    await entered.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.spec("6.5")
async def test_a_second_cancellation_during_the_grace_loses_nothing() -> None:
    work, detached = Work(stubborn=True), Detached(1)
    task = asyncio.create_task(within(0.01, work, detached, grace=60))
    await work.noticed.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
    assert len(detached) == 1
    work.gate.set()
    await work.ended.wait()


@pytest.mark.spec("6.5")
async def test_what_is_left_at_the_end_is_cancelled_within_its_grace() -> None:
    work, detached = Work(stubborn=True), Detached(1)
    with pytest.raises(TimeoutError):
        await within(0.01, work, detached, grace=0.01)
    await detached.aclose(0.01)
    assert work.cancelled == 2
    work.stubborn = False
    await detached.aclose(5)
    assert len(detached) == 0


@pytest.mark.spec("6.5")
async def test_what_is_detached_lives_though_nobody_else_holds_it() -> None:
    ended = asyncio.Event()

    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()  # known to this task alone
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    detached = Detached(1)
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn, detached, grace=0.01)
    gc.collect()
    assert (len(detached), ended.is_set()) == (1, False)
    await detached.aclose(5)
    assert (len(detached), ended.is_set()) == (0, True)
