"""Takes a turn's events, from its stream or from the report of its stop, and decides from the row (SPEC 4.5, 5.2)."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from sqlalchemy import Connection, select, update
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.turn_event_pb2 import TurnEnded, TurnEvent
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import invalid

from session_service.events import bodies
from session_service.runs import ending
from session_service.runs.model import AnyRow, Failure, FailureReason, RunKey, RunState, ToolCallState
from session_service.runs.states import TERMINAL
from session_service.runs.store import advance, lock
from session_service.storage.clock import Now, microseconds
from session_service.storage.schema import attempts, runs
from session_service.storage.write import Storage
from session_service.turns import calls
from session_service.turns.hold import hold_any

TAKES_EVENTS = (RunState.RUNNING, RunState.CANCELLING)
FIRST_BACKOFF = microseconds(0.25)
LONGEST_BACKOFF = microseconds(15)


class Taken(Enum):
    """What became of a batch of turn events."""

    STORED = auto()
    ENDED = auto()
    """Stored, and the run has left the attempt's hands."""
    FENCED = auto()
    """Nothing was touched: the attempt is not the run's current one, or the run has ended."""


def take_events(connection: Connection, key: RunKey, attempt: int, events: Sequence[TurnEvent]) -> Taken:
    """Stores what the stream of an attempt brought; a turn_ended in it ends the run."""
    ended = _ended(events)
    run = lock(connection, key, with_session=ended is not None)
    if run is None or run.attempt != attempt or RunState(run.state) not in TAKES_EVENTS:
        return Taken.FENCED
    run = _store(connection, run, events)
    if ended is None:
        return Taken.STORED
    _settle(connection, run, ended)
    return Taken.ENDED


async def report_stopped(
    storage: Storage,
    context: RequestContext,
    events: Sequence[TurnEvent],
    stopped_calls: Mapping[str, ToolCallState],
) -> None:
    """The report of the token's attempt that nothing of it runs any more; NOT_FOUND once the run's rows are gone."""
    numbers = [event.number for event in events]
    if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 1):
        raise invalid("events", "must be in the order of their numbers, each once")

    def change(connection: Connection) -> None:
        run = hold_any(connection, context, with_session=True)
        _take_report(connection, run, context.require_run().attempt, events, stopped_calls)

    await storage.write(context.tenant_id, change)


def _take_report(
    connection: Connection,
    run: AnyRow,
    attempt: int,
    events: Sequence[TurnEvent],
    stopped_calls: Mapping[str, ToolCallState],
) -> None:
    """Takes an attempt's report that nothing of it runs any more. The run and its session are locked.

    For an older attempt, or after the end, it completes records and changes no state, but `confirmed` may become true.
    """
    key = RunKey(run.tenant_id, run.run_id)
    connection.execute(
        update(attempts)
        .where(
            attempts.c.tenant_id == key.tenant_id,
            attempts.c.run_id == key.run_id,
            attempts.c.attempt == attempt,
            attempts.c.stop_time.is_(None),
        )
        .values(stop_time=Now())
    )
    closed = [
        bodies.tool_call_finished(call_id, call.tool_name, state, "")
        for call_id, state in stopped_calls.items()
        if (call := calls.finish(connection, key, call_id, state, None)) is not None
    ]
    if run.attempt != attempt:
        return
    if RunState(run.state) in TERMINAL:
        _confirm(connection, run)
    elif RunState(run.state) in TAKES_EVENTS:
        run = _store(connection, run, events, closed)
        _settle(connection, run, _ended(events))


def give_up(connection: Connection, key: RunKey, attempt: int, *, refused: bool) -> None:
    """Hands back an attempt whose call broke before its turn began; else its report or its lease decides.

    A turn that the runner `refused` as invalid fails, since no other attempt would fare better.
    """
    run = lock(connection, key, with_session=True)
    if run is None or run.attempt != attempt or run.state != RunState.RUNNING or _begun(connection, run):
        return
    if refused:
        ending.fail(connection, run, Failure(FailureReason.HARNESS_ERROR, "the runner refused the turn as invalid"))
    else:
        settle_lost(connection, run)


