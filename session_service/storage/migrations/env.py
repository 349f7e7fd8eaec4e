"""Alembic's entry: runs on the connection and in the transaction that `storage.migrate` has opened."""

from alembic import context

from session_service.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    compare_server_default=True,
)
context.run_migrations()
