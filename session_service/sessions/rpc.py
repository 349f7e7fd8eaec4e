"""SessionService: translates; decides nothing."""

from sqlalchemy import Connection
from turnkeeper.v1 import session_pb2
from turnkeeper.v1.session_service_pb2 import (
    AppendMessageRequest,
    AppendMessageResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    GetSessionRequest,
    GetSessionResponse,
    ListMessagesRequest,
    ListMessagesResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turnkeeper.wire.context import Call

from session_service.pages import PageTokens
from session_service.requests import answer_once
from session_service.sessions import logic, store
from session_service.sessions.access import lock_session
from session_service.sessions.model import Message, MessageRole, NameSource, Rename, Session
from session_service.storage.write import Storage
from session_service.times import timestamp
from session_service.turns.tool_write import answered


class SessionServicer:
    """Creates, reads, renames and deletes sessions, and keeps their messages."""

    def __init__(self, storage: Storage, pages: PageTokens) -> None:
        self._storage, self._pages = storage, pages

    async def CreateSession(self, request: CreateSessionRequest, call: Call) -> CreateSessionResponse:
        """SPEC 9.1."""

        def change(connection: Connection) -> CreateSessionResponse:
            def make() -> CreateSessionResponse:
                session = logic.create_session(connection, call.context, request.name, request.automatic_name)
                return CreateSessionResponse(session=session_proto(session))

            return answer_once(connection, call.context, request, CreateSessionResponse, make)

        return await self._storage.write(call.context.tenant_id, change)

    async def GetSession(self, request: GetSessionRequest, call: Call) -> GetSessionResponse:
        """SPEC 9.4."""
        session = await self._storage.read(
            call.context.tenant_id, lambda connection: logic.get_session(connection, call.context, request.session_id)
        )
        shown = session_proto(session)
        if request.include_harness_state:
            shown.harness_state = session_pb2.HARNESS_SESSION_STATE_UNAVAILABLE  # nobody is asked yet
        return GetSessionResponse(session=shown)

    async def ListSessions(self, request: ListSessionsRequest, call: Call) -> ListSessionsResponse:
        """SPEC 11.3."""
        page = self._pages.open(call.context, request, int, str)
        found = await self._storage.read(
            call.context.tenant_id,
            lambda connection: store.read_sessions(connection, call.context, page.after, page.limit + 1),
        )
        shown, token = page.close(found, lambda session: (session.create_time, session.session_id))
        return ListSessionsResponse(sessions=map(session_proto, shown), next_page_token=token)

    async def UpdateSession(self, request: UpdateSessionRequest, call: Call) -> UpdateSessionResponse:
        """SPEC 8.6, 8.7."""

        rename = Rename(request.name, request.automatic_name, request.tool_call_id)
        session, result = answered(
            await self._storage.write(
                call.context.tenant_id,
                lambda connection: logic.rename_session(connection, call.context, request.session_id, rename),
            )
        )
        return UpdateSessionResponse(session=session_proto(session), tool_result=result)

    async def DeleteSession(self, request: DeleteSessionRequest, call: Call) -> DeleteSessionResponse:
        """SPEC 9.5."""
        await self._storage.write(
            call.context.tenant_id,
            lambda connection: logic.delete_session(connection, call.context, request.session_id),
        )
        return DeleteSessionResponse()

    async def AppendMessage(self, request: AppendMessageRequest, call: Call) -> AppendMessageResponse:
        """SPEC 2.7."""
        role = MessageRole(session_pb2.MessageRole.Name(request.role).removeprefix("MESSAGE_ROLE_"))

        def change(connection: Connection) -> AppendMessageResponse:
            def make() -> AppendMessageResponse:
                message = logic.append_message(connection, call.context, request.session_id, role, request.text)
                return AppendMessageResponse(message=message_proto(message))

            # The session comes first: that of a deleted one answers NOT_FOUND, also to a retry.
            lock_session(connection, call.context, request.session_id)
            return answer_once(connection, call.context, request, AppendMessageResponse, make)

        return await self._storage.write(call.context.tenant_id, change)

    async def ListMessages(self, request: ListMessagesRequest, call: Call) -> ListMessagesResponse:
        """SPEC 2.7, 11.3."""
        page = self._pages.open(call.context, request, int, int)
        shown, token = await self._storage.read(
            call.context.tenant_id,
            lambda connection: logic.list_messages(
                connection, call.context, request.session_id, request.prompt_of_run_id, page
            ),
        )
        return ListMessagesResponse(messages=map(message_proto, shown), next_page_token=token)


def session_proto(session: Session) -> session_pb2.Session:
    """A session as callers see it."""
    return session_pb2.Session(
        session_id=session.session_id,
        owner_user_id=session.owner_user_id,
        name=session.name or "",
        name_source=name_source_proto(session.name_source),
        lifecycle=session_pb2.SessionLifecycle.Value(f"SESSION_LIFECYCLE_{session.lifecycle}"),
        busy=session.busy,
        create_time=timestamp(session.create_time),
        update_time=timestamp(session.update_time),
    )


def message_proto(message: Message) -> session_pb2.Message:
    """A message as callers see it."""
    return session_pb2.Message(
        message_id=message.message_id,
        session_id=message.session_id,
        run_id=message.run_id or "",
        position=message.position,
        role=session_pb2.MessageRole.Value(f"MESSAGE_ROLE_{message.role}"),
        text=message.text,
        tool_calls=[
            session_pb2.MessageToolCall(
                call_id=call.call_id, tool_name=call.tool_name, arguments_json=call.arguments_json
            )
            for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id or "",
        status=session_pb2.MessageStatus.Value(f"MESSAGE_STATUS_{message.status}"),
        create_time=timestamp(message.create_time),
    )


def name_source_proto(source: NameSource | None) -> session_pb2.NameSource.ValueType:
    """Who chose a name; UNSPECIFIED when there is none."""
    return session_pb2.NameSource.Value(f"NAME_SOURCE_{source or 'UNSPECIFIED'}")
