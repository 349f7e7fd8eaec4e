"""Odd model streams in a run, between the real session service and tools (CASES 30): what is recorded, and the end.

`test_openai.py` has many more streams, each in a direct turn.
"""

import json
from typing import Any

import pytest
from sqlalchemy import select
from turnkeeper.v1 import run_pb2

from session_service.storage.schema import tool_calls
from tests.far import model as m
from tests.fixtures.journeys import ended, messages, new_session, start, texts
from tests.fixtures.pair import Pair
from tests.runner.conftest import openai_config, tool

COMPLETED = run_pb2.RUN_STATE_COMPLETED
SUCCEEDED = run_pb2.TOOL_CALL_STATE_SUCCEEDED
FAILED = run_pb2.TOOL_CALL_STATE_FAILED


def delta(index: int | None, key: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """One chunk of one tool call; what is None is not there."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call = {"index": index, "id": key, "function": function}
    return {"tool_calls": [{field: value for field, value in call.items() if value is not None}]}


async def recorded(pair: Pair, run_id: str) -> list[tuple[str, str]]:
    """The run's calls as they are stored, in order: id and arguments."""
    found = select(tool_calls).where(tool_calls.c.run_id == run_id).order_by(tool_calls.c.step, tool_calls.c.call_index)
    rows = await pair.session.storage.read("acme", lambda connection: connection.execute(found).all())
    return [(row.call_id, row.arguments_json) for row in rows]


@pytest.mark.spec("3.6", "2.7")
@pytest.mark.parametrize(
    "deltas",
    [
        [delta(0, "a", "echo", '{"n":1}'), delta(0, "b", "echo", '{"n":2}')],
        [delta(0, None, "echo", '{"n":1}'), delta(1, None, "echo", '{"n":2}')],
        [
            delta(0, "a", "echo", ""),
            delta(0, None, None, '{"n":1}'),
            delta(1, "b", "echo", '{"n"'),
            delta(1, None, None, ":2}"),
        ],
        [delta(0, "same", "echo", '{"n":1}'), delta(1, "same", "echo", '{"n":2}')],
    ],
    ids=["both at 0", "no ids", "id only on the first delta", "one id for both"],
)
async def test_two_parallel_calls_are_two_however_they_are_told(pair: Pair, deltas: list[dict[str, Any]]) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    config = openai_config(tool("echo", pair.tools.url("/echo")))
    pair.model.queue(m.deltas(*deltas))
    pair.model.queue(m.text("Both."))

    run = await ended(ada, (await start(ada, session_id, config_json=config)).run_id)

    assert run.state == COMPLETED
    assert await recorded(pair, run.run_id) == [("1.1.0", '{"n":1}'), ("1.1.1", '{"n":2}')]
    assert texts(await messages(ada, session_id)) == ["Hello", "", '{"n":1}', '{"n":2}', "Both."]
    sent = {request.headers["idempotency-key"]: request.json()["n"] for request in pair.tools.requests}
    assert sorted(sent.values()) == [1, 2]  # and each has a key of its own
    pair.model.queue(m.text("Again."))
    again = await ended(ada, (await start(ada, session_id, config_json=config)).run_id)
    assert again.state == COMPLETED  # the model takes the history, and it is strict


@pytest.mark.spec("3.6", "2.7")
@pytest.mark.parametrize("arguments", ['{"n":', '{"n":1}}', "nonsense"])
async def test_malformed_arguments_are_an_error_result_and_no_request(pair: Pair, arguments: str) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    config = openai_config(tool("echo", pair.tools.url("/echo")))
    pair.model.queue(m.tool_calls(m.Call("echo", arguments)))
    pair.model.queue(m.text("Sorry."))

    run = await ended(ada, (await start(ada, session_id, config_json=config)).run_id)

    assert run.state == COMPLETED
    [(call_id, kept)] = await recorded(pair, run.run_id)
    assert (call_id, json.loads(kept)) == ("1.1.0", {"malformed_arguments": arguments})
    assert [call.state for call in run.tool_calls] == [FAILED]
    assert texts(await messages(ada, session_id))[2].startswith("The arguments are not")
    assert len(pair.tools.requests) == 0
    pair.model.queue(m.text("Again."))
    assert (await ended(ada, (await start(ada, session_id, config_json=config)).run_id)).state == COMPLETED


@pytest.mark.spec("3.1", "3.6", "2.7")
@pytest.mark.parametrize("steps", [1, 3])
async def test_an_unknown_tool_for_ever_fails_at_exactly_the_step_limit(pair: Pair, steps: int) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    pair.model.respond = lambda _: m.tool_calls(m.Call("no such tool!"))
    config = openai_config(tool("echo", pair.tools.url("/echo")), limits={"max_steps": steps})

    run = await ended(ada, (await start(ada, session_id, config_json=config)).run_id)

    assert (run.state, run.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_MAX_STEPS)
    assert len(pair.model.requests) == steps
    assert [(call.call_id, call.state) for call in run.tool_calls] == [(f"1.{n}.0", FAILED) for n in range(1, steps)]
    assert len(pair.tools.requests) == 0
    pair.model.respond = lambda _: m.text("Enough.")
    assert (await ended(ada, (await start(ada, session_id, config_json=config)).run_id)).state == COMPLETED


@pytest.mark.spec("3.1", "3.6")
async def test_an_answer_in_the_last_step_is_in_time(pair: Pair) -> None:
    ada = pair.client()
    for _ in range(2):
        pair.model.queue(m.tool_calls(m.Call("echo")))
    pair.model.queue(m.text("In time."))
    config = openai_config(tool("echo", pair.tools.url("/echo")), limits={"max_steps": 3})

    run = await ended(ada, (await start(ada, await new_session(ada), config_json=config)).run_id)

    assert run.state == COMPLETED
    assert [call.state for call in run.tool_calls] == [SUCCEEDED] * 2
