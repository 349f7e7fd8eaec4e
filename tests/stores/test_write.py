"""The write seam on both databases: whole or nothing, and nobody sees a locked database."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, func, insert, select, update

from session_service.storage.clock import Now
from session_service.storage.database import wake_after_commit
from session_service.storage.engine import open_storage
from session_service.storage.schema import signing_keys
from session_service.storage.write import Storage


@pytest.fixture
async def replicas(database_url: str) -> AsyncIterator[list[Storage]]:
    opened = [open_storage(database_url) for _ in range(2)]
    yield opened
    for each in opened:
        await each.close()


def add(connection: Connection, kid: str) -> None:
    connection.execute(insert(signing_keys).values(kid=kid, purpose="TEST", jwk="0", create_time=Now()))


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(signing_keys)).scalar_one()


async def test_concurrent_read_then_write_changes_of_two_processes_all_succeed(replicas: list[Storage]) -> None:
    """CASES 19."""
    await replicas[0].write("acme", lambda connection: add(connection, "counter"))

    def increment(connection: Connection) -> int:
        row = signing_keys.c.kid == "counter"
        # A read first: what a deferred transaction on SQLite could not turn into a write any more.
        before = connection.execute(select(signing_keys.c.jwk).where(row).with_for_update()).scalar_one()
        connection.execute(update(signing_keys).where(row).values(jwk=str(int(before) + 1)))
        return int(before) + 1

    seen = await asyncio.gather(*(replicas[number % 2].write("acme", increment) for number in range(20)))

    assert sorted(seen) == list(range(1, 21))


async def test_a_change_that_raises_leaves_nothing_and_no_lock(replicas: list[Storage]) -> None:
    """CASES 19."""

    def fails(connection: Connection) -> None:
        add(connection, "lost")
        wake_after_commit(connection, ("topic",))
        raise ValueError("of the test")

    with replicas[0].hints.listen("topic") as listener:
        with pytest.raises(ValueError, match="of the test"):
            await replicas[0].write("acme", fails)
        async with asyncio.timeout(2):
            await replicas[1].write("acme", lambda connection: add(connection, "kept"))
        assert await replicas[0].read("acme", count) == 1

        woken = asyncio.create_task(listener.wait(5))
        await asyncio.sleep(0)
        assert not woken.done()
        await replicas[0].write("acme", lambda connection: wake_after_commit(connection, ("topic",)))
        async with asyncio.timeout(2):
            await woken


async def test_a_caller_that_leaves_does_not_cut_its_write(replicas: list[Storage]) -> None:
    writing = asyncio.create_task(replicas[0].write("acme", lambda connection: add(connection, "kept")))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await replicas[0].close()
    assert await replicas[1].read("acme", count) == 1


async def test_the_clock_is_the_databases_and_in_microseconds(replicas: list[Storage]) -> None:
    first: int = await replicas[0].read("", lambda connection: connection.execute(select(Now())).scalar_one())
    second: int = await replicas[1].read("", lambda connection: connection.execute(select(Now())).scalar_one())
    assert 0 <= second - first < 60_000_000
    assert 1_700_000_000_000_000 < first < 10_000_000_000_000_000
