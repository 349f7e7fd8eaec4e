"""Sessions: their life, whose they are, their names, their lists."""

import uuid
from collections.abc import Awaitable, Callable

import grpc
import pytest
from turnkeeper.v1 import session_pb2
from turnkeeper.v1.agent_service_pb2 import ListAgentsRequest
from turnkeeper.v1.session_service_pb2 import (
    AppendMessageRequest,
    CreateSessionRequest,
    DeleteSessionRequest,
    GetSessionRequest,
    ListMessagesRequest,
    ListSessionsRequest,
    UpdateSessionRequest,
)
from turnkeeper.wire.errors import ErrorDetail

from tests.fixtures.client import Client
from tests.fixtures.journeys import (
    follow,
    key,
    messages,
    new_session,
    refused,
    start,
    start_request,
    texts,
)
from tests.fixtures.pair import Pair

Change = Callable[[Client, str], Awaitable[object]]


async def get(client: Client, session_id: str) -> session_pb2.Session:
    return (await client.sessions.GetSession(GetSessionRequest(session_id=session_id))).session


async def rename(client: Client, session_id: str, name: str, automatic: bool = False) -> session_pb2.Session:
    request = UpdateSessionRequest(session_id=session_id, name=name, automatic_name=automatic)
    request.update_mask.paths.append("name")
    return (await client.sessions.UpdateSession(request)).session


async def append(client: Client, session_id: str, text: str = "x") -> session_pb2.Message:
    request = AppendMessageRequest(session_id=session_id, role=session_pb2.MESSAGE_ROLE_USER, text=text)
    return (await client.sessions.AppendMessage(request)).message


async def delete(client: Client, session_id: str) -> None:
    await client.sessions.DeleteSession(DeleteSessionRequest(session_id=session_id))


async def listed(client: Client, page_size: int = 0) -> list[session_pb2.Session]:
    found: list[session_pb2.Session] = []
    request = ListSessionsRequest(page_size=page_size)
    while True:
        page = await client.sessions.ListSessions(request)
        found += page.sessions
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.spec("9.1")
async def test_a_session_is_provisional_and_its_own_row_from_the_first_moment(pair: Pair) -> None:
    ada = pair.client()
    created = (await ada.sessions.CreateSession(CreateSessionRequest(name="  Blue  "))).session

    assert created == await get(ada, created.session_id)
    assert str(uuid.UUID(created.session_id)) == created.session_id
    assert (created.owner_user_id, created.name) == ("ada", "Blue")
    assert created.name_source == session_pb2.NAME_SOURCE_USER
    assert created.lifecycle == session_pb2.SESSION_LIFECYCLE_PROVISIONAL
    assert not created.busy
    assert created.update_time.seconds - created.create_time.seconds in {0, 1}
    assert created.create_time.seconds > 1_700_000_000


SEEING: dict[str, Change] = {
    "GetSession": get,
    "UpdateSession": lambda client, session_id: rename(client, session_id, "Mine now"),
    "DeleteSession": delete,
    "AppendMessage": append,
    "ListMessages": messages,
    "StartRun": start,
}


@pytest.mark.spec("1.7")
@pytest.mark.parametrize("method", SEEING)
@pytest.mark.parametrize(("tenant", "user"), [("globex", "ada"), ("acme", "bob")])
async def test_what_one_cannot_see_is_not_there(pair: Pair, method: str, tenant: str, user: str) -> None:
    """CASES 16: another tenant's user of the same name, and another user of the tenant."""
    ada, stranger = pair.client(), pair.client(tenant=tenant, user=user)
    session_id = await new_session(ada, "Blue")
    await append(ada, session_id, "hers")
    before = await get(ada, session_id)

    async def answer(asked: str) -> ErrorDetail:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await SEEING[method](stranger, asked)
        return ErrorDetail.of(raised.value)

    refusal = await answer(session_id)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND")
    assert refusal == await answer(str(uuid.uuid4()))
    assert await listed(stranger) == []
    assert await get(ada, session_id) == before
    assert texts(await messages(ada, session_id)) == ["hers"]


