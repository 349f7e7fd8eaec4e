"""Claims queued runs and supervises their attempts."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection
from turnkeeper.wire.configs import parse_config
from turnkeeper.wire.errors import Refused

from session_service.dispatch.attempt import Attempt
from session_service.dispatch.claims import candidates, claim
from session_service.dispatch.model import Candidate, Claim, LeaseTerms
from session_service.identity.keys import KeyRing
from session_service.runs.store import find_order
from session_service.storage.clock import MICROSECONDS, microseconds
from session_service.storage.hints import QUEUE
from session_service.storage.write import Storage

if TYPE_CHECKING:  # a name of the stub file alone
    from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceAsyncStub

UNREADABLE_CONFIG_SECONDS = 60.0
"""The turn limit of a config that this version cannot read; the runner says what is wrong with it."""

_log = structlog.get_logger(__name__)


class Dispatcher:
    """One per process. Many may work on one database: a claim is a compare-and-set."""

    def __init__(
        self,
        storage: Storage,
        keys: KeyRing,
        runner: "RunnerServiceAsyncStub",
        terms: LeaseTerms,
        *,
        max_attempts: int,
        poll_seconds: float,
    ) -> None:
        self._storage, self._keys, self._runner, self._terms = storage, keys, runner, terms
        self._max_attempts, self._poll_seconds = max_attempts, poll_seconds
        self._name = str(uuid.uuid4())
        self._attempts: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self, grace: float) -> AsyncIterator[None]:
        """Dispatches inside the block. Afterwards live attempts get `grace` seconds, then their calls are cancelled."""
        loop = asyncio.create_task(self._claim_forever(), name="dispatcher")
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait((loop,))
            if self._attempts:
                await asyncio.wait(self._attempts.values(), timeout=grace)
            for task in self._attempts.values():
                task.cancel()
            if self._attempts:
                await asyncio.wait(self._attempts.values())

    async def _claim_forever(self) -> None:
        with self._storage.hints.listen(QUEUE) as queue:
            while True:
                try:
                    claimed = await self._claim_some()
                except Refused:
                    claimed = 0  # the database is away; the poll tries again
                except Exception:
                    _log.exception("claiming failed")
                    claimed = 0
                if not claimed:
                    await queue.wait(self._poll_seconds)

    async def _claim_some(self) -> int:
        free = self._max_attempts - len(self._attempts)
        if free <= 0:
            return 0
        held = set(self._attempts)
        found = await self._storage.read("", lambda connection: candidates(connection, free, held))
        claims = [await self._claim(candidate) for candidate in found]
        for each in filter(None, claims):
            self._supervise(each)
        return len(claims)

    async def _claim(self, candidate: Candidate) -> Claim | None:
        tenant_id = candidate.key.tenant_id
        order = await self._storage.read(tenant_id, lambda connection: find_order(connection, candidate.key))
        try:
            turn_seconds = parse_config(order.config_json).limits.turn_seconds
        except Refused:
            turn_seconds = UNREADABLE_CONFIG_SECONDS
        limit = microseconds(turn_seconds)

        def change(connection: Connection) -> Claim | None:
            return claim(connection, candidate, order, self._name, self._terms, limit)

        return await self._storage.write(tenant_id, change)

    def _supervise(self, held: Claim) -> None:
        attempt = Attempt(self._storage, self._runner, held, self._run_token(held), self._terms)
        task = asyncio.create_task(attempt.execute(), name=f"attempt:{held.run.run_id}")
        self._attempts[held.run.run_id] = task
        task.add_done_callback(lambda done: self._ended(held.run.run_id, done))

    def _ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._attempts.pop(run_id, None)
        self._storage.hints.wake((QUEUE,))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("attempt failed", run_id=run_id, exc_info=error)

    def _run_token(self, held: Claim) -> str:
        """Expires with the call's deadline plus the confirm time, so that a late report is still taken."""
        run = held.run
        return self._keys.run_token(
            tenant_id=run.tenant_id,
            user_id=run.user_id,
            roles=json.loads(run.roles_json),
            scopes=json.loads(run.scopes_json),
            session_id=run.session_id,
            run_id=run.run_id,
            attempt=run.attempt,
            expire_time=(run.call_deadline + self._terms.confirm) // MICROSECONDS + 1,
        )
