"""SQLite: pragmas, explicit transactions, one hop to a thread per transaction, and group commit.

A driver that hops to a thread for each statement made a transaction three to four times as slow, so only migrations use
one. Everything that waits while a commit is on its way to the disk goes into the next one.
"""

import asyncio
import queue
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError

from session_service.storage.database import run_change

T = TypeVar("T")
BUSY_TIMEOUT_MS = 10_000
READERS = 4
MAX_GROUP = 64
PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
    "PRAGMA wal_autocheckpoint=2000",
    "PRAGMA temp_store=MEMORY",
)


class SqliteDatabase:
    """One file. Readers see a snapshot each; one thread writes, so writers of this process never meet SQLITE_BUSY."""

    def __init__(self, url: str) -> None:
        self._reader = _open(url, "BEGIN", READERS)
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-read")
        self._writer = _open(url, "BEGIN IMMEDIATE", 1)
        self._waiting: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._writing = Thread(target=self._write_forever, name="sqlite-write", daemon=True)
        self._writing.start()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Runs `query` on one snapshot."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read, query)

    async def write(self, change: Callable[[Connection], T]) -> tuple[T, set[str]]:
        """Commits `change`, alone or together with others; one that raises takes no other with it."""
        done: Future[tuple[T, set[str]]] = Future()
        self._waiting.put(_Change(change, done))
        return await asyncio.wrap_future(done)

    async def close(self) -> None:
        """Waits for what runs and closes all connections."""
        self._waiting.put(None)
        await asyncio.to_thread(self._writing.join)
        await asyncio.to_thread(self._reading.shutdown)
        self._reader.dispose()
        self._writer.dispose()

    def _read(self, query: Callable[[Connection], T]) -> T:
        with self._reader.connect() as connection:
            return query(connection)

    def _write_forever(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, ended = self._rest_of_group(first)
            try:
                answers = self._commit(group)
            except DBAPIError as error:
                # The transaction itself failed, and nothing of it is stored.
                away = is_unavailable(error.orig)
                answers = [error if away else self._alone(each) for each in group]
            for each, answer in zip(group, answers, strict=True):
                _answer(each.done, answer)
            if ended:
                return

    def _rest_of_group(self, first: "_Change") -> tuple[list["_Change"], bool]:
        """What else waits by now; and whether the end is among it."""
        group = [first]
        while len(group) < MAX_GROUP:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return group, True
            group.append(following)
        return group, False

    def _commit(self, group: list["_Change"]) -> list[Any]:
        """One transaction; each change's answer or own error. Raises when the transaction as a whole failed."""
        if len(group) == 1:
            return [self._alone(group[0])]
        answers: list[Any] = []
        with self._writer.begin() as connection:
            for each in group:
                savepoint = connection.begin_nested()
                try:
                    answers.append(run_change(connection, each.change))
                except Exception as error:
                    savepoint.rollback()
                    answers.append(error)
                else:
                    savepoint.commit()
        return answers

    def _alone(self, each: "_Change") -> Any:
        try:
            with self._writer.begin() as connection:
                return run_change(connection, each.change)
        except BaseException as error:
            return error


class _Change(NamedTuple):
    """A change that waits for its commit."""

    change: Callable[[Connection], Any]
    done: "Future[Any]"


def _answer(done: "Future[Any]", answer: Any) -> None:
    if not done.set_running_or_notify_cancel():
        return
    if isinstance(answer, BaseException):
        done.set_exception(answer)
    else:
        done.set_result(answer)


def _open(url: str, begin: str, pool_size: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself; `explicit` does
        cursor = connection.cursor()
        for pragma in PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine, "begin")
    def explicit(connection: Connection) -> None:
        # The driver's own call: this runs in every transaction, and has neither parameters nor rows.
        connection.connection.driver_connection.execute(begin)  # type: ignore[union-attr]

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
