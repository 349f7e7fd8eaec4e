"""What sessions and messages may do. Each function runs in its caller's transaction."""

from collections.abc import Sequence

from sqlalchemy import Connection
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.wire.builtins import RENAME_SESSION
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, invalid, not_found

from session_service.events import bodies
from session_service.pages import Page
from session_service.runs.cancelling import cancel_for_deletion
from session_service.sessions import store
from session_service.sessions.access import lock_session
from session_service.sessions.model import (
    Message,
    MessageDraft,
    MessagePlace,
    MessageRole,
    NameSource,
    Rename,
    Session,
)
from session_service.turns.hold import hold_current
from session_service.turns.tool_write import ToolWrite, finish, recorded_result, refuse

PAGE_BYTES = 2 * 1024 * 1024
"""A page of messages ends at about this size, so that none breaks gRPC's limit of 4 MiB."""


def name_source(context: RequestContext, automatic: bool) -> NameSource:
    """Who chooses a name (SPEC 8.7): a run's token is a program, and a user's is when it says so."""
    return NameSource.AUTOMATIC if automatic or context.run is not None else NameSource.USER


def create_session(connection: Connection, context: RequestContext, name: str, automatic: bool) -> Session:
    """A new session of the caller, PROVISIONAL (SPEC 9.1)."""
    return store.insert_session(connection, context, name or None, name_source(context, automatic) if name else None)


def get_session(connection: Connection, context: RequestContext, session_id: str) -> Session:
    """The session, always from its row (SPEC 9.4)."""
    session = store.find_session(connection, context, session_id)
    if session is None:
        raise not_found("session")
    return session


def rename_session(
    connection: Connection, context: RequestContext, session_id: str, rename: Rename
) -> tuple[Session, str] | Refused:
    """Renames the session; an automatic name never replaces a user's, nor takes it away (SPEC 8.7).

    Answers also what the tool call has as its result, if the rename names one.
    """
    require_tool_rename(context, rename)
    lock_session(connection, context, session_id)
    run = None if context.run is None else hold_current(connection, context)
    write = ToolWrite(RENAME_SESSION, f"session {session_id}", rename.tool_call_id)
    result = None if run is None else recorded_result(connection, run, write)
    if result is None:
        source = name_source(context, rename.automatic)
        if not store.set_name(connection, context, session_id, rename.name or None, source):
            refusal = Refused(reasons.ERROR_REASON_NAME_SET_BY_USER)
            return refusal if run is None else refuse(connection, context, run, write, refusal)
        renamed = bodies.session_renamed(rename.name)
        result = "" if run is None else finish(connection, context, run, write, rename.result, [renamed])
    return get_session(connection, context, session_id), result


def require_tool_rename(context: RequestContext, rename: Rename) -> None:
    """A tool call belongs to a run, and gives a name; only a user takes one away."""
    if rename.tool_call_id and context.run is None:
        raise invalid("tool_call_id", "must be empty with a user token")
    if rename.tool_call_id and not rename.name:
        raise invalid("name", "must not be blank")


def delete_session(connection: Connection, context: RequestContext, session_id: str) -> None:
    """Sets the tombstone and cancels every run that has not ended; the rows go later (SPEC 9.5)."""
    lock_session(connection, context, session_id)
    store.set_deleted(connection, context, session_id)
    cancel_for_deletion(connection, context, session_id)


def append_message(
    connection: Connection, context: RequestContext, session_id: str, role: MessageRole, text: str
) -> Message:
    """Appends a message to the (locked) session; runs claimed later see it (SPEC 2.7)."""
    order = store.next_order(connection, context.tenant_id, session_id)
    draft = MessageDraft(run_id=None, role=role, text=text, prompt_order=order)
    return store.add_messages(connection, context.tenant_id, session_id, [draft])[0]


def list_messages(
    connection: Connection,
    context: RequestContext,
    session_id: str,
    prompt_of_run_id: str,
    page: Page[tuple[int, int]],
) -> tuple[list[Message], str]:
    """A page of the session's messages, or of those that the run's prompt sees, and the next page's token."""
    get_session(connection, context, session_id)
    places = _places(connection, context, session_id, prompt_of_run_id, page)
    shown, token = page.close(places, lambda place: (place.order, place.position), at_most=_fitting(places))
    return store.read_messages(connection, context, session_id, [place.position for place in shown]), token


def _places(
    connection: Connection,
    context: RequestContext,
    session_id: str,
    prompt_of_run_id: str,
    page: Page[tuple[int, int]],
) -> list[MessagePlace]:
    after = page.after or (0, 0)
    if not prompt_of_run_id:
        return store.read_places(connection, context, session_id, after[1], page.limit + 1)
    run = store.find_prompt_run(connection, context, session_id, prompt_of_run_id)
    if run is None:
        raise not_found("run")
    if run.claim_order is None:
        return []  # nothing has been prompted, and what will be is not decided yet
    return store.read_prompt_places(connection, context, session_id, run, after=after, limit=page.limit + 1)


def _fitting(places: Sequence[MessagePlace]) -> int:
    """How many of these messages, from the first on, make a page that is not too large; always one."""
    total = 0
    for count, place in enumerate(places):
        total += place.size
        if total > PAGE_BYTES and count:
            return count
    return len(places)
