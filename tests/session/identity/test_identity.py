"""Who calls, and with which kind of token."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from turnkeeper.v1.identity_service_pb2 import GetVerificationKeysRequest, WhoAmIRequest
from turnkeeper.v1.run_pb2 import RUN_STATE_RUNNING
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_USER, NAME_SOURCE_AUTOMATIC
from turnkeeper.v1.session_service_pb2 import (
    AppendMessageRequest,
    CreateSessionRequest,
    GetSessionRequest,
    ListMessagesRequest,
    ListSessionsRequest,
    UpdateSessionRequest,
)

from session_service.identity.keys import KeyRing, load_keys
from session_service.storage.engine import open_storage
from session_service.storage.write import Storage
from tests.fixtures.client import Client
from tests.fixtures.journeys import cancel, follow, new_session, refused, start, state_reached
from tests.fixtures.pair import Pair


@pytest.fixture
async def storage(database_url: str) -> AsyncIterator[Storage]:
    opened = open_storage(database_url)
    yield opened
    await opened.close()


def run_token(keys: KeyRing, session_id: str, run_id: str, **changes: Any) -> str:
    claims: dict[str, Any] = {
        "tenant_id": "acme",
        "user_id": "ada",
        "roles": (),
        "scopes": ("sessions:write",),
        "attempt": 1,
        "expire_time": int(time.time()) + 60,
    }
    return keys.run_token(session_id=session_id, run_id=run_id, **{**claims, **changes})


@pytest.mark.spec("1.1")
async def test_who_one_is_comes_from_the_token_and_from_nothing_else(pair: Pair) -> None:
    client = pair.client(tenant="acme", user="ada", scopes=("runs:read", "agents:read"), roles=("admin",))
    claimed = (("x-tenant-id", "globex"), ("tenant_id", "globex"), ("user-id", "bob"), ("scope", "admin"))

    me = await client.identity.WhoAmI(WhoAmIRequest(), metadata=claimed)

    assert (me.tenant_id, me.user_id, list(me.roles)) == ("acme", "ada", ["admin"])
    assert list(me.scopes) == ["agents:read", "runs:read"]
    assert 3500 < me.expire_time.seconds - time.time() <= 3600


@pytest.mark.spec("1.1")
async def test_every_method_but_the_keys_needs_a_token(pair: Pair) -> None:
    anonymous = pair.anonymous()
    with refused("UNAUTHENTICATED"):
        await anonymous.identity.WhoAmI(WhoAmIRequest())
    with refused("UNAUTHENTICATED"):
        await anonymous.sessions.CreateSession(CreateSessionRequest())

    jwks = json.loads((await anonymous.identity.GetVerificationKeys(GetVerificationKeysRequest())).jwks_json)

    assert [key["crv"] for key in jwks["keys"]] == ["Ed25519"]
    assert not {"d", "k"} & set().union(*jwks["keys"])


@pytest.mark.spec("1.2")
async def test_replicas_that_start_at_once_make_the_keys_once(database_url: str) -> None:
    storages = [open_storage(database_url) for _ in range(5)]

    rings = await asyncio.gather(*(load_keys(each) for each in storages))

    assert len({ring.jwks() for ring in rings}) == 1
    assert len({ring.page_key for ring in rings}) == 1
    for each in storages:
        await each.close()


@pytest.mark.spec("1.2")
async def test_a_run_token_reads_its_own_session_only(pair: Pair) -> None:
    ada = pair.client()
    own, other = await new_session(ada), await new_session(ada)
    run = await start(ada, own)
    await follow(ada, run.run_id)
    keys = await load_keys(pair.session.storage)
    runner = pair.client(token=run_token(keys, own, run.run_id))

    assert (await runner.sessions.GetSession(GetSessionRequest(session_id=own))).session.session_id == own
    assert (await runner.sessions.ListMessages(ListMessagesRequest(session_id=own))).messages
    with refused("RESOURCE_NOT_FOUND"):
        await runner.sessions.GetSession(GetSessionRequest(session_id=other))
    with refused("RESOURCE_NOT_FOUND"):
        await runner.sessions.ListMessages(ListMessagesRequest(session_id=other))


@pytest.mark.spec("1.2")
async def test_methods_take_the_kinds_of_token_that_they_name(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id)
    keys = await load_keys(pair.session.storage)
    runner = pair.client(token=run_token(keys, session_id, run.run_id))
    service = pair.client(token=keys.service_token("acme"))

    with refused("TOKEN_KIND_REFUSED"):
        await runner.identity.WhoAmI(WhoAmIRequest())
    with refused("TOKEN_KIND_REFUSED"):
        await runner.sessions.ListSessions(ListSessionsRequest())
    with refused("TOKEN_KIND_REFUSED"):
        request = AppendMessageRequest(session_id=session_id, role=MESSAGE_ROLE_USER, text="x")
        await runner.sessions.AppendMessage(request)
    with refused("UNAUTHENTICATED"):  # its audience is the runner
        await service.sessions.GetSession(GetSessionRequest(session_id=session_id))


@pytest.mark.spec("1.2", "8.7", "5.2")
async def test_a_run_token_renames_its_session_while_its_attempt_is_current(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"wait_gate": "held"})
    await state_reached(ada, run.run_id, RUN_STATE_RUNNING)
    keys = await load_keys(pair.session.storage)

    async def rename(name: str, **changes: Any) -> None:
        client = pair.client(token=run_token(keys, session_id, run.run_id, **changes))
        request = UpdateSessionRequest(session_id=session_id, name=name)
        request.update_mask.paths.append("name")
        await client.sessions.UpdateSession(request)

    await rename("By the agent")
    with refused("ATTEMPT_FENCED"):
        await rename("By a lost attempt", attempt=2)
    with refused("SCOPE_MISSING"):
        await rename("Without the scope", scopes=())

    await cancel(ada, run.run_id)
    events = await follow(ada, run.run_id)
    with refused("ATTEMPT_FENCED"):
        await rename("After the end")
    session = (await ada.sessions.GetSession(GetSessionRequest(session_id=session_id))).session
    assert (session.name, session.name_source) == ("By the agent", NAME_SOURCE_AUTOMATIC)
    assert [e.session_renamed.name for e in events if e.WhichOneof("body") == "session_renamed"] == ["By the agent"]


@pytest.mark.spec("1.3", "1.7")
async def test_a_missing_scope_is_said_before_anything_is_looked_up(pair: Pair) -> None:
    session_id = await new_session(pair.client())
    reader = pair.client(scopes=("runs:read",))
    for asked in (session_id, "0199e0d0-0000-7000-8000-0000000000aa"):
        with refused("SCOPE_MISSING") as refusal:
            await reader.sessions.GetSession(GetSessionRequest(session_id=asked))
        assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
        assert refusal.detail.metadata == {"scope": "sessions:read"}


@pytest.mark.spec("1.7")
async def test_a_run_token_sees_only_what_its_user_sees(pair: Pair, storage: Storage) -> None:
    ada: Client = pair.client()
    session_id = await new_session(ada)
    keys = await load_keys(storage)
    stranger = pair.client(token=run_token(keys, session_id, "0199e0d0-0000-7000-8000-0000000000aa", user_id="eve"))
    with refused("RESOURCE_NOT_FOUND"):
        await stranger.sessions.GetSession(GetSessionRequest(session_id=session_id))
