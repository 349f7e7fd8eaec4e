"""INSERT … ON CONFLICT DO NOTHING, which the two dialects spell in modules of their own."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Inserts the row unless its key is there, and says which; a concurrent insert of the key is waited for."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return connection.execute(insert(table).values(values).on_conflict_do_nothing()).rowcount == 1
