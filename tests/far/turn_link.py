"""A link between the dispatcher and the runner: ExecuteTurn forwarded message by message, as a test allows it.

Both ends are the real ones. What a network may do happens here: messages that are late or never come, a call that
breaks, a cancellation that does not get through.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import grpc
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, ExecuteTurnResponse
from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceStub
from turnkeeper.v1.turn_event_pb2 import TurnEvent

from tests.far.log import Log

if TYPE_CHECKING:  # a name of the stub file alone
    from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceAsyncStub

EVENTS = "events"
"""The lane of all numbered events, which must stay in order."""
CANCELLATION = "cancellation"
"""The lane of the dispatcher's cancellation."""

MessageT = TypeVar("MessageT")
ExecuteTurnCall = grpc.aio.StreamStreamCall[ExecuteTurnRequest, ExecuteTurnResponse]
Context = grpc.aio.ServicerContext[ExecuteTurnRequest, ExecuteTurnResponse]


class LinkedTurn:
    """One ExecuteTurn call: what each end has sent, whether or not it got through, and how the runner ended it."""

    def __init__(self, metadata: dict[str, str | bytes], time_remaining: float | None) -> None:
        self.metadata = metadata
        self.time_remaining = time_remaining
        """Seconds to the call's deadline when it came; None without one."""
        self.requests: defaultdict[str, Log[ExecuteTurnRequest]] = defaultdict(lambda: Log("request"))
        """What the dispatcher sent, by kind."""
        self.events: Log[TurnEvent] = Log("event")
        """What the runner sent, but for its probes."""
        self.probes: Log[int] = Log("probe")
        self.cancellations: Log[None] = Log("cancellation")
        """The dispatcher's."""
        self.statuses: Log[grpc.StatusCode] = Log("status")
        self.broken = asyncio.Event()

    def break_off(self) -> None:
        """Breaks the call: its runner sees it cancelled, its dispatcher UNAVAILABLE."""
        self.broken.set()

    async def event(self, kind: str) -> TurnEvent:
        """The first event of this kind, as soon as the runner sent it."""
        number = 1
        while (found := await self.events.at(number)).WhichOneof("body") != kind:
            number += 1
        return found

    async def status(self) -> grpc.StatusCode:
        """The status with which the runner's end is over, as soon as it is."""
        return await self.statuses.at()

    async def beats(self, number: int = 2) -> None:
        """Returns when both ends have exchanged so many more probes and answers: whatever was ready has happened."""
        answers = self.requests["lease_renewed"]
        await answers.at(len(answers) + number)


