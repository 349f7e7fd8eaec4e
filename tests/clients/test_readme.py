"""The README's examples run as they stand there: each starts a run in its language and prints the streamed answer."""

import asyncio
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.far.model import text
from tests.fixtures.node import installed
from tests.fixtures.pair import Pair

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).parent / "buf"
NODE_PACKAGES = (
    "@connectrpc/connect@2.1.2",
    "@connectrpc/connect-node@2.1.2",
    "@bufbuild/protobuf@2.17.0",
    "@bufbuild/protoc-gen-es@2.13.0",
    "@types/node@20",
    "typescript@5.9",
)
GO_LIBRARIES = Path("/usr/share/gocode/src/google.golang.org/grpc")
"""Where Debian puts them (golang-google-grpc-dev and what it needs)."""

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def example(language: str) -> str:
    """The README's only block in this language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def template(plugin: str) -> str:
    """The README's template for `buf generate` that uses this plugin."""
    templates = re.findall(r"--template '(.*?)'", (ROOT / "README.md").read_text())
    found = [each for each in templates if f'"{plugin}"' in each]
    assert len(found) == 1
    return str(found[0])


async def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a program to its end and gives what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=cwd, env={**os.environ, **environment}, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def caller(pair: Pair) -> dict[str, str]:
    """What `make serve` prints: the address and a token."""
    return {"TURNKEEPER_ADDRESS": pair.session_address, "TURNKEEPER_TOKEN": pair.issuer.token()}


async def test_the_python_example(pair: Pair, tmp_path: Path) -> None:
    pair.model.queue(text("Hello ", "back"))
    (tmp_path / "example.py").write_text(example("python"))
    assert await run(sys.executable, "example.py", cwd=tmp_path, **caller(pair)) == "Hello back"


async def test_the_typescript_example(pair: Pair, tmp_path: Path) -> None:
    pair.model.queue(text("Hello ", "back"))
    packages = installed(*NODE_PACKAGES)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "example.ts").write_text(example("ts"))
    tools = packages / "node_modules" / ".bin"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    await run(BUF, "generate", ROOT / "protos", "--template", template("protoc-gen-es"), cwd=tmp_path, PATH=path)
    options = ["--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "--types", "node"]
    await run(tools / "tsc", *options, "example.ts", cwd=tmp_path)
    assert await run("node", "example.js", cwd=tmp_path, **caller(pair)) == "Hello back"


@pytest.mark.skipif(not shutil.which("go"), reason="Go is not installed")
@pytest.mark.skipif(not GO_LIBRARIES.exists(), reason="Go's gRPC library is not installed where Debian puts it")
async def test_the_go_example(pair: Pair, tmp_path: Path) -> None:
    pair.model.queue(text("Hello ", "back"))
    (tmp_path / "example.go").write_text(example("go"))
    await run(BUF, "generate", ROOT / "protos", "--template", template("protoc-gen-go"), cwd=tmp_path)
    gopath = f"{tmp_path}:/usr/share/gocode"
    await run("go", "build", "-o", "example", "example.go", cwd=tmp_path, GO111MODULE="off", GOPATH=gopath)
    assert await run(tmp_path / "example", cwd=tmp_path, **caller(pair)) == "Hello back"
