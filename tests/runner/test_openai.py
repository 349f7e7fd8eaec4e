"""The openai harness against a model on a raw socket, which scripts every byte of its streams."""

import asyncio
import json
from typing import Any

import pytest

from tests.far import model as m
from tests.far.gates import Gate
from tests.far.tools import text_reply
from tests.fixtures.pair import Pair, StartPair
from tests.runner.conftest import (
    MODEL_KEY,
    Direct,
    bodies,
    direct_turn,
    failure_of,
    openai_config,
    text_of,
    tool,
)

# Direct turns store nothing, so one kind of database will do.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

TRUNCATED = "FAILURE_REASON_UPSTREAM_TRUNCATED"
UPSTREAM = "FAILURE_REASON_UPSTREAM_ERROR"


async def test_a_plain_answer_with_its_usage(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.reasoning("Let me", " see"), m.text("Good ", "day."), m.usage(7, 3))
    config = openai_config(instructions="Be kind.", model={"name": "m-9", "temperature": 0.5, "max_output_tokens": 99})
    events = await direct(config, "Hello")
    assert text_of(events) == "Good day."
    assert "".join(event.reasoning_delta.text for event in events) == "Let me see"
    [used] = [event.usage_reported for event in events if event.HasField("usage_reported")]
    assert (used.usage.input_tokens, used.usage.output_tokens, used.model, used.step) == (7, 3, "m-9", 1)
    [step] = [event.message_completed for event in events if event.HasField("message_completed")]
    assert (step.step, step.finish_reason) == (1, "stop")
    assert failure_of(events) == ""
    body = (await pair.model.prompt()).body
    leading, asked = body["messages"]
    assert leading["role"] == "system"
    assert leading["content"].startswith("Be kind.")
    assert asked == {"role": "user", "content": "Hello"}
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("m-9", 0.5, 99)
    assert body["stream_options"] == {"include_usage": True}
    assert "tools" not in body


async def test_parallel_calls_run_side_by_side_and_are_told_in_order(direct: Direct, pair: Pair) -> None:
    first = pair.tools.hold("/first", text_reply("one"))
    pair.tools.queue("/second", text_reply("two"))
    pair.model.queue(m.text("Looking. "), m.tool_calls(m.Call("first", {"a": 1}), m.Call("second")))
    pair.model.queue(m.text("Done."))
    running = asyncio.create_task(
        direct(openai_config(tool("first", pair.tools.url("/first")), tool("second", pair.tools.url("/second"))))
    )
    await pair.tools.request(2)  # the second one came although the first has no answer
    first.open()
    assert text_of(await running) == "Looking. Done."
    _, _, asked, *told = (await pair.model.prompt(2)).messages
    assert asked["content"] == "Looking. "
    assert [call["function"] for call in asked["tool_calls"]] == [
        {"name": "first", "arguments": '{"a": 1}'},
        {"name": "second", "arguments": "{}"},
    ]
    assert [(each["tool_call_id"], each["content"]) for each in told] == [
        ("call_0_first", "one"),
        ("call_1_second", "two"),
    ]


