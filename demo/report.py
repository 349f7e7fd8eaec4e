"""What the demo shows: readable in a terminal, plain text when piped."""

import sys
from collections.abc import Callable
from io import TextIOWrapper

from rich.console import Console
from rich.markup import escape
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.run_pb2 import FailureReason, RunState, ToolCallState


class ClaimFailedError(Exception):
    """Something that the pair promises was not so."""


class Report:
    """Prints chapters, events and claims. A claim that does not hold ends the demo."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal cannot show
        self._console = Console(highlight=False, soft_wrap=True)
        self.claims = 0

    def title(self, text: str) -> None:
        """Opens the report."""
        self._console.print(f"[bold]{escape(text)}[/bold]")

    def chapter(self, text: str) -> None:
        """Opens a chapter."""
        self._console.print(f"\n[bold cyan]{escape(text)}[/bold cyan]")

    def note(self, text: str) -> None:
        """Says something on the way."""
        self._console.print(f"  [dim]{escape(text)}[/dim]")

    def event(self, event: RunEvent) -> None:
        """Shows an event of a run."""
        self._console.print(f"    [dim]{event.sequence:>3}[/dim]  {escape(describe(event))}")

    def claim(self, text: str, holds: bool, found: object = "") -> None:
        """States a claim and whether it holds."""
        if not holds:
            self._console.print(f"  [bold red]FAILED[/bold red]  {escape(text)}")
            raise ClaimFailedError(f"{text}; found: {found}")
        self.claims += 1
        self._console.print(f"  [green]ok[/green]  {escape(text)}")

    def failure(self, text: str) -> None:
        """Says why the demo did not come to its end."""
        self._console.print(f"\n[bold red]FAILED[/bold red]  {escape(text)}")

    def end(self, text: str) -> None:
        """Closes the report."""
        self._console.print(f"\n[bold green]{escape(text)}[/bold green]")


def describe(event: RunEvent) -> str:
    """An event in one line."""
    body = event.WhichOneof("body") or "nothing that this demo knows"
    return _DESCRIBED[body](event) if body in _DESCRIBED else body


def _state(event: RunEvent) -> str:
    changed = event.state_changed
    state = RunState.Name(changed.state).removeprefix("RUN_STATE_")
    if changed.HasField("failure"):
        reason = FailureReason.Name(changed.failure.reason).removeprefix("FAILURE_REASON_")
        return f"{state}: {reason}, {changed.failure.message}"
    if changed.HasField("cancel"):
        return f"{state}: {'confirmed' if changed.cancel.confirmed else 'not confirmed yet'}"
    return state


def _tool_started(event: RunEvent) -> str:
    return f"tool {event.tool_call_started.tool_name} {event.tool_call_started.arguments_json}"


def _tool_finished(event: RunEvent) -> str:
    finished = event.tool_call_finished
    state = ToolCallState.Name(finished.state).removeprefix("TOOL_CALL_STATE_")
    return f"tool {finished.tool_name} {state}: {finished.result}"


def _usage(event: RunEvent) -> str:
    usage = event.usage_reported.usage
    return f"usage {usage.input_tokens} tokens in, {usage.output_tokens} out"


_DESCRIBED: dict[str, Callable[[RunEvent], str]] = {
    "state_changed": _state,
    "text_delta": lambda event: f'text "{event.text_delta.text}"',
    "tool_call_started": _tool_started,
    "tool_call_finished": _tool_finished,
    "message_completed": lambda event: f'message stored: "{event.message_completed.message.text}"',
    "usage_reported": _usage,
}
