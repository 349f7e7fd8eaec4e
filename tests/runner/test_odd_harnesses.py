"""Harnesses that misbehave, in a runner between the real session service and a strict model (CASES 4, 8)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.wire.configs import Config

from runner_service.harnesses.base import Harness, OpenHarness, Turn
from runner_service.settings import Settings
from runner_service.tools.model import ToolRequest
from tests.far import model as m
from tests.fixtures.journeys import cancel, ended, messages, new_session, start, until
from tests.fixtures.pair import Pair, StartPair
from tests.runner.conftest import openai_config, tool

COMPLETED = run_pb2.RUN_STATE_COMPLETED
CANCELLED = run_pb2.RUN_STATE_CANCELLED
UNKNOWN = run_pb2.TOOL_CALL_STATE_UNKNOWN


class Odd(Harness):
    """Says something and waits; `notes` is what it did after that, for the test to see."""

    name: ClassVar[str] = "odd"
    description: ClassVar[str] = "Misbehaves."

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.notes: list[str] = []

    @asynccontextmanager
    async def open(self, config: Config) -> AsyncIterator[OpenHarness]:
        yield self

    async def play(self, turn: Turn) -> None:
        await turn.say(1, "started")
        await asyncio.Event().wait()


class Stubborn(Odd):
    """Catches the cancellation once and goes on."""

    async def play(self, turn: Turn) -> None:
        try:
            await super().play(turn)
        except asyncio.CancelledError:
            self.notes.append("caught")
            await asyncio.Event().wait()


class Deaf(Odd):
    """Takes no for no answer: would go on with its model."""

    async def play(self, turn: Turn) -> None:
        try:
            await super().play(turn)
        except asyncio.CancelledError:
            self.notes.append("caught")
            await turn.check()
            self.notes.append("asked its model")


class Denying(Deaf):
    """Would go on with its model, and when refused says that all went well."""

    async def play(self, turn: Turn) -> None:
        try:
            await super().play(turn)
        except Exception:
            self.notes.append("refused")


class Broken(Odd):
    """Fails in a way that nobody foresaw."""

    async def play(self, turn: Turn) -> None:
        raise ZeroDivisionError("the password is hunter2")


class CancelsItself(Odd):
    """Raises a cancellation that nobody asked for."""

    async def play(self, turn: Turn) -> None:
        raise asyncio.CancelledError


class ThreeAtOnce(Odd):
    """Makes three calls side by side and breaks one of them off by itself."""

    break_off: asyncio.Event

    async def play(self, turn: Turn) -> None:
        self.break_off = asyncio.Event()
        await turn.say(1, "Three at once.")
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(turn.call_tools(step, [ToolRequest(name, "{}")]))
                for step, name in enumerate(("done", "slow", "odd"), start=1)
            ]
            await self.break_off.wait()
            calls[2].cancel()


class OddPair:
    """A pair whose runner also has one odd harness."""

    def __init__(self, pair: Pair, made: list[Odd]) -> None:
        self.pair, self._made = pair, made

    @property
    def harness(self) -> Odd:
        """The one of the runner, which makes each harness once."""
        [harness] = self._made
        return harness


@asynccontextmanager
async def with_odd(start_pair: StartPair, kind: type[Odd]) -> AsyncIterator[OddPair]:
    made: list[Odd] = []

    def make(settings: Settings) -> Harness:
        made.append(kind(settings))
        return made[-1]

    async with start_pair(harnesses={"odd": make}) as pair:
        yield OddPair(pair, made)


def odd_config(*tools: dict[str, object], **more: object) -> str:
    return json.dumps({"schema_version": 1, "harness": "odd", "tools": list(tools), **more})


async def is_healthy(pair: Pair) -> bool:
    async with grpc.aio.insecure_channel(pair.runner_address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.spec("4.4", "4.5", "4.9")
@pytest.mark.parametrize("kind", [Stubborn, Deaf, Denying])
async def test_a_harness_that_catches_the_cancellation_is_stopped_all_the_same(
    start_pair: StartPair, kind: type[Odd]
) -> None:
    async with with_odd(start_pair, kind) as odd:
        ada = odd.pair.client()
        session_id = await new_session(ada)
        run = await start(ada, session_id, config_json=odd_config())
        await until(ada, run.run_id, "text_delta")

        await cancel(ada, run.run_id)

        async with asyncio.timeout(odd.pair.runner_settings["stop_grace_seconds"] + 1.0):
            done = await ended(ada, run.run_id)
        assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
        assert odd.harness.notes == (["caught", "refused"] if kind is Denying else ["caught"])
        [_, said] = await messages(ada, session_id)
        assert (said.text, said.status) == ("started", session_pb2.MESSAGE_STATUS_INCOMPLETE)
        assert await is_healthy(odd.pair)
        assert (await ended(ada, (await start(ada, session_id)).run_id)).state == COMPLETED


@pytest.mark.spec("3.7")
@pytest.mark.parametrize("kind", [Stubborn, Deaf, Denying])
async def test_after_its_time_a_turn_asks_no_model_whatever_its_harness_does(
    start_pair: StartPair, kind: type[Odd]
) -> None:
    async with with_odd(start_pair, kind) as odd:
        ada = odd.pair.client()
        config = odd_config(limits={"turn_seconds": 0.2})

        done = await ended(ada, (await start(ada, await new_session(ada), config_json=config)).run_id)

        assert done.failure.reason == run_pb2.FAILURE_REASON_TURN_TIMEOUT
        assert odd.harness.notes == (["caught", "refused"] if kind is Denying else ["caught"])


@pytest.mark.spec("11.2")
@pytest.mark.parametrize("kind", [Broken, CancelsItself])
async def test_a_harness_that_breaks_fails_its_run_and_says_nothing_of_itself(
    start_pair: StartPair, kind: type[Odd]
) -> None:
    async with with_odd(start_pair, kind) as odd:
        ada = odd.pair.client()
        done = await ended(ada, (await start(ada, await new_session(ada), config_json=odd_config())).run_id)
    assert done.failure.reason == run_pb2.FAILURE_REASON_HARNESS_ERROR
    assert "hunter2" not in done.failure.message


@pytest.mark.spec("4.4", "4.5", "4.9", "2.7", "3.6")
async def test_three_parallel_tools_one_of_which_cancels_itself_then_a_cancel_then_another_message(
    start_pair: StartPair,
) -> None:
    async with with_odd(start_pair, ThreeAtOnce) as odd:
        ada, far = odd.pair.client(), odd.pair.tools
        session_id = await new_session(ada)
        for path in ("/slow", "/odd"):
            far.hold(path)
        tools = [tool(name, far.url(f"/{name}")) for name in ("done", "slow", "odd")]
        run = await start(ada, session_id, config_json=odd_config(*tools))
        finished = await until(ada, run.run_id, "tool_call_finished")
        await far.request(3)
        assert isinstance(odd.harness, ThreeAtOnce)
        odd.harness.break_off.set()
        assert (await far.disconnected()).path == "/odd"

        await cancel(ada, run.run_id)

        assert (await far.disconnected(2)).path == "/slow"
        done = await ended(ada, run.run_id)
        assert finished.tool_call_finished.tool_name == "done"
        assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
        assert [(call.tool_name, call.state) for call in done.tool_calls] == [
            ("done", run_pb2.TOOL_CALL_STATE_SUCCEEDED),
            ("slow", UNKNOWN),
            ("odd", UNKNOWN),
        ]
        odd.pair.model.queue(m.text("I see."))
        following = await start(ada, session_id, config_json=openai_config(*tools), input="And now?")
        assert (await ended(ada, following.run_id)).state == COMPLETED
        prompt = await odd.pair.model.prompt()  # one that real providers take, or the far side had refused it
        assert prompt.texts("tool") == ["{}", "interrupted", "interrupted"]
        assert prompt.texts("user") == ["Hello", "And now?"]
        assert len(far.requests) == 3
