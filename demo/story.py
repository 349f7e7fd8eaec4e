"""The demo's chapters. Each drives the pair from outside, over gRPC with a real token, and states what must be so."""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import grpc
from turnkeeper.v1.agent_pb2 import Agent
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.run_pb2 import (
    RUN_STATE_CANCELLED,
    RUN_STATE_CANCELLING,
    RUN_STATE_COMPLETED,
    RUN_STATE_FAILED,
    Run,
    RunState,
)
from turnkeeper.v1.run_service_pb2 import CANCEL_OUTCOME_ACCEPTED, CancelOutcome
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_ASSISTANT, MESSAGE_ROLE_USER, Message, Session

from demo import journal
from demo.caller import Caller
from demo.pair import DemoPair
from demo.report import Report

ASK_TICKET = "Draw a ticket with the tool draw_ticket, then tell me exactly which ticket I got."
ASK_COUNT = "Count slowly from 1 to 300 in words, one number per line, and nothing else. This is for the {}."
SHOWN_DELTAS = 5
JOURNAL_SECONDS = 5.0
TERMINAL = {RUN_STATE_COMPLETED, RUN_STATE_CANCELLED, RUN_STATE_FAILED}


@dataclass(frozen=True)
class Snapshot:
    """All that a client can read of the demo's runs so far."""

    agent: Agent
    session: Session
    messages: list[Message]
    runs: list[Run]
    events: list[list[RunEvent]]


