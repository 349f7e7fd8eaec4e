"""The program: what it says when it cannot start, what it lists, how it stops."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator

import pytest
import structlog
from typer.testing import CliRunner

from runner_service.__main__ import app
from runner_service.settings import Settings, variables

SECRET = "sk-never-shown"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    for name in list(os.environ):
        if name.startswith("TURNKEEPER_RUNNER_") or name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    handlers = list(logging.root.handlers)
    yield CliRunner(env={"COLUMNS": "200"})
    # The program sets up the logs of its process, which here is the test's.
    structlog.reset_defaults()
    logging.root.handlers = handlers


def test_every_setting_is_a_flag_and_a_variable_of_the_help(cli: CliRunner) -> None:
    shown = cli.invoke(app, ["serve", "--help"]).output
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
        assert all(variable in shown for variable in variables(name))


def test_the_harnesses_are_listed(cli: CliRunner) -> None:
    listed = json.loads(cli.invoke(app, ["harnesses", "--json"]).output)
    assert [each["name"] for each in listed] == ["openai", "scripted"]
    assert "scripted" in cli.invoke(app, ["harnesses"]).output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--listen", "0.0.0.0:0"], 1, "without TLS"),
        (["--listen", "nowhere"], 1, "host:port"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"], 1, "nowhere.pem"),
        (["--session-tls-ca", "/nowhere.pem"], 1, "nowhere.pem"),
        (
            ["--stop-grace-seconds", "soon"],
            2,
            "setting stop_grace_seconds (TURNKEEPER_RUNNER_STOP_GRACE_SECONDS): Input should be",
        ),
        (["--tool-result-bytes", "-3"], 2, "tool_result_bytes"),
        (
            ["--tool-origins", "tools.example"],
            2,
            "setting tool_origins (TURNKEEPER_RUNNER_TOOL_ORIGINS): the tool's URL is not an absolute http or https",
        ),
        (
            ["--grpc-targets", "tools.example"],
            2,
            "setting grpc_targets (TURNKEEPER_RUNNER_GRPC_TARGETS): 'tools.example' is no gRPC target",
        ),
        (["--tool-headers", "{"], 2, "setting tool_headers (TURNKEEPER_RUNNER_TOOL_HEADERS): is not JSON"),
        (["--tool-headers", '{"foo": {}}'], 1, "tool_headers: 'foo' is no gRPC target"),
        (["--user-jwks", "/jwks.json"], 1, "user_issuer"),
    ],
)
def test_what_stops_it_from_starting_is_said(cli: CliRunner, arguments: list[str], code: int, words: str) -> None:
    result = cli.invoke(app, ["serve", "--openai-api-key", SECRET, *arguments])
    assert result.exit_code == code
    assert words in result.output
    assert SECRET not in result.output
    assert "Traceback" not in result.output
    assert "Value error" not in result.output


def test_a_wrong_variable_is_said_by_every_command(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_RUNNER_TOOL_RESULT_BYTES", "many")
    result = cli.invoke(app, ["harnesses"])
    assert result.exit_code == 2
    assert "setting tool_result_bytes (TURNKEEPER_RUNNER_TOOL_RESULT_BYTES): " in result.output


def test_a_traceback_shows_no_values() -> None:
    assert app.pretty_exceptions_enable is False


def test_settings_never_show_the_models_key() -> None:
    settings = Settings(openai_api_key=SECRET)
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


def test_the_environment_of_other_programs_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one.example/v1")
    monkeypatch.setenv("TURNKEEPER_RUNNER_TOOL_ORIGINS", "https://a.example, http://b.example:81")
    assert Settings().openai_base_url == "http://one.example/v1"
    assert Settings().tool_origins == ("https://a.example", "http://b.example:81")
    monkeypatch.setenv("TURNKEEPER_RUNNER_OPENAI_BASE_URL", "http://two.example/v1")
    assert Settings().openai_base_url == "http://two.example/v1"


@pytest.mark.spec("11.4")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_it_logs_json_and_stops_cleanly(stop: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runner_service", "serve", "--listen", "127.0.0.1:0"),
        env={**os.environ, "OPENAI_API_KEY": SECRET},
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(20):
        while line := (await process.stderr.readline()).decode():
            lines.append(line)
            if '"serving"' in line:
                process.send_signal(stop)
        assert await process.wait() == 0
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event["event"] for event in events] == ["serving", "stopping", "stopped"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", events[0]["address"])
    assert SECRET not in "".join(lines)
