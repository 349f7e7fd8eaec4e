"""`python -m demo.serve`: keeps the pair up for a laptop, and prints how to call it. Ctrl-C ends it.

The SQLite file and the logs stay in the folder that it names (TURNKEEPER_FOLDER, by default .turnkeeper), so the next
start finds everything again.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from demo.pair import DemoPair
from demo.processes import BIN, ProcessFailedError

SESSION_PORT = 7601
RUNNER_PORT = 7602
INLINE_CONFIG = '{\\"schema_version\\": 1, \\"harness\\": \\"openai\\", \\"model\\": {\\"name\\": \\"gpt-4o-mini\\"}}'


def instructions(pair: DemoPair, token: str, folder: Path) -> str:
    """How to call the pair from another terminal."""
    buf = os.path.relpath(BIN / "buf")
    call = f'{buf} curl --protocol grpc --http2-prior-knowledge -H "authorization: Bearer $TURNKEEPER_TOKEN"'
    service = "http://$TURNKEEPER_ADDRESS/turnkeeper.v1"
    model = "a stand-in model; set OPENAI_BASE_URL or OPENAI_API_KEY for a real one"
    return f"""
Session service on {pair.session_address}, runner service on {pair.runner_address}, files in {folder}.
The openai harness talks to {model if pair.uses_stand_in else pair.model_url}.

In another terminal, in this folder:

  export TURNKEEPER_ADDRESS={pair.session_address}
  export TURNKEEPER_TOKEN={token}

  # a session
  {call} \\
    -d '{{"name": "My session"}}' {service}.SessionService/CreateSession

  # a run in it, with an inline config: put the session's id in; the key is the click's, keep it for a retry
  {call} \\
    -d '{{"session_id": "SESSION", "idempotency_key": "click-1", "input": "Hello",
          "config_json": "{INLINE_CONFIG}"}}' \\
    {service}.RunService/StartRun

  # its events, from the first to the last: put the run's id in
  {call} \\
    -d '{{"run_id": "RUN"}}' {service}.RunService/WatchRun

Ctrl-C ends both services.
"""


async def main(folder: Path) -> int:
    """Serves until a signal comes or a service ends by itself; the exit code."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    pair = DemoPair(folder, SESSION_PORT, RUNNER_PORT)
    try:
        await pair.start()
        sys.stdout.write(instructions(pair, await pair.token(), folder))
        sys.stdout.flush()
        await pair.served(ended)
    except ProcessFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        await pair.stop()
    return 0


if __name__ == "__main__":
    chosen = Path(os.environ.get("TURNKEEPER_FOLDER", ".turnkeeper")).resolve()
    chosen.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(main(chosen)))
