"""Which state may follow which, and that a guard that does not hold touches nothing."""

import itertools

import pytest

from session_service.runs.model import RunKey, RunState
from session_service.runs.states import FOLLOWERS, LIVE, TERMINAL, require_legal
from session_service.runs.store import transition
from tests.fixtures.journeys import ended, get, new_session, start
from tests.fixtures.pair import Pair

LEGAL = {
    "QUEUED": {"RUNNING", "CANCELLED", "FAILED"},
    "RUNNING": {"INTERRUPTED", "CANCELLING", "COMPLETED", "FAILED", "QUEUED"},
    "INTERRUPTED": {"RUNNING", "QUEUED", "CANCELLING", "CANCELLED", "FAILED"},
    "CANCELLING": {"CANCELLED"},
    "COMPLETED": set(),
    "CANCELLED": set(),
    "FAILED": set(),
}


@pytest.mark.spec("3.1")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(RunState, RunState)))
def test_only_the_legal_transitions_exist(before: RunState, after: RunState) -> None:
    if after in LEGAL[before]:
        require_legal(before, after)
    else:
        with pytest.raises(ValueError, match="does not go"):
            require_legal(before, after)


@pytest.mark.spec("3.1")
def test_terminal_states_absorb_and_live_ones_are_claimed() -> None:
    assert {state for state in RunState if not FOLLOWERS[state]} == TERMINAL == {"COMPLETED", "CANCELLED", "FAILED"}
    assert {"RUNNING", "INTERRUPTED", "CANCELLING"} == LIVE


@pytest.mark.spec("3.1", "3.2")
async def test_a_guard_that_does_not_hold_touches_no_row(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    done = await ended(ada, (await start(ada, session_id)).run_id)
    live = await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")
    live = await get(ada, live.run_id)

    async def attempt(run_id: str, to: RunState, expected: RunState, attempt: int) -> bool:
        key = RunKey("acme", run_id)
        return await pair.session.storage.write(
            "acme", lambda c: transition(c, key, to, expected=expected, attempt=attempt) is not None
        )

    assert not await attempt(done.run_id, RunState.COMPLETED, RunState.RUNNING, 1)
    assert not await attempt(live.run_id, RunState.COMPLETED, RunState.RUNNING, 2)  # a stale or future attempt
    assert not await attempt(live.run_id, RunState.RUNNING, RunState.QUEUED, 1)
    assert await get(ada, done.run_id) == done
    assert await get(ada, live.run_id) == live
