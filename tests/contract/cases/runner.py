"""The cases of RunnerService."""

import json
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from turnkeeper.v1 import facts_pb2 as facts
from turnkeeper.v1 import interaction_pb2 as interaction
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.wire.context import TokenKind

from tests.contract.cases.case import HELD, HELLO, UNIMPLEMENTED, Case
from tests.contract.worlds import World
from tests.fixtures.journeys import reference, scripted

RUN_TOKEN, SERVICE_TOKEN = TokenKind.RUN, TokenKind.SERVICE
_TOOL = json.dumps({"name": "lookup", "http": {"method": "GET", "url": "http://127.0.0.1/"}})


def _execute(config_json: str = HELLO, **more: Any) -> Message:
    start = runner.TurnStart(input="Hello", config_json=config_json, **more)
    return runner.ExecuteTurnRequest(start=start)


def _follow_up(note: str, required: str = "", **body: Message) -> Case:
    """A later message of a call whose turn waits."""

    def make(world: World) -> list[Message]:
        waiting = scripted({"text": "One moment."}, {"wait_gate": f"never-{world.mark}"})
        return [_execute(waiting), runner.ExecuteTurnRequest(**body)]  # type: ignore[arg-type]

    return Case("RunnerService/ExecuteTurn", "runner:invoke", make, required, note=note, answer=HELD)


def _bind(world: World) -> Message:
    context = facts.RunContext(
        workflow=facts.WorkflowContext(
            artifact=facts.ArtifactIdentity(id=world.agent_id, slug=world.slug),
            variant=facts.VariantIdentity(id=world.variant_id, slug="default"),
            revision=facts.RevisionIdentity(id=world.revision_id, slug="default@0", version="0"),
        ),
        trace=facts.TraceContext(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331"),
        run=facts.RunIdentity(id=world.run_id, kind="run"),
        session=facts.SessionIdentity(id=world.session_id),
        tenant=facts.TenantIdentity(id=world.tenant),
        user=facts.UserIdentity(id=world.user),
    )
    return runner.BindToolBodyRequest(tool_json=_TOOL, arguments_json="{}", run_context=context)


def _harness_key(world: World) -> runner.HarnessSessionKey:
    return runner.HarnessSessionKey(session_id=world.session_id, harness="scripted", runner_store="store-1")


def _reply(**answer: Any) -> runner.InteractionReply:
    return runner.InteractionReply(call_id="1.1.0", decision=interaction.Decision(**answer))


_LEASE = runner.Lease(duration=Duration(seconds=2), probe_interval=Duration(seconds=1))

RUNNER = (
    Case(
        "RunnerService/ExecuteTurn",
        "runner:invoke",
        lambda _: _execute(),
        "body start.config_json start.input",
        note="of a user",
    ),
    Case(
        "RunnerService/ExecuteTurn",
        "runner:invoke",
        lambda world: _execute(session_id=world.session_id, references=[reference(world.agent_id)]),
        "start.references[0].name",
        note="of a user in a session",
        changes=True,
        lenient=("agent_id",),
    ),
    Case(
        "RunnerService/ExecuteTurn",
        None,
        lambda _: _execute(turn=1, lease=_LEASE),
        "body start.config_json start.lease start.lease.duration start.lease.probe_interval",
        note="of a run",
        kind=RUN_TOKEN,
        live=True,
        answer=HELD,
    ),
    _follow_up(
        "and a reply",
        "body interaction_reply.call_id interaction_reply.decision interaction_reply.decision.answer",
        interaction_reply=_reply(deny=interaction.Deny(reason="no")),
    ),
    _follow_up("and an approval", interaction_reply=_reply(approve=interaction.Approve())),
    _follow_up("and an answer", interaction_reply=_reply(text="Tuesday")),
    _follow_up(
        "and a renewal",
        "body lease_renewed.remaining",
        lease_renewed=runner.LeaseRenewed(probe=1, remaining=Duration(seconds=1)),
    ),
    _follow_up("and stored events", "body", stored=runner.EventsStored(number=1)),
    Case(
        "RunnerService/DescribeHarnessSessions",
        None,
        lambda world: runner.DescribeHarnessSessionsRequest(sessions=[_harness_key(world)]),
        "sessions[0].session_id",
        kind=SERVICE_TOKEN,
        answer=UNIMPLEMENTED,
    ),
    Case(
        "RunnerService/DeleteHarnessSession",
        None,
        lambda world: runner.DeleteHarnessSessionRequest(session=_harness_key(world)),
        "session session.session_id",
        kind=SERVICE_TOKEN,
        answer=UNIMPLEMENTED,
    ),
    Case("RunnerService/ListHarnesses", "agents:read", lambda _: runner.ListHarnessesRequest()),
    Case(
        "RunnerService/BindToolBody",
        "tools:bind",
        _bind,
        "tool_json",
        lenient=("agent_id", "variant_id", "revision_id", "run_id", "session_id"),
    ),
)
