"""The one seam between logic and database.

A write is a synchronous function of a Connection: it awaits nothing, so no transaction is ever held over a network
wait, and the seam is free to group writes without touching any logic.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine
from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.errors import Refused

from session_service.storage import postgres, sqlite
from session_service.storage.hints import Hints

T = TypeVar("T")
_WAKES = "turnkeeper.wakes"
_TRIES = 5


def wake_after_commit(connection: Connection, topics: Iterable[str]) -> None:
    """Asks for wake-ups that are sent when, and only when, the transaction of this connection has committed."""
    connection.info[_WAKES].update(topics)


class Storage:
    """Reads and writes of one service process."""

    def __init__(self, reader: AsyncEngine, writer: AsyncEngine) -> None:
        self.hints = Hints()
        self.reader, self.writer = reader, writer
        self._writes: set[asyncio.Task[object]] = set()

    async def read(self, tenant_id: str, query: Callable[[Connection], T]) -> T:
        """Runs `query` on one snapshot or statement after statement; nothing that it does is kept.

        The tenant says for whom it is, as in `write`; the query has it in its own WHERE.
        """
        try:
            async with self.reader.connect() as connection:
                return await connection.run_sync(query)
        except (DBAPIError, PoolTimeout, OSError) as error:
            raise _translated(error) from error

    async def write(self, tenant_id: str, change: Callable[[Connection], T]) -> T:
        """Runs `change` in one write transaction and answers what it returned, after the commit.

        A change that raises leaves nothing. It may be run again after a deadlock, so it must have no other effect.
        Cancelling the caller does not cut a begun transaction: it ends by itself, and close() waits for it.
        """
        task: asyncio.Task[T] = asyncio.create_task(self._commit(change), name=f"write:{tenant_id}")
        self._writes.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for begun writes and closes all connections."""
        if self._writes:
            await asyncio.wait(self._writes)
        await self.reader.dispose()
        await self.writer.dispose()

    async def _commit(self, change: Callable[[Connection], T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                result, topics = await self._once(change)
            except (DBAPIError, PoolTimeout, OSError) as error:
                if tries_left and postgres.is_again(_cause(error)):
                    continue
                raise _translated(error) from error
            self.hints.wake(topics)
            return result
        raise AssertionError("unreachable: the last try answers or raises")

    async def _once(self, change: Callable[[Connection], T]) -> tuple[T, set[str]]:
        async with self.writer.connect() as connection:
            topics: set[str] = set()
            connection.info[_WAKES] = topics  # a new set: one of a transaction that failed must not be heard
            async with connection.begin():
                result = await connection.run_sync(change)
        return result, topics

    def _written(self, task: asyncio.Task[object]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that left does not make it an unretrieved one


def _cause(error: BaseException) -> BaseException | None:
    """The driver's own error below SQLAlchemy's wrapping and its async adapter's."""
    inner = error.orig if isinstance(error, DBAPIError) else error
    return inner.__cause__ if inner is not None and inner.__cause__ is not None else inner


def _translated(error: DBAPIError | PoolTimeout | OSError) -> BaseException:
    """STORAGE_UNAVAILABLE for what another try may mend; anything else as it is, for the log."""
    cause = _cause(error)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if not isinstance(error, DBAPIError) or lost or sqlite.is_unavailable(cause) or postgres.is_unavailable(cause):
        return Refused(error_reason_pb2.ERROR_REASON_STORAGE_UNAVAILABLE, retry_after=1.0)
    return error
