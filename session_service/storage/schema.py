"""Every table. Times are microseconds since 1970 in the database's clock; ids are UUIDs in their canonical text form.

The tenant is the first part of each key, so a query without it has no index to stand on.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
LIVE = text("state IN ('RUNNING', 'INTERRUPTED', 'CANCELLING')")


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _number(name: str, *, null: bool = False, default: str | None = None) -> Column[int]:
    return Column(name, BigInteger, nullable=null, server_default=default)


signing_keys = Table(
    "signing_keys",
    metadata,
    Column("kid", Text, primary_key=True),
    _text("purpose"),  # TOKEN: an Ed25519 JWK that signs tokens; PAGE: an octet JWK that seals page tokens
    _text("jwk"),
    _number("create_time"),
)

sessions = Table(
    "sessions",
    metadata,
    _text("tenant_id"),
    _text("session_id"),
    _text("owner_user_id"),
    _text("name", null=True),
    _text("name_source", null=True),
    _text("lifecycle"),
    _number("last_position", default="0"),  # of its messages
    _number("last_order", default="0"),  # of first claims and appended messages: the order that prompts follow
    _number("last_queue_position", default="0"),
    _number("last_turn_number", default="0"),
    _number("create_time"),
    _number("update_time"),
    _number("delete_time", null=True),
    PrimaryKeyConstraint("tenant_id", "session_id"),
    Index("ix_sessions_list", "tenant_id", "owner_user_id", "create_time", "session_id"),
)

_SESSION_KEY = (["tenant_id", "session_id"], ["sessions.tenant_id", "sessions.session_id"])
_RUN_KEY = (["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"])

messages = Table(
    "messages",
    metadata,
    _text("tenant_id"),
    _text("session_id"),
    _number("position"),
    _text("message_id"),
    _text("run_id", null=True),
    _number("prompt_order", null=True),  # of an appended message; a run's messages follow runs.claim_order
    _text("role"),
    _text("text"),
    _text("tool_calls_json", null=True),
    _text("tool_call_id", null=True),
    _text("status"),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "session_id", "position"),
    UniqueConstraint("tenant_id", "message_id"),
    ForeignKeyConstraint(*_SESSION_KEY, ondelete="CASCADE"),
)

runs = Table(
    "runs",
    metadata,
    _text("tenant_id"),
    _text("run_id"),
    _text("session_id"),
    _text("user_id"),
    _text("roles_json"),
    _text("scopes_json"),
    _text("idempotency_key"),
    _text("state"),
    Column("attempt", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    _number("queue_position"),
    _number("claim_order", null=True),
    _text("input"),
    _text("agent_id", null=True),
    _text("variant_id", null=True),
    _text("revision_id", null=True),
    _text("version", null=True),
    Column("is_draft", Boolean, nullable=False),
    _text("config_json", null=True),  # inline; else the pinned revision's
    _text("labels_json"),
    _number("create_time"),
    _number("available_time"),  # not to be claimed before: the backoff of a requeued run
    _number("start_time", null=True),
    _number("end_time", null=True),
    _number("deadline"),
    _text("lease_owner", null=True),
    _number("lease_expire_time", null=True),
    _number("call_deadline", null=True),
    _number("cancel_time", null=True),
    _text("cancel_user_id", null=True),
    _text("cancel_reason", null=True),
    Column("cancel_confirmed", Boolean, nullable=False, server_default=text("false")),
    _text("failure_reason", null=True),
    _text("failure_message", null=True),
    _number("last_sequence", default="0"),
    _number("input_tokens", default="0"),
    _number("output_tokens", default="0"),
    _text("runner", null=True),
    PrimaryKeyConstraint("tenant_id", "run_id"),
    ForeignKeyConstraint(*_SESSION_KEY, ondelete="CASCADE"),
    Index("uq_runs_live", "tenant_id", "session_id", unique=True, sqlite_where=LIVE, postgresql_where=LIVE),
    Index(
        "ix_runs_queue",
        "tenant_id",
        "available_time",
        sqlite_where=text("state = 'QUEUED'"),
        postgresql_where=text("state = 'QUEUED'"),
    ),
    Index("ix_runs_leased", "lease_expire_time", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("ix_runs_session", "tenant_id", "session_id", "queue_position"),
    Index("ix_runs_list", "tenant_id", "create_time", "run_id"),
)

run_labels = Table(
    "run_labels",
    metadata,
    _text("tenant_id"),
    _text("label_key"),
    _text("label_value"),
    _text("run_id"),
    PrimaryKeyConstraint("tenant_id", "label_key", "label_value", "run_id"),
    ForeignKeyConstraint(*_RUN_KEY, ondelete="CASCADE"),
    Index("ix_run_labels_run", "tenant_id", "run_id"),
)

run_events = Table(
    "run_events",
    metadata,
    _text("tenant_id"),
    _text("run_id"),
    _number("sequence"),
    Column("attempt", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    _text("kind"),  # the name of the body's field in RunEvent
    Column("body", LargeBinary, nullable=False),  # a serialized RunEvent that holds the body alone
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "run_id", "sequence"),
    ForeignKeyConstraint(*_RUN_KEY, ondelete="CASCADE"),
)

attempts = Table(
    "attempts",
    metadata,
    _text("tenant_id"),
    _text("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    _text("dispatcher"),
    _number("claim_time"),
    _number("call_deadline"),
    _number("begin_time", null=True),  # of its turn: the harness has started
    _number("stored_number", default="0"),  # the last turn event that is stored
    _number("stop_time", null=True),  # when its runner reported that nothing runs any more
    PrimaryKeyConstraint("tenant_id", "run_id", "attempt"),
    ForeignKeyConstraint(*_RUN_KEY, ondelete="CASCADE"),
)

turns = Table(
    "turns",
    metadata,
    _text("tenant_id"),
    _text("session_id"),
    _number("turn_number"),
    _text("run_id", null=True),  # empty for a direct turn
    Column("run_turn", Integer, nullable=False),
    _text("harness"),
    _text("runner_store"),
    _number("begin_time"),
    PrimaryKeyConstraint("tenant_id", "session_id", "turn_number"),
    UniqueConstraint("tenant_id", "run_id", "run_turn"),
    ForeignKeyConstraint(*_SESSION_KEY, ondelete="CASCADE"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    _text("tenant_id"),
    _text("run_id"),
    _text("call_id"),
    Column("attempt", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("call_index", Integer, nullable=False),
    _text("tool_name"),
    _text("arguments_json"),
    _text("model_call_id"),
    Column("side_effect", Boolean, nullable=False),
    _text("state"),
    _text("result", null=True),
    _text("idempotency_key"),
    _number("begin_time"),
    _number("finish_time", null=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "call_id"),
    ForeignKeyConstraint(*_RUN_KEY, ondelete="CASCADE"),
)

start_keys = Table(
    "start_keys",
    metadata,
    _text("tenant_id"),
    _text("idempotency_key"),
    _text("user_id"),
    _text("fingerprint"),
    _text("run_id"),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "idempotency_key"),
    Index("ix_start_keys_create_time", "create_time"),
)

request_ids = Table(
    "request_ids",
    metadata,
    _text("tenant_id"),
    _text("method"),
    _text("request_id"),
    _text("user_id"),
    _text("fingerprint"),
    Column("response", LargeBinary, nullable=False),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "method", "request_id"),
    Index("ix_request_ids_create_time", "create_time"),
)

agents = Table(
    "agents",
    metadata,
    _text("tenant_id"),
    _text("agent_id"),
    _text("slug"),
    _text("name", null=True),
    _text("name_source", null=True),
    _text("default_variant_id"),
    _number("create_time"),
    _number("update_time"),
    _number("delete_time", null=True),
    PrimaryKeyConstraint("tenant_id", "agent_id"),
    Index(
        "uq_agents_slug",
        "tenant_id",
        "slug",
        unique=True,
        sqlite_where=text("delete_time IS NULL"),
        postgresql_where=text("delete_time IS NULL"),
    ),
    Index("ix_agents_list", "tenant_id", "create_time", "agent_id"),
)

_AGENT_KEY = (["tenant_id", "agent_id"], ["agents.tenant_id", "agents.agent_id"])

variants = Table(
    "variants",
    metadata,
    _text("tenant_id"),
    _text("variant_id"),
    _text("agent_id"),
    _text("slug"),
    _text("head_revision_id", null=True),
    _number("revision_count", default="0"),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "variant_id"),
    UniqueConstraint("tenant_id", "agent_id", "slug"),
    ForeignKeyConstraint(*_AGENT_KEY, ondelete="CASCADE"),
)

revisions = Table(
    "revisions",
    metadata,
    _text("tenant_id"),
    _text("revision_id"),
    _text("variant_id"),
    _text("agent_id"),
    _number("version"),
    _text("config_json"),
    _text("config_hash"),  # SHA-256 of the canonical config
    _text("message"),
    _text("author_user_id"),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "revision_id"),
    UniqueConstraint("tenant_id", "variant_id", "version"),
    ForeignKeyConstraint(
        ["tenant_id", "variant_id"], ["variants.tenant_id", "variants.variant_id"], ondelete="CASCADE"
    ),
)

audit_entries = Table(
    "audit_entries",
    metadata,
    _text("tenant_id"),
    _text("audit_entry_id"),
    _text("operator_user_id"),
    _text("method"),  # the RPC or the tool
    _text("reason"),
    _text("target"),
    _text("result"),
    _number("create_time"),
    PrimaryKeyConstraint("tenant_id", "audit_entry_id"),
    Index("ix_audit_entries_list", "tenant_id", "create_time", "audit_entry_id"),
)