def _delta(index: int | None, key: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": key, "function": {k: v for k, v in function.items() if v is not None}}
    return {"tool_calls": [{k: v for k, v in call.items() if v is not None}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [_delta(0, "a", "echo", '{"n":1}'), _delta(0, "b", "echo", '{"n":2}')],
        [_delta(0, "a", "echo", ""), _delta(0, None, None, '{"n":1}'), _delta(0, "b", "echo", '{"n":2}')],
        [_delta(0, None, "echo", '{"n":1}'), _delta(0, None, "echo", '{"n":2}')],
        [_delta(0, None, "echo", '{"n":1}'), _delta(1, None, "echo", '{"n":2}')],
        [_delta(None, None, "echo", '{"n":1}'), _delta(None, None, "echo", '{"n":2}')],
        [
            _delta(0, "a", "echo", '{"n"'),
            _delta(1, "b", "echo", '{"n"'),
            _delta(0, None, None, ":1}"),
            _delta(1, None, None, ":2}"),
        ],
        [_delta(0, "a", "echo", '{"n"'), _delta(0, "a", "echo", ":1}"), _delta(1, "b", "echo", '{"n":2}')],
        [_delta(0, "a", "echo", '{"n"'), _delta(0, "x", None, ":1}"), _delta(1, "b", "echo", '{"n":2}')],
        [_delta(0, "same", "echo", '{"n":1}'), _delta(1, "same", "echo", '{"n":2}')],
        [_delta(0, "a", "echo", {"n": 1}), _delta(1, "b", "echo", {"n": 2})],
    ],
    ids=[
        "both at 0",
        "id only on the first delta",
        "both at 0 without ids",
        "no ids",
        "no index, no ids",
        "interleaved",
        "id and name on every delta",
        "another id on every delta",
        "one id for both",
        "arguments as objects",
    ],
)
async def test_two_calls_however_a_provider_cuts_them(direct: Direct, pair: Pair, deltas: list[dict[str, Any]]) -> None:
    pair.model.queue(m.deltas(*deltas))
    pair.model.queue(m.text("ok"))
    events = await direct(openai_config(tool("echo", pair.tools.url("/echo"))))
    assert failure_of(events) == ""
    assert sorted(request.json()["n"] for request in pair.tools.requests) == [1, 2]
    # The far side refuses a prompt whose calls and results do not match.
    assert [json.loads(text)["n"] for text in (await pair.model.prompt(2)).texts("tool")] == [1, 2]


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "nonsense", '{"a":NaN}', '{"a":1,"a":2}', '"\ud800"'])
async def test_malformed_arguments_are_an_error_result_and_no_request(
    direct: Direct, pair: Pair, arguments: str
) -> None:
    pair.model.queue(m.tool_calls(m.Call("echo", arguments)))
    pair.model.queue(m.text("sorry"))
    events = await direct(openai_config(tool("echo", pair.tools.url("/echo"))))
    assert (text_of(events), failure_of(events)) == ("sorry", "")
    assert len(pair.tools.requests) == 0
    [told] = (await pair.model.prompt(2)).texts("tool")
    assert told.startswith("The arguments are not")
    # What is sent back must be an object, whatever the model wrote.
    [call] = (await pair.model.prompt(2)).messages[2]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


async def test_an_unknown_tool_for_ever_ends_at_exactly_the_step_limit(direct: Direct, pair: Pair) -> None:
    pair.model.respond = lambda _: m.tool_calls(m.Call("no such tool!"))
    events = await direct(openai_config(limits={"max_steps": 3}))
    assert failure_of(events) == "FAILURE_REASON_MAX_STEPS"
    assert len(pair.model.requests) == 3


async def test_the_last_steps_calls_are_not_made(direct: Direct, pair: Pair) -> None:
    pair.model.respond = lambda _: m.tool_calls(m.Call("echo"))
    events = await direct(openai_config(tool("echo", pair.tools.url("/echo")), limits={"max_steps": 2}))
    assert failure_of(events) == "FAILURE_REASON_MAX_STEPS"
    assert len(pair.tools.requests) == 1


@pytest.mark.parametrize("cleanly", [True, False])
async def test_a_stream_without_a_finish_reason_is_truncated(direct: Direct, pair: Pair, cleanly: bool) -> None:
    pair.model.queue(m.text("Half an ans"), m.truncated(cleanly=cleanly))
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("Half an ans", TRUNCATED)
    assert len(pair.model.requests) == 1  # no second try could take back what was said


async def test_a_truncated_stream_makes_no_tool_call(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.tool_calls(m.Call("echo")), m.truncated())
    events = await direct(openai_config(tool("echo", pair.tools.url("/echo"))))
    assert failure_of(events) == TRUNCATED
    assert len(pair.tools.requests) == 0


async def test_what_breaks_after_the_last_word_breaks_nothing(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.text("whole"), [m.Delta({}, "stop")], m.truncated(cleanly=False))
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("whole", "")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_passing_error_is_tried_again(direct: Direct, pair: Pair, status: int) -> None:
    pair.model.queue(m.error(status))
    pair.model.queue(m.text("there"))
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("there", "")
    assert len(pair.model.requests) == 2


async def test_a_break_before_any_text_is_tried_again(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.truncated(cleanly=False))
    pair.model.queue(m.text("there"))
    assert text_of(await direct(openai_config())) == "there"


