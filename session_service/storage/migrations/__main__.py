"""Drafts the next migration from the difference between `schema.py` and the migrations so far: read it through.

python -m session_service.storage.migrations 0002 "What changes"
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from alembic import command

from session_service.storage import migrate


async def _draft(revision: str, message: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'draft.db'}"
        await migrate.upgrade(url)
        async with migrate.opened(url) as connection:
            await connection.run_sync(
                lambda sync: command.revision(migrate.config(sync), message, autogenerate=True, rev_id=revision)
            )


if __name__ == "__main__":
    asyncio.run(_draft(*sys.argv[1:]))
