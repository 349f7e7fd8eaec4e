"""Audit entries."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the change."""
    op.create_table(
        "audit_entries",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("audit_entry_id", sa.Text(), nullable=False),
        sa.Column("operator_user_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "audit_entry_id", name=op.f("pk_audit_entries")),
    )
    op.create_index("ix_audit_entries_list", "audit_entries", ["tenant_id", "create_time", "audit_entry_id"])


def downgrade() -> None:
    """Takes it back."""
    op.drop_table("audit_entries")
