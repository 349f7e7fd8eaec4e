"""The migrations make exactly the schema that the code is written against."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from session_service.storage import migrate
from session_service.storage.engine import full_url, is_sqlite
from session_service.storage.schema import metadata

_DESCRIBED = {
    "sqlite": "SELECT type, name, sql FROM {schema}.sqlite_master WHERE name != 'alembic_version' AND sql IS NOT NULL",
    "postgresql": """
        SELECT 'column', table_name || '.' || column_name,
               concat_ws(' ', ordinal_position, data_type, is_nullable, column_default)
        FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name != 'alembic_version'
        UNION ALL
        SELECT 'index', indexname, replace(indexdef, '{schema}.', '')
        FROM pg_indexes WHERE schemaname = '{schema}' AND tablename != 'alembic_version'
        UNION ALL
        SELECT 'constraint', conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = '{schema}'::regnamespace AND conname !~ 'alembic_version'
    """,
}


@pytest.fixture
async def empty_url(database_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """A database of the same kind without any table."""
    if is_sqlite(database_url):
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    name = f"empty_{uuid.uuid4().hex}"
    engine = create_async_engine(full_url(database_url), isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
        yield make_url(database_url).set(database=name).render_as_string(hide_password=False)
        async with engine.connect() as connection:
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        await engine.dispose()


def _described(connection: Connection, schema: str) -> dict[tuple[str, str], str]:
    rows = connection.execute(text(_DESCRIBED[connection.dialect.name].format(schema=schema)))
    return {(kind, name): _plain(what) for kind, name, what in rows}


def _plain(definition: str) -> str:
    """Without what is a matter of writing: white space, and the order in which a table names its constraints."""
    body = " ".join(definition.replace("(", " ( ").replace(")", " ) ").split())
    return ", ".join(sorted(part.strip(" )") for part in body.split(", ")))


async def test_models_and_migrations_do_not_differ(empty_url: str) -> None:
    await migrate.upgrade(empty_url)

    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "compare_server_default": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    async with migrate.opened(empty_url) as connection:
        assert await connection.run_sync(differences) == []


async def test_the_migrated_schema_is_word_for_word_the_models(empty_url: str, tmp_path: Path) -> None:
    await migrate.upgrade(empty_url)

    def both(connection: Connection) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
        if connection.dialect.name == "sqlite":
            migrated = _described(connection, "main")
            metadata.drop_all(connection)
            metadata.create_all(connection)
            return migrated, _described(connection, "main")
        migrated = _described(connection, "public")
        connection.execute(text("CREATE SCHEMA wanted"))
        connection.execute(text("SET LOCAL search_path TO wanted"))
        metadata.create_all(connection)
        return migrated, _described(connection, "wanted")

    async with migrate.opened(empty_url) as connection:
        migrated, wanted = await connection.run_sync(both)
    assert migrated == wanted
    assert len(wanted) > 2 * len(metadata.tables) - 5


async def test_replicas_may_migrate_at_once_and_again(empty_url: str) -> None:
    assert not await migrate.is_current(empty_url)
    await asyncio.gather(*(migrate.upgrade(empty_url) for _ in range(4)))
    assert await migrate.is_current(empty_url)
    await migrate.upgrade(empty_url)


async def test_the_first_migration_can_be_taken_back(empty_url: str) -> None:
    await migrate.upgrade(empty_url)
    async with migrate.opened(empty_url) as connection:
        await connection.run_sync(lambda sync: command.downgrade(migrate.config(sync), "base"))
    assert not await migrate.is_current(empty_url)
    await migrate.upgrade(empty_url)
    assert await migrate.is_current(empty_url)
