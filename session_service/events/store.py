"""The log's SQL. Rows are only added, numbered under their run's lock by runs/store.py."""

import itertools
from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select
from turnkeeper.v1.run_event_pb2 import RunEvent

from session_service.runs.model import AnyRow, RunKey
from session_service.storage.clock import Now
from session_service.storage.schema import run_events
from session_service.times import timestamp

_ROWS_PER_INSERT = 200


def insert_events(connection: Connection, run: AnyRow, first_sequence: int, bodies: Sequence[RunEvent]) -> None:
    """Adds events to the run of this (locked) row, from `first_sequence` on."""
    rows = [
        {
            "tenant_id": run.tenant_id,
            "run_id": run.run_id,
            "sequence": first_sequence + offset,
            "attempt": run.attempt,
            "turn": run.turn,
            "kind": body.WhichOneof("body"),
            "body": body.SerializeToString(),
            "create_time": Now(),
        }
        for offset, body in enumerate(bodies)
    ]
    for start in range(0, len(rows), _ROWS_PER_INSERT):
        connection.execute(insert(run_events).values(rows[start : start + _ROWS_PER_INSERT]))


def read_after(connection: Connection, key: RunKey, sequence: int, limit: int, max_bytes: int) -> list[RunEvent]:
    """The next events after a sequence, oldest first: at most `limit`, and after the first no more than fit."""
    mine = (run_events.c.tenant_id == key.tenant_id, run_events.c.run_id == key.run_id)
    sizes = connection.execute(
        select(run_events.c.sequence, func.length(run_events.c.body).label("size"))
        .where(*mine, run_events.c.sequence > sequence)
        .order_by(run_events.c.sequence)
        .limit(limit)
    ).all()
    totals = itertools.accumulate(row.size for row in sizes)
    fitting = [row.sequence for row, total in zip(sizes, totals, strict=True) if total <= max_bytes] or [
        row.sequence for row in sizes[:1]
    ]
    if not fitting:
        return []
    rows = connection.execute(
        select(run_events)
        .where(*mine, run_events.c.sequence.between(fitting[0], fitting[-1]))
        .order_by(run_events.c.sequence)
    )
    return [_event(row) for row in rows]


def read_texts(connection: Connection, run: AnyRow) -> list[tuple[int, str]]:
    """The text of the run's current attempt and turn, as (step, text), in order."""
    rows = connection.execute(
        select(run_events.c.body)
        .where(
            run_events.c.tenant_id == run.tenant_id,
            run_events.c.run_id == run.run_id,
            run_events.c.attempt == run.attempt,
            run_events.c.turn == run.turn,
            run_events.c.kind == "text_delta",
        )
        .order_by(run_events.c.sequence)
    )
    deltas = (RunEvent.FromString(row.body).text_delta for row in rows)
    return [(delta.step, delta.text) for delta in deltas]


def _event(row: AnyRow) -> RunEvent:
    event = RunEvent.FromString(row.body)
    event.run_id = row.run_id
    event.sequence = row.sequence
    event.attempt = row.attempt
    event.turn = row.turn
    created = timestamp(row.create_time)
    if created is not None:
        event.create_time.CopyFrom(created)
    return event
