"""The one seam between logic and database.

A write is a synchronous function of a Connection: it awaits nothing, so no transaction is ever held over a network
wait, and the seam is free to group writes without touching any logic.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.errors import Refused

from session_service.storage import postgres, sqlite
from session_service.storage.database import Database
from session_service.storage.hints import Hints

T = TypeVar("T")


class Storage:
    """Reads and writes of one service process."""

    def __init__(self, database: Database) -> None:
        self.hints = Hints()
        self._database = database
        self._writes: set[asyncio.Task[object]] = set()

    async def read(self, tenant_id: str, query: Callable[[Connection], T]) -> T:
        """Runs `query` on one snapshot or statement after statement; nothing that it does is kept.

        The tenant says for whom it is, as in `write`; the query has it in its own WHERE.
        """
        try:
            return await self._database.read(query)
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
        await self._database.close()

    async def _commit(self, change: Callable[[Connection], T]) -> T:
        try:
            result, topics = await self._database.write(change)
        except (DBAPIError, PoolTimeout, OSError) as error:
            raise _translated(error) from error
        self.hints.wake(topics)
        return result

    def _written(self, task: asyncio.Task[object]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that left does not make it an unretrieved one


def _translated(error: DBAPIError | PoolTimeout | OSError) -> BaseException:
    """STORAGE_UNAVAILABLE for what another try may mend; anything else as it is, for the log."""
    if isinstance(error, DBAPIError):
        cause = postgres.driver_error(error)
        passing = error.connection_invalidated or sqlite.is_unavailable(cause) or postgres.is_unavailable(cause)
        if not passing:
            return error
    return Refused(error_reason_pb2.ERROR_REASON_STORAGE_UNAVAILABLE, retry_after=1.0)
