"""Two tenants with the same names, slugs and keys, and two users of one of them, never see each other: over every RPC.

For each case the owner succeeds first. Then strangers send the same with the owner's ids: all of them at once, and each
alone in a request that is otherwise the stranger's own. What they get must be what ids that name nothing get, no
response may name anything of the owner's, and no row may have changed.
"""

import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from turnkeeper.v1.reference_pb2 import Reference
from turnkeeper.v1.run_service_pb2 import StartRunRequest
from turnkeeper.v1.session_service_pb2 import CreateSessionRequest
from turnkeeper.wire.context import TokenKind

from tests.contract.cases import CASES, HELD, UNIMPLEMENTED, Case
from tests.contract.mutations import scalars
from tests.contract.rpcs import RPCS, Outcome
from tests.contract.worlds import Stage, World, changed, ids_in
from tests.fixtures.issuer import ALL_SCOPES
from tests.fixtures.journeys import follow, reference, scripted

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENT = [case for case in CASES if case.answer != HELD]
AGENTS_IDS = {"agent_id", "variant_id", "revision_id"}

Replace = Callable[[list[Message]], None]


async def send(stage: Stage, case: Case, requests: list[Message], sender: World, tenant: str = "") -> Outcome:
    """Sends as the owner of this world, or with the token of its run."""
    token = None
    if case.kind is not None:
        token = stage.token(case.kind, sender, {*ALL_SCOPES, case.scope or ""}, tenant)
    return await stage.site.call(case.rpc, requests, token, keep_open=case.answer == HELD)


def uses(case: Case, world: World) -> Iterator[tuple[str, str, Callable[[list[Message], World], None]]]:
    """Each id in the case's request: its path, its name in the world, and how to put in that of another world."""
    names = {identity: name for name, identity in world.named.items()}
    for place, found in enumerate(scalars(case.requests(world)[-1])):
        name = names.get(found.value if isinstance(found.value, str) else "")
        if name is None:
            continue

        def put(requests: list[Message], other: World, place: int = place, name: str = name) -> None:
            list(scalars(requests[-1]))[place].put(getattr(other, name))

        yield found.path, name, put


def resource(path: str, name: str) -> str:
    """What a NOT_FOUND says is not there."""
    return "reference" if path.startswith("references") else name.removesuffix("_id")


async def settle(stage: Stage, case: Case, outcome: Outcome, world: World) -> None:
    """Waits until what the owner set in motion has ended, and leaves it out of all later comparisons."""
    stage.leave_out(ids_in(outcome))
    if case.rpc == "RunService/StartRun":
        [response] = outcome.responses
        await follow(stage.pair.client(world.tenant, world.user), response.run.run_id)  # type: ignore[attr-defined]


async def test_every_rpc_has_a_case_that_is_sent() -> None:
    assert {case.rpc for case in SENT} == set(RPCS)
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.spec("1.7", "2.1")
@pytest.mark.parametrize("case", SENT, ids=str)
async def test_strangers_see_nothing(stage: Stage, case: Case) -> None:
    mark = stage.next_mark() if case.changes else "victim"
    own = await stage.world(mark, live=case.live)
    succeeded = await send(stage, case, case.requests(own), own)
    if case.answer == UNIMPLEMENTED:
        assert succeeded.refusal == (UNIMPLEMENTED, UNIMPLEMENTED, {})
    else:
        assert succeeded.ok, succeeded
    await settle(stage, case, succeeded, own)
    if case.changes:
        await stage.finish(own)

    # The other tenant has the same user id, and everything in it has the same names, slugs and keys.
    twin = await stage.world(mark, "globex", live=case.live)
    bob = await stage.world("bob", user="bob", live=case.live)
    victim = await stage.world("victim", live=case.live)
    before = await stage.snapshot()
    await attack(stage, case, victim, twin, private=set(victim.named))
    await attack(stage, case, victim, bob, private=set(victim.named) - AGENTS_IDS)
    # Where a foreign id is no error, the stranger's own part is done.
    done = set(twin.named.values()) if case.changes and case.lenient else set()
    assert changed(before, await stage.snapshot(), but=done) == {}

    outcome = await send(stage, case, case.requests(twin), twin)
    assert outcome.code == succeeded.code
    assert ids_in(outcome).isdisjoint({*victim.named.values(), *own.named.values(), *ids_in(succeeded)})
    await settle(stage, case, outcome, twin)
    if case.changes:
        await stage.finish(twin)


