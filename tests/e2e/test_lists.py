"""Lists while the clock misbehaves and others rename: each item once (CASES 22)."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from sqlalchemy import Table, select, update
from turnkeeper.v1 import session_pb2
from turnkeeper.v1.run_service_pb2 import ListRunsRequest
from turnkeeper.v1.session_service_pb2 import (
    AppendMessageRequest,
    ListMessagesRequest,
    ListSessionsRequest,
    UpdateSessionRequest,
)

from session_service.storage.schema import messages, runs, sessions
from tests.fixtures.client import Client
from tests.fixtures.journeys import ended, new_session, start
from tests.fixtures.processes import Processes

COUNT, PAGE = 30, 7
HOUR = 3_600_000_000

Turn = Callable[[str], Awaitable[tuple[Sequence[str], str]]]


async def all_pages(turn: Turn, between: Callable[[], Awaitable[object]]) -> list[str]:
    """Every id that the pages have, in their order; something happens between any two."""
    found: list[str] = []
    token = ""
    while True:
        ids, token = await turn(token)
        assert len(ids) == PAGE or not token
        found += ids
        assert len(set(found)) == len(found), "an item came twice"
        if not token:
            return found
        await between()


async def spoil_clock(processes: Processes, table: Table, name: str, ids: Sequence[str]) -> None:
    """A third was stored in one and the same moment, a third while the clock had been stepped back."""
    (first,) = await processes.rows(select(table.c.create_time).where(table.c[name] == ids[0]))
    for number, each in enumerate(ids):
        moment = first.create_time + (0, -HOUR, number)[number % 3]
        await processes.execute(update(table).where(table.c[name] == each).values(create_time=moment))


@pytest.mark.spec("11.3")
async def test_sessions_during_renames(processes: Processes) -> None:
    ada = processes.client()
    made = [await new_session(ada, f"session {number}") for number in range(COUNT)]
    await new_session(processes.client(user="bob"))
    await spoil_clock(processes, sessions, "session_id", made)

    async def turn(token: str) -> tuple[list[str], str]:
        page = await ada.sessions.ListSessions(ListSessionsRequest(page_size=PAGE, page_token=token))
        return [each.session_id for each in page.sessions], page.next_page_token

    async def rename_some() -> None:
        for each in made[::3]:
            await rename(ada, each)

    found = await all_pages(turn, rename_some)

    assert len(found) == COUNT
    assert set(found) == set(made)


@pytest.mark.spec("11.3")
async def test_runs_while_others_start(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    made = [(await start(ada, session_id)).run_id for _ in range(COUNT)]
    await spoil_clock(processes, runs, "run_id", made)
    labelled = ListRunsRequest(page_size=PAGE, session_id=session_id)

    async def turn(token: str) -> tuple[list[str], str]:
        labelled.page_token = token
        page = await ada.runs.ListRuns(labelled)
        return [each.run_id for each in page.runs], page.next_page_token

    async def rename_its_session() -> None:
        await rename(ada, session_id)

    found = await all_pages(turn, rename_its_session)

    assert len(found) == COUNT
    assert set(found) == set(made)
    # Neither does the clock decide the order of a session's runs: the last one queued still ends last.
    await ended(ada, made[-1])


@pytest.mark.spec("11.3", "2.7")
async def test_messages_keep_their_order_whatever_the_clock_said(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    made: list[str] = []
    for number in range(COUNT):
        message = AppendMessageRequest(session_id=session_id, role=session_pb2.MESSAGE_ROLE_USER, text=str(number))
        made.append((await ada.sessions.AppendMessage(message)).message.message_id)
    await spoil_clock(processes, messages, "message_id", made)

    async def turn(token: str) -> tuple[list[str], str]:
        request = ListMessagesRequest(session_id=session_id, page_size=PAGE, page_token=token)
        page = await ada.sessions.ListMessages(request)
        return [each.message_id for each in page.messages], page.next_page_token

    async def rename_session() -> None:
        await rename(ada, session_id)

    assert await all_pages(turn, rename_session) == made


async def rename(client: Client, session_id: str) -> None:
    """Gives the session another name."""
    request = UpdateSessionRequest(session_id=session_id, name=f"renamed {session_id}")
    request.update_mask.paths.append("name")
    await client.sessions.UpdateSession(request)
