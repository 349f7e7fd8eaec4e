"""Watching: what is committed, whole, once, in order."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from sqlalchemy import Connection
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent, TextDelta
from turnkeeper.v1.run_service_pb2 import WatchRunRequest

from session_service.events import watch as watching
from session_service.events.bodies import text_delta
from session_service.events.store import read_after
from session_service.runs.model import RunKey, RunState
from session_service.runs.store import advance
from tests.far import model
from tests.fixtures.journeys import (
    ended,
    follow,
    get,
    messages,
    new_session,
    refused,
    scripted,
    start,
    states,
    text_of,
    until,
)
from tests.fixtures.pair import Pair

KINDS_OF_A_TOOL_TURN = [
    "state_changed",
    "state_changed",
    "text_delta",
    "tool_call_started",
    "tool_call_finished",
    "text_delta",
    "usage_reported",
    "message_completed",
    "message_completed",
    "message_completed",
    "state_changed",
]


@pytest.mark.spec("5.1", "5.2")
async def test_the_log_of_a_turn_with_a_tool(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    tool = {"name": "look", "http": {"method": "POST", "url": pair.tools.url("/look")}}
    config = scripted(
        {"text": "Let me see. "},
        {"tool_calls": [{"name": "look", "arguments": {"at": "it"}}]},
        {"text": "There."},
        {"usage": {"input_tokens": 3, "output_tokens": 4}},
        tools=[tool],
    )

    run = await start(ada, session_id, config_json=config)
    events = await follow(ada, run.run_id)

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.WhichOneof("body") for event in events] == KINDS_OF_A_TOOL_TURN
    assert [(event.attempt, event.turn) for event in events] == [(0, 0)] + [(1, 1)] * (len(events) - 1)
    assert {event.run_id for event in events} == {run.run_id}
    times = [event.create_time.ToMicroseconds() for event in events]
    assert times == sorted(times)
    assert times[0] < times[-1]
    completed = [event.message_completed.message.text for event in events if event.HasField("message_completed")]
    assert completed == ["Let me see. ", '{"at":"it"}', "There."]
    done = await get(ada, run.run_id)
    assert (done.last_sequence, done.usage.input_tokens, done.usage.output_tokens) == (len(events), 3, 4)


@pytest.mark.spec("5.3")
async def test_a_finished_run_is_replayed_after_a_restart(pair: Pair) -> None:
    ada = pair.client()
    run = await ended(ada, (await start(ada, await new_session(ada), {"text": "a"}, {"text": "b"})).run_id)
    whole = await follow(ada, run.run_id)
    last = run.last_sequence
    await pair.stop_session()
    await pair.start_session()

    assert await follow(ada, run.run_id) == whole
    assert await follow(ada, run.run_id, last - 1) == whole[-1:]
    assert await follow(ada, run.run_id, last) == []
    with refused("CURSOR_AHEAD") as refusal:
        await follow(ada, run.run_id, last + 5)
    assert refusal.code is grpc.StatusCode.OUT_OF_RANGE
    assert refusal.detail.metadata["last_sequence"] == str(last)
    with refused("INVALID_FIELD"):
        await follow(ada, run.run_id, -1)


@pytest.mark.spec("5.3")
async def test_what_commits_between_backlog_and_registration_comes_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": "hold"}, {"text": "b"})
    await pair.gates.reached("hold")
    await until(ada, run.run_id, "text_delta")
    storage = pair.session.storage
    read, finished = storage.read, asyncio.Event()

    async def read_then_let_the_run_end(tenant: str, query: Any) -> Any:
        """The watcher's first read; the rest of the run commits before the watcher goes on."""
        page: Any = await read(tenant, query)
        if not finished.is_set():
            finished.set()
            pair.gates.open("hold")
            monkeypatch.setattr(storage, "read", read)
            await ended(ada, run.run_id)
        return page

    monkeypatch.setattr(storage, "read", read_then_let_the_run_end)
    events = await follow(ada, run.run_id)

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert text_of(events) == "ab"
    assert states(events)[-1] == "COMPLETED"


@pytest.mark.spec("5.1")
async def test_losing_every_hint_delays_and_loses_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.session.storage.hints, "wake", lambda topics: None)
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.05)
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": "hold"}, {"text": "b"})
    follower = asyncio.create_task(follow(ada, run.run_id))
    await pair.gates.reached("hold")
    pair.gates.open("hold")

    events = await follower

    assert text_of(events) == "ab"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


@pytest.mark.spec("5.3")
async def test_a_watch_ends_with_the_terminal_event_and_never_short(pair: Pair) -> None:
    ada = pair.client()
    run = await ended(ada, (await start(ada, await new_session(ada), *({"text": "x"} for _ in range(3)))).run_id)
    pages = watching.PAGE
    try:
        watching.PAGE = 1
        events = await follow(ada, run.run_id)
    finally:
        watching.PAGE = pages

    assert events[-1].state_changed.state == run_pb2.RUN_STATE_COMPLETED
    assert len(events) == run.last_sequence


@pytest.mark.spec("5.4")
async def test_idle_watchers_hold_no_connection_and_a_slow_one_hurts_nobody(pair: Pair) -> None:
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": "hold"}, {"text": "b"})
    await pair.gates.reached("hold")
    idle = [asyncio.create_task(follow(ada, run.run_id)) for _ in range(20)]
    deaf = ada.runs.WatchRun(WatchRunRequest(run_id=run.run_id))  # never reads
    await asyncio.gather(*(until(ada, run.run_id, "text_delta") for _ in range(20)))

    answers = await asyncio.gather(*(get(ada, run.run_id) for _ in range(50)))

    assert {answer.state for answer in answers} == {run_pb2.RUN_STATE_RUNNING}
    pair.gates.open("hold")
    assert {text_of(events) for events in await asyncio.gather(*idle)} == {"ab"}
    assert text_of([response.event async for response in deaf]) == "ab"  # when it reads, it has lost nothing


