"""Messages: kept exactly, in order, and what a run's prompt sees of them."""

import asyncio
import uuid

import pytest
from turnkeeper.v1 import session_pb2
from turnkeeper.v1.session_service_pb2 import AppendMessageRequest, ListMessagesRequest

from tests.fixtures.client import Client
from tests.fixtures.journeys import cancel, ended, messages, new_session, refused, start, texts
from tests.fixtures.pair import Pair

MIB = 1024 * 1024


async def append(
    client: Client,
    session_id: str,
    text: str,
    role: session_pb2.MessageRole.ValueType = session_pb2.MESSAGE_ROLE_USER,
) -> session_pb2.Message:
    request = AppendMessageRequest(session_id=session_id, role=role, text=text)
    return (await client.sessions.AppendMessage(request)).message


@pytest.mark.spec("2.7")
async def test_an_appended_message_is_kept_exactly(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    odd = "  \r\n\tüé👍🏽\u2028' \" \\ \x01 e\u0301 "

    made = [
        await append(ada, session_id, odd),
        await append(ada, session_id, "Hello.", session_pb2.MESSAGE_ROLE_ASSISTANT),
        await append(ada, session_id, "Be brief.", session_pb2.MESSAGE_ROLE_SYSTEM),
    ]

    assert list(await messages(ada, session_id)) == made
    assert texts(made) == [odd, "Hello.", "Be brief."]
    assert [message.position for message in made] == [1, 2, 3]
    assert {message.status for message in made} == {session_pb2.MESSAGE_STATUS_COMPLETE}
    assert {message.run_id for message in made} == {""}


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    ("text", "role", "field"),
    [
        ("a\x00b", session_pb2.MESSAGE_ROLE_USER, "text"),
        ("", session_pb2.MESSAGE_ROLE_USER, "text"),
        ("é" * (MIB // 2) + "x", session_pb2.MESSAGE_ROLE_USER, "text"),
        ("x", session_pb2.MESSAGE_ROLE_TOOL, "role"),
        ("x", session_pb2.MESSAGE_ROLE_UNSPECIFIED, "role"),
        ("x", 99, "role"),
    ],
)
async def test_a_message_that_is_refused_leaves_nothing(
    pair: Pair, text: str, role: session_pb2.MessageRole.ValueType, field: str
) -> None:
    """CASES 20."""
    ada = pair.client()
    session_id = await new_session(ada)
    with refused("INVALID_FIELD") as refusal:
        await append(ada, session_id, text, role)
    assert [each.field for each in refusal.detail.fields] == [field]
    assert texts(await messages(ada, session_id)) == []
    assert (await append(ada, session_id, "next")).position == 1


async def test_concurrent_messages_are_numbered_without_gaps(pair: Pair) -> None:
    """CASES 19: each reads the session's last position and writes; nobody sees a locked database."""
    ada = pair.client()
    session_id = await new_session(ada)
    made = await asyncio.gather(*(append(ada, session_id, f"text {number}") for number in range(20)))
    assert sorted(message.position for message in made) == list(range(1, 21))
    assert list(await messages(ada, session_id)) == sorted(made, key=lambda message: message.position)


@pytest.mark.spec("11.3")
async def test_a_page_ends_before_it_is_too_large_to_be_sent(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    sent = [letter * MIB for letter in "abc"] + ["é" * (MIB // 2), "short", "shorter"]
    for text in sent:
        await append(ada, session_id, text)

    request = ListMessagesRequest(session_id=session_id, page_size=200)
    pages: list[list[str]] = []
    while True:
        page = await ada.sessions.ListMessages(request)
        pages.append(texts(page.messages))
        assert page.ByteSize() < 2.5 * MIB
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert pages == [sent[:2], sent[2:4], sent[4:]]


@pytest.mark.spec("2.7")
async def test_a_prompt_sees_earlier_runs_in_the_order_of_their_claims_then_its_own(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    await append(ada, session_id, "appended first")
    first = await start(ada, session_id, {"wait_gate": "first"}, {"text": "answer 1"}, input="question 1")
    await pair.gates.reached("first")
    # All of these are stored while the first run is live, so positions and prompts differ in order.
    withdrawn = await start(ada, session_id, {"text": "never"}, input="withdrawn")
    second = await start(ada, session_id, {"text": "answer 2"}, input="question 2")
    await append(ada, session_id, "appended in between")
    await cancel(ada, withdrawn.run_id)
    assert texts(await messages(ada, session_id, prompt_of=second.run_id)) == []  # it is not claimed yet
    pair.gates.open("first")
    await ended(ada, first.run_id)
    await ended(ada, second.run_id)
    await append(ada, session_id, "appended later")

    assert texts(await messages(ada, session_id)) == [
        "appended first",
        "question 1",
        "withdrawn",
        "question 2",
        "appended in between",
        "answer 1",
        "answer 2",
        "appended later",
    ]
    assert texts(await messages(ada, session_id, prompt_of=first.run_id)) == [
        "appended first",
        "question 1",
        "answer 1",
    ]
    seen_by_second = [
        "appended first",
        "question 1",
        "answer 1",
        "appended in between",
        "question 2",
        "answer 2",
    ]
    assert texts(await messages(ada, session_id, prompt_of=second.run_id)) == seen_by_second
    assert texts(await messages(ada, session_id, prompt_of=withdrawn.run_id)) == []

    paged: list[str] = []
    request = ListMessagesRequest(session_id=session_id, prompt_of_run_id=second.run_id, page_size=2)
    while True:
        page = await ada.sessions.ListMessages(request)
        paged += texts(page.messages)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert paged == seen_by_second


@pytest.mark.spec("2.7")
async def test_a_cancelled_runs_partial_text_is_prompted_as_incomplete(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    first = await start(ada, session_id, {"text": "half an ans"}, {"wait_gate": "held"}, input="question 1")
    await pair.gates.reached("held")
    await cancel(ada, first.run_id)
    await ended(ada, first.run_id)
    second = await start(ada, session_id, {"text": "answer 2"}, input="question 2")
    await ended(ada, second.run_id)

    seen = await messages(ada, session_id, prompt_of=second.run_id)

    assert texts(seen) == ["question 1", "half an ans", "question 2", "answer 2"]
    assert [message.status == session_pb2.MESSAGE_STATUS_INCOMPLETE for message in seen] == [False, True, False, False]


@pytest.mark.spec("1.7")
async def test_the_run_of_a_prompt_must_be_the_sessions(pair: Pair) -> None:
    ada, bob = pair.client(), pair.client(user="bob")
    session_id, other, bobs = await new_session(ada), await new_session(ada), await new_session(bob)
    for foreign in ((await start(ada, other)).run_id, (await start(bob, bobs)).run_id, str(uuid.uuid4())):
        with refused("RESOURCE_NOT_FOUND") as refusal:
            await messages(ada, session_id, prompt_of=foreign)
        assert refusal.detail.metadata == {"resource": "run"}
