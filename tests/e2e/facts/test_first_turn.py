"""Which turn of a session is the first (SPEC 6.3), and what a direct turn leaves behind (SPEC 9.7)."""

import asyncio
import json

import grpc
import pytest
from sqlalchemy import Connection, insert, select, update
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.v1.run_service_pb2 import ListRunsRequest
from turnkeeper.v1.session_service_pb2 import AppendMessageRequest, GetSessionRequest
from turnkeeper.v1.turn_service_pb2 import BeginTurnRequest, ResolveTurnContextRequest

from session_service.storage.schema import attempts, runs
from tests.e2e.facts import talk
from tests.e2e.facts.talk import FIRST, LATER, NO_NAME, direct_turn, turn
from tests.far import model
from tests.far.gates import Gate
from tests.fixtures.journeys import ended, messages, new_session, refused, start, texts
from tests.fixtures.pair import Pair, StartPair

IN_PROGRESS = 5


@pytest.mark.spec("6.3")
async def test_a_runs_own_attempts_do_not_count(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    gate = Gate()
    pair.model.queue(model.text("I begin"), model.hold(gate))
    run = await start(ada, session_id, config_json=talk.config())
    await gate.reached()
    assert talk.lines(pair.model.prompts[0]) == [NO_NAME, FIRST]

    def lose_the_attempt(connection: Connection) -> None:
        lost = (attempts.c.tenant_id == "acme", attempts.c.run_id == run.run_id)
        kept = connection.execute(select(attempts).where(*lost)).mappings().one()
        connection.execute(insert(attempts).values({**kept, "attempt": 2, "begin_time": None}))
        connection.execute(update(runs).where(runs.c.run_id == run.run_id).values(attempt=2))

    await pair.session.storage.write("acme", lose_the_attempt)
    second = await pair.runner_of(run, attempt=2)
    for _ in range(2):  # a repeated BeginTurn, whose first answer was lost, numbers no other turn either
        assert (await second.turns.BeginTurn(BeginTurnRequest(harness="openai"))).turn_number == 1
        answer = await second.turns.ResolveTurnContext(ResolveTurnContextRequest())
        assert answer.facts.session.known.first_turn
    gate.open()


@pytest.mark.spec("6.3", "9.1")
async def test_a_run_that_failed_before_its_harness_started_does_not_count(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    nobody = json.dumps({"schema_version": 1, "harness": "nobody"})
    failed = await ended(ada, (await start(ada, session_id, config_json=nobody)).run_id)
    assert failed.failure.reason == run_pb2.FAILURE_REASON_HARNESS_UNKNOWN
    assert await turn(pair, ada, session_id) == [NO_NAME, FIRST]


@pytest.mark.spec("6.3", "3.4")
async def test_a_run_that_failed_after_its_harness_started_counts(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    pair.model.queue(model.error(400))
    failed = await ended(ada, (await start(ada, session_id, config_json=talk.config())).run_id)
    assert failed.state == run_pb2.RUN_STATE_FAILED
    assert await turn(pair, ada, session_id) == [NO_NAME, LATER]


@pytest.mark.spec("6.3", "9.7")
async def test_direct_turns_count_wherever_they_stand(pair: Pair) -> None:
    ada = pair.client()
    before, after = await new_session(ada), await new_session(ada)
    assert await direct_turn(pair, ada, session_id=before) == [NO_NAME, FIRST]
    assert await turn(pair, ada, before) == [NO_NAME, LATER]
    assert await turn(pair, ada, after) == [NO_NAME, FIRST]
    assert await direct_turn(pair, ada, session_id=after) == [NO_NAME, LATER]
    # Without a session there is nothing to be later than.
    assert [await direct_turn(pair, ada) for _ in range(2)] == [[NO_NAME, FIRST]] * 2


@pytest.mark.spec("6.3")
async def test_of_turns_that_begin_at_once_exactly_one_is_the_first(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    gate = Gate()
    for _ in range(IN_PROGRESS + 1):
        pair.model.queue(model.text("Good "), model.hold(gate), model.text("day."))
    turns = [asyncio.create_task(talk.direct(ada, session_id=session_id)) for _ in range(IN_PROGRESS)]
    run = await start(ada, session_id, config_json=talk.config())
    await gate.reached(IN_PROGRESS + 1)
    gate.open()
    assert all(events[-1].turn_ended.HasField("completed") for events in await asyncio.gather(*turns))
    assert (await ended(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    told = sorted(talk.lines(prompt)[-1] for prompt in pair.model.prompts)
    assert told == sorted([FIRST, *[LATER] * IN_PROGRESS])


@pytest.mark.spec("6.3")
async def test_of_two_sessions_each_has_its_own_first_turn(pair: Pair) -> None:
    ada = pair.client()
    for session_id in (await new_session(ada), await new_session(ada)):
        assert await turn(pair, ada, session_id) == [NO_NAME, FIRST]


@pytest.mark.spec("9.7")
async def test_a_direct_turn_has_its_input_alone_and_leaves_nothing_but_its_number(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    appended = AppendMessageRequest(session_id=session_id, role=session_pb2.MESSAGE_ROLE_USER, text="Earlier")
    await ada.sessions.AppendMessage(appended)
    tool = {
        "name": "note",
        "http": {"method": "POST", "url": pair.tools.url("/note")},
        "bindings": {"session": "$ctx.session.id", "user": "$ctx.user.id", "tenant": "$ctx.tenant.id"},
    }
    pair.model.queue(model.tool_calls(model.Call("note", {"session": "forged", "said": 1})))
    await direct_turn(pair, ada, session_id=session_id, input="Now", config_json=talk.config(tool))

    assert pair.model.prompts[0].texts("user") == ["Now"]
    assert pair.tools.requests[0].json() == {"session": session_id, "user": "ada", "tenant": "acme", "said": 1}
    assert texts(await messages(ada, session_id)) == ["Earlier"]
    assert list((await ada.runs.ListRuns(ListRunsRequest(session_id=session_id))).runs) == []
    found = (await ada.sessions.GetSession(GetSessionRequest(session_id=session_id))).session
    assert found.lifecycle == session_pb2.SESSION_LIFECYCLE_PROVISIONAL
    assert await turn(pair, ada, session_id) == [NO_NAME, LATER]
    assert pair.model.prompts[-1].texts("user") == ["Earlier", "Hello"]


@pytest.mark.spec("9.7", "1.7", "1.2")
async def test_a_direct_turn_needs_the_session_and_the_scope(pair: Pair) -> None:
    ada, bob = pair.client(), pair.client(user="bob")
    session_id = await new_session(ada)
    for stranger in (bob, pair.client("umbrella")):
        with refused("RESOURCE_NOT_FOUND") as refusal:
            await talk.direct(stranger, session_id=session_id)
        assert refusal.code is grpc.StatusCode.NOT_FOUND
    with refused("SCOPE_MISSING"):
        await talk.direct(pair.client(scopes=["sessions:read", "sessions:write"]), session_id=session_id)
    assert len(pair.model.prompts) == 0
    assert await direct_turn(pair, ada, session_id=session_id) == [NO_NAME, FIRST]


@pytest.mark.spec("6.5", "6.6", "4.10")
async def test_facts_that_do_not_come_in_time_cost_a_turn_its_lines_alone(start_pair: StartPair) -> None:
    # So small a budget that no read is in time.
    async with start_pair(runner={"facts_budget": "0.000001"}) as pair:
        ada = pair.client()
        session_id = await new_session(ada, "Blue")
        assert await turn(pair, ada, session_id) == []
        assert await direct_turn(pair, ada, session_id=session_id) == []


@pytest.mark.spec("6.3")
async def test_the_first_turn_of_a_run_stays_the_first_whatever_begins_after_it(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")
    assert await direct_turn(pair, ada, session_id=session_id) == [NO_NAME, LATER]
    answer = await (await pair.runner_of(run)).turns.ResolveTurnContext(ResolveTurnContextRequest())
    assert answer.facts.session.known.first_turn
    pair.gates.open("hold")
    await ended(ada, run.run_id)


@pytest.mark.spec("6.3")
async def test_a_turn_that_has_not_begun_comes_after_those_that_have(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")
    behind = await start(ada, session_id)
    answer = await (await pair.runner_of(behind, attempt=1)).turns.ResolveTurnContext(ResolveTurnContextRequest())
    assert not answer.facts.session.known.first_turn
    pair.gates.open("hold")
    await ended(ada, behind.run_id)
