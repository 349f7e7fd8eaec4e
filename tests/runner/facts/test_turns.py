"""A turn with its facts, against a session service that does what the test says (SPEC 3.4, 6.5, 6.6, 6.8, 9.7)."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from turnkeeper.v1 import error_reason_pb2, session_pb2
from turnkeeper.v1.facts_pb2 import Facts, KnownSession, NameFact, SessionFact
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart
from turnkeeper.v1.turn_event_pb2 import TurnEvent
from turnkeeper.wire import errors
from turnkeeper.wire.errors import Refused, not_found
from turnkeeper.wire.serving import ServingError

from runner_service.app import RunnerApp
from tests.far import model as m
from tests.far.model import ModelServer
from tests.fixtures.client import Client
from tests.fixtures.issuer import Issuer
from tests.fixtures.journeys import scripted
from tests.runner.conftest import Direct, failure_of, openai_config, tool
from tests.runner.facts.conftest import StartRunner
from tests.runner.far_session import Dispatch, FarSession

SESSION = "0199e0d0-0000-7000-8000-0000000000aa"
UNIMPLEMENTED = Refused(error_reason_pb2.ERROR_REASON_UNIMPLEMENTED)
MISSING = Refused(error_reason_pb2.ERROR_REASON_PERMISSION_MISSING, metadata={"permission": "RUN"})
SCRIPT = scripted({"text": "Good day."})
INSTRUCTIONS = "Be brief."
LINES = 'The agent\'s name is "Atlas".\nThe session\'s name is "Blue"; keep it.\nThis is the first turn of the session.'


@pytest.fixture(autouse=True)
def known(sessions: FarSession) -> None:
    """A session service that knows everything."""
    session = KnownSession(name=NameFact(known="Blue"), first_turn=True)
    facts = Facts(agent_name=NameFact(known="Atlas"), session=SessionFact(known=session))
    sessions.turn_context.facts.CopyFrom(facts)


@pytest.fixture
async def measured(start_runner: StartRunner) -> AsyncIterator[RunnerApp]:
    """A runner whose metrics are served, with a small budget."""
    async with start_runner(facts_budget="0.05", metrics_listen="127.0.0.1:0") as app:
        yield app


def refuse(error: Exception) -> Any:
    async def before(request: Any) -> None:
        raise error

    return before


async def hang(request: Any) -> None:
    await asyncio.Event().wait()


async def played(app: RunnerApp, sessions: FarSession, issuer: Issuer, **start: Any) -> list[TurnEvent]:
    """The events of a direct turn."""
    async with Client(sessions.address, app.address, issuer.token()) as client:
        stream = client.runner.ExecuteTurn()
        given = {"input": "Hello", "config_json": openai_config(), **start}
        await stream.write(ExecuteTurnRequest(start=TurnStart(**given)))
        return [response.event async for response in stream]


async def outcomes(app: RunnerApp) -> dict[str, float]:
    """What the metrics show of the outcomes, without zeros."""
    text = await asyncio.to_thread(_scrape, app.metrics_address)
    prefix = 'turnkeeper_facts_total{outcome="'
    counted = [line.removeprefix(prefix).split('"} ') for line in text.splitlines() if line.startswith(prefix)]
    return {outcome: float(count) for outcome, count in counted if float(count)}


def _scrape(address: str | None) -> str:
    assert address is not None
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def leading(prompt: m.Prompt) -> Sequence[str]:
    """The system messages, of which there is one at most and only at the start."""
    assert all(message["role"] != "system" for message in prompt.messages[1:])
    return prompt.texts("system")


@pytest.mark.spec("6.7", "6.8")
async def test_the_text_stands_before_every_request_of_a_turn_once(
    runner: RunnerApp, sessions: FarSession, issuer: Issuer, model: ModelServer
) -> None:
    model.queue(m.tool_calls(m.Call("none")))
    model.queue(m.text("Good day."))
    config = openai_config(instructions=INSTRUCTIONS)
    assert failure_of(await played(runner, sessions, issuer, config_json=config)) == ""
    assert [leading(prompt) for prompt in model.prompts] == [[f"{INSTRUCTIONS}\n\n{LINES}"]] * 2
    assert list(sessions.calls) == ["ResolveTurnContext"]


@pytest.mark.spec("6.7")
async def test_without_instructions_it_stands_alone_and_without_facts_there_is_nothing(
    direct: Direct, sessions: FarSession, model: ModelServer
) -> None:
    for _ in range(3):
        model.queue(m.text("Good day."))
    await direct(openai_config())
    assert leading(model.prompts[0]) == [LINES]
    sessions.turn_context.facts.Clear()
    await direct(openai_config())
    assert leading(model.prompts[1]) == []
    await direct(openai_config(instructions=INSTRUCTIONS))
    assert leading(model.prompts[2]) == [INSTRUCTIONS]


@pytest.mark.spec("6.7", "1.5")
async def test_a_tool_that_the_turn_does_not_offer_is_not_hinted_at(
    direct: Direct, sessions: FarSession, model: ModelServer, runner: RunnerApp, issuer: Issuer
) -> None:
    sessions.turn_context.facts.agent_name.known = "New agent 7"
    config = openai_config(tool("rename_agent", "http://x.test/", scopes=["agents:write"]))
    model.respond = lambda prompt: m.text("Good day.")
    await direct(config)
    assert "rename_agent" in leading(model.prompts[0])[0]
    async with Client(sessions.address, runner.address, issuer.token(scopes=["runner:invoke"])) as client:
        stream = client.runner.ExecuteTurn()
        await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=config)))
        assert failure_of([response.event async for response in stream]) == ""
    assert "placeholder" in leading(model.prompts[1])[0]
    assert "rename_agent" not in leading(model.prompts[1])[0]


@pytest.mark.spec("6.5", "6.6")
async def test_a_read_that_hangs_costs_the_turn_its_budget_and_no_more(
    measured: RunnerApp, sessions: FarSession, issuer: Issuer, model: ModelServer
) -> None:
    sessions.before["ResolveTurnContext"] = hang
    model.respond = lambda prompt: m.text("Good day.")
    assert failure_of(await played(measured, sessions, issuer)) == ""
    assert leading(model.prompts[0]) == []
    assert await outcomes(measured) == {"timeout": 1}
    del sessions.before["ResolveTurnContext"]
    assert failure_of(await played(measured, sessions, issuer)) == ""
    assert leading(model.prompts[1]) == [LINES]


@pytest.mark.spec("6.6")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MISSING, "denied"),
        (Refused(error_reason_pb2.ERROR_REASON_ATTEMPT_FENCED), "error"),
        (not_found("run"), "error"),
        (UNIMPLEMENTED, "unconfigured"),
    ],
    ids=["denied", "fenced", "not found", "no such method"],
)
async def test_a_refused_read_never_fails_the_turn(
    measured: RunnerApp, sessions: FarSession, issuer: Issuer, model: ModelServer, error: Refused, outcome: str
) -> None:
    sessions.before["ResolveTurnContext"] = refuse(error)
    model.queue(m.text("Good day."))
    async with Client(sessions.address, measured.address, sessions.run_token()) as dispatcher:
        sessions.history = [session_pb2.Message(position=1, role=session_pb2.MESSAGE_ROLE_USER, text="Hello")]
        dispatch = Dispatch(dispatcher, openai_config())
        async with asyncio.timeout(10):
            await dispatch.finished
        assert failure_of(list(dispatch.events)) == ""
    assert leading(model.prompts[0]) == []
    assert await outcomes(measured) == {outcome: 1}


@pytest.mark.spec("6.5")
@pytest.mark.parametrize("text", ["inf", "nan", "1e999", "0", "-3", "x", ""])
async def test_an_odd_budget_is_the_default(
    monkeypatch: pytest.MonkeyPatch, start_runner: StartRunner, sessions: FarSession, issuer: Issuer, text: str
) -> None:
    monkeypatch.setenv("TURNKEEPER_RUNNER_FACTS_BUDGET", text)
    async with start_runner() as app:
        assert failure_of(await played(app, sessions, issuer, config_json=SCRIPT)) == ""
    assert 1.0 < sessions.time_left["ResolveTurnContext"][0] <= 2.0


@pytest.mark.spec("6.5", "4.10")
async def test_a_cancelled_turn_leaves_no_read_behind(ada: Client, sessions: FarSession) -> None:
    ended = asyncio.Event()

    async def before(request: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    sessions.before["ResolveTurnContext"] = before
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=SCRIPT)))
    await sessions.received["ResolveTurnContext"].at(1)
    stream.cancel()
    async with asyncio.timeout(1.5):
        await ended.wait()


@pytest.mark.spec("9.7", "6.1", "3.4")
async def test_a_direct_turn_on_a_session_is_numbered_before_it_asks(
    runner: RunnerApp, sessions: FarSession, issuer: Issuer, model: ModelServer
) -> None:
    model.queue(m.text("Good day."))
    assert failure_of(await played(runner, sessions, issuer, session_id=SESSION)) == ""
    assert list(sessions.calls) == ["BeginTurn", "ResolveTurnContext"]
    begun, asked = sessions.received["BeginTurn"][0], sessions.received["ResolveTurnContext"][0]
    assert (begun.session_id, begun.harness, begun.runner_store) == (SESSION, "openai", "store-1")
    assert (asked.session_id, asked.turn_number, asked.config_json) == (SESSION, 1, openai_config())
    assert model.prompts[0].texts("user") == ["Hello"]


@pytest.mark.spec("9.7")
@pytest.mark.parametrize(
    ("error", "code", "reason", "metadata"),
    [
        (not_found("session"), grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND", {"resource": "session"}),
        (MISSING, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_MISSING", {"permission": "RUN"}),
        (
            Refused(error_reason_pb2.ERROR_REASON_STORAGE_UNAVAILABLE),
            grpc.StatusCode.UNAVAILABLE,
            "STORAGE_UNAVAILABLE",
            {},
        ),
    ],
    ids=["not found", "denied", "unavailable"],
)
async def test_a_direct_turn_that_may_not_begin_is_refused_in_the_same_words_at_the_first_try(
    runner: RunnerApp,
    sessions: FarSession,
    issuer: Issuer,
    error: Refused,
    code: grpc.StatusCode,
    reason: str,
    metadata: dict[str, str],
) -> None:
    sessions.before["BeginTurn"] = refuse(error)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await played(runner, sessions, issuer, session_id=SESSION)
    detail = errors.ErrorDetail.of(caught.value)
    assert (caught.value.code(), detail.reason, detail.metadata) == (code, reason, metadata)
    assert list(sessions.calls) == ["BeginTurn"]


@pytest.mark.spec("9.7")
async def test_without_a_session_service_only_a_direct_turn_without_a_session_is_played(
    start_runner: StartRunner, sessions: FarSession, issuer: Issuer, model: ModelServer
) -> None:
    model.queue(m.text("Good day."))
    async with start_runner(session_target="127.0.0.1:1", metrics_listen="127.0.0.1:0") as app:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await played(app, sessions, issuer, session_id=SESSION)
        assert errors.reason(caught.value) == "RUNNER_NOT_READY"
        assert failure_of(await played(app, sessions, issuer)) == ""
        assert len(await outcomes(app)) == 1
    assert leading(model.prompts[0]) == []


async def test_metrics_are_for_this_machine_alone(start_runner: StartRunner) -> None:
    with pytest.raises(ServingError, match="loopback"):
        async with start_runner(metrics_listen="0.0.0.0:0"):
            pass
    with pytest.raises(ServingError, match="host:port"):
        async with start_runner(metrics_listen="unix:/tmp/metrics.sock"):
            pass
    async with start_runner(metrics_listen="0.0.0.0:0", insecure=True) as app:
        assert app.metrics_address is not None
        with pytest.raises(ServingError, match="in use"):
            async with start_runner(metrics_listen=app.metrics_address, insecure=True):
                pass
    async with start_runner() as app:
        assert app.metrics_address is None
