"""What PostgreSQL needs: bounded waits, and which of its errors are worth another try."""

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 15_000
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: the transaction is gone and may simply run again
_UNAVAILABLE_CLASSES = {"08", "53", "57", "58"}  # connection, resources (disk full), operator intervention, system
_UNAVAILABLE = {"55P03"}  # a lock was not to be had in time


def open_engine(url: str, pool_size: int) -> AsyncEngine:
    """A pool whose sessions never wait for ever."""
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=True,
        connect_args={
            "timeout": 10,
            "server_settings": {
                "application_name": "turnkeeper-session-service",
                "lock_timeout": str(LOCK_TIMEOUT_MS),
                "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                "idle_in_transaction_session_timeout": "30000",
            },
        },
    )


def is_again(error: BaseException | None) -> bool:
    """Whether the same transaction may succeed when it is run again at once."""
    return _sqlstate(error) in _AGAIN


def is_unavailable(error: BaseException | None) -> bool:
    """Whether the server could not do it now, whoever asks."""
    state = _sqlstate(error)
    return state[:2] in _UNAVAILABLE_CLASSES or state in _UNAVAILABLE


def _sqlstate(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or "")
