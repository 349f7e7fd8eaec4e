"""One SQLite file, many writers, one of them another program: nobody ever hears of a lock (CASES 19)."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.agent_service_pb2 import CreateAgentRequest
from turnkeeper.wire.errors import ErrorDetail

from session_service.storage.engine import full_url
from tests.fixtures.journeys import ended, new_session, refused, start, start_request
from tests.fixtures.processes import Processes

# Takes the write lock again and again, and keeps it for a while, until its standard input is closed.
WRITER = """
import os, sqlite3, sys, time
os.set_blocking(0, False)
database = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
count = 0
while sys.stdin.buffer.raw.read(1) != b"":
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE sessions SET name = name")
    time.sleep(0.02)
    database.execute("COMMIT")
    count += 1
    print(count, flush=True)
    time.sleep(0.005)
"""


@asynccontextmanager
async def other_writer(path: Path) -> AsyncIterator[asyncio.StreamReader]:
    """Another process that writes to the file; it tells of each commit in a line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process.stdout
    finally:
        process.stdin.close()
        _, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")


@pytest.mark.spec("2.1", "2.3", "2.4", "11.2")
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_no_caller_ever_sees_that_the_database_is_locked(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    path = Path(full_url(processes.database_url).partition(":///")[2])
    nowhere = "7d0d2c5e-0000-4000-8000-000000000001"

    async def create_agent() -> str:
        try:
            await ada.agents.CreateAgent(CreateAgentRequest(slug="the-only-one"))
        except grpc.aio.AioRpcError as error:
            return ErrorDetail.of(error).reason
        return "created"

    async def fail_after_an_insert() -> None:
        click = start_request(nowhere)  # its key is stored before the session is looked for
        with refused("RESOURCE_NOT_FOUND"):
            await ada.runs.StartRun(click)
        click.session_id = session_id
        assert (await ada.runs.StartRun(click)).created

    async with other_writer(path):
        started, agents, sessions, _ = await asyncio.gather(
            asyncio.gather(*(start(ada, session_id) for _ in range(20))),
            asyncio.gather(*(create_agent() for _ in range(20))),
            asyncio.gather(*(new_session(ada) for _ in range(20))),
            asyncio.gather(*(fail_after_an_insert() for _ in range(5))),
        )
        done = await asyncio.gather(*(ended(ada, run.run_id) for run in started[:3]))

    assert len({run.run_id for run in started}) == len(set(sessions)) == 20
    assert sorted(agents) == ["SLUG_TAKEN"] * 19 + ["created"]
    assert {run.state for run in done} == {run_pb2.RUN_STATE_COMPLETED}
    assert "database is locked" not in processes.logs()
    assert '"code": "UNAVAILABLE"' not in processes.logs()
