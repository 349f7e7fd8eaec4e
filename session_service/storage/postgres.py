"""PostgreSQL: bounded waits, and which errors are worth another try. It groups commits by itself."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from session_service.storage.database import run_change

T = TypeVar("T")
TRIES = 5
LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 15_000
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: the transaction is gone and may simply run again
_UNAVAILABLE_CLASSES = {"08", "53", "57", "58"}  # connection, resources (disk full), operator intervention, system
_UNAVAILABLE = {"55P03"}  # a lock was not to be had in time


class PostgresDatabase:
    """A pool of connections; transactions run side by side."""

    def __init__(self, url: str, pool_size: int) -> None:
        self._engine = _open(url, pool_size)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Runs `query`, each statement of which sees what is committed."""
        async with self._engine.connect() as connection:
            return await connection.run_sync(query)

    async def write(self, change: Callable[[Connection], T]) -> tuple[T, set[str]]:
        """Commits `change`; after a deadlock it is run again."""
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._engine.begin() as connection:
                    return await connection.run_sync(run_change, change)
            except DBAPIError as error:
                if not tries_left or not _is_again(driver_error(error)):
                    raise
        raise AssertionError("unreachable: the last try answers or raises")

    async def close(self) -> None:
        """Closes all connections."""
        await self._engine.dispose()


def _open(url: str, pool_size: int) -> AsyncEngine:
    """A pool whose sessions never wait for ever."""
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=True,
        connect_args={
            "timeout": 10,
            "server_settings": {
                "application_name": "turnkeeper-session-service",
                "lock_timeout": str(LOCK_TIMEOUT_MS),
                "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                "idle_in_transaction_session_timeout": "30000",
            },
        },
    )


def driver_error(error: DBAPIError) -> BaseException | None:
    """The driver's own error below SQLAlchemy's wrapping and its async adapter's."""
    inner = error.orig
    return inner.__cause__ if inner is not None and inner.__cause__ is not None else inner


def _is_again(error: BaseException | None) -> bool:
    """Whether the same transaction may succeed when it is run again at once."""
    return _sqlstate(error) in _AGAIN


def is_unavailable(error: BaseException | None) -> bool:
    """Whether the server could not do it now, whoever asks."""
    state = _sqlstate(error)
    return state[:2] in _UNAVAILABLE_CLASSES or state in _UNAVAILABLE


def _sqlstate(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or "")
