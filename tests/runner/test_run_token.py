"""What the token of an attempt says, as the runner gets it."""

import base64
import json

import pytest
from sqlalchemy import select

from session_service.storage.schema import attempts
from tests.fixtures.journeys import ended, new_session, start
from tests.fixtures.pair import Pair

CONFIRM = 6  # of the pair's settings


@pytest.mark.spec("1.2")
async def test_a_run_token_is_of_one_attempt_and_outlives_its_call_by_the_confirm_time(linked: Pair) -> None:
    ada = linked.client(roles=["editor"], scopes=["sessions:read", "sessions:write", "runs:read", "runs:write"])
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"text": "x"})
    turn = await linked.turn_link.turns.at()
    await ended(ada, run.run_id)
    payload = str(turn.metadata["authorization"]).split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    of_run = select(attempts.c.attempt, attempts.c.call_deadline).where(attempts.c.run_id == run.run_id)
    [row] = await linked.session.storage.read("acme", lambda connection: connection.execute(of_run).all())
    assert (claims["sub"], claims["tenant_id"], claims["roles"]) == ("ada", "acme", ["editor"])
    assert (claims["session_id"], claims["run_id"], claims["attempt"]) == (session_id, run.run_id, row.attempt)
    assert claims["scope"].split() == ["runs:read", "runs:write", "sessions:read", "sessions:write"]
    assert 0 <= claims["exp"] - row.call_deadline / 1_000_000 - CONFIRM <= 1
