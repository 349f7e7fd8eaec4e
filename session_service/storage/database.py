"""What the two kinds of database have in common: transactions that are synchronous functions of a Connection."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")
_WAKES = "turnkeeper.wakes"


class Database(Protocol):
    """Runs transactions. What it raises is SQLAlchemy's, or the transaction's own."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Runs `query`; nothing that it does is kept."""

    async def write(self, change: Callable[[Connection], T]) -> tuple[T, set[str]]:
        """Runs `change` and commits it; what it returned, and the hints that it asked for."""

    async def close(self) -> None:
        """Ends what runs and closes all connections."""


def wake_after_commit(connection: Connection, topics: Iterable[str]) -> None:
    """Asks for wake-ups that are sent when, and only when, the change that asks has committed."""
    connection.info[_WAKES].update(topics)


def run_change(connection: Connection, change: Callable[[Connection], T]) -> tuple[T, set[str]]:
    """Runs one change inside the transaction of its caller, with a set of its own for its hints."""
    topics: set[str] = set()
    connection.info[_WAKES] = topics  # a new set: what a change that failed asked for must not be heard
    return change(connection), topics
