"""The transition that ends a turn: closes its open calls and stores its messages, from rows alone (SPEC 2.7, 3.5)."""

import itertools
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.text import cut

from session_service.events import bodies
from session_service.events.store import read_texts
from session_service.runs.model import AnyRow, Failure, FailureReason, RunKey, RunState, ToolCallState
from session_service.runs.store import transition
from session_service.sessions.model import MessageDraft, MessageRole, MessageStatus, ToolCallAsked
from session_service.sessions.rpc import message_proto
from session_service.sessions.store import add_messages
from session_service.storage.clock import Now
from session_service.turns import calls

INTERRUPTED = "interrupted"
MESSAGE_LIMIT = 1024 * 1024


def complete(connection: Connection, run: AnyRow) -> AnyRow:
    """RUNNING → COMPLETED. The run and its session are locked, here and below."""
    return _end(connection, run, RunState.COMPLETED)


def fail(connection: Connection, run: AnyRow, failure: Failure) -> AnyRow:
    """→ FAILED."""
    values = {"failure_reason": failure.reason, "failure_message": failure.message}
    return _end(connection, run, RunState.FAILED, values)


def cancelled(connection: Connection, run: AnyRow, *, confirmed: bool) -> AnyRow:
    """CANCELLING → CANCELLED; `confirmed` when the runner said that nothing runs any more."""
    return _end(connection, run, RunState.CANCELLED, {"cancel_confirmed": confirmed})


def requeue(connection: Connection, run: AnyRow, delay: int) -> AnyRow:
    """RUNNING → QUEUED, keeping its place; not claimable for `delay` microseconds."""
    values = {"available_time": Now() + delay, "lease_owner": None, "lease_expire_time": None, "call_deadline": None}
    return _moved(connection, run, RunState.QUEUED, values, ())


def attempt_lost(connection: Connection, run: AnyRow) -> Failure:
    """The failure of a lost attempt, saying which calls finished, were not made, or are unknown."""
    told: dict[str, list[str]] = {"finished": [], "not made": [], "unknown": []}
    words = {ToolCallState.SUCCEEDED: "finished", ToolCallState.FAILED: "finished", ToolCallState.NOT_MADE: "not made"}
    for call in calls.of_turn(connection, run):
        told[words.get(ToolCallState(call.state), "unknown")].append(f"{call.tool_name} ({call.call_id})")
    parts = [f"{word}: {', '.join(names)}" for word, names in told.items() if names]
    message = "the attempt was lost after its harness had started; tool calls " + ("; ".join(parts) or "none")
    return Failure(FailureReason.ATTEMPT_LOST, cut(message, 1000)[0])


def _end(connection: Connection, run: AnyRow, to: RunState, values: Mapping[str, Any] | None = None) -> AnyRow:
    if run.attempt == 0:  # never claimed: there is no turn to end
        return _moved(connection, run, to, values or {}, ())
    closed = calls.close_open(connection, run)
    complete_turn = to is RunState.COMPLETED
    drafts = _drafts(run, read_texts(connection, run), calls.of_turn(connection, run), complete_turn)
    stored = add_messages(connection, run.tenant_id, run.session_id, drafts) if drafts else []
    events = [*closed, *(bodies.message_completed(message_proto(message)) for message in stored)]
    return _moved(connection, run, to, values or {}, events)


def _moved(
    connection: Connection, run: AnyRow, to: RunState, values: Mapping[str, Any], events: Sequence[RunEvent]
) -> AnyRow:
    key, state = RunKey(run.tenant_id, run.run_id), RunState(run.state)
    row = transition(connection, key, to, expected=state, attempt=run.attempt, values=values, events=events)
    if row is None:
        raise RuntimeError("a locked run has changed")
    return row


def _drafts(
    run: AnyRow, texts: Sequence[tuple[int, str]], made: Sequence[AnyRow], complete_turn: bool
) -> list[MessageDraft]:
    """The turn's messages, step by step: what the assistant said and asked for, then the results."""
    by_step = itertools.groupby(sorted(texts, key=itemgetter(0)), itemgetter(0))
    text_of = {step: "".join(text for _, text in group) for step, group in by_step}
    calls_of = {step: list(group) for step, group in itertools.groupby(made, attrgetter("step"))}
    status = MessageStatus.COMPLETE if complete_turn else MessageStatus.INCOMPLETE
    drafts: list[MessageDraft] = []
    for step in sorted({*text_of, *calls_of}):
        step_calls = calls_of.get(step, [])
        asked = tuple(
            ToolCallAsked(c.call_id, c.tool_name, arguments)
            for c, arguments in zip(step_calls, _bounded([c.arguments_json for c in step_calls]), strict=True)
        )
        text = cut(text_of.get(step, ""), MESSAGE_LIMIT)[0]
        drafts.append(
            MessageDraft(run_id=run.run_id, role=MessageRole.ASSISTANT, text=text, tool_calls=asked, status=status)
        )
        drafts.extend(
            MessageDraft(
                run_id=run.run_id,
                role=MessageRole.TOOL,
                text=INTERRUPTED if call.result is None else call.result,
                tool_call_id=call.call_id,
                status=status,
            )
            for call in step_calls
        )
    return drafts


def _bounded(arguments: Sequence[str]) -> list[str]:
    """The arguments of one message, which must fit into one response: when they are too much, each has its share."""
    if sum(len(each.encode()) for each in arguments) <= MESSAGE_LIMIT:
        return list(arguments)
    share = MESSAGE_LIMIT // len(arguments)
    return [
        each
        if len(each.encode()) <= share
        else json.dumps({"truncated_arguments": cut(each, share // 2)[0]}, ensure_ascii=False)
        for each in arguments
    ]
