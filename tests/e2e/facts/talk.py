"""Turns of the openai harness through the pair, and what of the facts reached the model over HTTP."""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.agent_service_pb2 import UpdateAgentRequest
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart
from turnkeeper.v1.session_service_pb2 import UpdateSessionRequest
from turnkeeper.v1.turn_event_pb2 import TurnEvent

from tests.far import model
from tests.fixtures.client import Client
from tests.fixtures.journeys import ended, start
from tests.fixtures.pair import Pair

INSTRUCTIONS = "Be brief."
NO_NAME = "The session has no name."
FIRST = "This is the first turn of the session."
LATER = "This is not the first turn of the session."


def config(*tools: dict[str, Any], **more: Any) -> str:
    """A config of the openai harness."""
    given = {"schema_version": 1, "harness": "openai", "model": {"name": "m"}, "instructions": INSTRUCTIONS}
    return json.dumps({**given, "tools": list(tools), **more})


def agent(name: str) -> str:
    """The line of an agent's name."""
    return f'The agent\'s name is "{name}".'


def session(name: str) -> str:
    """The line of a session's name."""
    return f'The session\'s name is "{name}"; keep it.'


def lines(prompt: model.Prompt, instructions: str = INSTRUCTIONS) -> list[str]:
    """The lines of the facts in a prompt: all that its first message says after the instructions."""
    leading = prompt.messages[0]["content"]
    assert prompt.messages[0]["role"] == "system"
    assert leading.startswith(instructions)
    return list(leading.removeprefix(instructions).removeprefix("\n\n").splitlines())


async def turn(pair: Pair, client: Client, session_id: str, **fields: Any) -> list[str]:
    """The lines that the next run's prompt has, after the run ended well."""
    number = len(pair.model.prompts)
    pair.model.queue(model.text("Good day."))
    if "references" not in fields:
        fields.setdefault("config_json", config())
    run = await start(client, session_id, **fields)
    assert (await ended(client, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    return lines(pair.model.prompts[number])


async def direct(client: Client, *, metadata: Sequence[tuple[str, str]] = (), **fields: Any) -> list[TurnEvent]:
    """The events of a direct turn."""
    stream = client.runner.ExecuteTurn(metadata=tuple(metadata))
    given = {"input": "Hello", "config_json": config(), **fields}
    await stream.write(ExecuteTurnRequest(start=TurnStart(**given)))
    return [response.event async for response in stream]


async def direct_turn(pair: Pair, client: Client, **fields: Any) -> list[str]:
    """The lines that a direct turn's prompt has, after the turn ended well."""
    number = len(pair.model.prompts)
    pair.model.queue(model.text("Good day."))
    events = await direct(client, **fields)
    assert events[-1].turn_ended.HasField("completed")
    return lines(pair.model.prompts[number])


async def rename_session(client: Client, session_id: str, name: str, *, automatic: bool = False) -> None:
    """Gives a session another name."""
    mask = FieldMask(paths=["name"])
    request = UpdateSessionRequest(session_id=session_id, name=name, update_mask=mask, automatic_name=automatic)
    await client.sessions.UpdateSession(request)


async def rename_agent(client: Client, agent_id: str, name: str) -> None:
    """Gives an agent another name."""
    request = UpdateAgentRequest(agent_id=agent_id, name=name, update_mask=FieldMask(paths=["name"]))
    await client.agents.UpdateAgent(request)