@pytest.mark.spec("5.5")
async def test_merged_deltas_are_the_same_text(pair: Pair) -> None:
    ada = pair.client()
    pieces = [f"{number} " for number in range(200)]
    pair.model.queue(model.text(*pieces))
    config = '{"schema_version":1,"harness":"openai","model":{"name":"m"}}'

    events = await follow(ada, (await start(ada, await new_session(ada), config_json=config)).run_id)

    deltas = [event for event in events if event.HasField("text_delta")]
    assert text_of(events) == "".join(pieces)
    assert len(deltas) < len(pieces)
    assert max(len(event.text_delta.text) for event in deltas) <= 4096


@pytest.mark.spec("5.2")
async def test_nothing_follows_the_terminal_event(pair: Pair) -> None:
    """The guard is in the statement: an advance of an ended run touches no row."""

    ada = pair.client()
    run = await ended(ada, (await start(ada, await new_session(ada))).run_id)
    late = [text_delta(TextDelta(text="late", step=1))]

    row = await pair.session.storage.write(
        "acme",
        lambda connection: advance(
            connection, RunKey("acme", run.run_id), late, expected=(RunState.RUNNING, RunState.CANCELLING), attempt=1
        ),
    )

    assert row is None
    assert (await get(ada, run.run_id)).last_sequence == run.last_sequence


@pytest.mark.spec("5.6")
async def test_an_event_over_the_limit_is_cut_and_the_run_goes_on(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    long = "\u00fc\U0001f600" * 30_000  # 180,000 bytes, and no limit falls between two code points
    run = await start(ada, session_id, {"text": long})

    events = await follow(ada, run.run_id)

    assert states(events)[-1] == "COMPLETED"
    assert text_of(events) == long
    told = next(event.message_completed for event in events if event.HasField("message_completed"))
    assert told.original_bytes == len(long.encode())
    assert len(told.message.text.encode()) <= 64 * 1024
    shown = told.message.text.removesuffix("\u2026 [cut]")
    assert shown != told.message.text
    assert long.startswith(shown)
    assert (await messages(ada, session_id))[-1].text == long


@pytest.mark.spec("5.6", "2.7")
async def test_a_message_of_many_large_calls_fits_into_every_answer(pair: Pair) -> None:
    """Forty calls of 100 kB each: more than a client's default limit takes in one answer."""
    ada = pair.client()
    session_id = await new_session(ada)
    arguments = json.dumps({"text": "x" * 100_000})
    asked = [model.Call("nothing", arguments, f"call-{number}") for number in range(40)]
    pair.model.queue(model.tool_calls(*asked))
    pair.model.queue(model.text("Done."))
    config = '{"schema_version":1,"harness":"openai","model":{"name":"m"}}'

    events = await follow(ada, (await start(ada, session_id, config_json=config)).run_id)

    assert states(events)[-1] == "COMPLETED"
    _, asking, *_ = await messages(ada, session_id)
    assert len(asking.tool_calls) == 40
    assert all("truncated_arguments" in json.loads(call.arguments_json) for call in asking.tool_calls)
    assert sum(len(call.arguments_json) for call in asking.tool_calls) <= 1024 * 1024
    pair.model.queue(model.text("Again."))
    await ended(ada, (await start(ada, session_id, config_json=config)).run_id)  # the next prompt can be read


@pytest.mark.spec("5.4")
async def test_a_page_of_a_watch_is_bounded_in_bytes(pair: Pair) -> None:
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "y" * 900_000})
    run = await ended(ada, run.run_id)
    key = RunKey("acme", run.run_id)

    def pages(connection: Connection) -> list[int]:
        sizes, cursor = [], 0
        while page := read_after(connection, key, cursor, watching.PAGE, watching.PAGE_BYTES):
            sizes.append(sum(event.ByteSize() for event in page))
            cursor = page[-1].sequence
        assert cursor == run.last_sequence
        return sizes

    sizes = await pair.session.storage.read("acme", pages)

    assert max(sizes) <= watching.PAGE_BYTES + 10_000  # the ids and times that each event is given
    assert len(sizes) > 3


@pytest.mark.spec("5.4")
async def test_a_watcher_that_does_not_read_holds_a_few_events_at_most(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []

    def counted(*asked: Any) -> Sequence[RunEvent]:
        found = read_after(*asked)
        pages.append(len(found))
        return found

    monkeypatch.setattr(watching, "read_after", counted)
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": "hold"})
    await until(ada, run.run_id, "text_delta")
    much = [text_delta(TextDelta(text="y" * 16_384, step=1))] * 400
    key, live = RunKey("acme", run.run_id), (RunState.RUNNING,)
    await pair.session.storage.write("acme", lambda c: advance(c, key, much, expected=live, attempt=1))
    pair.gates.open("hold")
    pages.clear()
    deaf = ada.runs.WatchRun(WatchRunRequest(run_id=run.run_id))  # never reads
    events = await follow(ada, run.run_id)  # nor does it hold this one up
    assert len(events) > 400
    assert max(pages) <= 100
    assert sum(pages) < 2 * len(events)  # what the other has not read was not even fetched
    deaf.cancel()
