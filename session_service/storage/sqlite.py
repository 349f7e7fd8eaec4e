"""What SQLite needs: pragmas, explicit transactions, and which of its errors are worth another try."""

import sqlite3
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

BUSY_TIMEOUT_MS = 10_000
PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
    "PRAGMA wal_autocheckpoint=2000",
    "PRAGMA temp_store=MEMORY",
)


def open_reader(url: str) -> AsyncEngine:
    """Several connections whose transactions read one snapshot each."""
    return _open(url, "BEGIN", pool_size=4)


def open_writer(url: str) -> AsyncEngine:
    """One connection: writers of this process queue for it instead of meeting SQLITE_BUSY."""
    return _open(url, "BEGIN IMMEDIATE", pool_size=1)


def _open(url: str, begin: str, pool_size: int) -> AsyncEngine:
    engine = create_async_engine(url, pool_size=pool_size, max_overflow=0, pool_timeout=30)

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself; `explicit` does
        cursor = connection.cursor()
        for pragma in PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def explicit(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def is_unavailable(error: BaseException | None) -> bool:
    """Whether the database could not do it now, whoever asks: locked by another process, disk full, I/O error."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    return error.sqlite_errorcode & 0xFF in {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
