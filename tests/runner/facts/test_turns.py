"""Where a turn's facts stand, and what it costs a turn when they do not come (SPEC 6.5, 6.6, 6.8, 9.7)."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from sqlalchemy import select
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart
from turnkeeper.v1.turn_event_pb2 import TurnEvent
from turnkeeper.wire.serving import ServingError

from runner_service.app import RunnerApp, runner_app
from runner_service.settings import Settings
from session_service.storage.schema import turns
from tests.far import model as m
from tests.fixtures.client import Client
from tests.fixtures.issuer import ALL_SCOPES
from tests.fixtures.journeys import ended, new_agent, new_session, reference, refused, scripted, start
from tests.fixtures.pair import Pair, StartPair
from tests.runner.conftest import Logs, failure_of, openai_config, tool

INSTRUCTIONS = "Be brief."
LINES = 'The agent\'s name is "Atlas".\nThe session\'s name is "Blue"; keep it.\nThis is the first turn of the session.'
FIRST = "The session has no name.\nThis is the first turn of the session."
BUDGET_SECONDS = 0.3


@pytest.fixture
async def measured(start_pair: StartPair) -> AsyncIterator[Pair]:
    """A pair whose runner serves its metrics, with a small budget."""
    settings = {"facts_budget": str(BUDGET_SECONDS), "metrics_listen": "127.0.0.1:0"}
    async with start_pair(runner=settings) as pair:
        yield pair


async def played(client: Client, **start: Any) -> list[TurnEvent]:
    """The events of a direct turn."""
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


@pytest.mark.spec("6.1", "6.7", "6.8")
async def test_the_text_stands_before_every_request_of_a_turn_and_is_read_once(pair: Pair, logs: Logs) -> None:
    ada = pair.client()
    agent_id, _ = await new_agent(ada, openai_config(instructions=INSTRUCTIONS), name="Atlas")
    pair.model.queue(m.tool_calls(m.Call("none")))
    pair.model.queue(m.text("Good day."))

    run = await start(ada, await new_session(ada, "Blue"), references=[reference(agent_id)])

    await ended(ada, run.run_id)
    assert [leading(prompt) for prompt in pair.model.prompts] == [[f"{INSTRUCTIONS}\n\n{LINES}"]] * 2
    assert logs.answers().count("ResolveTurnContext") == 1


@pytest.mark.spec("6.7")
async def test_without_instructions_it_stands_alone_and_without_facts_there_is_nothing(pair: Pair) -> None:
    ada = pair.client()
    pair.model.respond = lambda _: m.text("Good day.")
    agent_id, _ = await new_agent(ada, name="Atlas")
    known = {"session_id": await new_session(ada, "Blue"), "references": [reference(agent_id)]}
    assert failure_of(await played(ada, **known)) == ""
    pair.link.cut()
    assert failure_of(await played(ada)) == ""
    assert failure_of(await played(ada, config_json=openai_config(instructions=INSTRUCTIONS))) == ""
    assert [leading(prompt) for prompt in pair.model.prompts] == [[LINES], [], [INSTRUCTIONS]]


@pytest.mark.spec("6.7", "1.5")
async def test_a_tool_that_the_callers_scopes_do_not_allow_is_not_hinted_at(pair: Pair) -> None:
    ada = pair.client()
    agent_id, _ = await new_agent(ada, name="New agent 7")
    config = openai_config(tool("rename_agent", "http://x.test/", scopes=["secrets:write"]))
    pair.model.respond = lambda _: m.text("Good day.")
    fewer = pair.client(scopes=[scope for scope in ALL_SCOPES if scope != "secrets:write"])
    for client in (ada, fewer):
        assert failure_of(await played(client, config_json=config, references=[reference(agent_id)])) == ""
    [hinted], [silent] = (leading(prompt) for prompt in pair.model.prompts)
    assert "rename_agent" in hinted
    assert "placeholder" in silent
    assert "rename_agent" not in silent


@pytest.mark.spec("6.5", "6.6")
async def test_a_read_that_hangs_costs_the_turn_its_budget_and_no_more(measured: Pair) -> None:
    ada = measured.client()
    measured.model.respond = lambda _: m.text("Good day.")
    measured.link.hold_answers()
    assert failure_of(await played(ada)) == ""
    assert await outcomes(measured.runner) == {"timeout": 1}
    measured.link.release()
    while "ok" not in await outcomes(measured.runner):  # the connection may need a moment
        assert failure_of(await played(ada)) == ""
    assert leading(measured.model.prompts[0]) == []
    assert leading(measured.model.prompts[-1]) == [FIRST]


@pytest.mark.spec("6.5")
@pytest.mark.parametrize("text", ["inf", "nan", "1e999", "0", "-3", "x", ""])
def test_an_odd_budget_is_the_default(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TURNKEEPER_RUNNER_FACTS_BUDGET", text)
    assert Settings().facts_seconds == 2.0


@pytest.mark.spec("6.5", "4.10")
async def test_a_cancelled_turn_leaves_no_read_behind(start_pair: StartPair) -> None:
    patient = {"facts_budget": "60", "shutdown_grace_seconds": 60}
    async with start_pair(runner=patient) as pair:
        pair.link.hold_answers()
        stream = pair.client().runner.ExecuteTurn()
        await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=scripted({"text": "x"}))))
        await pair.link.withheld()
        stream.cancel()
        async with asyncio.timeout(10):
            await pair.stop_runner()  # waits for what is left


@pytest.mark.spec("9.7", "6.1", "3.4")
async def test_a_direct_turn_on_a_session_is_numbered_before_it_asks(start_pair: StartPair, logs: Logs) -> None:
    async with start_pair(runner={"store_id": "store-1"}) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        pair.model.queue(m.text("Good day."))
        assert failure_of(await played(ada, session_id=session_id)) == ""
        assert logs.answers() == ["BeginTurn", "ResolveTurnContext"]
        [row] = await pair.session.storage.read("acme", lambda connection: connection.execute(select(turns)).all())
        assert (row.session_id, row.turn_number, row.harness, row.runner_store) == (session_id, 1, "openai", "store-1")
        assert pair.model.prompts[0].texts("user") == ["Hello"]
        assert leading(pair.model.prompts[0]) == [FIRST]


@pytest.mark.spec("9.7")
async def test_a_direct_turn_that_may_not_begin_is_refused_in_the_same_words_at_the_first_try(
    pair: Pair, logs: Logs
) -> None:
    session_id = await new_session(pair.client())
    with refused("RESOURCE_NOT_FOUND") as refusal:
        await played(pair.client(user="bob"), session_id=session_id)
    assert (refusal.code, refusal.detail.metadata) == (grpc.StatusCode.NOT_FOUND, {"resource": "session"})
    assert logs.answers() == ["BeginTurn RESOURCE_NOT_FOUND"]


@pytest.mark.spec("9.7", "6.6")
async def test_without_a_session_service_only_a_direct_turn_without_a_session_is_played(measured: Pair) -> None:
    ada = measured.client()
    session_id = await new_session(ada)
    measured.model.queue(m.text("Good day."))
    await measured.stop_session()
    with refused("RUNNER_NOT_READY"):
        await played(ada, session_id=session_id)
    assert failure_of(await played(ada)) == ""
    assert len(await outcomes(measured.runner)) == 1
    assert leading(measured.model.prompts[0]) == []


async def test_metrics_are_for_this_machine_alone() -> None:
    def runner(**more: Any) -> Any:
        return runner_app(Settings(listen="127.0.0.1:0", **more))

    with pytest.raises(ServingError, match="loopback"):
        async with runner(metrics_listen="0.0.0.0:0"):
            pass
    with pytest.raises(ServingError, match="host:port"):
        async with runner(metrics_listen="unix:/tmp/metrics.sock"):
            pass
    async with runner(metrics_listen="0.0.0.0:0", insecure=True) as app:
        assert app.metrics_address is not None
        with pytest.raises(ServingError, match="in use"):
            async with runner(metrics_listen=app.metrics_address, insecure=True):
                pass
    async with runner() as app:
        assert app.metrics_address is None
