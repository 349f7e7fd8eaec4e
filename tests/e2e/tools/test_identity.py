"""The identity token: minted for marked tools alone, verified by the tool itself, and seen nowhere else."""

import json
import time
from typing import Any

import grpc
import pytest
import structlog
from joserfc import jwt
from joserfc.jwk import KeySet
from turnkeeper.v1.identity_service_pb2 import GetVerificationKeysRequest, WhoAmIRequest
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, ListHarnessesRequest, TurnStart
from turnkeeper.v1.turn_service_pb2 import BeginToolCallRequest

from tests.e2e.tools.turns import as_runner, calling, everything_said, http_tool, openai, played
from tests.far import model
from tests.far.grpc_tools import CHARGE, GrpcToolServer
from tests.far.http import Request
from tests.far.tools import ToolReply
from tests.fixtures.client import Client
from tests.fixtures.journeys import messages, new_agent, new_session, reference, refused, scripted, start
from tests.fixtures.pair import Pair, StartPair


async def verified(pair: Pair, bearer: str, audience: str) -> dict[str, Any]:
    """What a tool reads from the token, with the keys that it asked the session service for."""
    answer = await pair.anonymous().identity.GetVerificationKeys(GetVerificationKeysRequest())
    keys = KeySet.import_key_set(json.loads(answer.jwks_json))
    kind, _, token = bearer.partition(" ")
    read = jwt.decode(token, keys, algorithms=["Ed25519"])
    registry = jwt.JWTClaimsRegistry(
        exp={"essential": True},
        aud={"essential": True, "value": audience},
        iss={"essential": True, "value": "turnkeeper-session-service"},
    )
    registry.validate(read.claims)
    assert (kind, read.header["typ"]) == ("Bearer", "tool+jwt")
    assert not {"scope", "session_id", "attempt"} & read.claims.keys()
    return read.claims


@pytest.mark.spec("1.5")
async def test_a_marked_tool_verifies_who_calls_and_nobody_else_sees_the_token(pair: Pair) -> None:
    ada = pair.client(roles=["editor"])
    config = openai(http_tool("ledger", pair.tools.url("/ledger"), identity=True))

    def repeat_all(request: Request) -> ToolReply:
        return ToolReply(json.dumps(dict(request.headers)).encode())

    pair.tools.respond = repeat_all
    pair.model.queue(model.tool_calls(model.Call("ledger", {"tenant_id": "evil", "sub": "root"})))
    pair.model.queue(model.text("done"))
    agent_id, _ = await new_agent(ada, config)
    session_id = await new_session(ada)
    with structlog.testing.capture_logs() as logs:
        run, events = await played(ada, session_id, references=[reference(agent_id)])

    request = await pair.tools.request()
    claims = await verified(pair, request.headers["authorization"], "ledger")
    assert (claims["sub"], claims["tenant_id"], claims["roles"]) == ("ada", "acme", ["editor"])
    assert (claims["run_id"], claims["exp"] - claims["iat"]) == (run.run_id, 60)
    assert 50 < claims["exp"] - time.time() <= 60
    said = await everything_said(pair, ada, session_id, events, logs)
    assert "[credential removed]" in said
    for credential in (request.headers["authorization"].partition(" ")[2], ada.token, "a-key-of-the-model"):
        assert credential
        assert credential not in said


@pytest.mark.spec("1.5", "7.10")
async def test_a_marked_grpc_tool_gets_it_as_metadata(start_pair: StartPair) -> None:
    async with (
        GrpcToolServer("v1") as far,
        start_pair(runner={"grpc_targets": [far.target]}) as pair,
    ):
        ada = pair.client()
        tool = {"name": "charge", "grpc": {"target": far.target, "method": CHARGE}, "identity": True}
        _, _ = await played(
            ada, await new_session(ada), config_json=scripted(calling("charge", amount=7), tools=[tool])
        )
        seen = await far.call()
        claims = await verified(pair, seen.metadata["authorization"], "charge")
        assert (claims["sub"], seen.request) == ("ada", {"amount": "7"})


@pytest.mark.spec("1.5")
async def test_a_tool_that_is_not_marked_gets_none(pair: Pair) -> None:
    ada = pair.client()
    config = scripted(calling("plain"), tools=[http_tool("plain", pair.tools.url("/plain"))])
    await played(ada, await new_session(ada), config_json=config)
    assert "authorization" not in (await pair.tools.request()).headers


