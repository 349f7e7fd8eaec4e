"""Builds the runner service: the only place that picks real dependencies."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry
from turnkeeper.v1 import identity_service_pb2, identity_service_pb2_grpc, runner_service_pb2
from turnkeeper.wire.budgets import Detached
from turnkeeper.wire.channels import open_channel
from turnkeeper.wire.interceptors import CallInterceptor
from turnkeeper.wire.keys import KeySource
from turnkeeper.wire.serving import Listen, serve
from turnkeeper.wire.tokens import Trust, Verifier, run_trust, service_trust, user_trust

from runner_service.facts.ask import FactsDesk
from runner_service.facts.metrics import FactsMetrics
from runner_service.harnesses.registry import HarnessFactory, Registry, discover
from runner_service.metrics import serving_metrics
from runner_service.rpc import RunnerServicer
from runner_service.settings import Settings
from runner_service.tools.address import origin_of
from runner_service.tools.grpc_calls import GrpcTools
from runner_service.tools.headers import ToolHeaders
from runner_service.tools.http import HttpTools
from runner_service.tools.targets import read_targets
from runner_service.turns.attempt import TurnResources
from runner_service.turns.turns import Turns

MAX_DETACHED = 1000
# So many turns' reads may hang before the others go without facts at once.
MAX_DETACHED_READS = 100
KEYS_SECONDS = 5.0


class SettingsIncomplete(Exception):
    """The settings contradict each other or lack something; the message says what to do."""


@dataclass(frozen=True)
class RunnerApp:
    """A runner service that serves."""

    address: str
    """Where it listens, as a client would dial it."""
    metrics_address: str | None
    """host:port of the metrics; None when they are not served."""


@asynccontextmanager
async def runner_app(
    settings: Settings, *, harnesses: Mapping[str, HarnessFactory] | None = None
) -> AsyncIterator[RunnerApp]:
    """Serves until the block ends; then running turns get the grace, and their reports what is left of it."""
    shutdown = _Shutdown(settings)
    async with AsyncExitStack() as stack:
        sessions = open_channel(settings.session_target, tls_ca=_path(settings.session_tls_ca))
        stack.push_async_callback(sessions.close)
        headers = _tool_headers(settings)
        http = HttpTools(settings.tool_origins, settings.tool_result_bytes, headers)
        stack.push_async_callback(http.close)
        grpc_tools = GrpcTools(
            settings.grpc_targets, settings.tool_result_bytes, headers, tls_ca=_path(settings.grpc_tls_ca)
        )
        stack.push_async_callback(grpc_tools.close)
        registry = Registry(discover() if harnesses is None else harnesses, settings)
        stack.push_async_callback(registry.close)
        detached = Detached(MAX_DETACHED)
        stack.push_async_callback(detached.aclose, 1.0)
        collected = CollectorRegistry()
        reads = Detached(MAX_DETACHED_READS)
        stack.push_async_callback(reads.aclose, 1.0)
        facts = FactsDesk(settings.facts_seconds, reads, FactsMetrics(collected))
        turns = Turns(TurnResources(settings, registry, http, grpc_tools, sessions, detached, facts))
        stack.push_async_callback(shutdown.end, turns)
        metrics = serving_metrics(settings.metrics_listen, settings.insecure, collected)
        metrics_address = await stack.enter_async_context(metrics)
        listen = Listen.at(
            settings.listen, _path(settings.tls_cert), _path(settings.tls_key), insecure=settings.insecure
        )
        servicers = {runner_service_pb2.DESCRIPTOR.services_by_name["RunnerService"]: RunnerServicer(turns, registry)}
        interceptor = CallInterceptor(Verifier(_trusts(settings, sessions)))
        server = await stack.enter_async_context(serve(listen, servicers, interceptor, shutdown.serving_grace))
        stack.callback(shutdown.begin)
        yield RunnerApp(server.address, metrics_address)


def _tool_headers(settings: Settings) -> ToolHeaders:
    """The headers for tools, each for a destination that tools may call."""
    allowed = {*map(origin_of, settings.tool_origins), *read_targets(settings.grpc_targets)}
    return ToolHeaders(settings.tool_headers, allowed)


class _Shutdown:
    """Divides the grace of a shutdown: most for turns that run, the rest to stop and report those that are left."""

    def __init__(self, settings: Settings) -> None:
        self._grace = settings.shutdown_grace_seconds
        reporting = min(self._grace / 2, settings.stop_grace_seconds + KEYS_SECONDS)
        self.serving_grace = self._grace - reporting
        self._begun = 0.0

    def begin(self) -> None:
        """The shutdown begins now."""
        self._begun = time.monotonic()

    async def end(self, turns: Turns) -> None:
        """Waits for the turns' reports within what is left."""
        await turns.close(max(0.0, self._grace - (time.monotonic() - self._begun)))


def _trusts(settings: Settings, sessions: grpc.aio.Channel) -> list[Trust]:
    keys = KeySource(lambda: _verification_keys(sessions))
    trusts = [run_trust(keys), service_trust(keys)]
    if settings.user_jwks is not None:
        if settings.user_issuer is None or settings.user_audience is None:
            raise SettingsIncomplete("user_jwks needs user_issuer and user_audience: set all three, or none")
        trusts.append(user_trust(settings.user_issuer, settings.user_audience, KeySource.located(settings.user_jwks)))
    return trusts


async def _verification_keys(sessions: grpc.aio.Channel) -> str:
    """The session service's public keys, a JWKS, asked for over its own RPC."""
    identity = identity_service_pb2_grpc.IdentityServiceStub(sessions)
    response = await identity.GetVerificationKeys(
        identity_service_pb2.GetVerificationKeysRequest(), timeout=KEYS_SECONDS
    )
    return response.jwks_json


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
