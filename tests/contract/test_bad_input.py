"""Bad input on every RPC: the documented code and reason, the field named, nothing stored, on both databases alike.

The mutations come from the descriptors and the valid requests of `cases`; a field that nobody said anything of fails
the suite. What only the services themselves can see (a contradiction, a foreign id) is written out at the end.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from turnkeeper.wire.context import TokenKind

from tests.contract.cases import CASES, HELD, UNIMPLEMENTED, Case
from tests.contract.mutations import Mutation, messages, mutations, scalars, spellings
from tests.contract.refusals import REFUSALS, Refusal
from tests.contract.rpcs import RPCS, Outcome
from tests.contract.worlds import Stage, World, changed
from tests.fixtures.issuer import ALL_SCOPES
from tests.fixtures.journeys import follow

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stages = Mapping[str, Stage]
TEXT = "The request has invalid fields."


async def send(stage: Stage, case: Case, requests: Sequence[Message | bytes], world: World) -> Outcome:
    token = None if case.kind is None else stage.token(case.kind, world, {*ALL_SCOPES, case.scope or ""})
    return await stage.site.call(case.rpc, requests, token, keep_open=case.answer == HELD)


def same(answers: Mapping[str, Outcome]) -> Outcome:
    """The one answer of both databases."""
    first, *others = answers.values()
    assert others == [first] * len(others)
    return first


async def test_every_rpc_has_a_case() -> None:
    assert {case.rpc for case in CASES} == set(RPCS)


async def test_the_cases_fill_every_message_of_every_request() -> None:
    """Only what is filled in can be mutated, so each list, map and message must be in some case of its RPC."""
    for rpc, method in RPCS.items():
        made = [case.requests(World("any"))[-1] for case in CASES if case.rpc == rpc]
        filled, kinds = set(), [method.input_type]
        for request in made:
            for _, owner in messages(request):
                filled |= {field.full_name for field, _ in owner.ListFields()}
        seen = set()
        while kinds:
            kind = kinds.pop()
            if kind.full_name in seen:
                continue
            seen.add(kind.full_name)
            for field in kind.fields:
                if field.message_type is None and not field.is_repeated:
                    continue
                assert field.full_name in filled, f"no case of {rpc} fills {field.full_name}"
                if field.message_type is not None and field.message_type.file.package == "turnkeeper.v1":
                    kinds.append(field.message_type)


@pytest.mark.spec("11.1", "11.2")
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_bad_field_is_named_and_nothing_is_stored(stages: Stages, case: Case) -> None:
    worlds = {kind: await stage.world("any", live=case.live) for kind, stage in stages.items()}
    before = {kind: await stage.snapshot() for kind, stage in stages.items()}
    wrong: list[tuple[str, str, Any]] = []
    for mutation in mutations(case.requests(World("any"))[-1], case.required):
        answers = []
        for kind, stage in stages.items():
            requests = case.requests(worlds[kind])
            mutation.apply(requests[-1])
            answers.append(await send(stage, case, requests, worlds[kind]))
        if answers[0] != answers[1] or not refused_for(mutation, answers[0]):
            wrong.append((mutation.path, mutation.how, answers))
    assert wrong == []
    for kind, stage in stages.items():
        assert changed(before[kind], await stage.snapshot()) == {}


def refused_for(mutation: Mutation, outcome: Outcome) -> bool:
    refused = outcome.refusal == ("INVALID_ARGUMENT", "INVALID_FIELD", {}) and outcome.text == TEXT
    return refused and outcome.paths == [mutation.path] and all(why and len(why) < 200 for _, why in outcome.fields)


@pytest.mark.spec("11.1", "2.3")
@pytest.mark.parametrize("case", [case for case in CASES if case.answer != HELD], ids=str)
async def test_one_row_however_its_ids_are_spelled(stages: Stages, case: Case) -> None:
    """The request succeeds as it is, and a repetition with other spellings of an id is the same repetition."""
    for stage in stages.values():
        mark = stage.next_mark() if case.changes else "any"
        world = await stage.world(mark, live=case.live)
        first = await send(stage, case, case.requests(world), world)
        assert first.code == case.answer, first
        if case.rpc in {"RunService/StartRun", "RunService/CancelRun"} and case.answer == "OK":
            await follow(stage.pair.client(), first.responses[0].run.run_id)  # type: ignore[attr-defined]
        repeated = settled(await send(stage, case, case.requests(world), world))
        for place, scalar in enumerate(scalars(case.requests(world)[-1])):
            if not isinstance(scalar.value, str) or scalar.value not in world.named.values():
                continue
            for spelling in spellings(scalar.value):
                requests = case.requests(world)
                list(scalars(requests[-1]))[place].put(spelling)
                assert settled(await send(stage, case, requests, world)) == repeated, (scalar.path, spelling)
        await stage.finish(*([world] if case.changes else []))


def settled(outcome: Outcome) -> Outcome:
    """Without what goes on by itself."""
    for response in outcome.responses:
        for _, owner in messages(response):
            for name in ("update_time", "turn_number"):
                if name in owner.DESCRIPTOR.fields_by_name:
                    owner.ClearField(name)
    return outcome


ONE_PER_RPC = list({case.rpc: case for case in reversed(CASES)}.values())


@pytest.mark.spec("11.1", "11.2")
async def test_bytes_that_nobody_can_read(stages: Stages) -> None:
    """Cut short, no message at all, or text that is not UTF-8: one refusal, on every RPC."""
    before = {kind: await stage.snapshot() for kind, stage in stages.items()}
    for case in ONE_PER_RPC:
        texts = [field for field in RPCS[case.rpc].input_type.fields if field.type == field.TYPE_STRING]
        not_utf8 = [bytes([field.number << 3 | 2]) + b"\x02\xc3\x28" for field in texts]
        for garbage in (b"\x0a\x05ab", b"\xff\xff\xff", *not_utf8):
            answers = {
                kind: await send(stage, case, [garbage], await stage.world("any", live=case.live))
                for kind, stage in stages.items()
            }
            outcome = same(answers)
            assert outcome.refusal == ("INVALID_ARGUMENT", "INVALID_FIELD", {}), (case.rpc, garbage, outcome)
    for kind, stage in stages.items():
        assert changed(before[kind], await stage.snapshot()) == {}


@pytest.mark.spec("11.1")
async def test_a_field_of_another_wire_type_is_absent(stages: Stages) -> None:
    """Protobuf reads such a field as unknown, so that a required one is missing."""
    before = {kind: await stage.snapshot() for kind, stage in stages.items()}
    for case in CASES:
        for name in case.required.split():
            field = RPCS[case.rpc].input_type.fields_by_name.get(name)
            if field is None:
                continue  # a oneof, or deeper: its message's own field is what has a type
            answers = {}
            for kind, stage in stages.items():
                world = await stage.world("any", live=case.live)
                *earlier, last = case.requests(world)
                last.ClearField(name)
                number = bytes([field.number << 3, 1])  # a varint, which no required field is
                sent = [each.SerializeToString() for each in earlier] + [last.SerializeToString() + number]
                answers[kind] = await send(stage, case, sent, world)
            outcome = same(answers)
            assert outcome.paths == [name], (str(case), outcome)
            assert outcome.fields[0][1].startswith("is required")
    for kind, stage in stages.items():
        assert changed(before[kind], await stage.snapshot()) == {}


@pytest.mark.spec("1.7", "11.2")
async def test_an_id_that_names_nothing(stages: Stages) -> None:
    """Each id of each request alone, as a random one: NOT_FOUND, unless it only chooses, and nothing stored."""
    for stage in stages.values():
        for live in (False, True):
            await stage.world("any", live=live)
    before = {kind: await stage.snapshot() for kind, stage in stages.items()}
    for case in CASES:
        if case.answer == HELD:
            continue
        worlds = {kind: await stage.world("any", live=case.live) for kind, stage in stages.items()}
        names = {identity: name for name, identity in worlds["sqlite"].named.items()}
        for place, scalar in enumerate(scalars(case.requests(worlds["sqlite"])[-1])):
            name = names.get(str(scalar.value))
            if name is None or name in case.lenient:
                continue
            answers = {}
            for kind, stage in stages.items():
                requests = case.requests(worlds[kind])
                list(scalars(requests[-1]))[place].put(str(uuid.uuid4()))
                answers[kind] = await send(stage, case, requests, worlds[kind])
            outcome = same(answers)
            expected = "UNIMPLEMENTED" if case.answer == UNIMPLEMENTED else "RESOURCE_NOT_FOUND"
            assert outcome.reason == expected, (str(case), scalar.path, outcome)
    for kind, stage in stages.items():
        assert changed(before[kind], await stage.snapshot()) == {}


@pytest.mark.spec("2.5", "2.6", "11.1", "11.2")
@pytest.mark.parametrize("wrong", REFUSALS, ids=str)
async def test_what_only_the_service_sees(stages: Stages, wrong: Refusal) -> None:
    answers = {}
    for kind, stage in stages.items():
        world = await stage.world("any", live=wrong.kind is TokenKind.RUN)
        before = await stage.snapshot()
        token = stage.token(wrong.kind, world)
        outcome = await stage.site.call(wrong.rpc, [wrong.make(world)], token)
        assert (outcome.code, outcome.reason) == (wrong.code, wrong.reason), outcome
        assert set(outcome.paths) == set(wrong.paths)
        for name, value in wrong.metadata(world).items():
            assert dict(outcome.metadata)[name] == value
        assert changed(before, await stage.snapshot()) == {}
        answers[kind] = replace(outcome, metadata=())  # some of it names what is of this database alone
    same(answers)
