"""Stored times and protobuf times."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(microseconds: int | None) -> Timestamp | None:
    """A stored time (microseconds since 1970) as protobuf, or None."""
    if microseconds is None:
        return None
    result = Timestamp()
    result.FromMicroseconds(microseconds)
    return result


def duration(microseconds: int) -> Duration:
    """A stored duration as protobuf."""
    result = Duration()
    result.FromMicroseconds(microseconds)
    return result