class TurnLink:
    """Serves RunnerService/ExecuteTurn and forwards it to `target` ("host:port").

    A lane that is held keeps what comes on it, in order, while the other lanes flow. The lanes are the kinds of the
    dispatcher's requests ("stored", "lease_renewed", …), "lease_probe", EVENTS and CANCELLATION.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._held: set[str] = set()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns: Log[LinkedTurn] = Log("turn")

    async def __aenter__(self) -> Self:
        handler = grpc.stream_stream_rpc_method_handler(
            self._execute_turn,
            request_deserializer=ExecuteTurnRequest.FromString,
            response_serializer=ExecuteTurnResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("turnkeeper.v1.RunnerService", {"ExecuteTurn": handler})
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._channel = grpc.aio.insecure_channel(self._target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._runner: RunnerServiceAsyncStub = RunnerServiceStub(self._channel)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()
        failures = [result for result in results if isinstance(result, Exception)]
        if failures and error is None:
            raise ExceptionGroup("the link failed", failures)

    def hold(self, *lanes: str) -> None:
        """From now on what comes on these lanes waits here."""
        self._held.update(lanes)

    def release(self, *lanes: str) -> None:
        """Forwards what waited on these lanes, and whatever comes."""
        self._held.difference_update(lanes)
        self._released.set()
        self._released = asyncio.Event()

    async def passage(self, lane: str) -> None:
        """Returns when the lane is not held."""
        while lane in self._held:
            await self._released.wait()

    async def _execute_turn(self, requests: AsyncIterator[ExecuteTurnRequest], context: Context) -> None:
        sent = tuple((key, value) for key, value in context.invocation_metadata() or () if key == "authorization")
        turn = LinkedTurn(dict(sent), context.time_remaining())
        call = self._runner.ExecuteTurn(timeout=turn.time_remaining, metadata=sent)
        self.turns.append(turn)
        # While the cancellation is held, the runner's end outlives this handler: the link owns it.
        forwarding = self._own(self._forward(turn, call, requests, context))
        try:
            await asyncio.shield(forwarding)
        except asyncio.CancelledError:
            turn.cancellations.append(None)
            self._own(self._cancel(call))
            raise
        if turn.broken.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the link is broken")
        if (code := await turn.status()) is not grpc.StatusCode.OK:
            await context.abort(code, await call.details() or "", tuple(await call.trailing_metadata() or ()))

    async def _cancel(self, call: ExecuteTurnCall) -> None:
        await self.passage(CANCELLATION)
        call.cancel()

    async def _forward(
        self, turn: LinkedTurn, call: ExecuteTurnCall, requests: AsyncIterator[ExecuteTurnRequest], context: Context
    ) -> None:
        """Forwards both ways until the runner's end is over, or the call is to break."""

        async def to_dispatcher(response: ExecuteTurnResponse) -> None:
            if not turn.cancellations:
                await context.write(response)

        up = asyncio.create_task(self._up(turn, call, requests))
        down = asyncio.create_task(self._down(turn, call, to_dispatcher))
        broken = asyncio.create_task(turn.broken.wait())
        try:
            await asyncio.wait({down, broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            for task in (up, down, broken):
                task.cancel()
            await asyncio.gather(up, down, broken, return_exceptions=True)
            turn.statuses.append(await call.code())

    async def _up(self, turn: LinkedTurn, call: ExecuteTurnCall, requests: AsyncIterator[ExecuteTurnRequest]) -> None:
        async with _Lanes[ExecuteTurnRequest](self.passage, call.write) as lanes:
            async for request in requests:
                kind = str(request.WhichOneof("body"))
                turn.requests[kind].append(request)
                lanes.put(kind, request)
            await lanes.drained()
            await self.passage(CANCELLATION)  # a cancelled call also looks as if it were half-closed
            await call.done_writing()

    async def _down(
        self, turn: LinkedTurn, call: ExecuteTurnCall, send: Callable[[ExecuteTurnResponse], Awaitable[None]]
    ) -> None:
        async with _Lanes[ExecuteTurnResponse](self.passage, send) as lanes:
            async for response in call:
                if response.event.HasField("lease_probe"):
                    turn.probes.append(response.event.lease_probe.probe)
                    lanes.put("lease_probe", response)
                else:
                    turn.events.append(response.event)
                    lanes.put(EVENTS, response)
            await lanes.drained()

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Lanes(AbstractAsyncContextManager["_Lanes[MessageT]"], Generic[MessageT]):
    """One direction of a call: a queue per lane, and a task per queue that waits for its passage."""

    def __init__(self, passage: Callable[[str], Awaitable[None]], send: Callable[[MessageT], Awaitable[None]]) -> None:
        self._passage, self._send = passage, send
        self._sending = asyncio.Lock()  # one message at a time leaves on a stream
        self._queues: dict[str, asyncio.Queue[MessageT]] = {}
        self._pumps: list[asyncio.Task[None]] = []

    async def __aexit__(self, *_: object) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def put(self, lane: str, message: MessageT) -> None:
        """Sends the message when its lane lets it through."""
        if lane not in self._queues:
            self._queues[lane] = asyncio.Queue()
            self._pumps.append(asyncio.create_task(self._pump(lane)))
        self._queues[lane].put_nowait(message)

    async def drained(self) -> None:
        """Returns when everything so far is sent."""
        for queue in self._queues.values():
            await queue.join()

    async def _pump(self, lane: str) -> None:
        queue = self._queues[lane]
        while True:
            message = await queue.get()
            await self._passage(lane)
            async with self._sending:
                await self._send(message)
            queue.task_done()
