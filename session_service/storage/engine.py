"""Opens the database that a URL names."""

from sqlalchemy.engine import make_url

from session_service.storage.postgres import PostgresDatabase
from session_service.storage.sqlite import SqliteDatabase
from session_service.storage.write import Storage

SQLITE = "sqlite+aiosqlite"
POSTGRESQL = "postgresql+asyncpg"


def full_url(url: str) -> str:
    """The URL with the driver that we use: `sqlite:///file` and `postgresql://…` may be written without it.

    Raises ValueError for another database.
    """
    parsed = make_url(url)
    driver = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "postgres": POSTGRESQL}.get(parsed.get_backend_name())
    if driver is None:
        raise ValueError(f"no support for the database of {parsed.render_as_string(hide_password=True)}")
    return parsed.set(drivername=driver).render_as_string(hide_password=False)


def is_sqlite(url: str) -> bool:
    """Whether the URL names a SQLite file."""
    return full_url(url).startswith(SQLITE)


def open_storage(url: str, pool_size: int = 10) -> Storage:
    """Opens the database of `url`; the caller closes it. Connects at the first use."""
    whole = full_url(url)
    if is_sqlite(url):
        # The service's own threads run the transactions, so the driver need not be an asynchronous one.
        return Storage(SqliteDatabase(whole.replace(SQLITE, "sqlite", 1)))
    return Storage(PostgresDatabase(whole, pool_size))
