"""One click starts one run."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from turnkeeper.v1 import run_pb2, session_service_pb2
from turnkeeper.v1.agent_service_pb2 import CommitRevisionRequest
from turnkeeper.v1.reference_pb2 import REFERENCE_FAMILY_APPLICATION, REFERENCE_LEVEL_REVISION, REFERENCE_LEVEL_VARIANT
from turnkeeper.v1.run_service_pb2 import CONCURRENCY_POLICY_ENQUEUE, ListRunsRequest, StartRunRequest
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_USER

from session_service.dispatch.recovery import forget_keys
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    key,
    messages,
    new_agent,
    new_session,
    reference,
    refused,
    scripted,
    start,
    start_request,
    state_reached,
    texts,
)
from tests.fixtures.pair import Pair, StartPair


@pytest.mark.spec("2.1", "2.3")
async def test_fifty_clicks_at_once_start_one_run(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    request = start_request(session_id, {"wait_gate": "open"}, {"text": "once"})

    answers = await asyncio.gather(*(ada.runs.StartRun(request) for _ in range(50)))

    assert len({answer.run.run_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1
    await pair.gates.reached("open")
    pair.gates.open("open")
    events = await follow(ada, answers[0].run.run_id)
    assert pair.gates.arrivals("open") == 1
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert texts(await messages(ada, session_id)) == ["Hello", "once"]
    assert len((await ada.runs.ListRuns(ListRunsRequest())).runs) == 1


@pytest.mark.spec("2.1")
async def test_a_key_with_another_body_is_refused_while_the_first_is_in_flight(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    request = start_request(session_id, {"wait_gate": "hold"}, idempotency_key="click")
    run = (await ada.runs.StartRun(request)).run
    await pair.gates.reached("hold")

    for field, value in (("input", "Other"), ("config_json", scripted({"text": "other"}))):
        other = StartRunRequest()
        other.CopyFrom(request)
        setattr(other, field, value)
        with refused("IDEMPOTENCY_KEY_REUSED") as refusal:
            await ada.runs.StartRun(other)
        assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
        assert run.run_id not in str(refusal.detail)
    with refused("IDEMPOTENCY_KEY_REUSED"):  # nor for another user, nor for another session of the same one
        await pair.client(user="bob").runs.StartRun(request)
    with refused("IDEMPOTENCY_KEY_REUSED"):
        await ada.runs.StartRun(start_request(await new_session(ada), {"wait_gate": "hold"}, idempotency_key="click"))
    assert texts(await messages(ada, session_id)) == ["Hello"]


@pytest.mark.spec("2.1")
async def test_the_same_key_in_another_tenant_is_independent_and_two_keys_are_two_runs(pair: Pair) -> None:
    ada, eve = pair.client(), pair.client(tenant="rival")
    ours, theirs = await new_session(ada), await new_session(eve)

    first = await ada.runs.StartRun(start_request(ours, idempotency_key="click"))
    other = await eve.runs.StartRun(start_request(theirs, idempotency_key="click"))
    second = await ada.runs.StartRun(start_request(ours, idempotency_key="another"))

    assert (first.created, other.created, second.created) == (True, True, True)
    assert len({first.run.run_id, other.run.run_id, second.run.run_id}) == 3


@pytest.mark.spec("2.2")
async def test_what_is_equal_by_value_is_the_same_start(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    agent_id, _ = await new_agent(ada, scripted({"text": "stored"}))
    config = '{"schema_version":1,"harness":"scripted","inputs":{"a":1,"b":[true,10.0]},"script":[{"text":"x"}]}'
    same = '{"script":[{"text":"x"}],"inputs":{"b":[true,1e1],"a":1.0},"harness":"scripted","schema_version":1.0}'
    other = config.replace("[true,", "[1,")
    base = {"idempotency_key": "click", "references": [reference(agent_id)]}

    first = await ada.runs.StartRun(start_request(session_id, config_json=config, **base))
    base["references"] = [reference(f"{{{agent_id.upper()}}}")]
    again = start_request(session_id, config_json=same, **base)
    again.timeout.CopyFrom(Duration(seconds=5))
    again.labels["colour"] = "blue"
    again.concurrency_policy = CONCURRENCY_POLICY_ENQUEUE
    second = await ada.runs.StartRun(again)

    assert (second.created, second.run.run_id) == (False, first.run.run_id)
    assert not second.run.labels
    with refused("IDEMPOTENCY_KEY_REUSED"):  # a boolean equals no number
        await ada.runs.StartRun(start_request(session_id, config_json=other, **base))
    with refused("IDEMPOTENCY_KEY_REUSED"):  # what the slug means is not looked up
        by_slug = reference(agent_id)
        by_slug.slug = "some-slug"
        await ada.runs.StartRun(start_request(session_id, config_json=config, **{**base, "references": [by_slug]}))


@pytest.mark.spec("2.2", "2.5")
async def test_a_replay_is_answered_before_limits_and_validation(start_pair: StartPair) -> None:
    async with start_pair(session={"max_queued": 2}) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        first = start_request(session_id, {"wait_gate": "hold"})
        run = (await ada.runs.StartRun(first)).run
        await pair.gates.reached("hold")
        queued = [await start(ada, session_id) for _ in range(2)]

        with refused("QUEUE_FULL") as refusal:
            await start(ada, session_id)

        assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refusal.detail.retry_after
        replay = await ada.runs.StartRun(first)
        assert (replay.created, replay.run.run_id) == (False, run.run_id)
        assert len(await messages(ada, session_id)) == 1 + len(queued)
        await start(pair.client(tenant="rival"), await new_session(pair.client(tenant="rival")))  # its own limit


@pytest.mark.spec("2.3")
async def test_a_refused_start_leaves_nothing_and_does_not_burn_its_key(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    click = key()

    with refused("CONFIG_INVALID"):
        await start(ada, session_id, idempotency_key=click, config_json='{"schema_version":1}')

    assert not await messages(ada, session_id)
    assert not (await ada.runs.ListRuns(ListRunsRequest())).runs
    response = await ada.runs.StartRun(start_request(session_id, idempotency_key=click))
    assert response.created


@pytest.mark.spec("2.3")
async def test_a_retry_after_the_end_answers_the_run_and_after_deletion_not_found(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    request = start_request(session_id)
    run = (await ada.runs.StartRun(request)).run
    await follow(ada, run.run_id)

    again = await ada.runs.StartRun(request)

    assert (again.created, again.run.state) == (False, run_pb2.RUN_STATE_COMPLETED)
    await ada.sessions.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=session_id))
    with refused("RESOURCE_NOT_FOUND"):
        await ada.runs.StartRun(request)


@pytest.mark.spec("2.3")
async def test_keys_are_forgotten_unless_their_run_is_live(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    done, live = start_request(session_id), start_request(session_id, {"wait_gate": "hold"})
    ended_run = (await ada.runs.StartRun(done)).run
    await follow(ada, ended_run.run_id)
    live_run = (await ada.runs.StartRun(live)).run
    await pair.gates.reached("hold")

    await pair.session.storage.write("", lambda connection: forget_keys(connection, 0))

    assert (await ada.runs.StartRun(live)).run.run_id == live_run.run_id
    assert (await ada.runs.StartRun(done)).created


@pytest.mark.spec("2.5")
async def test_a_start_that_names_nothing_runnable_is_refused_and_stores_nothing(pair: Pair) -> None:
    ada, eve = pair.client(), pair.client(tenant="rival")
    session_id = await new_session(ada)
    ours, variant = await new_agent(ada, scripted({"text": "ours"}))
    theirs, _ = await new_agent(eve, scripted({"text": "theirs"}))
    empty, _ = await new_agent(ada)
    two = [
        reference(ours),
        reference((await new_agent(ada, scripted({"text": "b"})))[0], family=REFERENCE_FAMILY_APPLICATION),
    ]
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("RESOURCE_NOT_FOUND", {"references": [reference(theirs)]}),
        ("RESOURCE_NOT_FOUND", {"references": [reference("0b0e7a4e-9f0b-4d8e-8f6e-3a5d1c2b4f60")]}),
        ("RESOURCE_NOT_FOUND", {"references": [reference(empty)]}),
        ("REFERENCE_INCOHERENT", {"references": [reference(empty), reference(variant, REFERENCE_LEVEL_VARIANT)]}),
        ("AGENT_AMBIGUOUS", {"references": two}),
        ("AGENT_REQUIRED", {"config_json": ""}),
        ("CONFIG_INVALID", {"config_json": scripted({"text": 5})}),
        ("CONFIG_INVALID", {"config_json": "{"}),
    ]

    for reason, fields in refusals:
        with refused(reason):
            await start(ada, session_id, **fields)

    assert not await messages(ada, session_id)
    accepted = await start(ada, session_id, references=two, config_json=scripted({"text": "inline"}))
    assert not accepted.target.agent_id
    assert not accepted.is_draft


@pytest.mark.spec("2.6")
async def test_a_run_pins_one_coherent_target(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    config = scripted({"text": "first"})
    agent_id, variant_id = await new_agent(ada, config)
    await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")

    by_agent = await start(ada, session_id, references=[reference(agent_id)])
    revision_id = by_agent.target.revision_id
    exact = [
        reference(agent_id),
        reference(variant_id, REFERENCE_LEVEL_VARIANT),
        reference(revision_id, REFERENCE_LEVEL_REVISION),
    ]
    by_all = await start(ada, session_id, references=exact)
    equal = await start(
        ada, session_id, references=[reference(agent_id)], config_json=json.dumps(json.loads(config), indent=1)
    )
    draft = await start(ada, session_id, references=[reference(agent_id)], config_json=scripted({"text": "draft"}))
    await ada.agents.CommitRevision(
        CommitRevisionRequest(
            variant_id=variant_id, base_revision_id=revision_id, config_json=scripted({"text": "second"})
        )
    )

    assert (by_agent.target.agent_id, by_agent.target.variant_id, by_agent.target.version) == (
        agent_id,
        variant_id,
        "0",
    )
    assert by_all.target == by_agent.target
    assert (equal.target, equal.is_draft) == (by_agent.target, False)
    assert (draft.target.agent_id, draft.target.revision_id, draft.is_draft) == (agent_id, "", True)
    pair.gates.open("hold")
    for run, said in ((by_agent, "first"), (equal, "first"), (draft, "draft")):
        await follow(ada, run.run_id)
        assert said in texts(await messages(ada, session_id))
    assert (await ended(ada, by_all.run_id)).target == by_agent.target
    late = await start(ada, session_id, references=[reference(agent_id)])
    assert late.target.version == "1"


@pytest.mark.spec("2.7")
async def test_a_prompt_sees_what_came_before_its_claim_in_the_order_of_claims(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    append = session_service_pb2.AppendMessageRequest
    first = await start(ada, session_id, {"text": "answer one"}, {"wait_gate": "hold"}, input="one")
    await pair.gates.reached("hold")
    second = await start(ada, session_id, {"text": "answer two"}, input="two")
    dropped = await start(ada, session_id, {"text": "never"}, input="dropped")
    await ada.sessions.AppendMessage(append(session_id=session_id, role=MESSAGE_ROLE_USER, text="appended"))
    await cancel(ada, dropped.run_id)
    pair.gates.open("hold")
    await follow(ada, second.run_id)
    third = await ended(ada, (await start(ada, session_id, input="three")).run_id)

    assert texts(await messages(ada, session_id, first.run_id))[0] == "one"
    assert texts(await messages(ada, session_id, second.run_id)) == [
        "one",
        "answer one",
        "appended",
        "two",
        "answer two",
    ]
    assert texts(await messages(ada, session_id, third.run_id)) == [
        "one",
        "answer one",
        "appended",
        "two",
        "answer two",
        "three",
        "Good day.",
    ]
    assert "dropped" in texts(await messages(ada, session_id))
    assert (await get(ada, dropped.run_id)).state == run_pb2.RUN_STATE_CANCELLED


@pytest.mark.spec("2.7")
async def test_a_cancelled_turn_keeps_its_text_incomplete(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"text": "half an ans"}, {"wait_gate": "hold"})
    await pair.gates.reached("hold")
    await cancel(ada, run.run_id)
    await state_reached(ada, run.run_id, run_pb2.RUN_STATE_CANCELLED)

    question, answer = await messages(ada, session_id)

    assert (question.status, answer.status, answer.text) == (1, 2, "half an ans")
    await ended(ada, (await start(ada, session_id)).run_id)  # the next turn is accepted
