"""The runner is killed or frozen in mid-run: the run still reaches a true end, and nothing of it goes on (CASES 2)."""

import json
import signal
from typing import Any

import pytest
from sqlalchemy import select
from turnkeeper.v1 import run_pb2, run_service_pb2, session_pb2

from session_service.dispatch.model import LeaseTerms
from session_service.dispatch.recovery import Sweeper
from session_service.storage.clock import microseconds
from session_service.storage.schema import attempts, runs
from tests.far import model
from tests.far.gates import Gate
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    scripted,
    start,
    state_reached,
    text_of,
    texts,
    until,
)
from tests.fixtures.processes import Processes

OPENAI = json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m"}})


async def sweep_twice(processes: Processes) -> None:
    """Two sweeps to which every lease is over and every report overdue."""
    at_once = LeaseTerms(lease=0, stop_grace=0, confirm=0, hold=0)
    sweeper = Sweeper(processes.storage, at_once, interval=1, keep_keys=microseconds(3600))
    await sweeper.sweep()
    await sweeper.sweep()


@pytest.mark.spec("3.2", "3.4", "3.5")
async def test_before_begin_turn_the_run_is_taken_up_again(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    await ended(ada, (await start(ada, session_id)).run_id)  # from now on the runner knows the keys
    processes.link.hold()
    run = await start(ada, session_id, {"text": "once"})
    await state_reached(ada, run.run_id, run_pb2.RUN_STATE_RUNNING)
    await processes.link.withheld()  # BeginTurn has left the runner, and reached nobody

    await processes.runner.kill()
    processes.link.release()  # what the dead had sent arrives now
    await processes.runner.start()

    done = await ended(ada, run.run_id)
    assert (done.state, done.turn) == (run_pb2.RUN_STATE_COMPLETED, 1)
    assert done.attempt > 1
    events = await follow(ada, run.run_id)
    assert text_of(events) == "once"
    begun = await processes.rows(
        select(attempts.c.attempt).where(attempts.c.run_id == run.run_id, attempts.c.begin_time.is_not(None))
    )
    assert [row.attempt for row in begun] == [done.attempt]


@pytest.mark.spec("4.2", "4.3", "4.6", "4.9")
async def test_cancel_before_begin_turn_is_confirmed_by_what_is_stored(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    await ended(ada, (await start(ada, session_id)).run_id)
    processes.link.hold()
    run = await start(ada, session_id, {"text": "never"})
    await state_reached(ada, run.run_id, run_pb2.RUN_STATE_RUNNING)
    await processes.link.withheld()

    await processes.runner.kill()
    answer = await cancel(ada, run.run_id)

    processes.link.release()
    done = await ended(ada, run.run_id)
    assert done.state == run_pb2.RUN_STATE_CANCELLED
    # Requeued by then, nothing was executing; still leased, nobody is left to say that nothing runs.
    queued = answer.outcome == run_service_pb2.CANCEL_OUTCOME_CANCELLED
    assert done.cancel.confirmed == queued
    await processes.runner.start()
    assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert text_of(await follow(ada, run.run_id)) == ""


@pytest.mark.spec("4.6", "4.7", "4.9", "3.1", "2.7")
async def test_cancel_after_begin_turn_is_truthfully_unconfirmed(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    gate = Gate()
    processes.model.queue(model.text("Half an "), model.hold(gate), model.text("answer"))
    run = await start(ada, session_id, config_json=OPENAI)
    await until(ada, run.run_id, "text_delta")
    await gate.reached()

    await processes.runner.kill()
    answer = await cancel(ada, run.run_id, "enough")
    following = await start(ada, session_id, {"text": "next"}, input="Again")

    await processes.model.disconnected()
    assert answer.outcome == run_service_pb2.CANCEL_OUTCOME_ACCEPTED
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, False)
    assert (done.cancel.reason, done.cancel.requested_by) == ("enough", "ada")
    (row,) = await processes.rows(select(runs).where(runs.c.run_id == run.run_id))
    assert (row.lease_owner, row.lease_expire_time) == (None, None)
    await processes.runner.start()
    assert (await ended(ada, following.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    before = await follow(ada, run.run_id)
    await sweep_twice(processes)
    assert await follow(ada, run.run_id) == before
    assert await get(ada, run.run_id) == done
    said = await messages(ada, session_id)
    assert texts(said) == ["Hello", "Again", "Half an ", "next"]
    assert said[2].status == session_pb2.MESSAGE_STATUS_INCOMPLETE


@pytest.mark.spec("3.3", "3.5", "3.6")
async def test_a_tool_call_in_flight_is_unknown_and_never_made_again(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    processes.tools.hold("/pay")
    tools = [
        {"name": name, "http": {"method": "POST", "url": processes.tools.url(f"/{name}")}} for name in ("look", "pay")
    ]
    calls: list[dict[str, Any]] = [{"tool_calls": [{"name": name, "arguments": {}}]} for name in ("look", "pay")]
    run = await start(ada, session_id, config_json=scripted(*calls, {"text": "paid"}, tools=tools))
    await processes.tools.request(2)

    await processes.runner.kill()

    await processes.tools.disconnected()
    await processes.runner.start()
    done = await ended(ada, run.run_id)
    assert (done.state, done.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_ATTEMPT_LOST)
    assert "finished: look (1.1.0); unknown: pay (1.2.0)" in done.failure.message
    assert [run_pb2.ToolCallState.Name(call.state) for call in done.tool_calls] == [
        "TOOL_CALL_STATE_SUCCEEDED",
        "TOOL_CALL_STATE_UNKNOWN",
    ]
    assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert [request.path for request in processes.tools.requests] == ["/look", "/pay"]
    assert [m.text for m in await messages(ada, session_id) if m.role == session_pb2.MESSAGE_ROLE_TOOL] == [
        "{}",
        "interrupted",
    ]


@pytest.mark.spec("3.3", "4.5", "4.6")
async def test_a_frozen_runner_wakes_up_fenced(processes: Processes) -> None:
    """Alive, but unreachable: after CANCELLED nothing of it reaches a tool, and its late report only confirms."""
    ada = processes.client()
    session_id = await new_session(ada)
    tools = [{"name": "pay", "http": {"method": "POST", "url": processes.tools.url("/pay")}}]
    pay = {"tool_calls": [{"name": "pay", "arguments": {}}]}
    script = scripted({"text": "x"}, {"wait_gate": "hold"}, pay, {"text": "y"}, tools=tools)
    run = await start(ada, session_id, config_json=script)
    await until(ada, run.run_id, "text_delta")
    await processes.gates.reached("hold")

    processes.runner.signal(signal.SIGSTOP)
    assert (await cancel(ada, run.run_id)).outcome == run_service_pb2.CANCEL_OUTCOME_ACCEPTED
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, False)
    events = await follow(ada, run.run_id)
    processes.gates.open("hold")  # the way to the tool is free, as far as the script knows
    processes.runner.signal(signal.SIGCONT)

    following = await ended(ada, (await start(ada, session_id, {"text": "next"})).run_id)
    assert following.state == run_pb2.RUN_STATE_COMPLETED
    await processes.reported(run.run_id)
    assert await follow(ada, run.run_id) == events
    late = await get(ada, run.run_id)
    assert (late.state, late.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
    assert len(processes.tools.requests) == 0
    assert texts(await messages(ada, session_id)) == ["Hello", "x", "Hello", "next"]