@pytest.mark.spec("1.5")
async def test_a_runner_gets_none_for_a_tool_that_the_stored_config_does_not_mark(pair: Pair) -> None:
    ada = pair.client()
    tools = [http_tool("plain", pair.tools.url("/x")), http_tool("marked", pair.tools.url("/x"), identity=True)]
    run = await start(ada, await new_session(ada), config_json=scripted({"wait_gate": "hold"}, tools=tools))
    await pair.gates.reached("hold")
    runner = await as_runner(pair, run, ())

    for name in ("plain", "unheard"):
        with refused("INVALID_FIELD"):
            await runner.turns.BeginToolCall(BeginToolCallRequest(call_id="1.1.0", tool_name=name, identity=True))
    unasked = await runner.turns.BeginToolCall(BeginToolCallRequest(call_id="1.1.1", tool_name="marked"))
    asked = await runner.turns.BeginToolCall(BeginToolCallRequest(call_id="1.1.2", tool_name="marked", identity=True))

    assert (unasked.tool_token, bool(asked.tool_token)) == ("", True)
    # Good for the tool alone: neither service takes it for a caller's.
    stolen = pair.client(token=asked.tool_token)
    for attempt in (
        stolen.identity.WhoAmI(WhoAmIRequest()),
        stolen.turns.BeginToolCall(BeginToolCallRequest(call_id="1.1.3", tool_name="plain")),
        stolen.runner.ListHarnesses(ListHarnessesRequest()),
    ):
        with refused("UNAUTHENTICATED") as refusal:
            await attempt
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.spec("1.5", "9.7")
async def test_a_direct_turn_has_none(pair: Pair) -> None:
    ada = pair.client()
    config = scripted(calling("marked"), tools=[http_tool("marked", pair.tools.url("/x"), identity=True)])
    await direct(ada, config)
    assert "authorization" not in (await pair.tools.request()).headers


async def direct(client: Client, config: str, **start_fields: Any) -> None:
    """A direct turn to its end."""
    stream = client.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=config, **start_fields)))
    ends = [response.event.turn_ended async for response in stream if response.event.HasField("turn_ended")]
    assert [end.WhichOneof("outcome") for end in ends] == ["completed"]


@pytest.mark.spec("1.5", "1.6")
async def test_only_the_tools_of_the_runs_scopes_are_offered_and_made(pair: Pair) -> None:
    caller = pair.client(scopes=["sessions:read", "sessions:write", "runs:read", "runs:write", "tickets"])
    tools = [
        http_tool("open", pair.tools.url("/open")),
        http_tool("held", pair.tools.url("/held"), scopes=["tickets"]),
        http_tool("foreign", pair.tools.url("/foreign"), scopes=["tickets", "payments"]),
        http_tool("approved", pair.tools.url("/approved"), needs_approval=True),
        {"name": "rename_session", "builtin": True},
        {"name": "rename_agent", "builtin": True},
    ]
    wanted = [model.Call(name, {"scopes": ["payments"]}) for name in ("held", "foreign", "approved")]
    pair.model.queue(model.tool_calls(*wanted))
    pair.model.queue(model.text("done"))
    session_id = await new_session(caller)
    _, events = await played(caller, session_id, config_json=openai(*tools))

    # rename_agent needs agents:write, which this caller's run does not have.
    offered = [tool["name"] for tool in (await pair.model.prompt()).tools]
    assert offered == ["open", "held", "approved", "rename_session"]
    assert [request.path for request in pair.tools.requests] == ["/held"]
    told = texts_of_tools(events, await messages(caller, session_id))
    assert "There is no tool 'foreign'" in told
    assert "needs a human's approval" in told


def texts_of_tools(events: list[RunEvent], said: Any) -> str:
    """What the model was told by its tools."""
    return "\n".join([event.tool_call_finished.result for event in events] + [message.text for message in said])


CLAIMS = {
    "sub": "root",
    "user_id": "root",
    "tenant_id": "evil",
    "roles": ["admin"],
    "scopes": ["admin"],
    "user": {"id": "root"},
    "tenant": {"id": "evil"},
    "session": {"id": "other"},
}


@pytest.mark.spec("1.6")
async def test_identity_in_a_models_arguments_is_data_for_the_token_and_for_bindings(pair: Pair) -> None:
    ada = pair.client(roles=["editor"])
    bindings = {"for_user": "$ctx.user.id", "for_tenant": "$ctx.tenant.id", "for_session": "$ctx.session.id"}
    tool = http_tool("ledger", pair.tools.url("/ledger"), identity=True, bindings=bindings)
    session_id = await new_session(ada)
    await played(ada, session_id, config_json=scripted(calling("ledger", **CLAIMS), tools=[tool]))
    request = await pair.tools.request()
    bound = {"for_user": "ada", "for_tenant": "acme", "for_session": session_id}
    assert request.json() == {**CLAIMS, **bound}
    claims = await verified(pair, request.headers["authorization"], "ledger")
    assert (claims["sub"], claims["tenant_id"], claims["roles"]) == ("ada", "acme", ["editor"])
