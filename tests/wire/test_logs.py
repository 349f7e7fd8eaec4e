"""The log of a program: one JSON object a line, whoever writes it."""

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import logging, warnings
import structlog
from turnkeeper.wire import logs

logs.configure()
structlog.contextvars.bind_contextvars(run_id="r-1")
structlog.get_logger("turnkeeper.x").info("ours", n=1)
grpc = logging.getLogger("grpc._cython.cygrpc")


def fail(message):
    secret_local = "s3cret"
    try:
        raise ValueError("broken")
    except ValueError:
        grpc.exception(message)


fail("Unexpected [ValueError] raised by servicer method [/a.B/C]")
fail("ExecuteBatchError raised in core by servicer method [/a.B/C]")
logging.getLogger("asyncio").error("Task exception was never\\nretrieved: %s", 7)
logging.getLogger("asyncio").error("ExecuteBatchError raised in core by servicer method: not said by gRPC")
logging.getLogger("httpx").info("GET https://tools.example/?argument=s3cret")
structlog.get_logger("turnkeeper.x").warning("ours too")
warnings.warn("old")
"""


def test_every_line_is_json_and_a_stream_that_was_broken_off_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["event"].partition("\n")[0], line.get("logger")) for line in lines] == [
        ("info", "ours", None),
        ("error", "Unexpected [ValueError] raised by servicer method [/a.B/C]", "grpc._cython.cygrpc"),
        ("error", "Task exception was never", "asyncio"),
        ("error", "ExecuteBatchError raised in core by servicer method: not said by gRPC", "asyncio"),
        ("warning", "ours too", None),
        ("warning", "<string>:26: UserWarning: old", "py.warnings"),
    ]
    assert {line["run_id"] for line in lines} == {"r-1"}
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert lines[1]["exception"].endswith("ValueError: broken")
    assert "s3cret" not in done.stderr
    assert done.stdout == ""
