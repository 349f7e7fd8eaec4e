"""The cases of RunService."""

from collections.abc import Callable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from turnkeeper.v1 import interaction_pb2 as interaction
from turnkeeper.v1 import reference_pb2 as references
from turnkeeper.v1 import run_pb2
from turnkeeper.v1 import run_service_pb2 as runs

from tests.contract.cases.case import DRAFT, HELLO, UNIMPLEMENTED, Case, named
from tests.contract.worlds import World
from tests.fixtures.journeys import reference

_LONG_AGO = Timestamp(seconds=1)
_FAR_AHEAD = Timestamp(seconds=4_000_000_000)


def _start(world: World, *named: references.Reference, config_json: str = "") -> Message:
    return runs.StartRunRequest(
        session_id=world.session_id,
        idempotency_key=f"click-{world.mark}",
        input="Hello",
        references=named,
        config_json=config_json,
        timeout=Duration(seconds=60),
        concurrency_policy=runs.CONCURRENCY_POLICY_ENQUEUE,
        labels={"mark": world.mark},
    )


_STARTED = "session_id idempotency_key input"


def _start_case(note: str, make: Callable[[World], Message], required: str = _STARTED) -> Case:
    return Case("RunService/StartRun", "runs:write", make, required, note=note, changes=True)


def _run(method: str, scope: str, make: Callable[[World], Message], required: str = "", **more: Any) -> Case:
    return Case(f"RunService/{method}", f"runs:{scope}", make, required, **more)


def _resume(world: World, **answer: Any) -> Message:
    return runs.ResumeRunRequest(
        run_id=world.run_id,
        interaction_id=world.interaction_id,
        decision=interaction.Decision(**answer),
        request_id="r-1",
    )


def _cancel(world: World) -> Message:
    return runs.CancelRunRequest(run_id=world.run_id, reason="enough")


_RESUMED = "run_id interaction_id decision decision.answer"

RUNS = (
    _start_case("inline", lambda world: _start(world, config_json=HELLO)),
    _start_case("an agent", lambda world: _start(world, reference(world.agent_id))),
    _start_case("an agent's slug", lambda world: _start(world, named("ARTIFACT", slug=world.slug))),
    _start_case("a variant", lambda world: _start(world, named("VARIANT", id=world.variant_id))),
    _start_case("a revision", lambda world: _start(world, named("REVISION", id=world.revision_id))),
    _start_case(
        "all of one agent, as a draft",
        lambda world: _start(
            world,
            named("ARTIFACT", family="APPLICATION", id=world.agent_id),
            named("VARIANT", family="APPLICATION", slug="default"),
            named("REVISION", family="EVALUATOR", id=world.variant_id, version="0"),
            config_json=DRAFT,
        ),
        f"{_STARTED} references[0].name references[1].name references[2].name",
    ),
    _run("GetRun", "read", lambda world: runs.GetRunRequest(run_id=world.run_id), "run_id"),
    _run("ListRuns", "read", lambda world: runs.ListRunsRequest(page_size=200)),
    _run(
        "ListRuns",
        "read",
        lambda world: runs.ListRunsRequest(
            page_size=200,
            session_id=world.session_id,
            states=[run_pb2.RUN_STATE_COMPLETED, run_pb2.RUN_STATE_FAILED],
            labels={"mark": world.mark},
            created_from=_LONG_AGO,
            created_before=_FAR_AHEAD,
        ),
        note="of a session",
        lenient=("session_id",),
    ),
    _run("WatchRun", "read", lambda world: runs.WatchRunRequest(run_id=world.run_id, after_sequence=1), "run_id"),
    _run(
        "WatchSession",
        "read",
        lambda world: runs.WatchSessionRequest(session_id=world.session_id),
        "session_id",
        answer=UNIMPLEMENTED,
    ),
    _run("CancelRun", "write", _cancel, "name", note="that has ended"),
    _run("CancelRun", "write", _cancel, "name", note="that executes", live=True, changes=True),
    _run(
        "CancelRun",
        "write",
        lambda world: runs.CancelRunRequest(idempotency_key=f"made-{world.mark}", reason="enough"),
        "name",
        note="by key",
        answer=UNIMPLEMENTED,
    ),
    _run(
        "ResumeRun",
        "write",
        lambda world: _resume(world, approve=interaction.Approve()),
        _RESUMED,
        note="approved",
        answer=UNIMPLEMENTED,
    ),
    _run(
        "ResumeRun",
        "write",
        lambda world: _resume(world, deny=interaction.Deny(reason="no")),
        _RESUMED,
        note="denied",
        answer=UNIMPLEMENTED,
    ),
    _run(
        "ResumeRun",
        "write",
        lambda world: _resume(world, text="Tuesday"),
        _RESUMED,
        note="answered",
        answer=UNIMPLEMENTED,
    ),
)
