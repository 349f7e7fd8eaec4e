"""Where tool calls are recorded: for a run the session service, for a direct turn nowhere (SPEC 3.6, 9.7)."""

import uuid
from typing import Protocol

from turnkeeper.v1 import turn_service_pb2 as turns


class Ledger(Protocol):
    """Takes each call before it is made and its result after."""

    async def begin_tool_call(self, request: turns.BeginToolCallRequest) -> turns.BeginToolCallResponse:
        """Records that the call is about to be made."""

    async def finish_tool_call(self, request: turns.FinishToolCallRequest) -> None:
        """Records the result; the first one is kept."""


class NoLedger:
    """A direct turn has no rows: every call is made, under a key of its own."""

    async def begin_tool_call(self, request: turns.BeginToolCallRequest) -> turns.BeginToolCallResponse:
        """Answers a fresh idempotency key for a call that may change something."""
        return turns.BeginToolCallResponse(idempotency_key=str(uuid.uuid4()) if request.side_effect else "")

    async def finish_tool_call(self, request: turns.FinishToolCallRequest) -> None:
        """Keeps nothing."""
