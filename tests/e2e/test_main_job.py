"""The main job on real input: a chat model that somebody else serves, a tool in the loop, an answer that is stored."""

import asyncio
import json
import uuid

import pytest
from turnkeeper.v1 import run_pb2, run_service_pb2, session_pb2
from turnkeeper.v1.run_service_pb2 import WatchRunRequest

from tests.far import model
from tests.far.gates import Gate
from tests.far.tools import json_reply
from tests.fixtures.aimock import StartAimock
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    messages,
    new_agent,
    new_session,
    reference,
    start,
    states,
    text_of,
    texts,
    until,
)
from tests.fixtures.leaks import leaks
from tests.fixtures.processes import Processes, StartProcesses

OPENAI = json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m"}})


@pytest.mark.spec("3.4", "3.6", "5.2", "7.10", "10.1")
async def test_a_tool_loop_against_a_model_server_of_somebody_else(
    start_processes: StartProcesses, start_aimock: StartAimock
) -> None:
    nonce = uuid.uuid4().hex
    asked = {"id": "call_w", "name": "get_weather", "arguments": {"city": "Oslo"}}
    told = {"hasToolResult": True, "toolResultContains": nonce}  # it answers only when it was given the tool's result
    fixtures = [
        {"match": {"userMessage": "weather", "hasToolResult": False}, "response": {"toolCalls": [asked]}},
        {"match": told, "response": {"content": f"The station says {nonce}, so take a coat."}},
    ]
    async with (
        start_aimock(fixtures) as aimock,
        start_processes(runner={"openai_base_url": aimock.base_url}) as processes,
    ):
        processes.tools.queue("/weather", json_reply({"report": nonce}))
        tool = {
            "name": "get_weather",
            "description": "The weather of a city.",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            "http": {"method": "POST", "url": processes.tools.url("/weather")},
        }
        config = {
            "schema_version": 1,
            "harness": "openai",
            "instructions": "Be brief.",
            "model": {"name": "gpt-4o"},
            "tools": [tool],
        }
        ada = processes.client()
        agent_id, _ = await new_agent(ada, json.dumps(config), name="Weather")
        session_id = await new_session(ada)

        run = await start(ada, session_id, references=[reference(agent_id)], input="How is the weather in Oslo?")
        events = await follow(ada, run.run_id)

        done = await ended(ada, run.run_id)
        assert (done.state, done.attempt) == (run_pb2.RUN_STATE_COMPLETED, 1)
        assert nonce in text_of(events)
        history = await messages(ada, session_id)
        assert [m.role for m in history] == [
            session_pb2.MESSAGE_ROLE_USER,
            session_pb2.MESSAGE_ROLE_ASSISTANT,
            session_pb2.MESSAGE_ROLE_TOOL,
            session_pb2.MESSAGE_ROLE_ASSISTANT,
        ]
        assert json.loads(history[2].text) == {"report": nonce}
        assert history[3].text == f"The station says {nonce}, so take a coat."
        assert [request.json() for request in processes.tools.requests] == [{"city": "Oslo"}]
        assert processes.tools.requests[0].headers["idempotency-key"]
        kinds = [event.WhichOneof("body") for event in events]
        assert kinds.index("tool_call_started") < kinds.index("tool_call_finished") < kinds.index("text_delta")
        assert [entry["path"] for entry in await aimock.journal()] == ["/v1/chat/completions"] * 2
        assert await leaks(processes) == []


@pytest.mark.spec("4.3", "4.4", "4.5", "4.9")
async def test_cancel_in_mid_stream_closes_the_models_socket(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    gate = Gate()
    processes.model.queue(model.text("Half an "), model.hold(gate), model.text("answer"))
    run = await start(ada, session_id, config_json=OPENAI)
    await until(ada, run.run_id, "text_delta")
    await gate.reached()
    assert len(processes.model.hang_ups) == 0

    answer = await cancel(ada, run.run_id)

    assert answer.outcome == run_service_pb2.CANCEL_OUTCOME_ACCEPTED
    await processes.model.disconnected()
    events = await follow(ada, run.run_id)
    assert (states(events)[-2:], text_of(events)) == (["CANCELLING", "CANCELLED"], "Half an ")
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
    _, said = await messages(ada, session_id)
    assert (said.text, said.status) == ("Half an ", session_pb2.MESSAGE_STATUS_INCOMPLETE)
    processes.model.queue(model.text("Whole"))
    assert (await ended(ada, (await start(ada, session_id, config_json=OPENAI)).run_id)).state == (
        run_pb2.RUN_STATE_COMPLETED
    )
    assert len(processes.model.requests) == 2


@pytest.mark.spec("4.1", "5.3", "2.7")
async def test_a_watcher_that_drops_right_before_the_end_costs_nothing(processes: Processes) -> None:
    """CASES 6."""
    ada = processes.client()
    session_id = await new_session(ada)
    gate = Gate()
    processes.model.queue(model.text("All of "), model.hold(gate), model.text("it"))
    run = await start(ada, session_id, config_json=OPENAI)
    watch = ada.runs.WatchRun(WatchRunRequest(run_id=run.run_id))
    last = 0
    async for response in watch:
        last = response.event.sequence
        if response.event.HasField("text_delta"):
            break
    await gate.reached()

    watch.cancel()
    gate.open()

    late = processes.client()
    rest = await follow(late, run.run_id, after=last)
    assert [event.sequence for event in rest] == list(range(last + 1, rest[-1].sequence + 1))
    completed, terminal = rest[-2:]
    assert completed.message_completed.message.text == "All of it"
    assert terminal.state_changed.state == run_pb2.RUN_STATE_COMPLETED
    assert texts(await messages(late, session_id)) == ["Hello", "All of it"]
    assert await asyncio.wait_for(follow(late, run.run_id, after=rest[-1].sequence), 5) == []
