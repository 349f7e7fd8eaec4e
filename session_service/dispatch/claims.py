"""The SQL of claims and leases, all in the database's clock (SPEC 3.2)."""

from collections.abc import Collection

from sqlalchemy import Connection, and_, func, insert, select, update

from session_service.dispatch.model import Candidate, Claim, LeaseTerms
from session_service.runs.model import AnyRow, RunKey, RunState
from session_service.runs.states import TERMINAL
from session_service.runs.store import lock, transition
from session_service.sessions.store import next_order
from session_service.storage.clock import Now
from session_service.storage.schema import attempts, runs, sessions

_earlier = runs.alias("earlier")
_NO_EARLIER = ~(
    select(_earlier.c.run_id)
    .where(
        _earlier.c.tenant_id == runs.c.tenant_id,
        _earlier.c.session_id == runs.c.session_id,
        _earlier.c.queue_position < runs.c.queue_position,
        _earlier.c.state.not_in(TERMINAL),
    )
    .exists()
)


def candidates(connection: Connection, limit: int, skip: Collection[str]) -> list[Candidate]:
    """Claimable runs, going round the tenants: only the first run of a session that is not terminal (SPEC 3.8)."""
    turn_of_tenant = func.row_number().over(partition_by=runs.c.tenant_id, order_by=runs.c.available_time)
    waiting = (
        select(runs.c.tenant_id, runs.c.run_id, turn_of_tenant.label("round"), runs.c.available_time)
        .join(sessions, and_(sessions.c.tenant_id == runs.c.tenant_id, sessions.c.session_id == runs.c.session_id))
        .where(
            runs.c.state == RunState.QUEUED,
            runs.c.available_time <= Now(),
            runs.c.deadline > Now(),
            sessions.c.delete_time.is_(None),
            runs.c.run_id.not_in(skip),
            _NO_EARLIER,
        )
        .subquery()
    )
    chosen = (
        select(runs.c.tenant_id, runs.c.run_id, runs.c.session_id, runs.c.attempt)
        .join(waiting, and_(waiting.c.tenant_id == runs.c.tenant_id, waiting.c.run_id == runs.c.run_id))
        .order_by(waiting.c.round, waiting.c.available_time)
        .limit(limit)
    )
    return [
        Candidate(RunKey(row.tenant_id, row.run_id), row.session_id, row.attempt) for row in connection.execute(chosen)
    ]


def claim(
    connection: Connection, candidate: Candidate, order: AnyRow, dispatcher: str, terms: LeaseTerms, turn_limit: int
) -> Claim | None:
    """Takes the run, which is to do what `order` says, for one attempt; None when somebody was first.

    `turn_limit` is in microseconds.
    """
    seen = lock(connection, candidate.key, with_session=True)
    if seen is None or seen.state != RunState.QUEUED or seen.attempt != candidate.attempt:
        return None
    first = connection.execute(
        select(_NO_EARLIER).where(runs.c.tenant_id == candidate.key.tenant_id, runs.c.run_id == candidate.key.run_id)
    ).scalar_one()
    now: int = connection.execute(select(Now())).scalar_one()
    if not first or seen.deadline <= now:
        return None
    claim_order = seen.claim_order or next_order(connection, candidate.key.tenant_id, candidate.session_id)
    call_deadline = min(seen.deadline, now + turn_limit + terms.hold)
    row = transition(
        connection,
        candidate.key,
        RunState.RUNNING,
        expected=RunState.QUEUED,
        attempt=candidate.attempt,
        values={
            "attempt": candidate.attempt + 1,
            "turn": max(seen.turn, 1),
            "claim_order": claim_order,
            "start_time": seen.start_time or now,
            "lease_owner": dispatcher,
            "lease_expire_time": now + terms.lease,
            "call_deadline": call_deadline,
        },
    )
    if row is None:
        return None
    connection.execute(
        insert(attempts).values(
            tenant_id=row.tenant_id,
            run_id=row.run_id,
            attempt=row.attempt,
            turn=row.turn,
            dispatcher=dispatcher,
            claim_time=now,
            call_deadline=call_deadline,
        )
    )
    return Claim(row, order.input, order.config_json, call_deadline - now)


def renew(connection: Connection, key: RunKey, attempt: int, terms: LeaseTerms) -> bool:
    """Renews the attempt's lease; False when it is not to be renewed: cancelled, ended, or another's (SPEC 4.6)."""
    renewed = connection.execute(
        update(runs)
        .where(
            runs.c.tenant_id == key.tenant_id,
            runs.c.run_id == key.run_id,
            runs.c.attempt == attempt,
            runs.c.state == RunState.RUNNING,
        )
        .values(lease_expire_time=Now() + terms.lease)
    )
    return renewed.rowcount == 1
