"""RunService: translates; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.v1 import reference_pb2, run_pb2, run_service_pb2
from turnkeeper.v1.run_service_pb2 import (
    CancelRunRequest,
    CancelRunResponse,
    GetRunRequest,
    GetRunResponse,
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
    WatchRunRequest,
    WatchRunResponse,
)
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import FieldViolation, Refused

from session_service.agents.rpc import reference_of
from session_service.events.bodies import cancel_proto, failure_proto
from session_service.events.watch import watch_run
from session_service.pages import PageTokens
from session_service.runs.cancelling import cancel_run
from session_service.runs.logic import get_run, list_runs
from session_service.runs.model import Run, RunFilter, RunLimits, StartOrder
from session_service.runs.start import start_run
from session_service.storage.write import Storage
from session_service.times import timestamp


class RunServicer:
    """Starts, reads, watches and cancels runs."""

    def __init__(self, storage: Storage, pages: PageTokens, limits: RunLimits, stopping: asyncio.Event) -> None:
        """Once `stopping` is set, new starts are refused."""
        self._storage, self._pages, self._limits, self._stopping = storage, pages, limits, stopping

    async def StartRun(self, request: StartRunRequest, call: Call) -> StartRunResponse:
        """SPEC 2.1-2.6, 11.4."""
        if self._stopping.is_set():
            raise Refused(reasons.ERROR_REASON_SHUTTING_DOWN)
        timeout = request.timeout.ToMicroseconds() if request.HasField("timeout") else self._limits.default_timeout
        order = StartOrder(
            session_id=request.session_id,
            idempotency_key=request.idempotency_key,
            input=request.input,
            references=[reference_of(reference) for reference in request.references],
            config_json=request.config_json or None,
            timeout=timeout,
            policy=_policy(request.concurrency_policy),
            labels=dict(request.labels),
        )
        run, created = await start_run(self._storage, call.context, order, self._limits.max_queued)
        return StartRunResponse(run=run_proto(run), created=created)

    async def GetRun(self, request: GetRunRequest, call: Call) -> GetRunResponse:
        """SPEC 1.7."""
        return GetRunResponse(run=run_proto(await get_run(self._storage, call.context, request.run_id)))

    async def ListRuns(self, request: ListRunsRequest, call: Call) -> ListRunsResponse:
        """SPEC 11.3."""
        chosen = RunFilter(
            session_id=request.session_id or None,
            states=[run_pb2.RunState.Name(state).removeprefix("RUN_STATE_") for state in request.states],
            labels=dict(request.labels),
            created_from=request.created_from.ToMicroseconds() if request.HasField("created_from") else None,
            created_before=request.created_before.ToMicroseconds() if request.HasField("created_before") else None,
        )
        page = self._pages.open(call.context, request, int, str)
        found = await list_runs(self._storage, call.context, chosen, page.after, page.limit + 1)
        shown, token = page.close(found, lambda run: (run.row.create_time, run.row.run_id))
        return ListRunsResponse(runs=map(run_proto, shown), next_page_token=token)

    async def WatchRun(self, request: WatchRunRequest, call: Call) -> AsyncIterator[WatchRunResponse]:
        """SPEC 5.3, 5.4."""
        async with aclosing(watch_run(self._storage, call.context, request.run_id, request.after_sequence)) as events:
            async for event in events:
                yield WatchRunResponse(event=event)

    async def CancelRun(self, request: CancelRunRequest, call: Call) -> CancelRunResponse:
        """SPEC 4.3."""
        if request.WhichOneof("name") != "run_id":
            later = FieldViolation("idempotency_key", "a cancel by key is not served yet")
            raise Refused(reasons.ERROR_REASON_UNIMPLEMENTED, fields=[later])
        run, outcome = await cancel_run(self._storage, call.context, request.run_id, request.reason)
        value = run_service_pb2.CancelOutcome.Value(f"CANCEL_OUTCOME_{outcome}")
        return CancelRunResponse(run=run_proto(run), outcome=value)


def run_proto(run: Run) -> run_pb2.Run:
    """A run as clients see it."""
    row = run.row
    return run_pb2.Run(
        run_id=row.run_id,
        session_id=row.session_id,
        state=run_pb2.RunState.Value(f"RUN_STATE_{row.state}"),
        attempt=row.attempt,
        turn=row.turn,
        idempotency_key=row.idempotency_key,
        target=reference_pb2.Target(
            agent_id=row.agent_id, variant_id=row.variant_id, revision_id=row.revision_id, version=row.version
        ),
        is_draft=row.is_draft,
        create_time=timestamp(row.create_time),
        start_time=timestamp(row.start_time),
        end_time=timestamp(row.end_time),
        deadline=timestamp(row.deadline),
        cancel=cancel_proto(row),
        failure=failure_proto(row),
        last_sequence=row.last_sequence,
        tool_calls=[
            run_pb2.ToolCallSummary(
                call_id=each.call_id,
                tool_name=each.tool_name,
                state=run_pb2.ToolCallState.Value(f"TOOL_CALL_STATE_{each.state}"),
                side_effect=each.side_effect,
            )
            for each in run.tool_calls
        ],
        usage=run_pb2.Usage(input_tokens=row.input_tokens, output_tokens=row.output_tokens),
        runner=row.runner or "",
        user_id=row.user_id,
        labels=run.labels,
    )


def _policy(policy: run_service_pb2.ConcurrencyPolicy.ValueType) -> str:
    name = run_service_pb2.ConcurrencyPolicy.Name(policy).removeprefix("CONCURRENCY_POLICY_")
    return "ENQUEUE" if name == "UNSPECIFIED" else name
