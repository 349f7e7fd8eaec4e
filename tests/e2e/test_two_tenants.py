"""Two tenants, a hundred interleaved streams: every outgoing call and every row carries its own caller (CASES 17)."""

import asyncio
import json
import random
from collections.abc import Sequence

import pytest
from sqlalchemy import select
from turnkeeper.v1 import run_pb2

from session_service.storage.schema import messages, runs, tool_calls
from tests.far import model
from tests.far.gates import Gate
from tests.far.model import Call, Prompt, Step
from tests.fixtures.journeys import follow, get, key, new_session, start, states, text_of
from tests.fixtures.leaks import leaks
from tests.fixtures.processes import Processes, StartProcesses

TENANTS = ("acme", "rival")
USERS = 50
SLOW = {"lease_seconds": 15, "confirm_seconds": 20, "max_attempts": 200}
"""A busy machine is no reason here to lose an attempt."""


class Conversation:
    """A model that answers each prompt with what it was told by this prompt's own user and tool alone."""

    def __init__(self) -> None:
        self.all_open = Gate("all streams open")

    def respond(self, prompt: Prompt) -> Sequence[Step]:
        """First a call with the user's words as its argument, then the tool's answer as the text."""
        said = prompt.messages[-1]
        if said["role"] == "tool":
            return model.text("The tool said ", str(json.loads(said["content"])["whose"]))
        asked = model.tool_calls(Call("work", {"whose": said["content"]}))
        return [*model.text("One moment, "), *model.hold(self.all_open), *asked]


async def one_caller(processes: Processes, tenant: str, number: int, click: str) -> tuple[str, str]:
    """One user's run, from click to answer; who it is and its id."""
    who = f"{tenant}/user-{number}"
    caller = processes.client(tenant, f"user-{number}", roles=[f"role-of-{tenant}-{number}"])
    tools = [{"name": "work", "http": {"method": "POST", "url": processes.tools.url("/work")}}]
    config = {"schema_version": 1, "harness": "openai", "model": {"name": "m"}, "tools": tools}
    session_id = await new_session(caller, who)
    run = await start(caller, session_id, config_json=json.dumps(config), input=who, idempotency_key=click)
    events = await follow(caller, run.run_id)
    assert states(events)[-1] == "COMPLETED", await get(caller, run.run_id)
    assert text_of(events) == f"One moment, The tool said {who}"
    done = await get(caller, run.run_id)
    assert (done.user_id, done.state, done.attempt) == (f"user-{number}", run_pb2.RUN_STATE_COMPLETED, 1)
    return who, run.run_id


@pytest.mark.spec("1.1", "1.5", "1.7", "2.1", "5.2", "10.1")
async def test_interleaved_streams_never_mix_their_callers(start_processes: StartProcesses) -> None:
    async with start_processes(session=SLOW) as processes:
        conversation = Conversation()
        processes.model.respond = conversation.respond
        shared = [key() for _ in range(USERS)]  # both tenants use the same keys
        callers = [(tenant, number) for tenant in TENANTS for number in range(USERS)]
        random.Random(17).shuffle(callers)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            runs_of = [tasks.create_task(one_caller(processes, *each, shared[each[1]])) for each in callers]
            await conversation.all_open.reached(len(callers), within=45)
            conversation.all_open.open()

        by_run = {run_id: who for who, run_id in (task.result() for task in runs_of)}
        assert len(by_run) == len(callers)
        expected = {f"{tenant}/user-{number}" for tenant, number in callers}
        called = [request.json()["whose"] for request in processes.tools.requests]
        assert (set(called), len(called)) == (expected, len(callers))
        assert len({request.headers["idempotency-key"] for request in processes.tools.requests}) == len(callers)
        for prompt in processes.model.prompts:
            (who,) = [message["content"] for message in prompt.messages if message["role"] == "user"]
            assert all(who in json.dumps(message) for message in prompt.messages if message["role"] == "tool")
        await rows_are_their_owners(processes, by_run)
        assert processes.model.unanswered == 0
        assert await leaks(processes) == []


async def rows_are_their_owners(processes: Processes, by_run: dict[str, str]) -> None:
    """Tenant, user, roles and content of each row are those of the run's own caller."""
    stored = await processes.rows(select(runs))
    assert len(stored) == len(by_run)
    for row in stored:
        tenant, user = by_run[row.run_id].split("/")
        assert (row.tenant_id, row.user_id, row.input) == (tenant, user, f"{tenant}/{user}")
        assert json.loads(row.roles_json) == [f"role-of-{tenant}-{user.removeprefix('user-')}"]
    made = await processes.rows(select(tool_calls))
    assert len(made) == len(by_run)
    for row in made:
        who = by_run[row.run_id]
        assert row.tenant_id == who.split("/")[0]
        assert json.loads(row.arguments_json) == json.loads(row.result) == {"whose": who}
    for row in await processes.rows(select(messages)):
        who = by_run[row.run_id]
        assert row.tenant_id == who.split("/")[0]
        assert row.role == "ASSISTANT" or who in row.text
