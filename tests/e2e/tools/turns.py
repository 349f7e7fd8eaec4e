"""What these tests have in common: turns with tools, a runner's own calls, the audit, and a search for credentials."""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent

from session_service.identity.keys import load_keys
from session_service.storage.schema import audit_entries
from tests.fixtures.client import Client
from tests.fixtures.journeys import follow, messages, start
from tests.fixtures.pair import Pair

RENAME_SESSION = {"name": "rename_session", "builtin": True}
RENAME_AGENT = {"name": "rename_agent", "builtin": True}


def openai(*tools: dict[str, Any]) -> str:
    """A config of the openai harness with these tools."""
    return json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m-1"}, "tools": list(tools)})


def http_tool(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A tool that is made by POST."""
    return {"name": name, "http": {"method": "POST", "url": url}, **more}


def calling(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A step of a script: one call."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def played(client: Client, session_id: str, **fields: Any) -> tuple[run_pb2.Run, list[RunEvent]]:
    """A run, and its events to the end."""
    run = await start(client, session_id, **fields)
    return run, await follow(client, run.run_id)


def kinds(events: Sequence[RunEvent]) -> list[str]:
    """What happened, in order, without the states."""
    return [kind for event in events if (kind := str(event.WhichOneof("body"))) != "state_changed"]


def results(events: Sequence[RunEvent]) -> list[tuple[str, str]]:
    """How each tool call ended: its state and what the model was told."""
    finished = (event.tool_call_finished for event in events if event.HasField("tool_call_finished"))
    return [(run_pb2.ToolCallState.Name(each.state).removeprefix("TOOL_CALL_STATE_"), each.result) for each in finished]


async def as_runner(pair: Pair, run: run_pb2.Run, scopes: Collection[str], attempt: int = 1) -> Client:
    """A caller with the run token of an attempt."""
    keys = await load_keys(pair.session.storage)
    token = keys.run_token(
        tenant_id="acme",
        user_id="ada",
        roles=(),
        scopes=scopes,
        session_id=run.session_id,
        run_id=run.run_id,
        attempt=attempt,
        expire_time=int(time.time()) + 60,
    )
    return pair.client(token=token)


async def audited(pair: Pair, tenant: str = "acme") -> list[dict[str, Any]]:
    """The tenant's audit entries, oldest first."""
    query = select(audit_entries).where(audit_entries.c.tenant_id == tenant).order_by(audit_entries.c.create_time)
    rows = await pair.session.storage.read(tenant, lambda connection: connection.execute(query).mappings().all())
    return [dict(row) for row in rows]


async def everything_said(
    pair: Pair, client: Client, session_id: str, events: Sequence[RunEvent], logs: Sequence[Any]
) -> str:
    """All that a turn left behind where no credential may be: prompts, events, messages, logs."""
    prompts = [prompt.body for prompt in pair.model.prompts]
    said = await messages(client, session_id)
    return "\n".join(map(str, (prompts, list(events), list(said), list(logs))))
