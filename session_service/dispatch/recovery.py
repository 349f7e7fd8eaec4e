"""The sweeper: makes runs with dead leases claimable or ends them, and ends what is overdue (SPEC 3.3, 4.6).

Every replica sweeps; doing it twice is harmless, since each step is guarded by the row that it locks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select
from turnkeeper.wire.errors import Refused

from session_service.dispatch.model import LeaseTerms
from session_service.runs import ending
from session_service.runs.model import AnyRow, RunKey, RunState
from session_service.runs.states import TERMINAL
from session_service.runs.store import lock
from session_service.storage.clock import Now
from session_service.storage.schema import request_ids, runs, sessions, start_keys
from session_service.storage.write import Storage
from session_service.turns.record import DEADLINE_EXCEEDED, DISPATCH_FAILED, settle_lost

BATCH = 100
_log = structlog.get_logger(__name__)


class Sweeper:
    """Sweeps the database every `interval` seconds; keys of starts are forgotten after `keep_keys` microseconds."""

    def __init__(self, storage: Storage, terms: LeaseTerms, *, interval: float, keep_keys: int) -> None:
        self._storage, self._terms, self._interval, self._keep_keys = storage, terms, interval, keep_keys

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweeps inside the block."""
        loop = asyncio.create_task(self._sweep_forever(), name="sweeper")
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait((loop,))

    async def sweep(self) -> None:
        """One sweep."""
        await self._each(self._overdue_cancel(), self._end_cancel)
        await self._each(self._dead_lease(), self._end_dead)
        await self._each(and_(runs.c.state == RunState.QUEUED, runs.c.deadline <= Now()), self._end_queued)
        await self._storage.write("", purge_deleted_sessions)
        await self._storage.write("", lambda connection: forget_keys(connection, self._keep_keys))

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except Refused:
                _log.warning("sweep put off: the database is away")
            except Exception:
                _log.exception("sweep failed")
            await asyncio.sleep(self._interval)

    async def _each(self, due: ColumnElement[bool], end: Callable[[Connection, AnyRow], None]) -> None:
        """Ends each run that is due, in a transaction of its own that looks again under the lock."""

        def find(connection: Connection) -> list[RunKey]:
            rows = connection.execute(select(runs.c.tenant_id, runs.c.run_id).where(due).limit(BATCH))
            return [RunKey(row.tenant_id, row.run_id) for row in rows]

        for key in await self._storage.read("", find):

            def change(connection: Connection, key: RunKey = key) -> None:
                run = lock(connection, key, with_session=True)
                still = and_(runs.c.tenant_id == key.tenant_id, runs.c.run_id == key.run_id, due)
                if run is not None and connection.execute(select(runs.c.run_id).where(still)).first() is not None:
                    end(connection, run)

            await self._storage.write(key.tenant_id, change)

    def _overdue_cancel(self) -> ColumnElement[bool]:
        return and_(runs.c.state == RunState.CANCELLING, runs.c.cancel_time + self._terms.confirm <= Now())

    def _dead_lease(self) -> ColumnElement[bool]:
        """Nobody renews it any more, or its call's deadline passed and no report came in the confirm time."""
        return and_(
            runs.c.state == RunState.RUNNING,
            or_(
                runs.c.lease_expire_time + self._terms.stop_grace <= Now(),
                runs.c.call_deadline + self._terms.confirm <= Now(),
            ),
        )

    def _end_cancel(self, connection: Connection, run: AnyRow) -> None:
        ending.cancelled(connection, run, confirmed=False)

    def _end_dead(self, connection: Connection, run: AnyRow) -> None:
        settle_lost(connection, run)

    def _end_queued(self, connection: Connection, run: AnyRow) -> None:
        ending.fail(connection, run, DISPATCH_FAILED if run.turn <= 1 else DEADLINE_EXCEEDED)


def purge_deleted_sessions(connection: Connection) -> None:
    """Removes the rows of deleted sessions whose runs are all terminal (SPEC 9.5)."""
    unfinished = (
        select(runs.c.run_id)
        .where(
            runs.c.tenant_id == sessions.c.tenant_id,
            runs.c.session_id == sessions.c.session_id,
            runs.c.state.not_in(TERMINAL),
        )
        .exists()
    )
    connection.execute(delete(sessions).where(sessions.c.delete_time.is_not(None), ~unfinished))


def forget_keys(connection: Connection, keep: int) -> None:
    """Forgets keys and request ids that are older than `keep` microseconds, unless the run of a key is not terminal."""
    needed = (
        select(runs.c.run_id)
        .where(
            runs.c.tenant_id == start_keys.c.tenant_id,
            runs.c.run_id == start_keys.c.run_id,
            runs.c.state.not_in(TERMINAL),
        )
        .exists()
    )
    connection.execute(delete(start_keys).where(start_keys.c.create_time < Now() - keep, ~needed))
    connection.execute(delete(request_ids).where(request_ids.c.create_time < Now() - keep))
