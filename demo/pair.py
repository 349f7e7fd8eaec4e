"""The pair as two separate processes on loopback, with a SQLite file, and the model and tool that it talks to."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path

from demo.processes import BIN, Process, ProcessFailedError, environment, free_port, healthy, start_stand_in

PYTHON = str(BIN / "python")
OWN_MODEL = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


class DemoPair:
    """Everything that runs in the demo. Files go to one folder; the addresses stay the same over a restart."""

    def __init__(self, folder: Path, session_port: int | None = None, runner_port: int | None = None) -> None:
        self.folder = folder
        self.session_address = f"127.0.0.1:{session_port or free_port()}"
        self.runner_address = f"127.0.0.1:{runner_port or free_port()}"
        self.model_journal = folder / "model.jsonl"
        self.tool_journal = folder / "tool.jsonl"
        self.uses_stand_in = not any(os.environ.get(name) for name in OWN_MODEL)
        self.tool_origin = ""
        self.model_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self._environment: dict[str, str] = {}
        self._processes: list[Process] = []
        self._session: Process | None = None
        self._runner: Process | None = None

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "turnkeeper.db"

    @property
    def logs(self) -> list[Path]:
        """What the processes logged."""
        return [process.log for process in self._processes]

    async def start(self) -> None:
        """Starts the stand-ins, then both services, and returns when they serve."""
        self.tool_origin = await start_stand_in(self._stand_in("tool", self.tool_journal), self.tool_journal)
        if self.uses_stand_in:
            self.model_url = await start_stand_in(self._stand_in("model", self.model_journal), self.model_journal)
        self._environment = self._settings()
        self._environment |= await self._trust()
        self._session = self._process("session-service", str(BIN / "session-service"), "serve")
        self._runner = self._process("runner-service", str(BIN / "runner-service"), "serve")
        await self.start_services()

    async def start_services(self) -> None:
        """Starts both services; on the second time they find what the first left."""
        assert self._session is not None
        assert self._runner is not None
        await self._session.start()
        await self._runner.start()
        await healthy(self._session, self.session_address)
        await healthy(self._runner, self.runner_address)

    async def kill_services(self) -> None:
        """Ends both services with SIGKILL."""
        assert self._session is not None
        assert self._runner is not None
        await asyncio.gather(self._session.kill(), self._runner.kill())

    async def served(self, ended: asyncio.Event) -> None:
        """Returns when `ended` is set; raises when a process ends by itself before."""
        waits = [
            asyncio.create_task(ended.wait()),
            *(asyncio.create_task(process.wait()) for process in self._processes),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not ended.is_set():
            for process in self._processes:
                process.check()

    async def stop(self) -> None:
        """Ends every process; returns when they are gone."""
        await asyncio.gather(*(process.stop() for process in reversed(self._processes)))

    def left_behind(self) -> list[str]:
        """The processes of which something is still there."""
        return [process.name for process in self._processes if process.remains()]

    async def token(self) -> str:
        """A real token, as a developer gets one."""
        return await self._dev_token()

    async def _trust(self) -> dict[str, str]:
        """What the runner needs to accept the developer's tokens too; the session service does so by itself."""
        told = json.loads(await self._dev_token("--json"))
        return {f"TURNKEEPER_RUNNER_{name.upper()}": value for name, value in told.items() if name != "token"}

    async def _dev_token(self, *options: str) -> str:
        command = [str(BIN / "session-service"), "dev-token", "--tenant", "acme", "--user", "ada", *options]
        process = await asyncio.create_subprocess_exec(*command, env=self._environment, stdout=PIPE, stderr=PIPE)
        output, errors = await process.communicate()
        if process.returncode != 0:
            raise ProcessFailedError(f"session-service dev-token failed:\n{errors.decode()}")
        return output.decode().strip()

    def _stand_in(self, name: str, journal: Path) -> Process:
        journal.unlink(missing_ok=True)
        self._environment = environment()
        return self._process(name, PYTHON, "-m", f"demo.{name}", str(journal))

    def _process(self, name: str, *command: str) -> Process:
        process = Process(name, command, self._environment, self.folder / f"{name}.log")
        self._processes.append(process)
        return process

    def _settings(self) -> dict[str, str]:
        model = {"OPENAI_BASE_URL": self.model_url, "OPENAI_API_KEY": "stand-in"} if self.uses_stand_in else {}
        return environment(
            TURNKEEPER_SESSION_DATABASE_URL=f"sqlite:///{self.database}",
            TURNKEEPER_SESSION_LISTEN=self.session_address,
            TURNKEEPER_SESSION_RUNNER_TARGET=self.runner_address,
            TURNKEEPER_RUNNER_LISTEN=self.runner_address,
            TURNKEEPER_RUNNER_SESSION_TARGET=self.session_address,
            TURNKEEPER_RUNNER_TOOL_ORIGINS=self.tool_origin,
            **model,
        )
