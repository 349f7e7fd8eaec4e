"""RunnerService: proto in, proto out; what is decided is decided elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.wire.configs import parse_tool
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import Refused, invalid
from turnkeeper.wire.json_text import parse

from runner_service.context.body import Unresolved, bind, to_json
from runner_service.context.values import context_values
from runner_service.harnesses.registry import Registry
from runner_service.turns.turns import Turns

START_SECONDS = 10.0


class RunnerServicer:
    """The RPCs of the contract that this runner has; the others answer UNIMPLEMENTED."""

    def __init__(self, turns: Turns, registry: Registry) -> None:
        self._turns = turns
        self._registry = registry

    async def ExecuteTurn(
        self, requests: AsyncIterator[runner.ExecuteTurnRequest], call: Call
    ) -> AsyncIterator[runner.ExecuteTurnResponse]:
        """Hands the call to a turn and passes the turn's events on."""
        attempt = self._turns.begin(await _start(requests), requests, call)
        if (handler := asyncio.current_task()) is not None:
            # A cancellation that hits while gRPC writes never enters this generator, but it always ends its task.
            handler.add_done_callback(lambda _: attempt.call_ended())
        while (event := await attempt.outbox.take()) is not None:
            yield runner.ExecuteTurnResponse(event=event)
            attempt.outbox.sent(event)

    async def ListHarnesses(self, request: runner.ListHarnessesRequest, call: Call) -> runner.ListHarnessesResponse:
        """Lists the harnesses by name."""
        return runner.ListHarnessesResponse(
            harnesses=[
                runner.Harness(name=name, description=harness.description, tools_visible=harness.tools_visible)
                for name, harness in self._registry.all()
            ]
        )

    async def BindToolBody(self, request: runner.BindToolBodyRequest, call: Call) -> runner.BindToolBodyResponse:
        """Binds a body and sends nothing."""
        tool = parse_tool(request.tool_json)
        # The edge takes objects only.
        arguments = cast(dict[str, Any], parse(request.arguments_json or "{}"))
        try:
            body = bind(tool, arguments, context_values(request.run_context))
        except Unresolved as error:
            reason = error_reason_pb2.ERROR_REASON_TOOL_BINDING_UNRESOLVED
            raise Refused(reason, metadata={"path": error.path}) from None
        return runner.BindToolBodyResponse(body_json=to_json(body))


async def _start(requests: AsyncIterator[runner.ExecuteTurnRequest]) -> runner.TurnStart:
    try:
        async with asyncio.timeout(START_SECONDS):
            first = await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        raise invalid("start", "the first message of a call starts its turn") from None
    if first.WhichOneof("body") != "start":
        raise invalid("start", "the first message of a call starts its turn")
    return first.start
