"""What a harness is, and what it may do with a turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol

from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.wire.configs import Config

from runner_service.settings import Settings
from runner_service.tools.model import OfferedTool, ToolRequest, ToolResult


class TurnFailed(Exception):
    """A turn ends by a fault. The message is shown to people: short, and without any credential."""

    def __init__(self, reason: run_pb2.FailureReason.ValueType, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Turn(Protocol):
    """One turn in progress, as its harness sees it. Every method raises once the turn must stop.

    A step is one model call and what follows from it: 1, 2, 3 …
    """

    @property
    def config(self) -> Config:
        """What the turn is to do."""

    @property
    def preamble(self) -> str:
        """What is known of the turn, to stand before every new prompt; "" when that is nothing. Stored nowhere."""

    @property
    def prompt(self) -> Sequence[session_pb2.Message]:
        """The messages that the prompt sees, in order; the last one is the user's."""

    @property
    def tools(self) -> Sequence[OfferedTool]:
        """The tools that the caller's scopes allow."""

    async def check(self) -> None:
        """To be awaited right before each request to a model: goes on only while the turn may work."""

    async def say(self, step: int, text: str) -> None:
        """More of the answer's text; waits while the peer is behind."""

    async def reason(self, step: int, text: str) -> None:
        """More of the model's reasoning; waits while the peer is behind."""

    async def report_usage(self, step: int, model: str, input_tokens: int, output_tokens: int) -> None:
        """What one model call used."""

    async def end_step(self, step: int, finish_reason: str) -> None:
        """The assistant's message of the step is whole."""

    async def call_tools(self, step: int, requests: Sequence[ToolRequest]) -> list[ToolResult]:
        """Makes the calls side by side and gives their results in order. A failed call is a result, not an error."""


class OpenHarness(Protocol):
    """A harness that is ready for a turn."""

    async def play(self, turn: Turn) -> None:
        """Plays the turn to its end; returns when it ended well, raises TurnFailed when it did not.

        A cancellation must pass through, after a clean-up that is quick.
        """


class Harness(ABC):
    """A kind of harness, one object for the process. Found by the entry point group "turnkeeper.harnesses"."""

    name: ClassVar[str]
    """What configs call it."""
    description: ClassVar[str]
    """What it is, in a sentence."""
    tools_visible: ClassVar[bool] = True
    """Whether its tool calls go through Turn.call_tools. If not, a turn has side effects from its start."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def open(self, config: Config) -> AbstractAsyncContextManager[OpenHarness]:
        """Makes ready for one turn of this config; raises TurnFailed when that cannot be."""

    async def close(self) -> None:  # noqa: B027 - most harnesses hold nothing open
        """Closes what the process holds open for this harness."""
