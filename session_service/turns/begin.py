"""BeginTurn: "the harness has started" means that this committed (SPEC 3.4)."""

from typing import Any

from sqlalchemy import Connection, case, insert, select, update
from turnkeeper.wire.context import RequestContext

from session_service.runs.model import AnyRow
from session_service.sessions.access import lock_session
from session_service.sessions.model import SessionLifecycle
from session_service.storage.clock import Now
from session_service.storage.schema import attempts, runs, sessions, turns
from session_service.storage.write import Storage
from session_service.turns.hold import hold_current


async def begin_turn(storage: Storage, context: RequestContext, harness: str, runner_store: str) -> int:
    """Numbers and stores the turn of the token's attempt, and answers its number in the session.

    A further attempt of the same turn keeps the number: a run's own attempts do not count (SPEC 6.3).
    """

    def change(connection: Connection) -> int:
        run = hold_current(connection, context, with_session=True)
        connection.execute(
            update(attempts)
            .where(
                attempts.c.tenant_id == run.tenant_id,
                attempts.c.run_id == run.run_id,
                attempts.c.attempt == run.attempt,
                attempts.c.begin_time.is_(None),
            )
            .values(begin_time=Now())
        )
        connection.execute(
            update(runs)
            .where(runs.c.tenant_id == run.tenant_id, runs.c.run_id == run.run_id)
            .values(runner=runner_store)
        )
        return _known_number(connection, run) or _number(connection, run, harness, runner_store)

    return await storage.write(context.tenant_id, change)


async def begin_direct_turn(
    storage: Storage, context: RequestContext, session_id: str, harness: str, runner_store: str
) -> int:
    """Numbers a direct turn on a session of the caller. The session's lifecycle stays (SPEC 9.7)."""

    def change(connection: Connection) -> int:
        lock_session(connection, context, session_id)
        number = _next_number(connection, context.tenant_id, session_id)
        turn = _turn(context.tenant_id, session_id, number, harness, runner_store)
        connection.execute(insert(turns).values(**turn, run_id=None, run_turn=0))
        return number

    return await storage.write(context.tenant_id, change)


def _known_number(connection: Connection, run: AnyRow) -> int | None:
    return connection.execute(
        select(turns.c.turn_number).where(
            turns.c.tenant_id == run.tenant_id, turns.c.run_id == run.run_id, turns.c.run_turn == run.turn
        )
    ).scalar_one_or_none()


def _number(connection: Connection, run: AnyRow, harness: str, runner_store: str) -> int:
    number = _next_number(
        connection,
        run.tenant_id,
        run.session_id,
        lifecycle=SessionLifecycle.LIVE,
        update_time=case((sessions.c.lifecycle != SessionLifecycle.LIVE, Now()), else_=sessions.c.update_time),
    )
    turn = _turn(run.tenant_id, run.session_id, number, harness, runner_store)
    connection.execute(insert(turns).values(**turn, run_id=run.run_id, run_turn=run.turn))
    return number


def _next_number(connection: Connection, tenant_id: str, session_id: str, **values: Any) -> int:
    """The next number of the (locked) session, with other columns set beside it."""
    number: int = connection.execute(
        update(sessions)
        .where(sessions.c.tenant_id == tenant_id, sessions.c.session_id == session_id)
        .values(last_turn_number=sessions.c.last_turn_number + 1, **values)
        .returning(sessions.c.last_turn_number)
    ).scalar_one()
    return number


def _turn(tenant_id: str, session_id: str, number: int, harness: str, runner_store: str) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "turn_number": number,
        "harness": harness,
        "runner_store": runner_store,
        "begin_time": Now(),
    }
