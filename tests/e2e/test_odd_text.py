"""Text as it really comes: errors that quote secrets, halves of emojis, NUL (CASES 18, 20)."""

import json

import grpc
import pytest
from turnkeeper.v1 import run_pb2

from tests.far import model
from tests.far.model import Call, Raw, Step
from tests.far.tools import ToolReply
from tests.fixtures.journeys import ended, follow, messages, new_session, refused, start, start_request, text_of, texts
from tests.fixtures.leaks import leaks
from tests.fixtures.processes import API_KEY, Processes

OPENAI = {"schema_version": 1, "harness": "openai", "model": {"name": "m"}}
LONG = f"Incorrect API key provided: {API_KEY}. postgresql://svc:hunter2@db/prod " + "x" * 30_000
FRAME = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def in_stream(message: str) -> list[Step]:
    """An error in the middle of a stream, as some services send it."""
    return [Raw(b"data: " + json.dumps({"error": {"message": message, "code": 500}}).encode() + b"\n\n")]


def split_in_utf8(content: str, at: int) -> list[Step]:
    """A chunk whose bytes, not escaped, come in two packets cut so many bytes after the content begins."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    data = b"data: " + json.dumps({**FRAME, "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"
    cut = data.index(content.encode()) + at
    return [Raw(data[:cut]), Raw(data[cut:])]


@pytest.mark.spec("10.1", "11.2", "3.1")
async def test_an_upstream_error_that_quotes_the_key_leaks_nowhere(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    for reply, tries in ((model.error(401, LONG), 1), (model.error(503, LONG), 3), (in_stream(LONG), 1)):
        for _ in range(tries):
            processes.model.queue(reply)

        run = await ended(ada, (await start(ada, session_id, config_json=json.dumps(OPENAI))).run_id)

        assert (run.state, run.failure.reason) == (
            run_pb2.RUN_STATE_FAILED,
            run_pb2.FAILURE_REASON_UPSTREAM_ERROR,
        )
        assert 0 < len(run.failure.message) < 200
    assert processes.model.unanswered == 0
    assert await leaks(processes, "hunter2", "xxxxxxxx") == []
    processes.model.queue(model.text("Fine"))
    again = await ended(ada, (await start(ada, session_id, config_json=json.dumps(OPENAI))).run_id)
    assert again.state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("11.1", "5.5")
async def test_an_emoji_that_was_split_arrives_whole(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    halves = model.deltas({"content": "a\ud83d"}, {"content": "\ude00b "})
    processes.model.queue(halves, split_in_utf8("c😀d", 3), model.deltas({"content": " 👩‍"}, {"content": "🚀"}))

    events = await follow(ada, (await start(ada, session_id, config_json=json.dumps(OPENAI))).run_id)

    assert text_of(events) == "a😀b c😀d 👩‍🚀"
    assert texts(await messages(ada, session_id))[-1] == "a😀b c😀d 👩‍🚀"


@pytest.mark.spec("11.1", "3.6")
async def test_nul_and_half_an_emoji_from_model_and_tool_are_repaired(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    processes.tools.queue("/odd", ToolReply(b"nul \x00 half \xf0\x9f end", headers={"Content-Type": "text/plain"}))
    calls = Call("odd", '{"q": "a\\u0000b"}', call_id="id\0\ud83d"), Call("odd", '{"q": "half \\ud83d"}')
    processes.model.queue(model.text("nul \0 half \ud83d", " end"), model.reasoning("r\0"), model.tool_calls(*calls))
    processes.model.queue(model.text("done\0"))
    tools = [{"name": "odd", "http": {"method": "POST", "url": processes.tools.url("/odd")}}]

    run = await start(ada, session_id, config_json=json.dumps({**OPENAI, "tools": tools}))
    run = await ended(ada, run.run_id)

    assert run.state == run_pb2.RUN_STATE_COMPLETED, run.failure
    _, said, result, refusal, last = await messages(ada, session_id)
    assert said.text == "nul \ufffd half \ufffd end"
    assert result.text.startswith("nul \ufffd half \ufffd")
    assert result.text.endswith(" end")
    assert "half a surrogate pair" in refusal.text  # arguments are not guessed at: the model is told
    assert last.text == "done\ufffd"
    assert [request.json() for request in processes.tools.requests] == [{"q": "a\0b"}]
    # What goes back to the model is what was stored.
    told = (await processes.model.prompt(2)).messages[-3:]
    assert [message["content"] for message in told] == [said.text, result.text, refusal.text]
    assert told[0]["tool_calls"][0]["id"] == told[1]["tool_call_id"] == "id\ufffd\ufffd"


@pytest.mark.spec("11.1", "11.2", "2.3")
async def test_nul_from_a_caller_is_refused_by_name(processes: Processes) -> None:
    ada = processes.client()
    session_id = await new_session(ada)
    click = start_request(session_id, input="a\0b")

    with refused("INVALID_FIELD") as refusal:
        await ada.runs.StartRun(click)

    assert refusal.code == grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in refusal.detail.fields] == ["input"]
    assert not await messages(ada, session_id)
    click.input = "ab"
    assert (await ada.runs.StartRun(click)).created
