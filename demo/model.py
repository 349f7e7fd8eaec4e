"""A stand-in model, as a process of its own: `python -m demo.model JOURNAL`.

It speaks the streaming chat-completions protocol over HTTP. Asked for a ticket, it calls the tool `draw_ticket` and
then says what the tool answered; asked to count, it counts slowly. Each request and each hang-up goes to the journal.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from demo import journal
from tests.far.http import Request
from tests.far.log import Log
from tests.far.model import Call, ModelServer, Prompt, Step, pause, text, tool_calls, usage

COUNTED_TO = 60
SECONDS_PER_NUMBER = 0.1


class JournalledLog(Log[Request]):
    """A log of requests that also goes to the journal."""

    def __init__(self, event: str, path: Path) -> None:
        super().__init__(event)
        self._event = event
        self._path = path

    def append(self, entry: Request) -> None:
        """Adds an entry, with the user's last message, by which the driver knows the run."""
        journal.write(self._path, event=self._event, asked=Prompt(entry).texts("user")[-1])
        super().append(entry)


def answer(prompt: Prompt) -> Sequence[Step]:
    """What the model says."""
    last = prompt.messages[-1]
    if last["role"] == "tool":
        return [*text("Your ticket: ", str(last["content"]), ". Keep it well."), *usage(40, 12)]
    if "count" in last["content"].lower():
        numbers = [[*text(f"{number} "), *pause(SECONDS_PER_NUMBER)] for number in range(1, COUNTED_TO + 1)]
        return [step for number in numbers for step in number]
    if "ticket" in last["content"].lower() and prompt.tools:
        return [*text("Let me draw one. "), *tool_calls(Call("draw_ticket", {"queue": "demo"})), *usage(20, 8)]
    return [*text("You said: ", last["content"]), *usage(10, 5)]


async def main(path: Path) -> None:
    """Serves until the process is ended."""
    server = ModelServer()
    server.requests = JournalledLog("request", path)
    server.hang_ups = JournalledLog("disconnect", path)
    server.respond = answer
    async with server:
        journal.write(path, event="listening", at=server.base_url)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