async def attack(stage: Stage, case: Case, victim: World, stranger: World, *, private: Collection[str]) -> None:
    """Tries every id of the victim's that is private to it, alone and together, against ids that name nothing."""
    found = [use for use in uses(case, stranger) if use[1] in private]
    aims: list[tuple[str, list[tuple[str, str, Callable[[list[Message], World], None]]]]]
    aims = [(resource(path, name), [(path, name, put)]) for path, name, put in found]
    if len(found) > 1:
        aims.append(("", found))
    for expected, aim in aims:
        requests, nothing = case.requests(stranger), case.requests(stranger)
        for _, _, put in aim:
            put(requests, victim)
            put(nothing, World("nothing"))
        outcome = await send(stage, case, requests, stranger)
        assert outcome == await send(stage, case, nothing, stranger), aim
        assert ids_in(outcome).isdisjoint(victim.named.values())
        if case.answer == UNIMPLEMENTED:
            assert outcome.code == UNIMPLEMENTED
        elif all(name in case.lenient for _, name, _ in aim):
            assert outcome.ok
        else:
            assert outcome.refusal[:2] == ("NOT_FOUND", "RESOURCE_NOT_FOUND"), (aim, outcome)
            assert outcome.metadata == (("resource", expected),) or not expected


LISTS = [case for case in SENT if case.rpc.split("/")[1].startswith("List") and case.answer == "OK"]
PAGED = [case for case in LISTS if "page_token" in RPCS[case.rpc].input_type.fields_by_name]


@pytest.mark.spec("1.7")
@pytest.mark.parametrize("case", PAGED, ids=str)
async def test_lists_hold_the_callers_own_and_nothing_else(stage: Stage, case: Case) -> None:
    victim = await stage.world("victim", live=case.live)
    shown = ids_in(await send(stage, case, case.requests(victim), victim))
    assert shown & set(victim.named.values())
    for stranger in (await stage.world("victim", "globex", live=case.live), await stage.world("bob", user="bob")):
        if stranger.user == "bob" and case.kind is TokenKind.RUN:
            continue
        outcome = await send(stage, case, case.requests(stranger), stranger)
        seen = ids_in(outcome)
        assert outcome.ok
        assert seen & set(stranger.named.values())
        if case.rpc.startswith("AgentService") and stranger.tenant == victim.tenant:
            continue  # agents belong to the tenant
        assert seen.isdisjoint(victim.named.values())
        assert seen.isdisjoint(shown)


@pytest.mark.spec("1.7", "11.3")
@pytest.mark.parametrize("case", PAGED, ids=str)
async def test_a_page_token_is_its_callers_own(stage: Stage, case: Case) -> None:
    mark = "victim"
    victim, twin = await stage.world(mark, live=case.live), await stage.world(mark, "globex", live=case.live)
    bob = await stage.world("bob", user="bob", live=case.live)
    for world in (victim, twin):
        extra = CreateSessionRequest(name="One more", request_id="more")
        await stage.pair.client(world.tenant, world.user).sessions.CreateSession(extra)
    for filtered in ("labels", "states"):  # so that the list has a second page
        case = replace(case, make=without(case, filtered))
    if case.rpc == "RunService/ListRuns":
        await second_run(stage, victim)

    first = await paged(stage, case, victim, victim)
    assert first.ok
    token: str = first.responses[0].next_page_token  # type: ignore[attr-defined]
    assert token
    assert (await paged(stage, case, victim, victim, token)).ok
    before = await stage.snapshot()
    for stranger in (twin, bob):
        for aimed_at in (stranger, victim, World("nothing")):
            outcome = await paged(stage, case, stranger, aimed_at, token)
            assert outcome.refusal == ("INVALID_ARGUMENT", "INVALID_FIELD", {})
            assert outcome.fields == (("page_token", "is not a token of this list"),)
    assert changed(before, await stage.snapshot()) == {}


