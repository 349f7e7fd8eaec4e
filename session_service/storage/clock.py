"""The database's clock. Leases, deadlines and stored times use it alone, so that replicas never compare their own."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ColumnElement

MICROSECONDS = 1_000_000


class Now(ColumnElement[int]):
    """Microseconds since 1970 (UTC) when the statement runs, also inside a transaction that waited for a lock."""

    type = BigInteger()
    inherit_cache = True


@compiles(Now, "sqlite")
def _now_sqlite(_element: Now, _compiler: SQLCompiler, **_: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"


@compiles(Now, "postgresql")
def _now_postgresql(_element: Now, _compiler: SQLCompiler, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"


def microseconds(seconds: float) -> int:
    """A duration in seconds as the database stores it."""
    return round(seconds * MICROSECONDS)