async def test_tries_are_bounded(direct: Direct, pair: Pair) -> None:
    pair.model.respond = lambda _: m.error(503)
    events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM
    assert events[-1].turn_ended.failed.message == "The model's service answered with status 503."
    assert len(pair.model.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_lasting_error_is_not_tried_again_and_its_words_are_not_passed_on(
    direct: Direct, pair: Pair, status: int
) -> None:
    pair.model.queue(m.error(status, f"Incorrect API key provided: {MODEL_KEY} " + "x" * 30_000))
    events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM
    assert events[-1].turn_ended.failed.message == f"The model's service answered with status {status}."
    assert len(pair.model.requests) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"data: {not json\n\n",
        b'data: {"choices": [null]}\n\n',
        b'data: {"choices": 7}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": ["x"]}}]}\n\n',
        b'data: {"error": {"message": "the key a-key-of-the-model is bad"}}\n\n',
    ],
)
async def test_a_stream_that_breaks_the_protocol(direct: Direct, pair: Pair, data: bytes) -> None:
    pair.model.queue([m.Raw(data)])
    events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM
    assert MODEL_KEY not in events[-1].turn_ended.failed.message


@pytest.mark.parametrize("finish", ["before", "with"])
@pytest.mark.parametrize("count", ["1.5", '"x"', "1e400", "9223372036854775808", "-1", "true", "[]"])
async def test_a_usage_that_is_no_count_costs_no_answer(direct: Direct, pair: Pair, count: str, finish: str) -> None:
    last = '"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]'
    odd = f'"usage": {{"prompt_tokens": {count}, "completion_tokens": 3}}'
    chunks = [f"{last}, {odd}"] if finish == "with" else [last, f'"choices": [], {odd}']
    pair.model.queue(m.text("whole"), [m.Raw(f"data: {{{chunk}}}\n\n".encode()) for chunk in chunks])
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("whole", "")
    used = [event.usage_reported.usage for event in events if event.HasField("usage_reported")]
    assert [(each.input_tokens, each.output_tokens) for each in used] == [(0, 3)]


async def test_a_number_that_cannot_be_read_after_the_last_word_costs_no_answer(direct: Direct, pair: Pair) -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": %s}}\n\n' % (b"9" * 5000)
    pair.model.queue(m.text("whole"), [m.Delta({}, "stop"), m.Raw(usage)])
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("whole", "")


@pytest.mark.parametrize("usage", ['"x"', "7", "[1]", "{}", '{"prompt_tokens": null}'])
async def test_a_usage_without_counts_is_none(direct: Direct, pair: Pair, usage: str) -> None:
    pair.model.queue([m.Raw(f'data: {{"choices": [], "usage": {usage}}}\n\n'.encode())], m.text("whole"))
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("whole", "")
    assert not any(event.HasField("usage_reported") for event in events)


