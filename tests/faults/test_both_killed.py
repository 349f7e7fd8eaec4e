"""Both services die at once, and come back in either order."""

import pytest
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_service_pb2 import ListRunsRequest

from tests.fixtures.journeys import ended, follow, get, messages, new_session, start, states, text_of, texts, until
from tests.fixtures.processes import Processes


@pytest.mark.spec("3.3", "3.5", "5.3", "11.4")
@pytest.mark.parametrize("first", ["session", "runner"])
async def test_every_run_reaches_a_true_end(processes: Processes, first: str) -> None:
    ada = processes.client()
    done, cut, idle = [await new_session(ada) for _ in range(3)]
    whole = await start(ada, done, {"text": "whole"})
    told = await follow(ada, whole.run_id)
    as_it_ended = await get(ada, whole.run_id)
    live = await start(ada, cut, {"text": "before"}, {"wait_gate": "hold"})
    behind = await start(ada, cut, {"text": "later"})
    seen = await until(ada, live.run_id, "text_delta")
    await processes.gates.reached("hold")

    await processes.kill()

    await processes.gates.disconnected("hold")
    by_name = {"session": processes.session, "runner": processes.runner}
    await by_name.pop(first).start()
    (second,) = by_name.values()
    await second.start()
    ada = processes.client()
    events = await follow(ada, live.run_id)
    assert states(events) == ["QUEUED", "RUNNING", "FAILED"]
    assert seen in events
    lost = await get(ada, live.run_id)
    assert lost.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    assert (await ended(ada, behind.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert texts(await messages(ada, cut)) == ["Hello", "Hello", "before", "later"]
    # What had ended is as it was, byte for byte.
    assert await follow(ada, whole.run_id) == told
    assert await get(ada, whole.run_id) == as_it_ended
    assert text_of(await follow(ada, (await start(ada, idle, {"text": "new"})).run_id)) == "new"
    open_states = [run_pb2.RUN_STATE_QUEUED, run_pb2.RUN_STATE_RUNNING, run_pb2.RUN_STATE_CANCELLING]
    assert not (await ada.runs.ListRuns(ListRunsRequest(states=open_states))).runs
