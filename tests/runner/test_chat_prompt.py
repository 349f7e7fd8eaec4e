"""Histories as no run of ours leaves them: whatever is stored, the prompt is one that providers take (SPEC 2.7)."""

import pytest
from turnkeeper.v1.session_pb2 import (
    MESSAGE_ROLE_ASSISTANT,
    MESSAGE_ROLE_TOOL,
    MESSAGE_ROLE_USER,
    Message,
    MessageToolCall,
)

from runner_service.harnesses.chat_prompt import chat_messages


def asked(position: int, *calls: str) -> Message:
    made = [MessageToolCall(call_id=each, tool_name="t", arguments_json="{}") for each in calls]
    return Message(run_id="r1", position=position, role=MESSAGE_ROLE_ASSISTANT, tool_calls=made)


def told(position: int, call: str, text: str) -> Message:
    return Message(run_id="r1", position=position, role=MESSAGE_ROLE_TOOL, tool_call_id=call, text=text)


@pytest.mark.spec("2.7")
def test_every_call_has_one_result_right_behind_it() -> None:
    history = [
        Message(position=1, role=MESSAGE_ROLE_USER, text="first"),
        asked(2, "1.1.0", "1.1.1", "1.1.2"),
        told(3, "1.1.1", "the second"),
        told(4, "1.1.0", "the first"),
        told(5, "9.9.9", "of no call"),
        Message(position=6, run_id="r1", role=MESSAGE_ROLE_ASSISTANT, text=" "),
        Message(position=7, role=MESSAGE_ROLE_USER, text="again"),
    ]
    messages = chat_messages("", "", history)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert [message["content"] for message in messages[2:5]] == ["the first", "the second", "interrupted"]
    assert [message["tool_call_id"] for message in messages[2:5]] == [call["id"] for call in messages[1]["tool_calls"]]
