"""Following a run's log: replay, then live, with no gap and no duplicate (SPEC 5.3, 5.4)."""

from collections.abc import AsyncGenerator

from sqlalchemy import Connection
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, not_found

from session_service.events.store import read_after
from session_service.runs.model import RunKey
from session_service.runs.states import TERMINAL
from session_service.runs.store import find_visible
from session_service.storage.write import Storage

PAGE, PAGE_BYTES = 64, 256 * 1024
"""Events, and their bytes, that one watcher holds at most; a slow reader holds no more and delays nobody."""
POLL_SECONDS = 1.0
"""How late an event may be shown when every hint is lost."""

_TERMINAL = frozenset(run_pb2.RunState.Value(f"RUN_STATE_{state}") for state in TERMINAL)


async def watch_run(
    storage: Storage, context: RequestContext, run_id: str, after_sequence: int
) -> AsyncGenerator[RunEvent, None]:
    """The run's events after a sequence, until its terminal event; NOT_FOUND as soon as it is not visible any more.

    Between two reads it holds no connection, only its cursor.
    """
    cursor = after_sequence

    def page(connection: Connection) -> tuple[list[RunEvent], int, bool]:
        run = find_visible(connection, context, run_id)
        if run is None:
            raise not_found("run")
        found = read_after(connection, RunKey(context.tenant_id, run_id), cursor, PAGE, PAGE_BYTES)
        return found, run.last_sequence, run.state in TERMINAL

    with storage.hints.listen(run_id) as listener:  # before the first read: what commits after it is heard
        while True:
            events, last_sequence, ended = await storage.read(context.tenant_id, page)
            if cursor > last_sequence:
                metadata = {"last_sequence": str(last_sequence)}
                raise Refused(reasons.ERROR_REASON_CURSOR_AHEAD, metadata=metadata)
            for event in events:
                cursor = event.sequence
                yield event
                if event.state_changed.state in _TERMINAL:
                    return
            if ended and cursor == last_sequence:
                return
            if not events:
                await listener.wait(POLL_SECONDS)