def without(case: Case, name: str) -> Callable[[World], Message]:
    def make(world: World) -> Message:
        [request] = case.requests(world)
        if name in request.DESCRIPTOR.fields_by_name:
            request.ClearField(name)
        return request

    return make


async def paged(stage: Stage, case: Case, sender: World, aimed_at: World, token: str = "") -> Outcome:
    [request] = case.requests(aimed_at)
    request.page_size, request.page_token = 1, token  # type: ignore[attr-defined]
    return await send(stage, case, [request], sender)


async def second_run(stage: Stage, world: World) -> None:
    client = stage.pair.client(world.tenant, world.user)
    request = StartRunRequest(
        session_id=world.session_id, idempotency_key="second", input="Again", config_json=scripted({"text": "Yes."})
    )
    await follow(client, (await client.runs.StartRun(request)).run.run_id)


OF_AGENTS = [
    case
    for case in SENT
    if case.rpc.startswith("AgentService") and case.kind is TokenKind.USER and case.answer != UNIMPLEMENTED
]


@pytest.mark.spec("1.7")
@pytest.mark.parametrize("case", OF_AGENTS, ids=str)
async def test_agents_belong_to_every_user_of_the_tenant(stage: Stage, case: Case) -> None:
    own = await stage.world(stage.next_mark() if case.changes else "victim")
    bob = await stage.world("bob", user="bob")
    outcome = await send(stage, case, case.requests(own), bob)
    assert outcome.ok, outcome
    if "Create" not in case.rpc:
        assert ids_in(outcome) & set(own.named.values())


@pytest.mark.spec("1.7", "2.6")
async def test_a_run_takes_the_tenants_agents_of_whichever_user(stage: Stage) -> None:
    victim, bob = await stage.world("victim"), await stage.world("bob", user="bob")
    twin = await stage.world("victim", "globex")
    client = stage.pair.client("acme", "bob")
    for key, named in enumerate((reference(victim.agent_id), by_slug(victim.slug))):
        request = StartRunRequest(
            session_id=bob.session_id, idempotency_key=f"of-ada-{key}", input="Hello", references=[named]
        )
        run = (await client.runs.StartRun(request)).run
        assert run.target.revision_id == victim.revision_id
        await follow(client, run.run_id)
    # The same slug, elsewhere: the other tenant's own agent.
    other = stage.pair.client("globex", "ada")
    request = StartRunRequest(
        session_id=twin.session_id, idempotency_key="of-ada", input="Hello", references=[by_slug(victim.slug)]
    )
    run = (await other.runs.StartRun(request)).run
    assert run.target.revision_id == twin.revision_id
    await follow(other, run.run_id)


def by_slug(slug: str) -> Reference:
    named = reference("")
    named.slug = slug
    return named


@pytest.mark.spec("1.7", "2.1", "2.3")
async def test_a_key_of_another_user_says_nothing_of_what_it_made(stage: Stage) -> None:
    victim, bob = await stage.world("victim"), await stage.world("bob", user="bob")
    cases = {str(case): case for case in SENT}
    before = await stage.snapshot()
    for name, reason in (
        ("RunService/StartRun inline", "IDEMPOTENCY_KEY_REUSED"),
        ("SessionService/CreateSession", "REQUEST_ID_REUSED"),
        ("SessionService/AppendMessage", "REQUEST_ID_REUSED"),
        ("AgentService/CreateAgent", "REQUEST_ID_REUSED"),
    ):
        [request] = cases[name].requests(bob)
        used = "idempotency_key" if "StartRun" in name else "request_id"
        setattr(request, used, f"made-{victim.mark}")
        outcome = await send(stage, cases[name], [request], bob)
        assert outcome.refusal == ("ALREADY_EXISTS", reason, {})
        assert outcome.fields == ()
    assert changed(before, await stage.snapshot()) == {}


