"""Which state of a run may follow which (SPEC 3.1). Terminal states absorb."""

from session_service.runs.model import RunState

FOLLOWERS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED, RunState.FAILED}),
    RunState.RUNNING: frozenset(
        {RunState.INTERRUPTED, RunState.CANCELLING, RunState.COMPLETED, RunState.FAILED, RunState.QUEUED}
    ),
    RunState.INTERRUPTED: frozenset(
        {RunState.RUNNING, RunState.QUEUED, RunState.CANCELLING, RunState.CANCELLED, RunState.FAILED}
    ),
    RunState.CANCELLING: frozenset({RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.FAILED: frozenset(),
}
TERMINAL = frozenset(state for state, followers in FOLLOWERS.items() if not followers)
LIVE = frozenset({RunState.RUNNING, RunState.INTERRUPTED, RunState.CANCELLING})
"""Claimed and not terminal: at most one run of a session."""


def require_legal(before: RunState, after: RunState) -> None:
    """Raises ValueError for a transition that does not exist: a fault of ours, never of a caller."""
    if after not in FOLLOWERS[before]:
        raise ValueError(f"a run does not go from {before} to {after}")
