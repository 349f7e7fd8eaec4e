"""Sessions and messages as the contract shows them."""

from turnkeeper.v1 import session_pb2

from session_service.sessions.model import Message, NameSource, Session
from session_service.times import timestamp


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
