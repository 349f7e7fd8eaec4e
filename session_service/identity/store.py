"""The signing keys' SQL. Private keys are read here and nowhere else."""

from sqlalchemy import Connection, insert, select, text

from session_service.storage.clock import Now
from session_service.storage.schema import signing_keys


def lock_keys(connection: Connection) -> None:
    """Keeps other replicas from adding keys until the transaction ends; a write on SQLite is alone anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE"))


def read_keys(connection: Connection, purpose: str) -> list[str]:
    """The private JWKs for this purpose as JSON texts, newest first."""
    return list(
        connection.execute(
            select(signing_keys.c.jwk)
            .where(signing_keys.c.purpose == purpose)
            .order_by(signing_keys.c.create_time.desc(), signing_keys.c.kid.desc())
        ).scalars()
    )


def insert_key(connection: Connection, kid: str, purpose: str, jwk: str) -> None:
    """Adds a key."""
    connection.execute(insert(signing_keys).values(kid=kid, purpose=purpose, jwk=jwk, create_time=Now()))
