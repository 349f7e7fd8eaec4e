"""The values of a run, as they are stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Row

from session_service.agents.model import Reference

AnyRow = Row[*tuple[Any, ...]]


class RunKey(NamedTuple):
    """Names a run in the database."""

    tenant_id: str
    run_id: str


class RunState(StrEnum):
    """Where a run stands; see runs/states.py for what may follow what."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


class FailureReason(StrEnum):
    """Why the session service ends a run FAILED; runners report more reasons, under the contract's names."""

    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    TURN_TIMEOUT = "TURN_TIMEOUT"
    DISPATCH_FAILED = "DISPATCH_FAILED"
    ATTEMPT_LOST = "ATTEMPT_LOST"
    HARNESS_ERROR = "HARNESS_ERROR"


class CancelOutcome(StrEnum):
    """What a cancel found or did."""

    CANCELLED = "CANCELLED"
    ACCEPTED = "ACCEPTED"
    ALREADY_TERMINAL = "ALREADY_TERMINAL"


class Failure(NamedTuple):
    """Why a run failed: a name of the contract's FailureReason without its prefix, and a short text for people."""

    reason: str
    message: str


class ToolCallState(StrEnum):
    """How far a recorded tool call came."""

    STARTED = "STARTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    NOT_MADE = "NOT_MADE"


@dataclass(frozen=True, slots=True)
class Run:
    """A run's row with the summary of its tool calls."""

    row: AnyRow
    tool_calls: Sequence[AnyRow]

    @property
    def key(self) -> RunKey:
        """The run's name in the database."""
        return RunKey(self.row.tenant_id, self.row.run_id)

    @property
    def state(self) -> RunState:
        """Where it stands."""
        return RunState(self.row.state)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its start."""
        labels: dict[str, str] = json.loads(self.row.labels_json)
        return labels


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What a StartRun asks for, its shape already validated. `timeout` is in microseconds."""

    session_id: str
    idempotency_key: str
    input: str
    references: Sequence[Reference]
    config_json: str | None
    timeout: int
    policy: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list shows; None and empty show all. Times are microseconds since 1970."""

    session_id: str | None
    states: Sequence[str]
    labels: Mapping[str, str]
    created_from: int | None
    created_before: int | None


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The operator's limits. `default_timeout` is in microseconds."""

    max_queued: int
    default_timeout: int