@pytest.mark.spec("8.7")
async def test_an_automatic_name_never_replaces_a_users(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    automatic, by_user = session_pb2.NAME_SOURCE_AUTOMATIC, session_pb2.NAME_SOURCE_USER

    assert (await rename(ada, session_id, "Draft", automatic=True)).name_source == automatic
    assert (await rename(ada, session_id, "Draft 2", automatic=True)).name == "Draft 2"
    renamed = await rename(ada, session_id, "Blue")
    assert (renamed.name, renamed.name_source) == ("Blue", by_user)
    for name in ("Draft 3", ""):
        with refused("NAME_SET_BY_USER") as refusal:
            await rename(ada, session_id, name, automatic=True)
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert await get(ada, session_id) == renamed

    nameless = await rename(ada, session_id, "")
    assert (nameless.name, nameless.name_source) == ("", session_pb2.NAME_SOURCE_UNSPECIFIED)
    assert (await rename(ada, session_id, "Draft 4", automatic=True)).name == "Draft 4"


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("paths", [[], ["lifecycle"], ["name", "owner_user_id"]])
async def test_only_a_name_is_changed(pair: Pair, paths: list[str]) -> None:
    ada = pair.client()
    session_id = await new_session(ada, "Blue")
    request = UpdateSessionRequest(session_id=session_id, name="Red")
    request.update_mask.paths.extend(paths)
    with refused("INVALID_FIELD") as refusal:
        await ada.sessions.UpdateSession(request)
    assert [each.field for each in refusal.detail.fields] == ["update_mask"]
    assert (await get(ada, session_id)).name == "Blue"


@pytest.mark.spec("9.5")
async def test_a_deleted_session_is_gone_at_once_and_its_runs_are_stopped(pair: Pair) -> None:
    """CASES 21."""
    ada = pair.client()
    session_id, kept = await new_session(ada), await new_session(ada)
    live = await start(ada, session_id, {"wait_gate": "held"})
    queued = await start(ada, session_id)
    await pair.gates.reached("held")

    await delete(ada, session_id)

    for change in SEEING.values():
        with refused("RESOURCE_NOT_FOUND"):
            await change(ada, session_id)
    with refused("RESOURCE_NOT_FOUND"):
        await follow(ada, live.run_id)
    with refused("RESOURCE_NOT_FOUND"):
        await follow(ada, queued.run_id)
    assert [session.session_id for session in await listed(ada)] == [kept]
    await pair.gates.disconnected("held")


@pytest.mark.spec("2.3")
async def test_a_start_is_not_repeated_after_its_session_was_deleted(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    request = start_request(session_id, idempotency_key=key())
    run = (await ada.runs.StartRun(request)).run
    await follow(ada, run.run_id)
    await delete(ada, session_id)
    with refused("RESOURCE_NOT_FOUND"):
        await ada.runs.StartRun(request)


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("name", ["é" * 200, "e\u0301" * 100, "👍🏽" * 100, "'; DROP TABLE sessions; --"])
async def test_a_name_is_kept_exactly(pair: Pair, name: str) -> None:
    """CASES 15: also in either Unicode form."""
    ada = pair.client()
    session_id = await new_session(ada, name)
    assert (await get(ada, session_id)).name == name


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("name", ["👍" * 10_000, "x" * 201, "a\x00b"])
async def test_a_name_that_is_too_long_or_holds_nul_is_refused(pair: Pair, name: str) -> None:
    """CASES 15, 20."""
    ada = pair.client()
    with refused("INVALID_FIELD") as refusal:
        await new_session(ada, name)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [each.field for each in refusal.detail.fields] == ["name"]
    assert await listed(ada) == []


@pytest.mark.spec("11.1")
async def test_every_usual_spelling_of_a_uuid_is_one_session(pair: Pair) -> None:
    """CASES 23."""
    ada = pair.client()
    session_id = await new_session(ada)
    for spelling in (session_id.upper(), f"{{{session_id}}}", f"urn:uuid:{session_id}", session_id.replace("-", "")):
        assert (await get(ada, spelling)).session_id == session_id
        assert (await append(ada, spelling)).session_id == session_id
    assert len(await messages(ada, session_id)) == 4
    for spelling in (f"{session_id}\n", str(uuid.UUID(int=0)), "", f" {session_id}", session_id[:-1], "{}"):
        with refused("INVALID_FIELD") as refusal:
            await get(ada, spelling)
        assert [each.field for each in refusal.detail.fields] == ["session_id"]


@pytest.mark.spec("11.3")
async def test_pages_show_each_session_once_while_others_are_renamed(pair: Pair) -> None:
    """CASES 22."""
    ada = pair.client()
    ids = [await new_session(ada, f"n{number}") for number in range(20)]
    seen: list[str] = []
    request = ListSessionsRequest(page_size=7)
    while True:
        page = await ada.sessions.ListSessions(request)
        seen += [session.session_id for session in page.sessions]
        for session_id in (*seen[:3], ids[0], ids[10]):
            await rename(ada, session_id, f"renamed after {len(seen)}")
        await new_session(ada, "newer than the list")
        if not page.next_page_token:
            break
        assert len(page.sessions) == 7
        request.page_token = page.next_page_token
    assert sorted(seen) == sorted(ids)
    assert len(await listed(ada)) == 23


@pytest.mark.spec("11.3")
@pytest.mark.parametrize(
    ("page_size", "shown"), [(0, 50), (1, 1), (51, 51), (200, 60), (-1, None), (201, None), (-(2**31), None)]
)
async def test_page_sizes(pair: Pair, page_size: int, shown: int | None) -> None:
    ada = pair.client()
    if shown is None:
        with refused("INVALID_FIELD") as refusal:
            await ada.sessions.ListSessions(ListSessionsRequest(page_size=page_size))
        assert [each.field for each in refusal.detail.fields] == ["page_size"]
        return
    for _ in range(60):
        await new_session(ada)
    page = await ada.sessions.ListSessions(ListSessionsRequest(page_size=page_size))
    assert len(page.sessions) == shown
    assert bool(page.next_page_token) is (shown < 60)


@pytest.mark.spec("11.3", "1.7")
async def test_a_page_token_is_its_callers_and_its_lists(pair: Pair) -> None:
    """CASES 16, 22."""
    ada = pair.client()
    session_id = await new_session(ada)
    for _ in range(2):
        await new_session(ada)
        await append(ada, session_id)
    token = (await ada.sessions.ListSessions(ListSessionsRequest(page_size=1))).next_page_token

    async def refuse(client: Client, request: ListSessionsRequest) -> None:
        with refused("INVALID_FIELD") as refusal:
            await client.sessions.ListSessions(request)
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [each.field for each in refusal.detail.fields] == ["page_token"]

    for place, character in enumerate(token):
        flipped = token[:place] + ("A" if character != "A" else "B") + token[place + 1 :]
        await refuse(ada, ListSessionsRequest(page_token=flipped))
    for broken in ("x", token + "=", token + "A", token[:-1], token.lower(), "é"):
        await refuse(ada, ListSessionsRequest(page_token=broken))
    await refuse(pair.client(user="bob"), ListSessionsRequest(page_token=token))
    await refuse(pair.client(tenant="globex"), ListSessionsRequest(page_token=token))
    await refuse(ada, ListSessionsRequest(page_token=token, include_provisional=True))
    with refused("INVALID_FIELD"):
        await ada.sessions.ListMessages(ListMessagesRequest(session_id=session_id, page_token=token))
    with refused("INVALID_FIELD"):
        await ada.agents.ListAgents(ListAgentsRequest(page_token=token))
    # Another page size of the same list is no other list.
    assert len((await ada.sessions.ListSessions(ListSessionsRequest(page_size=9, page_token=token))).sessions) == 2