def settle_lost(connection: Connection, run: AnyRow) -> None:
    """Ends a (locked) RUNNING attempt that will say nothing more: by its deadline, as lost, or back to the queue."""
    now: int = connection.execute(select(Now())).scalar_one()
    begun = _begun(connection, run)
    if run.deadline <= now and not begun:
        ending.fail(connection, run, DISPATCH_FAILED)
    elif run.deadline <= now:
        ending.fail(connection, run, DEADLINE_EXCEEDED)
    elif run.call_deadline <= now:
        ending.fail(connection, run, Failure(FailureReason.TURN_TIMEOUT, "the turn took longer than its limit"))
    elif begun:
        ending.fail(connection, run, ending.attempt_lost(connection, run))
    else:
        ending.requeue(connection, run, min(FIRST_BACKOFF * 2 ** min(run.attempt - 1, 10), LONGEST_BACKOFF))


DEADLINE_EXCEEDED = Failure(FailureReason.DEADLINE_EXCEEDED, "the run's deadline passed")
DISPATCH_FAILED = Failure(FailureReason.DISPATCH_FAILED, "no runner had accepted the run when its deadline passed")


def _settle(connection: Connection, run: AnyRow, ended: TurnEnded | None) -> None:
    """The attempt has stopped; `ended` says how its turn ended, if it did."""
    if run.state == RunState.CANCELLING:
        ending.cancelled(connection, run, confirmed=True)
    elif ended is None:
        settle_lost(connection, run)
    elif ended.WhichOneof("outcome") == "completed":
        ending.complete(connection, run)
    else:
        ending.fail(connection, run, bodies.failure_of(ended.failed))


def _store(connection: Connection, run: AnyRow, events: Sequence[TurnEvent], closed: Sequence[RunEvent] = ()) -> AnyRow:
    """Stores the events that are not stored yet, by their numbers, and answers the run's row."""
    mine = (
        attempts.c.tenant_id == run.tenant_id,
        attempts.c.run_id == run.run_id,
        attempts.c.attempt == run.attempt,
    )
    stored = connection.execute(select(attempts.c.stored_number).where(*mine)).scalar_one()
    fresh = [event for event in events if event.number > stored]
    if fresh:
        connection.execute(update(attempts).where(*mine).values(stored_number=fresh[-1].number))
    told = [body for event in fresh if (body := _body(event)) is not None]
    usage = [event.usage_reported.usage for event in fresh if event.WhichOneof("body") == "usage_reported"]
    values = {
        "input_tokens": runs.c.input_tokens + sum(each.input_tokens for each in usage),
        "output_tokens": runs.c.output_tokens + sum(each.output_tokens for each in usage),
    }
    key, state = RunKey(run.tenant_id, run.run_id), RunState(run.state)
    row = advance(
        connection, key, [*told, *closed], expected=(state,), attempt=run.attempt, values=values if usage else None
    )
    if row is None:
        raise RuntimeError("a locked run has changed")
    return row


def _body(event: TurnEvent) -> RunEvent | None:
    """The event as the log keeps it; None for what the log tells otherwise."""
    match event.WhichOneof("body"):
        case "text_delta":
            return bodies.text_delta(event.text_delta)
        case "reasoning_delta":
            return bodies.reasoning_delta(event.reasoning_delta)
        case "usage_reported":
            return RunEvent(usage_reported=event.usage_reported)
        case _:
            return None


def _ended(events: Sequence[TurnEvent]) -> TurnEnded | None:
    return next((event.turn_ended for event in events if event.WhichOneof("body") == "turn_ended"), None)


def _begun(connection: Connection, run: AnyRow) -> bool:
    begin_time = connection.execute(
        select(attempts.c.begin_time).where(
            attempts.c.tenant_id == run.tenant_id,
            attempts.c.run_id == run.run_id,
            attempts.c.attempt == run.attempt,
        )
    ).scalar_one()
    return begin_time is not None


def _confirm(connection: Connection, run: AnyRow) -> None:
    connection.execute(
        update(runs)
        .where(
            runs.c.tenant_id == run.tenant_id,
            runs.c.run_id == run.run_id,
            runs.c.state == RunState.CANCELLED,
            runs.c.attempt == run.attempt,
        )
        .values(cancel_confirmed=True)
    )
