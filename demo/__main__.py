"""`python -m demo`: starts the pair, shows what it promises, and leaves nothing behind. Exit code 0: all was so."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import grpc

from demo.caller import Caller
from demo.pair import DemoPair
from demo.processes import ProcessFailedError
from demo.report import ClaimFailedError, Report
from demo.story import Story

INTERRUPTED = 130


async def show(report: Report, folder: Path) -> bool:
    """Runs the demo; whether every claim held."""
    pair = DemoPair(folder)
    try:
        await pair.start()
        own = "a stand-in, a process of its own" if pair.uses_stand_in else "from the environment"
        report.note(f"session service {pair.session_address}, SQLite file {pair.database}")
        report.note(f"runner service  {pair.runner_address}")
        report.note(f"model           {pair.model_url} ({own})")
        async with Caller(pair.session_address, await pair.token()) as caller:
            await Story(pair, caller, report, os.environ.get("OPENAI_MODEL", "gpt-4o-mini")).tell()
    except (ClaimFailedError, ProcessFailedError, grpc.aio.AioRpcError, TimeoutError) as error:
        report.failure(f"{error!r}" if isinstance(error, grpc.aio.AioRpcError) else str(error) or repr(error))
        for log in pair.logs:
            report.note(f"--- the end of {log.name}")
            report.note("\n  ".join(log.read_text(errors="replace").splitlines()[-15:]))
        return False
    finally:
        await pair.stop()
    report.chapter("5  Nothing is left behind")
    left = pair.left_behind()
    report.claim("every process that the demo started is gone", not left, left)
    return True


async def main() -> int:
    """Runs the demo; the exit code."""
    report = Report()
    started = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    report.title("Turnkeeper: one message, one run, one turn, a streamed answer, a stored history")
    with tempfile.TemporaryDirectory(prefix="turnkeeper-demo-") as folder:
        try:
            held = await show(report, Path(folder))
        except ClaimFailedError as error:
            report.failure(str(error))
            held = False
        except asyncio.CancelledError:
            report.failure("interrupted")
            return INTERRUPTED
    if held:
        report.end(f"All {report.claims} claims held, in {time.monotonic() - started:.0f} s.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
