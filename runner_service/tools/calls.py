"""The tool calls of one turn: judged, recorded, made, recorded again (SPEC 3.6)."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.v1 import error_reason_pb2, facts_pb2, run_pb2
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.configs import Effect, ToolConfig
from turnkeeper.wire.context import Credential
from turnkeeper.wire.errors import reason_name
from turnkeeper.wire.json_text import JsonError, parse
from turnkeeper.wire.text import cut, repair

from runner_service.context.body import Unresolved, bind
from runner_service.context.values import context_values
from runner_service.tools.callers import ToolCallers
from runner_service.tools.ledger import Ledger
from runner_service.tools.model import ToolRequest, ToolResult, failed
from runner_service.tools.outgoing import Outgoing

MAX_ARGUMENTS_BYTES = 256 * 1024
MAX_MODEL_CALL_ID = 255
# What is kept of arguments that are no JSON object, so that people can see what the model wrote.
MALFORMED_BYTES = 2000
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_-]")
MAX_NAME = 64
UNRESOLVED = reason_name(error_reason_pb2.ERROR_REASON_TOOL_BINDING_UNRESOLVED)
INTERRUPTED = "interrupted"
"""What a model is told of a call that has no result (SPEC 2.7)."""


@dataclass(slots=True)
class _Judged:
    """A request after judgement: a tool to call with its body, or what to tell the model instead."""

    name: str
    arguments_json: str
    body: dict[str, Any]
    tool: ToolConfig | None
    refusal: str = ""


@dataclass(slots=True)
class _OpenCall:
    """A call that was begun and whose result is not known to be recorded."""

    sent: bool = False
    result: ToolResult | None = None


class ToolCalls:
    """Makes the calls that one turn's harness asks for, and knows at any time which are under way."""

    def __init__(
        self,
        attempt: int,
        tools: Mapping[str, ToolConfig],
        ledger: Ledger,
        callers: ToolCallers,
        flush: Callable[[], Awaitable[int]],
        check: Callable[[], Awaitable[None]],
        left: Callable[[], float],
    ) -> None:
        """`flush` waits until all text is stored and gives the last event's number; `check` raises when it is over.

        `left` gives the seconds that are left of the turn.
        """
        self._attempt = attempt
        self._tools = tools
        self._ledger = ledger
        self._callers = callers
        self._flush = flush
        self._check = check
        self._left = left
        self._context: Mapping[str, Any] = {}
        self._open: dict[str, _OpenCall] = {}

    def bind_from(self, run_context: facts_pb2.RunContext) -> None:
        """Sets what bindings take their values from. Until then, every binding is unresolved."""
        self._context = context_values(run_context)

    async def make(self, step: int, requests: Sequence[ToolRequest]) -> list[ToolResult]:
        """Makes the calls of one step side by side; the results are in the order of the requests."""
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(self._make(step, index, each)) for index, each in enumerate(requests)]
        return [call.result() for call in calls]

    async def _make(self, step: int, index: int, request: ToolRequest) -> ToolResult:
        call_id = f"{self._attempt}.{step}.{index}"
        judged = judge(request, self._tools, self._context)
        after_event = await self._flush()
        await self._check()
        call = self._open[call_id] = _OpenCall()
        begun = await self._ledger.begin_tool_call(
            turns.BeginToolCallRequest(
                call_id=call_id,
                tool_name=judged.name,
                arguments_json=judged.arguments_json,
                model_call_id=repair(request.model_call_id)[:MAX_MODEL_CALL_ID],
                side_effect=judged.tool is not None and judged.tool.effect is Effect.WRITE,
                after_event=after_event,
                identity=judged.tool is not None and judged.tool.identity,
            )
        )
        if begun.HasField("recorded_result"):
            del self._open[call_id]
            return ToolResult(begun.recorded_result.state, begun.recorded_result.result)
        call.result = await self._result(judged, call, call_id, begun)
        await self._ledger.finish_tool_call(_finish(call_id, call.result))
        del self._open[call_id]
        return call.result

    async def _result(
        self, judged: _Judged, call: _OpenCall, call_id: str, begun: turns.BeginToolCallResponse
    ) -> ToolResult:
        if judged.tool is None:
            return failed(judged.refusal)
        await self._check()
        outgoing = Outgoing(
            call_id,
            min(judged.tool.timeout_seconds, self._left()),
            begun.idempotency_key,
            Credential(begun.tool_token) if begun.tool_token else None,
        )
        call.sent = True
        try:
            return await self._callers.call(judged.tool, judged.body, outgoing)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A cancellation of the tool's own, which nobody asked for: one failed call, not the end of the turn.
            return ToolResult(run_pb2.TOOL_CALL_STATE_UNKNOWN, "The tool broke off its call.")

    def unrecorded(self) -> list[turns.FinishToolCallRequest]:
        """The results that are known and may not have been recorded."""
        return [_finish(call_id, call.result) for call_id, call in self._open.items() if call.result is not None]

    def stopped(self) -> list[turns.StoppedToolCall]:
        """The calls that were under way when the turn stopped."""
        return [
            turns.StoppedToolCall(
                call_id=call_id,
                state=run_pb2.TOOL_CALL_STATE_UNKNOWN if call.sent else run_pb2.TOOL_CALL_STATE_NOT_MADE,
            )
            for call_id, call in self._open.items()
            if call.result is None
        ]

    def cut_off(self) -> list[turns.FinishToolCallRequest]:
        """The same calls, as results that close them."""
        return [_finish(each.call_id, ToolResult(each.state, INTERRUPTED)) for each in self.stopped()]