async def test_a_chunk_that_is_nested_too_deep_breaks_the_protocol(direct: Direct, pair: Pair) -> None:
    pair.model.queue([m.Raw(b'data: {"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n")])
    events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM


@pytest.mark.parametrize("status", [400, 500])
async def test_the_charset_of_an_error_holds_up_no_other_turn(direct: Direct, pair: Pair, status: int) -> None:
    body = b"a-" + b"99" * 150_000  # in punycode: time by the square
    pair.model.respond = lambda _: [m.ErrorStatus(status, body, {"Content-Type": "text/plain; charset=punycode"})]
    async with asyncio.timeout(4):
        events = await direct(openai_config())
    assert events[-1].turn_ended.failed.message == f"The model's service answered with status {status}."


async def test_an_error_without_end_is_not_read_for_ever(direct: Direct, pair: Pair) -> None:
    pair.model.queue([m.ErrorStatus(400, b"x" * 100_000, {"Content-Length": "1000000000"})])
    async with asyncio.timeout(4):
        events = await direct(openai_config())
    assert events[-1].turn_ended.failed.message == "The model's service answered with status 400."


@pytest.mark.parametrize("line", [b"data: " + b"x" * 2**20, b"data: " + b"x" * 2**16 + b"\n"], ids=["line", "lines"])
async def test_an_event_without_end_fails_the_turn(direct: Direct, pair: Pair, line: bytes) -> None:
    pair.model.queue([m.Raw(line)] * (6 * 2**20 // len(line)), m.hold(Gate()))
    async with asyncio.timeout(8):
        events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM
    await pair.model.disconnected(within=1.0)


async def test_a_stream_of_any_length_is_read_while_its_events_are_short(direct: Direct, pair: Pair) -> None:
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}], "more": "%s"}\r\n\r\n' % (b"y" * 2**18)
    pair.model.queue([m.Raw(piece)] * 40)
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("x" * 40, "")


async def test_a_compressed_stream_is_not_unpacked(direct: Direct, pair: Pair) -> None:
    pair.model.queue([m.ErrorStatus(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})])
    events = await direct(openai_config())
    assert failure_of(events) == UPSTREAM
    assert events[-1].turn_ended.failed.message == "The model's service broke the chat-completions protocol."
    assert (await pair.model.prompt()).request.headers["accept-encoding"] == "identity"


@pytest.mark.spec("11.1")
async def test_half_an_emoji_is_repaired_and_a_split_one_arrives_whole(direct: Direct, pair: Pair) -> None:
    split = '{"choices": [{"index": 0, "delta": {"content": "%s"}}]}'
    pair.model.queue(
        [m.Raw(f"data: {split % piece}\n\n".encode()) for piece in (r"a\ud83d", r"\ude00b", r"\u0000", r"c\ud83d")]
    )
    events = await direct(openai_config())
    assert (text_of(events), failure_of(events)) == ("a😀b\ufffdc\ufffd", "")


async def test_utf8_split_between_packets_arrives_whole(direct: Direct, pair: Pair) -> None:
    event = 'data: {"choices": [{"index": 0, "delta": {"content": "naïve 😀"}}]}\n\n'.encode()
    pair.model.queue([m.Raw(bytes([byte])) for byte in event])
    assert text_of(await direct(openai_config())) == "naïve 😀"


@pytest.mark.spec("3.7")
async def test_a_model_that_says_nothing_in_time(direct: Direct, pair: Pair) -> None:
    pair.model.queue([m.Raw(b": still here\n\n"), m.Delta({"role": "assistant", "content": ""})], m.hold(Gate()))
    async with asyncio.timeout(3):
        events = await direct(openai_config(limits={"first_token_seconds": 0.3}))
    assert failure_of(events) == UPSTREAM
    await pair.model.disconnected(within=1.0)
    assert len(pair.model.requests) == 1


@pytest.mark.spec("3.7")
async def test_a_model_call_that_takes_too_long(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.text("Once"), m.hold(Gate()))
    async with asyncio.timeout(3):
        events = await direct(openai_config(limits={"model_call_seconds": 0.4, "first_token_seconds": 0.3}))
    assert (text_of(events), failure_of(events)) == ("Once", UPSTREAM)
    await pair.model.disconnected(within=1.0)


@pytest.mark.spec("3.7")
async def test_a_dripping_model_stretches_no_limit(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.drip("x" * 1000, seconds=0.02))
    events = await direct(openai_config(limits={"turn_seconds": 0.5}))
    assert failure_of(events) == "FAILURE_REASON_TURN_TIMEOUT"
    await pair.model.disconnected(within=1.0)


async def test_a_stream_that_is_slow_but_healthy_is_not_cut(direct: Direct, pair: Pair) -> None:
    gate = Gate()
    pair.model.queue(m.text("One "), m.hold(gate), m.text("two"))
    running = asyncio.create_task(direct(openai_config(limits={"first_token_seconds": 0.3})))
    await gate.reached()
    await asyncio.wait({running}, timeout=0.6)  # twice the time that the first token had
    gate.open()
    assert text_of(await running) == "One two"


async def test_without_a_model_service_the_failure_says_what_to_set(
    start_pair: StartPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with start_pair(runner={"openai_base_url": None, "openai_api_key": None}) as pair:
        events = await direct_turn(pair.client(), openai_config())
    assert failure_of(events) == "FAILURE_REASON_HARNESS_ERROR"
    assert "OPENAI_BASE_URL" in events[-1].turn_ended.failed.message


async def test_a_long_text_is_split_into_events_that_fit(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.text("😀" * 100_000))
    events = await direct(openai_config())
    assert text_of(events) == "😀" * 100_000
    assert max(event.ByteSize() for event in events) < 128 * 1024
    assert bodies(events).count("text_delta") == 7
