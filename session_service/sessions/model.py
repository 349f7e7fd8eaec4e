"""The values of sessions and messages, as stored. Times are microseconds since 1970 in the database's clock."""

import json
from dataclasses import dataclass
from enum import StrEnum


class SessionLifecycle(StrEnum):
    """Whether a turn of the session ever began; it never goes back."""

    PROVISIONAL = "PROVISIONAL"
    LIVE = "LIVE"


class NameSource(StrEnum):
    """Who chose a name; an automatic one never replaces a user's (SPEC 8.7)."""

    USER = "USER"
    AUTOMATIC = "AUTOMATIC"


@dataclass(frozen=True, slots=True)
class Rename:
    """A new name, empty for none; whether a program chose it, and the tool call that gives it, empty for none."""

    name: str
    automatic: bool
    tool_call_id: str = ""

    @property
    def result(self) -> str:
        """What the model is told of it."""
        return f"The name is now {json.dumps(self.name, ensure_ascii=False)}."


class MessageRole(StrEnum):
    """Who speaks."""

    USER = "USER"
    ASSISTANT = "ASSISTANT"
    TOOL = "TOOL"
    SYSTEM = "SYSTEM"


class MessageStatus(StrEnum):
    """Whether the message is whole; INCOMPLETE: its run ended CANCELLED or FAILED before."""

    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, as its owner sees it."""

    session_id: str
    owner_user_id: str
    name: str | None
    name_source: NameSource | None
    lifecycle: SessionLifecycle
    busy: bool
    """Whether a run of it is not terminal; derived on every read."""
    create_time: int
    update_time: int


@dataclass(frozen=True, slots=True)
class ToolCallAsked:
    """A call that an assistant message asks for. `call_id` is the runner's: attempt.step.index."""

    call_id: str
    tool_name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class MessageDraft:
    """A message to be stored. `run_id`: the run that made it, None for an appended one, which has a `prompt_order`."""

    run_id: str | None
    role: MessageRole
    text: str
    tool_calls: tuple[ToolCallAsked, ...] = ()
    tool_call_id: str | None = None
    status: MessageStatus = MessageStatus.COMPLETE
    prompt_order: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message; `position` is its place in the session, from 1."""

    message_id: str
    session_id: str
    run_id: str | None
    position: int
    role: MessageRole
    text: str
    tool_calls: tuple[ToolCallAsked, ...]
    tool_call_id: str | None
    status: MessageStatus
    create_time: int


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a message stands in a list: its order among what prompts follow (0 in the order of storing) and position.

    `size` is that of its text and calls, in bytes.
    """

    order: int
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A run whose prompt is asked for; `claim_order` is None before its first claim."""

    run_id: str
    claim_order: int | None
