"""kill -9 again and again while many runs are under way: afterwards everything is true, whole and told once."""

import asyncio
import random
from dataclasses import dataclass, field

import grpc
import pytest
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.run_service_pb2 import ListRunsRequest, StartRunRequest, WatchRunRequest
from turnkeeper.v1.session_service_pb2 import CreateSessionRequest, ListMessagesRequest

from tests.far.log import Log
from tests.fixtures.client import Client
from tests.fixtures.journeys import TERMINAL, follow, get, scripted, start_request, states, text_of
from tests.fixtures.leaks import leaks
from tests.fixtures.processes import Processes, StartProcesses

SESSIONS, CLICKS, KILLS = 5, 4, 6
SEED = 20


@dataclass
class Load:
    """What the callers did and saw."""

    processes: Processes
    events: Log[RunEvent] = field(default_factory=lambda: Log("event"))
    clicks: dict[str, StartRunRequest] = field(default_factory=dict)
    """By the run's id."""
    seen: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Each event that a watcher was shown, by run and sequence."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def connected(self) -> Client:
        """A caller of the service as it is now."""
        await self.processes.session.serving.wait()
        return self.processes.client()

    async def drive(self, session_id: str, chance: random.Random) -> None:
        """Clicks and watches to the end, one run after the other, until enough was killed meanwhile."""
        done = 0
        while done < CLICKS or not self.enough.is_set():
            await self._follow(await self._click(self._request(session_id, chance)))
            done += 1

    def _request(self, session_id: str, chance: random.Random) -> StartRunRequest:
        tools = [{"name": "work", "http": {"method": "POST", "url": self.processes.tools.url("/work")}}]
        steps: list[dict[str, object]] = []
        for number in range(3):
            steps += [
                {"text": f"part {number} 😀 "},
                {"wait_seconds": round(chance.uniform(0.02, 0.15), 3)},
                {"tool_calls": [{"name": "work", "arguments": {"number": number}}]},
            ]
        return start_request(session_id, config_json=scripted(*steps, {"text": "end"}, tools=tools))

    async def _click(self, request: StartRunRequest) -> str:
        """Repeats the same click until it is answered."""
        while True:
            try:
                started = await (await self.connected()).runs.StartRun(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                self._is_the_kill(error)
                continue
            self.clicks[started.run.run_id] = request
            return started.run.run_id

    async def _follow(self, run_id: str) -> None:
        """Watches from the last event seen, over every restart."""
        seen = self.seen.setdefault(run_id, {})
        while True:
            ada = await self.connected()
            try:
                async for response in ada.runs.WatchRun(WatchRunRequest(run_id=run_id, after_sequence=len(seen))):
                    event = response.event
                    assert event.sequence == len(seen) + 1, "a gap or a repetition"
                    seen[event.sequence] = event.SerializeToString(deterministic=True)
                    self.events.append(event)
                    if event.state_changed.state in TERMINAL:
                        return
                raise AssertionError("a watch ended before the terminal event")
            except grpc.aio.AioRpcError as error:
                self._is_the_kill(error)

    def _is_the_kill(self, error: grpc.aio.AioRpcError) -> None:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error


async def kill_again_and_again(load: Load, chance: random.Random) -> None:
    """Kills one of the two, or both, after a number of further events."""
    processes = load.processes
    for _ in range(KILLS):
        await load.events.at(len(load.events) + chance.randint(1, 25), within=40)
        victims = chance.choice(
            [[processes.session], [processes.runner], [processes.session], [processes.session, processes.runner]]
        )
        await asyncio.gather(*(victim.kill() for victim in victims))
        await asyncio.gather(*(victim.start() for victim in victims))
    load.enough.set()


@pytest.mark.timeout(240)  # six times both programs start anew, on whatever machine
@pytest.mark.spec("2.1", "2.7", "3.1", "3.3", "5.1", "5.3", "10.1", "11.4")
async def test_after_kills_at_random_moments_everything_is_true(start_processes: StartProcesses) -> None:
    async with start_processes(session={"lease_seconds": 1.5, "confirm_seconds": 2.0}) as processes:
        chance = random.Random(SEED)
        load = Load(processes)
        ada = processes.client()
        sessions = [
            (await ada.sessions.CreateSession(CreateSessionRequest())).session.session_id for _ in range(SESSIONS)
        ]

        async with asyncio.timeout(150), asyncio.TaskGroup() as tasks:
            for session_id in sessions:
                tasks.create_task(load.drive(session_id, random.Random(chance.random())))
            tasks.create_task(kill_again_and_again(load, chance))

        ada = processes.client()
        assert len(load.clicks) >= SESSIONS * CLICKS
        ends = [await ends_truly(ada, load, run_id) for run_id in load.clicks]
        assert {"COMPLETED", "FAILED"} == set(ends)  # the kills hit runs, and spared others
        for session_id in sessions:
            await history_is_true(ada, load, session_id)
        log = processes.logs()
        assert "database is locked" not in log
        assert '"level": "error"' not in log
        assert await leaks(processes) == []


async def ends_truly(ada: Client, load: Load, run_id: str) -> str:
    """Checks one run against what its watcher saw; its last state."""
    events = await follow(ada, run_id)
    run = await get(ada, run_id)
    assert [event.sequence for event in events] == list(range(1, run.last_sequence + 1))
    told = {event.sequence: event.SerializeToString(deterministic=True) for event in events}
    assert told == load.seen[run_id]
    terminal = [event for event in events if event.state_changed.state in TERMINAL]
    assert terminal == events[-1:]
    assert terminal[0].state_changed.state == run.state
    if run.state == run_pb2.RUN_STATE_FAILED:
        assert run.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    else:
        assert text_of(events) == "part 0 😀 part 1 😀 part 2 😀 end"
    again = await ada.runs.StartRun(load.clicks[run_id])
    assert (again.created, again.run.run_id) == (False, run_id)
    return states(events)[-1]


async def history_is_true(ada: Client, load: Load, session_id: str) -> None:
    """Each run has its user message once, and its answer's messages say what its events say."""
    listed = (await ada.runs.ListRuns(ListRunsRequest(session_id=session_id, page_size=200))).runs
    assert {run.run_id for run in listed} == {
        run_id for run_id, click in load.clicks.items() if click.session_id == session_id
    }
    request = ListMessagesRequest(session_id=session_id, page_size=200)
    history = (await ada.sessions.ListMessages(request)).messages
    for run in listed:
        mine = [message for message in history if message.run_id == run.run_id]
        assert [m.role for m in mine].count(session_pb2.MESSAGE_ROLE_USER) == 1
        events = await follow(ada, run.run_id)
        completed = [event.message_completed.message for event in events if event.HasField("message_completed")]
        assert completed == [m for m in mine if m.role != session_pb2.MESSAGE_ROLE_USER]
        said = "".join(m.text for m in mine if m.role == session_pb2.MESSAGE_ROLE_ASSISTANT)
        assert said == text_of(event for event in events if event.attempt == run.attempt)
