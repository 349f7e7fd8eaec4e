"""SIGTERM with live runs: health says so, turns get the grace, the exit is in time, and nothing vanishes (CASES 34)."""

import asyncio
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from turnkeeper.v1 import run_pb2

from tests.fixtures.journeys import (
    ended,
    follow,
    messages,
    new_session,
    refused,
    start,
    start_request,
    states,
    text_of,
    texts,
    until,
)
from tests.fixtures.processes import Processes, Service, StartProcesses

SLACK_SECONDS = 4.0
"""What the end of a Python process takes on a busy machine."""


async def terminated(service: Service) -> float:
    """Sends SIGTERM, and returns when it happened (on the monotonic clock) once the service is NOT_SERVING."""
    async with service.watched_health() as health:
        await health.is_(health_pb2.HealthCheckResponse.SERVING)
        begun = time.monotonic()
        service.signal(signal.SIGTERM)
        await health.is_(health_pb2.HealthCheckResponse.NOT_SERVING)
    return begun


async def ended_in_time(service: Service, begun: float) -> None:
    """Fails unless the service ends with code 0 within its grace."""
    assert await service.exit_code() == 0
    assert time.monotonic() - begun < service.settings["shutdown_grace_seconds"] + SLACK_SECONDS


@pytest.mark.spec("11.4")
@pytest.mark.parametrize("name", ["session", "runner"])
async def test_a_run_that_does_not_end_in_the_grace_is_stopped_and_ends_truly(processes: Processes, name: str) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"text": "before"}, {"wait_gate": "hold"}, {"text": "after"})
    seen = await until(ada, run.run_id, "text_delta")
    watch = asyncio.create_task(follow(ada, run.run_id))
    await processes.gates.reached("hold")
    service = {"session": processes.session, "runner": processes.runner}[name]

    begun = await terminated(service)

    await processes.gates.disconnected("hold")  # stopped for real, not left to itself
    await ended_in_time(service, begun)
    await asyncio.gather(watch, return_exceptions=True)  # the watcher of a service that went away comes again
    await service.start()
    ada = processes.client()
    events = await follow(ada, run.run_id)
    assert (states(events), text_of(events)) == (["QUEUED", "RUNNING", "FAILED"], "before")
    assert seen in events
    done = await ended(ada, run.run_id)
    assert done.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("11.4")
@pytest.mark.parametrize("name", ["session", "runner"])
async def test_a_run_that_ends_in_the_grace_is_whole(start_processes: StartProcesses, name: str) -> None:
    grace = {"shutdown_grace_seconds": 8.0}
    async with start_processes(session=grace, runner=grace) as processes:
        ada = processes.client()
        session_id = await new_session(ada)
        run = await start(ada, session_id, {"text": "a"}, {"wait_gate": "hold"}, {"text": "b"})
        await processes.gates.reached("hold")
        service = {"session": processes.session, "runner": processes.runner}[name]

        begun = await terminated(service)
        processes.gates.open("hold")

        assert await service.exit_code() == 0
        assert time.monotonic() - begun < grace["shutdown_grace_seconds"]  # nothing is waited for that has ended
        await service.start()
        ada = processes.client()
        events = await follow(ada, run.run_id)
        assert (states(events)[-1], text_of(events)) == ("COMPLETED", "ab")
        assert texts(await messages(ada, session_id)) == ["Hello", "ab"]


@pytest.mark.spec("11.4")
async def test_new_starts_are_refused_while_the_session_service_ends(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"wait_gate": "hold"})
    await processes.gates.reached("hold")
    await terminated(processes.session)
    click = start_request(session_id)

    with refused("SHUTTING_DOWN") as refusal:
        await ada.runs.StartRun(click)

    assert refusal.code == grpc.StatusCode.UNAVAILABLE
    assert await processes.session.exit_code() == 0
    await processes.session.start()
    ada = processes.client()
    again = await ada.runs.StartRun(click)
    assert again.created  # the refusal did not burn the key
    assert (await ended(ada, run.run_id)).state == run_pb2.RUN_STATE_FAILED
    assert (await ended(ada, again.run.run_id)).state == run_pb2.RUN_STATE_COMPLETED