OF_RUNS = [case for case in CASES if case.kind is TokenKind.RUN]


@pytest.mark.spec("1.2", "1.7")
@pytest.mark.parametrize("case", OF_RUNS, ids=str)
async def test_a_run_token_reaches_its_own_tenants_runs_alone(stage: Stage, case: Case) -> None:
    """Not even a token that pairs a tenant with another's run, which nobody signs, finds that run."""
    victim = await stage.world("victim", live=True)
    nothing = World("victim")
    before = await stage.snapshot()
    aimed = await send(stage, case, case.requests(victim), victim, tenant="globex")
    assert aimed == await send(stage, case, case.requests(nothing), nothing, tenant="globex")
    if case.rpc == "RunnerService/ExecuteTurn":  # the runner learns it from BeginTurn
        assert aimed.refusal == ("ABORTED", "ATTEMPT_FENCED", {})
    elif case.answer == UNIMPLEMENTED:
        assert aimed.code == UNIMPLEMENTED
    else:
        assert aimed.refusal[:2] == ("NOT_FOUND", "RESOURCE_NOT_FOUND")
    assert ids_in(aimed) == set()
    assert changed(before, await stage.snapshot()) == {}


@pytest.mark.spec("1.2", "1.7")
@pytest.mark.parametrize("case", [case for case in OF_RUNS if case.answer != HELD], ids=str)
async def test_a_run_token_reaches_its_own_session_and_agent_alone(stage: Stage, case: Case) -> None:
    """Not what else its user has."""
    own, other = await stage.world("victim", live=True), await stage.world("victim")
    before = await stage.snapshot()
    await attack(stage, case, other, own, private=set(other.named))
    assert changed(before, await stage.snapshot()) == {}


@pytest.mark.spec("1.3", "1.7")
@pytest.mark.parametrize("case", [case for case in CASES if case.scope], ids=str)
async def test_without_the_scope_nothing_is_looked_up(stage: Stage, case: Case) -> None:
    victim = await stage.world("victim", live=case.live)
    assert case.scope
    assert case.kind
    token = stage.token(case.kind, victim, {*ALL_SCOPES, "admin"} - {case.scope})
    before = await stage.snapshot()
    for world in (victim, World("victim")):
        outcome = await stage.site.call(case.rpc, case.requests(world), token)
        assert outcome == Outcome(
            "PERMISSION_DENIED",
            reason="SCOPE_MISSING",
            metadata=(("scope", case.scope),),
            text="The token lacks the scope that the method needs.",
        )
    assert changed(before, await stage.snapshot()) == {}


@pytest.mark.spec("1.1", "1.4")
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_without_a_token_only_the_keys_are_given(stage: Stage, case: Case) -> None:
    victim = await stage.world("victim", live=case.live)
    before = await stage.snapshot()
    for world in (victim, World("victim")):
        for token in (None, uuid.uuid4().hex):
            outcome = await stage.site.call(case.rpc, case.requests(world), token)
            if case.rpc == "IdentityService/GetVerificationKeys":
                assert outcome.ok
            else:
                assert outcome == Outcome(
                    "UNAUTHENTICATED", reason="UNAUTHENTICATED", text="A valid bearer token is required."
                )
    assert changed(before, await stage.snapshot()) == {}


@pytest.mark.spec("1.1")
async def test_health_and_reflection_need_no_token(stage: Stage) -> None:
    for address in (stage.pair.session_address, stage.pair.runner_address):
        async with grpc.aio.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            checked = await health.Check(health_pb2.HealthCheckRequest())
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
            listing = [reflection_pb2.ServerReflectionRequest(list_services="")]
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
            [listed] = [response async for response in reflection.ServerReflectionInfo(iter(listing))]
            assert listed.list_services_response.service
