"""What a harness holds of its turn: the prompt, the tools, and a pen."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnkeeper.v1 import run_event_pb2, run_pb2, session_pb2, turn_event_pb2
from turnkeeper.wire.configs import Config
from turnkeeper.wire.text import repair

from runner_service.tools.calls import ToolCalls
from runner_service.tools.model import OfferedTool, ToolRequest, ToolResult
from runner_service.turns.lease import TurnLease
from runner_service.turns.outbox import Outbox, pieces
from runner_service.turns.stop import StopSignal

MAX_NAME = 200


@dataclass(frozen=True)
class LiveTurn:
    """A turn in progress; see harnesses.base.Turn. Text is repaired here, whichever harness wrote it."""

    config: Config
    preamble: str
    prompt: Sequence[session_pb2.Message]
    tools: Sequence[OfferedTool]
    calls: ToolCalls
    outbox: Outbox
    lease: TurnLease
    signal: StopSignal

    async def check(self) -> None:
        """Goes on only while the turn may work."""
        self.signal.check()
        await self.lease.check()
        self.signal.check()

    async def say(self, step: int, text: str) -> None:
        """More of the answer's text."""
        for piece in pieces(repair(text)):
            await self.outbox.put(turn_event_pb2.TurnEvent(text_delta=run_event_pb2.TextDelta(text=piece, step=step)))

    async def reason(self, step: int, text: str) -> None:
        """More of the model's reasoning."""
        for piece in pieces(repair(text)):
            await self.outbox.put(
                turn_event_pb2.TurnEvent(reasoning_delta=run_event_pb2.ReasoningDelta(text=piece, step=step))
            )

    async def report_usage(self, step: int, model: str, input_tokens: int, output_tokens: int) -> None:
        """What one model call used."""
        usage = run_pb2.Usage(input_tokens=max(0, input_tokens), output_tokens=max(0, output_tokens))
        reported = run_event_pb2.UsageReported(usage=usage, step=step, model=repair(model)[:MAX_NAME])
        await self.outbox.put(turn_event_pb2.TurnEvent(usage_reported=reported))

    async def end_step(self, step: int, finish_reason: str) -> None:
        """The assistant's message of the step is whole."""
        completed = turn_event_pb2.StepCompleted(step=step, finish_reason=repair(finish_reason)[:MAX_NAME])
        await self.outbox.put(turn_event_pb2.TurnEvent(message_completed=completed))

    async def call_tools(self, step: int, requests: Sequence[ToolRequest]) -> list[ToolResult]:
        """Makes the calls side by side and gives their results in order."""
        self.signal.check()
        return await self.calls.make(step, requests)
