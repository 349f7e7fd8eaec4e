"""Generates the committed Python stubs of the contract, or says whether the committed ones are still true.

`stubs.py` writes them beside the .proto files; `stubs.py --check` writes nothing there and exits 1 when a stub is
missing, differs or belongs to no .proto file.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path("protos")
CONTRACT = PROTOS / "turnkeeper" / "v1"
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
WRITTEN_BY_HAND = {"__init__.py"}


def generate(out: Path) -> None:
    """Writes all stubs below `out`. Only files with a service get gRPC stubs: those of the others would be empty."""
    files = sorted(CONTRACT.glob("*.proto"))
    services = [file for file in files if file.stem.endswith("_service")]
    _run([f"--python_out={out}", f"--mypy_out=quiet:{out}", *map(str, files)])
    _run([f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}", *map(str, services)])


def differences(fresh: Path) -> list[str]:
    """What is wrong with the committed stubs, compared with freshly generated ones; one line each."""
    expected = {file.name: file.read_bytes() for file in (fresh / "turnkeeper" / "v1").glob("*.py*")}
    found = {file.name: file.read_bytes() for file in CONTRACT.glob("*.py*") if file.name not in WRITTEN_BY_HAND}
    return [
        *(f"{name}: missing" for name in sorted(expected.keys() - found.keys())),
        *(f"{name}: belongs to no .proto file" for name in sorted(found.keys() - expected.keys())),
        *(f"{name}: differs" for name in sorted(expected.keys() & found.keys()) if expected[name] != found[name]),
    ]


def _run(arguments: list[str]) -> None:
    includes = Path(protoc.__file__).parent / "_proto"
    plugins = [f"--plugin={name}={Path(sys.executable).parent / name}" for name in PLUGINS]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{includes}", *plugins, *arguments]) != 0:
        sys.exit("protoc failed")


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        generate(PROTOS)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wrong = differences(Path(folder))
    if wrong:
        sys.exit("The committed stubs are not those of the contract (make protos):\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
