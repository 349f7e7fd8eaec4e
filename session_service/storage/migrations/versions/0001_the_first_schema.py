"""The first schema, whole."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_LIVE = sa.text("state IN ('RUNNING', 'INTERRUPTED', 'CANCELLING')")
_QUEUED = sa.text("state = 'QUEUED'")
_NOT_DELETED = sa.text("delete_time IS NULL")


def upgrade() -> None:
    """Makes the change."""
    op.create_table(
        "agents",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("name_source", sa.Text(), nullable=True),
        sa.Column("default_variant_id", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("update_time", sa.BigInteger(), nullable=False),
        sa.Column("delete_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "agent_id", name=op.f("pk_agents")),
    )
    op.create_index("ix_agents_list", "agents", ["tenant_id", "create_time", "agent_id"])
    op.create_index(
        "uq_agents_slug",
        "agents",
        ["tenant_id", "slug"],
        unique=True,
        sqlite_where=_NOT_DELETED,
        postgresql_where=_NOT_DELETED,
    )
    op.create_table(
        "request_ids",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "method", "request_id", name=op.f("pk_request_ids")),
    )
    op.create_index("ix_request_ids_create_time", "request_ids", ["create_time"])
    op.create_table(
        "sessions",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("owner_user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("name_source", sa.Text(), nullable=True),
        sa.Column("lifecycle", sa.Text(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_order", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_queue_position", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_turn_number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("update_time", sa.BigInteger(), nullable=False),
        sa.Column("delete_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "session_id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_list", "sessions", ["tenant_id", "owner_user_id", "create_time", "session_id"])
    op.create_table(
        "signing_keys",
        sa.Column("kid", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("jwk", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kid", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "start_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "idempotency_key", name=op.f("pk_start_keys")),
    )
    op.create_index("ix_start_keys_create_time", "start_keys", ["create_time"])
    op.create_table(
        "messages",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("prompt_order", sa.BigInteger(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tool_calls_json", sa.Text(), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "session_id"],
            ["sessions.tenant_id", "sessions.session_id"],
            name=op.f("fk_messages_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "session_id", "position", name=op.f("pk_messages")),
        sa.UniqueConstraint("tenant_id", "message_id", name=op.f("uq_messages_tenant_id_message_id")),
    )
    op.create_table(
        "runs",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("roles_json", sa.Text(), nullable=False),
        sa.Column("scopes_json", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("queue_position", sa.BigInteger(), nullable=False),
        sa.Column("claim_order", sa.BigInteger(), nullable=True),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("variant_id", sa.Text(), nullable=True),
        sa.Column("revision_id", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("is_draft", sa.Boolean(), nullable=False),
        sa.Column("config_json", sa.Text(), nullable=True),
        sa.Column("labels_json", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("available_time", sa.BigInteger(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=True),
        sa.Column("end_time", sa.BigInteger(), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_expire_time", sa.BigInteger(), nullable=True),
        sa.Column("call_deadline", sa.BigInteger(), nullable=True),
        sa.Column("cancel_time", sa.BigInteger(), nullable=True),
        sa.Column("cancel_user_id", sa.Text(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("cancel_confirmed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("last_sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "session_id"],
            ["sessions.tenant_id", "sessions.session_id"],
            name=op.f("fk_runs_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_leased", "runs", ["lease_expire_time"], sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.create_index("ix_runs_list", "runs", ["tenant_id", "create_time", "run_id"])
    op.create_index(
        "ix_runs_queue", "runs", ["tenant_id", "available_time"], sqlite_where=_QUEUED, postgresql_where=_QUEUED
    )
    op.create_index("ix_runs_session", "runs", ["tenant_id", "session_id", "queue_position"])
    op.create_index(
        "uq_runs_live", "runs", ["tenant_id", "session_id"], unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE
    )
    op.create_table(
        "turns",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("turn_number", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("run_turn", sa.Integer(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=False),
        sa.Column("runner_store", sa.Text(), nullable=False),
        sa.Column("begin_time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "session_id"],
            ["sessions.tenant_id", "sessions.session_id"],
            name=op.f("fk_turns_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "session_id", "turn_number", name=op.f("pk_turns")),
        sa.UniqueConstraint("tenant_id", "run_id", "run_turn", name=op.f("uq_turns_tenant_id_run_id_run_turn")),
    )
    op.create_table(
        "variants",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("variant_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("head_revision_id", sa.Text(), nullable=True),
        sa.Column("revision_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "agent_id"],
            ["agents.tenant_id", "agents.agent_id"],
            name=op.f("fk_variants_agents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "variant_id", name=op.f("pk_variants")),
        sa.UniqueConstraint("tenant_id", "agent_id", "slug", name=op.f("uq_variants_tenant_id_agent_id_slug")),
    )
    op.create_table(
        "attempts",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("dispatcher", sa.Text(), nullable=False),
        sa.Column("claim_time", sa.BigInteger(), nullable=False),
        sa.Column("call_deadline", sa.BigInteger(), nullable=False),
        sa.Column("begin_time", sa.BigInteger(), nullable=True),
        sa.Column("stored_number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stop_time", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_attempts_runs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "revisions",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("revision_id", sa.Text(), nullable=False),
        sa.Column("variant_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("config_json", sa.Text(), nullable=False),
        sa.Column("config_hash", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("author_user_id", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "variant_id"],
            ["variants.tenant_id", "variants.variant_id"],
            name=op.f("fk_revisions_variants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "revision_id", name=op.f("pk_revisions")),
        sa.UniqueConstraint(
            "tenant_id", "variant_id", "version", name=op.f("uq_revisions_tenant_id_variant_id_version")
        ),
    )
    op.create_table(
        "run_events",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_run_events_runs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "sequence", name=op.f("pk_run_events")),
    )
    op.create_table(
        "run_labels",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("label_key", sa.Text(), nullable=False),
        sa.Column("label_value", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_run_labels_runs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "label_key", "label_value", "run_id", name=op.f("pk_run_labels")),
    )
    op.create_index("ix_run_labels_run", "run_labels", ["tenant_id", "run_id"])
    op.create_table(
        "tool_calls",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call_index", sa.Integer(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("arguments_json", sa.Text(), nullable=False),
        sa.Column("model_call_id", sa.Text(), nullable=False),
        sa.Column("side_effect", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("begin_time", sa.BigInteger(), nullable=False),
        sa.Column("finish_time", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "run_id"],
            ["runs.tenant_id", "runs.run_id"],
            name=op.f("fk_tool_calls_runs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "call_id", name=op.f("pk_tool_calls")),
    )


def downgrade() -> None:
    """Takes it back."""
    op.drop_table("tool_calls")
    op.drop_table("run_labels")
    op.drop_table("run_events")
    op.drop_table("revisions")
    op.drop_table("attempts")
    op.drop_table("variants")
    op.drop_table("turns")
    op.drop_table("runs")
    op.drop_table("messages")
    op.drop_table("start_keys")
    op.drop_table("signing_keys")
    op.drop_table("sessions")
    op.drop_table("request_ids")
    op.drop_table("agents")
