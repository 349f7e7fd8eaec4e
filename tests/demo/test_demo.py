"""`make demo` is what newcomers try first: it must hold, say so plainly, and leave nothing behind."""

import asyncio
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, STDOUT

import psutil

START_SECONDS = 60


async def start(mark: str) -> asyncio.subprocess.Process:
    """Starts the demo; whatever it starts inherits the mark in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment["DEMO_MARK"] = mark
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "demo", env=environment, stdout=PIPE, stderr=STDOUT
    )


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DEMO_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


async def test_every_claim_holds_in_less_than_a_minute_and_nothing_is_left() -> None:
    mark = uuid.uuid4().hex
    demo = await start(mark)
    async with asyncio.timeout(START_SECONDS):
        output, _ = await demo.communicate()
    shown = output.decode()
    assert demo.returncode == 0, shown
    assert "FAILED  " not in shown
    assert "the model's own journal has the disconnect" in shown
    assert "\x1b" not in shown
    assert not marked(mark)


async def test_an_interrupted_demo_leaves_nothing() -> None:
    mark = uuid.uuid4().hex
    demo = await start(mark)
    assert demo.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        while b"2  One click" not in await demo.stdout.readline():
            assert not demo.stdout.at_eof()
        assert len(marked(mark)) > 1
        demo.send_signal(signal.SIGTERM)
        await demo.communicate()
    assert demo.returncode not in (0, None)
    assert not marked(mark)
