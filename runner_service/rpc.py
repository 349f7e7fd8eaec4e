"""RunnerService: proto in, proto out; what is decided is decided elsewhere."""

import asyncio
from collections.abc import AsyncIterator

from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import invalid

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


async def _start(requests: AsyncIterator[runner.ExecuteTurnRequest]) -> runner.TurnStart:
    try:
        async with asyncio.timeout(START_SECONDS):
            first = await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        raise invalid("start", "the first message of a call starts its turn") from None
    if first.WhichOneof("body") != "start":
        raise invalid("start", "the first message of a call starts its turn")
    return first.start
