"""Facts and run context as the contract shows them. A wrong pair cannot be written down."""

from turnkeeper.v1 import facts_pb2, turn_service_pb2
from turnkeeper.wire.context import RequestContext

from session_service.facts.model import Known, Name, NoName, SessionFact, TurnContext, Workflow


def turn_context_proto(context: RequestContext, found: TurnContext) -> turn_service_pb2.ResolveTurnContextResponse:
    """What was found, with the identities of the verified token. Trace keys are absent with tracing off."""
    run_context = facts_pb2.RunContext(
        workflow=None if found.agent.workflow is None else _workflow_proto(found.agent.workflow),
        run=facts_pb2.RunIdentity(id=found.run_id or "", kind="direct" if found.run_id is None else "run"),
        session=None if found.session_id is None else facts_pb2.SessionIdentity(id=found.session_id),
        tenant=facts_pb2.TenantIdentity(id=context.tenant_id),
        user=facts_pb2.UserIdentity(id=context.user_id),
    )
    facts = facts_pb2.Facts(agent_name=_name_proto(found.agent.name), session=_session_proto(found.session))
    outcome = turn_service_pb2.ResolveOutcome.Value(f"RESOLVE_OUTCOME_{found.outcome}")
    return turn_service_pb2.ResolveTurnContextResponse(facts=facts, run_context=run_context, outcome=outcome)


def _session_proto(session: SessionFact | None) -> facts_pb2.SessionFact:
    if session is None:
        return facts_pb2.SessionFact(unknown=facts_pb2.Unknown())
    known = facts_pb2.KnownSession(name=_name_proto(session.name), first_turn=session.first_turn)
    return facts_pb2.SessionFact(known=known)


def _name_proto(name: Name) -> facts_pb2.NameFact:
    match name:
        case Known(text):
            return facts_pb2.NameFact(known=text)
        case NoName.UNNAMED:
            return facts_pb2.NameFact(unnamed=facts_pb2.Unnamed())
        case _:
            return facts_pb2.NameFact(unknown=facts_pb2.Unknown())


def _workflow_proto(workflow: Workflow) -> facts_pb2.WorkflowContext:
    revision = None
    if workflow.revision_id is not None:
        slug = f"{workflow.variant_slug}@{workflow.version}" if workflow.variant_slug else ""
        revision = facts_pb2.RevisionIdentity(id=workflow.revision_id, slug=slug, version=workflow.version or "")
    return facts_pb2.WorkflowContext(
        artifact=facts_pb2.ArtifactIdentity(id=workflow.agent_id, slug=workflow.agent_slug),
        variant=facts_pb2.VariantIdentity(id=workflow.variant_id, slug=workflow.variant_slug),
        revision=revision,
        is_draft=workflow.is_draft,
    )
