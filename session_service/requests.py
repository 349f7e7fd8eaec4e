"""Request ids: a retry of a request is answered with the stored response (SPEC 2.3)."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message
from sqlalchemy import Connection, and_, select, update
from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused

from session_service.storage.clock import Now
from session_service.storage.insert import insert_if_new
from session_service.storage.schema import request_ids

R = TypeVar("R", bound=Message)


def answer_once(
    connection: Connection, context: RequestContext, request: Any, response: type[R], make: Callable[[], R]
) -> R:
    """The stored response of the request's id, or what `make` answers, stored in the same transaction.

    An empty request id asks for no such care. Another user or other content: REQUEST_ID_REUSED. The row comes before
    the work, so of two requests at once the second waits here for the first one's commit or rollback.
    """
    if not request.request_id:
        return make()
    row = {
        "tenant_id": context.tenant_id,
        "method": request.DESCRIPTOR.full_name,
        "request_id": request.request_id,
    }
    asked = {"user_id": context.user_id, "fingerprint": _fingerprint(request)}
    named = and_(*(request_ids.c[column] == value for column, value in row.items()))
    while not insert_if_new(connection, request_ids, {**row, **asked, "response": b"", "create_time": Now()}):
        stored = connection.execute(select(request_ids).where(named)).one_or_none()
        if stored is None:
            continue  # forgotten between the two statements: the id is free again
        if {"user_id": stored.user_id, "fingerprint": stored.fingerprint} != asked:
            raise Refused(error_reason_pb2.ERROR_REASON_REQUEST_ID_REUSED)
        return response.FromString(stored.response)
    made = make()
    connection.execute(update(request_ids).where(named).values(response=made.SerializeToString()))
    return made


def _fingerprint(request: Message) -> str:
    """What a repeated request must equal: all of it as validated, but the request id itself."""
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("request_id")
    content.DiscardUnknownFields()
    return f"1:{hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()}"
