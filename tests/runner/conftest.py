"""A pair whose runner is looked at from both sides, and callers of it."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, MutableMapping
from typing import Any, NoReturn

import pytest
import structlog
from google.protobuf.duration_pb2 import Duration
from turnkeeper.v1 import run_pb2, turn_event_pb2
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart

from tests.far.log import Log
from tests.far.tools import ToolServer
from tests.fixtures.client import Client
from tests.fixtures.pair import Pair, StartPair

MODEL_KEY = "a-key-of-the-model"

Direct = Callable[..., Coroutine[Any, Any, list[turn_event_pb2.TurnEvent]]]


@pytest.fixture
async def tools() -> AsyncIterator[ToolServer]:
    """A tool server, for what needs no more."""
    async with ToolServer() as far:
        yield far


@pytest.fixture
async def linked(start_pair: StartPair) -> AsyncIterator[Pair]:
    """A pair with a link between dispatcher and runner."""
    async with start_pair(turn_link=True) as pair:
        yield pair


class Logs:
    """What the services of this process log."""

    def __init__(self) -> None:
        self._entries: Log[dict[str, Any]] = Log("log entry")

    def __call__(self, _logger: object, _level: str, entry: MutableMapping[str, Any]) -> NoReturn:
        """Takes an entry, in place of structlog's own processors."""
        self._entries.append(dict(entry))
        raise structlog.DropEvent

    def answers(self) -> list[str]:
        """What runners asked and were answered so far, as "method" or "method reason", in order."""
        return [
            f"{entry['method'].rpartition('/')[2]} {entry['reason']}".rstrip()
            for entry in self._entries
            if entry["event"] == "call" and _is_asked_by_runners(entry["method"])
        ]

    async def entry(self, event: str) -> dict[str, Any]:
        """The first entry of this name, as soon as it is written."""
        number = 1
        while (found := await self._entries.at(number))["event"] != event:
            number += 1
        return found


@pytest.fixture
def logs() -> Iterator[Logs]:
    """The logs from now on."""
    taken = Logs()
    processors = structlog.get_config()["processors"]  # changed in place: loggers that are bound keep this very list
    before = list(processors)
    processors[:] = [taken]
    try:
        yield taken
    finally:
        processors[:] = before


def _is_asked_by_runners(method: str) -> bool:
    return "TurnService" in method or method.endswith("ListMessages")


@pytest.fixture
def ada(pair: Pair) -> Client:
    """A user who may do everything."""
    return pair.client()


@pytest.fixture
def direct(ada: Client) -> Direct:
    """Executes a direct turn to its end and gives its events."""

    async def execute(config: str, text: str = "Hello", **call: Any) -> list[turn_event_pb2.TurnEvent]:
        return await direct_turn(ada, config, text, **call)

    return execute


async def direct_turn(client: Client, config: str, text: str = "Hello", **call: Any) -> list[turn_event_pb2.TurnEvent]:
    """The events of a direct turn."""
    stream = client.runner.ExecuteTurn(**call)
    await stream.write(ExecuteTurnRequest(start=TurnStart(input=text, config_json=config)))
    return [response.event async for response in stream]


def openai_config(*tools: dict[str, Any], **more: Any) -> str:
    """A config of the openai harness."""
    return json.dumps(
        {"schema_version": 1, "harness": "openai", "model": {"name": "m-1"}, "tools": list(tools), **more}
    )


def tool(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A tool of a config, made by POST."""
    return {"name": name, "http": {"method": "POST", "url": url}, **more}


def text_of(events: Iterable[turn_event_pb2.TurnEvent]) -> str:
    """The whole text of a turn."""
    return "".join(event.text_delta.text for event in events)


def bodies(events: Iterable[turn_event_pb2.TurnEvent]) -> list[str]:
    """The kinds of the events, in order."""
    return [str(event.WhichOneof("body")) for event in events]


def failure_of(events: list[turn_event_pb2.TurnEvent]) -> str:
    """The reason of a failed turn, "" of one that ended well."""
    ended = events[-1].turn_ended
    assert ended.WhichOneof("outcome")
    return run_pb2.FailureReason.Name(ended.failed.reason) if ended.HasField("failed") else ""


def duration(seconds: float) -> Duration:
    """Seconds as a Duration."""
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
