"""How a turn is opened at the session service: a run's and a direct one take the same steps (SPEC 3.4)."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from turnkeeper.v1 import session_pb2
from turnkeeper.v1 import turn_service_pb2 as turns


class TurnOpening(Protocol):
    """The steps, in their order."""

    async def begin_turn(self, harness: str, runner_store: str) -> None:
        """Says that the harness is open; only after this may a prompt be made. Raises when the turn must not go on."""

    def resolve_turn_context(self, seconds: float) -> Awaitable[turns.ResolveTurnContextResponse]:
        """Reads the facts and the run context, once, in at most so many seconds."""

    async def prompt(self) -> Sequence[session_pb2.Message]:
        """The messages that the prompt sees, in order; the last one is the user's."""