class Story:
    """What happens in the demo, in order."""

    def __init__(self, pair: DemoPair, caller: Caller, report: Report, model: str) -> None:
        self._pair = pair
        self._caller = caller
        self._report = report
        self._model = model
        self._runs: list[str] = []

    async def tell(self) -> None:
        """Tells all chapters; raises ClaimFailedError at the first claim that does not hold."""
        await self._creation()
        await self._one_click()
        await self._cancel()
        await self._power_cut()

    async def _creation(self) -> None:
        self._report.chapter("1  An agent and a session")
        self._agent = await self._caller.create_agent("Ticket clerk", self._config())
        self._session = await self._caller.create_session("Demo")
        self._report.claim("an agent with a first revision is stored", bool(self._agent.agent_id))
        self._report.claim("a session is stored", bool(self._session.session_id))

    async def _one_click(self) -> None:
        self._report.chapter("2  One click, one run, one answer")
        key = str(uuid.uuid4())
        started = await self._start(key, ASK_TICKET)
        run_id = started.run.run_id
        async for event in self._caller.watch(run_id):
            self._report.event(event)
        run = await self._caller.run(run_id)
        self._report.claim("the run is COMPLETED", run.state == RUN_STATE_COMPLETED, RunState.Name(run.state))
        drawn = [entry["ticket"] for entry in journal.read(self._pair.tool_journal) if entry["event"] == "drawn"]
        messages = await self._caller.messages(self._session.session_id)
        answers = [message.text for message in messages if message.role == MESSAGE_ROLE_ASSISTANT]
        self._report.claim("the tool was called, over HTTP", bool(drawn), drawn)
        # A model that is not ours may draw more than one.
        told = any(ticket in answers[-1] for ticket in drawn)
        self._report.claim(f"the stored answer has the ticket that the tool drew, {drawn[-1]}", told, answers)
        again = await self._start(key, ASK_TICKET)
        self._report.claim("the same click again is not a new run", not again.created)
        self._report.claim("it is the same run, in its true state", again.run == run, again.run)
        asked = [message for message in messages if message.role == MESSAGE_ROLE_USER]
        self._report.claim("the message is stored once", len(asked) == 1, asked)
        self._runs.append(run_id)

    async def _cancel(self) -> None:
        self._report.chapter("3  A long run is cancelled while the model streams")
        asked = ASK_COUNT.format("cancel")
        run_id = (await self._start(str(uuid.uuid4()), asked)).run.run_id
        outcome = ""
        deltas = 0
        last = RunEvent()
        async for event in self._caller.watch(run_id):
            self._report.event(event)
            last = event
            deltas += event.HasField("text_delta")
            if deltas == SHOWN_DELTAS and not outcome:
                cancelled = await self._caller.cancel(run_id, "the demo has seen enough")
                outcome = CancelOutcome.Name(cancelled.outcome)
                state = RunState.Name(cancelled.run.state)
                self._report.claim(
                    "CancelRun answers ACCEPTED", cancelled.outcome == CANCEL_OUTCOME_ACCEPTED, f"{outcome} {state}"
                )
                self._report.claim("the run is CANCELLING", cancelled.run.state == RUN_STATE_CANCELLING, state)
        changed = last.state_changed
        self._report.claim("the watch ended with CANCELLED", changed.state == RUN_STATE_CANCELLED, last)
        self._report.claim("confirmed: the runner reported that it stopped", changed.cancel.confirmed, last)
        if self._pair.uses_stand_in:
            await self._model_saw_hang_up(asked)
        else:
            self._report.note("whether the model saw the disconnect cannot be read from a model that is not ours")
        self._runs.append(run_id)

    async def _model_saw_hang_up(self, asked: str) -> None:
        wanted = {"event": "disconnect", "asked": asked}
        seen = await journal.find(self._pair.model_journal, lambda entry: entry == wanted, JOURNAL_SECONDS)
        self._report.claim("the model's own journal has the disconnect", seen is not None)

    async def _power_cut(self) -> None:
        self._report.chapter("4  Both services are killed while a run streams, and started again")
        before = await self._snapshot()
        run_id = (await self._start(str(uuid.uuid4()), ASK_COUNT.format("power cut"))).run.run_id
        seen = await self._watch_until_killed(run_id)
        self._report.note("both services got SIGKILL; starting them again on the same file")
        await self._pair.start_services()
        async for event in self._caller.watch(run_id, after_sequence=len(seen)):
            self._report.event(event)
        run = await self._caller.run(run_id)
        state = RunState.Name(run.state)
        self._report.claim(f"the run reached a true end: {state.removeprefix('RUN_STATE_')}", run.state in TERMINAL)
        events = await self._caller.events(run_id)
        self._report.claim("every event that was shown before is still there", events[: len(seen)] == seen, events)
        numbers = [event.sequence for event in events]
        self._report.claim("its events are numbered without a gap", numbers == list(range(1, len(events) + 1)), numbers)
        after = await self._snapshot()
        known = len(before.messages)
        self._report.claim("the agent is read back equal", after.agent == before.agent, after.agent)
        self._report.claim("the session is read back equal", after.session == before.session, after.session)
        self._report.claim("the history is read back equal", after.messages[:known] == before.messages, after.messages)
        self._report.claim("the runs are read back equal", after.runs == before.runs, after.runs)
        self._report.claim("all their events are read back equal", after.events == before.events, after.events)

    async def _watch_until_killed(self, run_id: str) -> list[RunEvent]:
        """Kills both services once some text has come; gives the events that were shown by then."""
        seen: list[RunEvent] = []
        deltas = 0
        broken: object = "the watch ended by itself"
        try:
            async for event in self._caller.watch(run_id):
                self._report.event(event)
                seen.append(event)
                deltas += event.HasField("text_delta")
                if deltas == SHOWN_DELTAS:
                    await self._pair.kill_services()
        except grpc.aio.AioRpcError as error:
            broken = error.code()
        unavailable = broken == grpc.StatusCode.UNAVAILABLE
        self._report.claim("the watch broke off in mid-stream when the service was killed", unavailable, broken)
        return seen

    async def _snapshot(self) -> Snapshot:
        return Snapshot(
            await self._caller.agent(self._agent.agent_id),
            await self._caller.session(self._session.session_id),
            await self._caller.messages(self._session.session_id),
            [await self._caller.run(run_id) for run_id in self._runs],
            [await self._caller.events(run_id) for run_id in self._runs],
        )

    async def _start(self, key: str, text: str) -> Any:
        return await asyncio.wait_for(self._caller.start_run(self._session, self._agent, key, text), JOURNAL_SECONDS)

    def _config(self) -> dict[str, Any]:
        ticket = {
            "name": "draw_ticket",
            "description": "Draws a ticket and returns its number.",
            "input_schema": {"type": "object", "properties": {"queue": {"type": "string"}}, "required": ["queue"]},
            "http": {"method": "POST", "url": f"{self._pair.tool_origin}/tickets"},
        }
        return {
            "schema_version": 1,
            "harness": "openai",
            "instructions": "You are a clerk. Do exactly what you are asked, briefly.",
            "model": {"name": self._model},
            "tools": [ticket],
        }
