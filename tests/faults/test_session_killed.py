"""The session service is killed in mid-run: what was shown stays, and every run reaches a true end."""

import asyncio
import json

import pytest
from sqlalchemy import update
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.run_service_pb2 import ListRunsRequest, WatchRunRequest

from session_service.storage.schema import runs
from tests.far import model
from tests.far.gates import Gate
from tests.far.link import Link
from tests.fixtures.client import Client
from tests.fixtures.journeys import (
    ended,
    follow,
    get,
    messages,
    new_session,
    refused,
    start,
    start_request,
    states,
    text_of,
    texts,
)
from tests.fixtures.processes import Processes, StartProcesses

OPENAI = json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m"}})


async def seen_through(client: Client, run_id: str, text: str) -> list[bytes]:
    """The run's events as they came over the wire, up to the one that completes this text."""
    watch = client.runs.WatchRun(WatchRunRequest(run_id=run_id))
    seen: list[RunEvent] = []
    try:
        async for response in watch:
            seen.append(response.event)
            if text_of(seen) == text:
                return frames(seen)
    finally:
        watch.cancel()
    raise AssertionError(f"the run ended without {text!r}")


def frames(events: list[RunEvent]) -> list[bytes]:
    """The events as bytes, each field included."""
    return [event.SerializeToString(deterministic=True) for event in events]


@pytest.mark.spec("3.3", "5.3", "2.3", "11.4")
async def test_a_scripted_run_ends_truly_and_nothing_that_was_shown_is_lost(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada, "kept")
    click = start_request(session_id, {"text": "before"}, {"wait_gate": "hold"}, {"text": "after"})
    run = (await ada.runs.StartRun(click)).run
    behind = start_request(session_id, {"text": "the next answer"}, input="And then?")
    waiting = (await ada.runs.StartRun(behind)).run
    seen = await seen_through(ada, run.run_id, "before")
    said = [message.SerializeToString(deterministic=True) for message in await messages(ada, session_id)]
    await processes.gates.reached("hold")

    await processes.session.kill()

    await processes.gates.disconnected("hold")  # the call broke, so the runner stopped the turn
    await processes.session.start()
    ada = processes.client()
    events = await follow(ada, run.run_id)
    assert frames(events)[: len(seen)] == seen
    assert states(events) == ["QUEUED", "RUNNING", "FAILED"]
    again = await ada.runs.StartRun(click)
    assert (again.created, again.run.run_id) == (False, run.run_id)
    assert again.run.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    # What was queued behind it kept its row and its place, and runs by itself.
    assert (await ended(ada, waiting.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    history = await messages(ada, session_id)
    assert texts(history) == ["Hello", "And then?", "before", "the next answer"]
    assert [message.SerializeToString(deterministic=True) for message in history[: len(said)]] == said
    assert [message.status for message in history[2:]] == [
        session_pb2.MESSAGE_STATUS_INCOMPLETE,
        session_pb2.MESSAGE_STATUS_COMPLETE,
    ]
    repeat = await ada.runs.StartRun(behind)
    assert (repeat.created, repeat.run.state) == (False, run_pb2.RUN_STATE_COMPLETED)


@pytest.mark.spec("3.3", "4.4", "4.5", "5.3", "2.7")
async def test_a_streaming_model_is_hung_up_on_and_its_text_kept(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    gate = Gate()
    processes.model.queue(model.text("Half an "), model.hold(gate), model.text("answer"))
    click = start_request(session_id, config_json=OPENAI)
    run = (await ada.runs.StartRun(click)).run
    seen = await seen_through(ada, run.run_id, "Half an ")
    await gate.reached()

    await processes.session.kill()

    await processes.model.disconnected()
    await processes.session.start()
    ada = processes.client()
    events = await follow(ada, run.run_id)
    assert frames(events)[: len(seen)] == seen
    assert (states(events)[-1], text_of(events)) == ("FAILED", "Half an ")
    again = await ada.runs.StartRun(click)
    assert (again.created, again.run.run_id) == (False, run.run_id)
    assert again.run.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    processes.model.queue(model.text("A whole answer"))
    following = await ended(ada, (await start(ada, session_id, config_json=OPENAI, input="Again")).run_id)
    assert following.state == run_pb2.RUN_STATE_COMPLETED
    told = [message for message in (await processes.model.prompt(2)).messages if message["role"] != "system"]
    assert [message["content"] for message in told] == ["Hello", "Half an ", "Again"]
    assert processes.model.unanswered == 0


@pytest.mark.spec("11.4", "3.3")
async def test_after_one_sweep_no_run_is_running_without_an_owner(start_processes: StartProcesses) -> None:
    async with start_processes(session={"sweep_seconds": 600}) as pair:
        ada = pair.client()
        sessions = [await new_session(ada) for _ in range(3)]
        live = [await start(ada, each, {"text": "x"}, {"wait_gate": "hold"}) for each in sessions]
        await pair.gates.reached("hold", 3)
        await pair.kill()
        # As if the service had been away for an hour; then its first sweep, and with this setting its only one.
        await pair.execute(update(runs).values(lease_expire_time=0))

        await pair.session.start()

        ada = pair.client()
        for run in live:
            done = await ended(ada, run.run_id)
            assert (done.state, done.failure.reason) == (
                run_pb2.RUN_STATE_FAILED,
                run_pb2.FAILURE_REASON_ATTEMPT_LOST,
            )
        running = await ada.runs.ListRuns(ListRunsRequest(states=[run_pb2.RUN_STATE_RUNNING]))
        assert not running.runs
        await pair.runner.start()
        for session_id in sessions:
            after = await ended(ada, (await start(ada, session_id)).run_id)
            assert after.state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("2.1", "2.3")
async def test_a_click_that_met_a_dead_service_is_one_run(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    click = start_request(session_id, {"text": "once"})
    await processes.session.kill()
    with refused(""):
        await ada.runs.StartRun(click)
    await processes.session.start()
    ada = processes.client()

    first, second = await ada.runs.StartRun(click), await ada.runs.StartRun(click)

    assert (first.created, second.created) == (True, False)
    assert first.run.run_id == second.run.run_id
    await ended(ada, first.run.run_id)
    assert texts(await messages(ada, session_id)) == ["Hello", "once"]
    assert (await get(ada, first.run.run_id)).attempt == 1


@pytest.mark.spec("2.1", "2.3")
async def test_a_click_whose_answer_was_lost_is_one_run(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    click = start_request(session_id, {"wait_gate": "hold"})
    async with (
        Link(processes.session.address) as link,
        Client(link.address, processes.runner.address, ada.token) as far,
    ):
        await messages(far, session_id)  # the connection stands
        link.hold_answers()
        lost = asyncio.ensure_future(far.runs.StartRun(click))
        await processes.gates.reached("hold")  # so it is committed, but the caller was not told
        await processes.session.kill()
        link.cut()
        with refused(""):
            await lost
    await processes.session.start()
    ada = processes.client()

    again = await ada.runs.StartRun(click)

    assert not again.created
    assert (await ended(ada, again.run.run_id)).failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    assert texts(await messages(ada, session_id)) == ["Hello"]
    assert [run.run_id for run in (await ada.runs.ListRuns(ListRunsRequest())).runs] == [again.run.run_id]
