"""A prompt as the chat-completions protocol wants it: every tool call with exactly one result (SPEC 2.7)."""

from collections.abc import Iterator, Sequence
from typing import Any

from turnkeeper.v1 import session_pb2

from runner_service.tools.calls import INTERRUPTED
from runner_service.tools.model import OfferedTool

ChatMessage = dict[str, Any]

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def chat_messages(instructions: str, preamble: str, prompt: Sequence[session_pb2.Message]) -> list[ChatMessage]:
    """The whole prompt. A call without a result reads "interrupted"; a result without its call is left out."""
    # One message for both: many services take a single system message, and only as the first. What changes from turn
    # to turn comes second, so that a service's cache of prompts knows the first part again.
    leading = "\n\n".join(part for part in (instructions, preamble) if part)
    system = [{"role": "system", "content": leading}] if leading else []
    results = {
        (message.run_id, message.tool_call_id): message.text
        for message in prompt
        if message.role == session_pb2.MESSAGE_ROLE_TOOL
    }
    return [*system, *(each for message in prompt for each in _translated(message, results))]


def _translated(message: session_pb2.Message, results: dict[tuple[str, str], str]) -> Iterator[ChatMessage]:
    match message.role:
        case session_pb2.MESSAGE_ROLE_USER:
            yield {"role": "user", "content": message.text}
        case session_pb2.MESSAGE_ROLE_SYSTEM:
            yield {"role": "system", "content": message.text}
        case session_pb2.MESSAGE_ROLE_ASSISTANT if message.tool_calls:
            # The runner's call ids are unique only within their run, and providers look over the whole prompt.
            asked = [(f"call_{message.position}_{index}", call) for index, call in enumerate(message.tool_calls)]
            yield assistant(message.text, [(key, call.tool_name, call.arguments_json) for key, call in asked])
            for key, call in asked:
                yield tool_result(key, results.get((message.run_id, call.call_id), INTERRUPTED))
        case session_pb2.MESSAGE_ROLE_ASSISTANT if message.text.strip():
            yield {"role": "assistant", "content": message.text}


def assistant(text: str, calls: Sequence[tuple[str, str, str]]) -> ChatMessage:
    """What the model said: its text and its calls, each as id, name and arguments."""
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
            for key, name, arguments in calls
        ],
    }


def tool_result(key: str, text: str) -> ChatMessage:
    """What the call of this id came to."""
    return {"role": "tool", "tool_call_id": key, "content": text}


def tool_definitions(tools: Sequence[OfferedTool]) -> list[dict[str, Any]]:
    """The tools as the protocol describes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema or NO_PARAMETERS,
            },
        }
        for tool in tools
    ]
