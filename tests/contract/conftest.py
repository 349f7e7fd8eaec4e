"""One pair per kind of database for a whole table of rows that do not disturb each other."""

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.worlds import Stage, staged
from tests.fixtures.issuer import Issuer


@pytest.fixture(scope="module")
def database_urls(
    sqlite_template: Path, postgres_server: Any, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """A fresh database of each kind."""
    path = tmp_path_factory.mktemp("contract") / "turnkeeper.db"
    shutil.copyfile(sqlite_template, path)
    name = f"contract_{uuid.uuid4().hex}"
    postgres_server.psql(f'CREATE DATABASE "{name}" TEMPLATE "{postgres_template}"')
    yield {"sqlite": f"sqlite:///{path}", "postgres": postgres_server.get_uri(database=name)}
    postgres_server.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgres"])
async def stage(
    request: pytest.FixtureRequest, database_urls: Mapping[str, str], issuer: Issuer
) -> AsyncIterator[Stage]:
    """A stage on each kind of database in turn."""
    async with staged(database_urls[request.param], issuer) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(database_urls: Mapping[str, str], issuer: Issuer) -> AsyncIterator[Mapping[str, Stage]]:
    """A stage on each kind of database, side by side."""
    async with AsyncExitStack() as stack:
        yield {kind: await stack.enter_async_context(staged(url, issuer)) for kind, url in database_urls.items()}