def judge(request: ToolRequest, tools: Mapping[str, ToolConfig], context: Mapping[str, Any]) -> _Judged:
    """What is to be done with a request; whatever a model wrote, what is recorded of it is well formed.

    `context` holds the values of the run context; what the model wrote is recorded as it is, without them.
    """
    name = sayable(request.name)
    tool = tools.get(request.name)
    arguments, complaint = read_arguments(request.arguments_json)
    if arguments is None:
        return _Judged(name, well_formed(request.arguments_json), {}, None, f"The arguments {complaint}.")
    judged = _Judged(name, request.arguments_json.strip() or "{}", {}, tool)
    if tool is None:
        judged.refusal = f"There is no tool {name!r}. The tools are: {', '.join(sorted(tools)) or 'none'}."
    else:
        try:
            judged.body = bind(tool, arguments, context)
        except Unresolved as error:
            judged.refusal = f"{UNRESOLVED}: {error.path} has no value in the run context. No request was sent."
        if tool.needs_approval and not judged.refusal:
            judged.refusal = "The tool needs a human's approval, which cannot be asked for. No request was sent."
    if judged.refusal:
        judged.tool = None
    return judged


def sayable(name: str) -> str:
    """A tool's name as it may be recorded and shown to a model again, whatever the model wrote."""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_NAME] or "unknown"


def read_arguments(text: str) -> tuple[dict[str, Any] | None, str]:
    """The arguments as an object, or None with what is wrong with them."""
    if not text.strip():
        # Many models send nothing for a tool without parameters.
        return {}, ""
    if len(text.encode(errors="replace")) > MAX_ARGUMENTS_BYTES:
        return None, f"are longer than {MAX_ARGUMENTS_BYTES} bytes"
    try:
        value = parse(text)
    except JsonError as error:
        return None, f"are not acceptable JSON: the text {error}"
    return (value, "") if isinstance(value, dict) else (None, "are not a JSON object")


def well_formed(text: str) -> str:
    """The arguments as the text of a JSON object, with what the model wrote as data when it was none."""
    arguments, _ = read_arguments(text)
    if arguments is not None:
        return text.strip() or "{}"
    return json.dumps({"malformed_arguments": cut(repair(text), MALFORMED_BYTES)[0]}, ensure_ascii=False)


def _finish(call_id: str, result: ToolResult) -> turns.FinishToolCallRequest:
    return turns.FinishToolCallRequest(call_id=call_id, state=result.state, result=result.text)
