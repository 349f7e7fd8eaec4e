"""The cases of SessionService."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from turnkeeper.v1 import session_pb2
from turnkeeper.v1 import session_service_pb2 as sessions

from tests.contract.cases.case import NAME, UNIMPLEMENTED, Case
from tests.contract.worlds import World


def _session(method: str, scope: str, make: Callable[[World], Message], required: str = "", **more: Any) -> Case:
    return Case(f"SessionService/{method}", f"sessions:{scope}", make, required, **more)


def update_session(world: World) -> Message:
    return sessions.UpdateSessionRequest(session_id=world.session_id, name="New", update_mask=NAME)


def _share(world: World, **grantee: str) -> Message:
    return sessions.ShareSessionRequest(
        session_id=world.session_id, permission=sessions.SESSION_PERMISSION_VIEW, request_id="r-1", **grantee
    )


def _append(world: World) -> Message:
    return sessions.AppendMessageRequest(
        session_id=world.session_id, role=session_pb2.MESSAGE_ROLE_USER, text="Hello", request_id=f"append-{world.mark}"
    )


def prompt(world: World) -> Message:
    return sessions.ListMessagesRequest(session_id=world.session_id, prompt_of_run_id=world.run_id, page_size=200)


SESSIONS = (
    _session(
        "CreateSession",
        "write",
        lambda world: sessions.CreateSessionRequest(name="Blue", request_id=f"create-{world.mark}"),
        changes=True,
    ),
    _session("GetSession", "read", lambda world: sessions.GetSessionRequest(session_id=world.session_id), "session_id"),
    _session(
        "RestoreSession",
        "write",
        lambda world: sessions.RestoreSessionRequest(session_id=world.session_id),
        "session_id",
        answer=UNIMPLEMENTED,
    ),
    _session(
        "ListSessions", "read", lambda world: sessions.ListSessionsRequest(page_size=200, include_provisional=True)
    ),
    _session("UpdateSession", "write", update_session, "session_id update_mask", changes=True),
    _session(
        "DeleteSession",
        "write",
        lambda world: sessions.DeleteSessionRequest(session_id=world.session_id),
        "session_id",
        changes=True,
    ),
    _session(
        "ShareSession",
        "write",
        lambda world: _share(world, user_id="bob"),
        "session_id grantee",
        note="with a user",
        answer=UNIMPLEMENTED,
    ),
    _session(
        "ShareSession",
        "write",
        lambda world: _share(world, role="editors"),
        "session_id grantee",
        note="with a role",
        answer=UNIMPLEMENTED,
    ),
    _session(
        "UnshareSession",
        "write",
        lambda world: sessions.UnshareSessionRequest(session_id=world.session_id, share_id=world.share_id),
        "session_id share_id",
        answer=UNIMPLEMENTED,
    ),
    _session(
        "ListSessionShares",
        "read",
        lambda world: sessions.ListSessionSharesRequest(session_id=world.session_id, page_size=200),
        "session_id",
        answer=UNIMPLEMENTED,
    ),
    _session("AppendMessage", "write", _append, "session_id text", changes=True),
    _session(
        "ListMessages",
        "read",
        lambda world: sessions.ListMessagesRequest(session_id=world.session_id, page_size=200),
        "session_id",
    ),
    _session("ListMessages", "read", prompt, "session_id", note="of a prompt"),
)
