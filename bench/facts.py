"""What a turn pays for its facts: asked as the runner asks, through the service, its SQL and back to the text."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from turnkeeper.wire.budgets import Detached
from turnkeeper.wire.channels import open_channel

from bench.echo import METHOD
from bench.service import Measured
from bench.table import Table, median_of
from bench.turns import direct_turn, run_turn
from runner_service.facts.ask import FactsDesk, Read
from runner_service.facts.metrics import FactsMetrics
from runner_service.facts.text import render

GOAL_ECHOES = 3.0
ECHO_BYTES = b"e" * 300
SETTLE_SECONDS = 2.0
ECHO, OF_RUN, OF_DIRECT = "bare echo", "facts of a run's turn", "facts of a direct turn"


async def facts(measured: Measured, rounds: int, calls: int) -> None:
    """Prints the figures, and whether the goal is met. No more than that: a busy machine is no fault."""
    table = Table(f"facts beside an echo: {rounds} rounds of {calls} calls, one after another", ECHO)
    channel = open_channel(measured.session_address)
    async with channel, grpc.aio.insecure_channel(measured.echo_address) as echo_channel:
        echo: Any = echo_channel.unary_unary(METHOD)
        desk = FactsDesk(2.0, Detached(1), FactsMetrics(CollectorRegistry()))
        rows: dict[str, Callable[[], Awaitable[object]]] = {
            ECHO: lambda: echo(ECHO_BYTES),
            OF_RUN: _asking(desk, (await run_turn(channel, measured)).resolve_turn_context),
            OF_DIRECT: _asking(desk, (await direct_turn(channel, measured)).resolve_turn_context),
        }
        await _measure(table, rows, rounds, calls)
    print(table.text())
    met = table.ratio(OF_RUN) <= GOAL_ECHOES
    print(f"goal: {OF_RUN} at most {GOAL_ECHOES:g} echoes at the median: {'met' if met else 'MISSED'}")


async def _measure(table: Table, rows: dict[str, Callable[[], Awaitable[object]]], rounds: int, calls: int) -> None:
    warm_until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < warm_until:
        for call in rows.values():
            await call()
    for _ in range(rounds):
        for row, call in rows.items():
            table.add(row, await median_of(calls, call))


def _asking(desk: FactsDesk, read: Read) -> Callable[[], Awaitable[object]]:
    async def once() -> None:
        found = await desk.ask(read)
        if len(render(found.facts, ()).splitlines()) != 3:
            raise RuntimeError("the facts are not whole: nothing was measured")

    return once
