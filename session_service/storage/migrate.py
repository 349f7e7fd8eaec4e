"""Brings a database to the schema that this version of the service needs.

The migrations travel in the package, and no configuration file is needed: Alembic gets the connection from here. A
migration runs in one transaction that first takes a lock, so replicas that start together may all call `upgrade`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from session_service.storage.engine import full_url, is_sqlite

_SCRIPTS = Path(__file__).parent / "migrations"
_ADVISORY_LOCK = 7_225_303_119  # any number that no other program takes on this database
_LOCK_WAIT_MS = 120_000  # how long to wait for the migration of another replica


async def upgrade(url: str) -> None:
    """Applies what is missing, in one transaction; nothing when the schema is current."""
    async with opened(url) as connection:
        await connection.run_sync(_upgrade)


async def is_current(url: str) -> bool:
    """Whether the database has exactly the schema of this version."""
    async with opened(url) as connection:
        return await connection.run_sync(_is_current)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncConnection]:
    """A connection in a transaction for schema work, committed at the end."""
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


def config(connection: Connection) -> Config:
    """Alembic's configuration for one connection."""
    made = Config(attributes={"connection": connection})
    made.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return made


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    if _is_current(connection):
        return
    command.upgrade(config(connection), "head")
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise RuntimeError(f"the migration broke {len(broken)} foreign keys; nothing was changed")


def _is_current(connection: Connection) -> bool:
    wanted = ScriptDirectory.from_config(config(connection)).get_heads()
    return set(MigrationContext.configure(connection).get_current_heads()) == set(wanted)


def _engine(url: str) -> AsyncEngine:
    """A connection of its own: the service's have timeouts, and foreign keys that a recreated table would trip over."""
    engine = create_async_engine(full_url(url), poolclass=NullPool)
    if is_sqlite(url):

        @event.listens_for(engine.sync_engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            connection.isolation_level = None  # `begin` below begins, so that DDL is in the transaction too
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout={_LOCK_WAIT_MS}")
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA foreign_keys=OFF")
            cursor.close()

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
