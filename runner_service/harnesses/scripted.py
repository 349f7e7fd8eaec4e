"""Plays the steps that its config lists: for tests, demonstrations and trying out tools, without any model."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, assert_never

from turnkeeper.v1 import run_pb2
from turnkeeper.wire import configs
from turnkeeper.wire.configs import Config

from runner_service.harnesses.base import Harness, OpenHarness, Turn, TurnFailed
from runner_service.tools.model import ToolRequest

MODEL = "scripted"
CONNECT_SECONDS = 5.0


class ScriptedHarness(Harness):
    """Plays a script."""

    name: ClassVar[str] = "scripted"
    description: ClassVar[str] = "Plays the steps of the config's script; asks no model."

    @asynccontextmanager
    async def open(self, config: Config) -> AsyncIterator[OpenHarness]:
        """There is nothing to make ready."""
        yield Script(config.script, self.settings.gate_address)


class Script:
    """One turn. A tool_calls step ends a step of the turn, as a model's call for tools does."""

    def __init__(self, script: Sequence[configs.Step], gate_address: str | None) -> None:
        self._script = script
        self._gate_address = gate_address
        self._step = 1

    async def play(self, turn: Turn) -> None:
        """Plays one step after the other; the turn ends well after the last."""
        for step in self._script:
            # A script stands in for a model, so its lease is looked at as before a model's request.
            await turn.check()
            await self._play(turn, step)
        await turn.end_step(self._step, "stop")

    async def _play(self, turn: Turn, step: configs.Step) -> None:
        match step:
            case configs.TextStep(text):
                await turn.say(self._step, text)
            case configs.ReasoningStep(text):
                await turn.reason(self._step, text)
            case configs.ToolCallsStep(calls):
                await turn.end_step(self._step, "tool_calls")
                requests = [ToolRequest(call.name, json.dumps(call.arguments)) for call in calls]
                await turn.call_tools(self._step, requests)
                self._step += 1
            case configs.WaitStep(seconds):
                await asyncio.sleep(seconds)
            case configs.GateStep(name):
                await self._pass_gate(name)
            case configs.FailStep(message):
                raise TurnFailed(run_pb2.FAILURE_REASON_SCRIPTED, message)
            case configs.UsageStep(input_tokens, output_tokens):
                await turn.report_usage(self._step, MODEL, input_tokens, output_tokens)
            case _:
                assert_never(step)

    async def _pass_gate(self, name: str) -> None:
        if self._gate_address is None:
            raise _gate_failed("The runner has no gates: set TURNKEEPER_RUNNER_GATE_ADDRESS where it runs.")
        host, _, port = self._gate_address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError):
            raise _gate_failed("The gate could not be reached.") from None
        try:
            writer.write(f"{name}\n".encode())
            line = await reader.readline()
        except OSError:
            line = b""
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        if not line:
            raise _gate_failed("The gate was closed.")


def _gate_failed(message: str) -> TurnFailed:
    return TurnFailed(run_pb2.FAILURE_REASON_HARNESS_ERROR, message)
