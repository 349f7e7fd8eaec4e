"""A tool, as a process of its own: `python -m demo.tool JOURNAL`.

Each request draws a new random ticket. The driver finds the ticket in this process's journal and must find it again in
the answer that the session service stored: nobody can have made it up.
"""

import asyncio
import secrets
import sys
from pathlib import Path

from demo import journal
from tests.far.http import Request
from tests.far.tools import ToolReply, ToolServer, text_reply


async def main(path: Path) -> None:
    """Serves until the process is ended."""

    def draw(request: Request) -> ToolReply:
        ticket = secrets.token_hex(8)
        journal.write(path, event="drawn", ticket=ticket, arguments=request.json())
        return text_reply(ticket)

    server = ToolServer()
    server.respond = draw
    async with server:
        journal.write(path, event="listening", at=server.origin)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
