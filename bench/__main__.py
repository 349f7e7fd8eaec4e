"""`python -m bench`: prints each figure beside the bare echo of the same run, and whether its goal is met."""

import argparse
import asyncio

from bench.facts import facts
from bench.service import measured_processes


async def _run(rounds: int, calls: int, database_url: str | None) -> None:
    async with measured_processes(database_url) as measured:
        await facts(measured, rounds, calls)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds; the figures are medians over them (default 9)")
    parser.add_argument("--calls", type=int, default=200, help="calls of each kind in a round (default 200)")
    parser.add_argument("--database", metavar="URL", help="an empty database (default: a fresh SQLite file)")
    given = parser.parse_args()
    asyncio.run(_run(given.rounds, given.calls, given.database))


if __name__ == "__main__":
    main()
