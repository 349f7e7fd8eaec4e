"""Builds the session service: the only place that picks real dependencies."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import structlog
from alembic.util import CommandError
from google.protobuf.descriptor import ServiceDescriptor
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from turnkeeper.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    identity_service_pb2,
    run_service_pb2,
    secret_service_pb2,
    session_service_pb2,
    turn_service_pb2,
)
from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceStub
from turnkeeper.wire.channels import open_channel
from turnkeeper.wire.interceptors import CallInterceptor
from turnkeeper.wire.keys import KeySource
from turnkeeper.wire.serving import Listen, ServingError, serve
from turnkeeper.wire.tokens import Trust, Verifier, run_trust, user_trust

from session_service.agents.rpc import AgentServicer
from session_service.dispatch.loop import Dispatcher
from session_service.dispatch.model import LeaseTerms
from session_service.dispatch.recovery import Sweeper
from session_service.identity.dev_issuer import DevIssuer
from session_service.identity.keys import KeyRing, load_keys
from session_service.identity.rpc import IdentityServicer
from session_service.pages import PageTokens
from session_service.runs.model import RunLimits
from session_service.runs.rpc import RunServicer
from session_service.sessions.rpc import SessionServicer
from session_service.settings import Settings
from session_service.storage import migrate
from session_service.storage.clock import microseconds
from session_service.storage.engine import is_sqlite, open_storage
from session_service.storage.write import Storage
from session_service.turns.rpc import TurnServicer

CLOSE_SECONDS = 1.0
"""What calls that are still open after the turns' grace get: watchers, which resume elsewhere."""

_DAY_SECONDS = 86_400
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionApp:
    """A session service that serves."""

    address: str
    """Where it listens, as a client would dial it."""
    storage: Storage


@asynccontextmanager
async def session_app(settings: Settings) -> AsyncIterator[SessionApp]:
    """Serves until the block ends; then running turns get the grace.

    Raises ServingError, with what to do about it, when it can not or must not start.
    """
    listen = Listen.at(
        settings.listen, tls_cert=settings.tls_cert, tls_key=settings.tls_key, insecure=settings.insecure
    )
    listen.credentials()  # before a key or a database is made: a start that is refused leaves nothing behind
    users = _user_trust(settings, listen)
    await prepare_database(settings)
    async with AsyncExitStack() as stack:
        storage = open_storage(settings.url, settings.pool_size)
        stack.push_async_callback(storage.close)
        keys = await load_keys(storage)
        channel = open_channel(settings.runner_target, tls_ca=settings.runner_tls_ca)
        stack.push_async_callback(channel.close)
        stopping = asyncio.Event()
        verifier = Verifier([users, run_trust(KeySource.fixed(keys.jwks()))])
        server = await stack.enter_async_context(
            serve(listen, _servicers(storage, keys, settings, stopping), CallInterceptor(verifier), CLOSE_SECONDS)
        )
        terms = _lease_terms(settings)
        sweeper = Sweeper(
            storage,
            terms,
            interval=settings.sweep_seconds,
            keep_keys=microseconds(settings.keep_keys_days * _DAY_SECONDS),
        )
        dispatcher = Dispatcher(
            storage,
            keys,
            RunnerServiceStub(channel),
            terms,
            max_attempts=settings.max_attempts,
            poll_seconds=settings.poll_seconds,
        )
        await stack.enter_async_context(sweeper.running())
        await stack.enter_async_context(dispatcher.running(max(0.0, settings.shutdown_grace_seconds - CLOSE_SECONDS)))
        stack.push_async_callback(server.drain)  # before anything stops: turns still need the server
        stack.callback(stopping.set)
        yield SessionApp(server.address, storage)


async def migrate_database(settings: Settings) -> None:
    """Brings the database to the schema of this version."""
    with _database_told(settings):
        await migrate.upgrade(settings.url)


async def prepare_database(settings: Settings) -> None:
    """Migrates SQLite, whose file is this process's own; elsewhere only looks whether that was done."""
    if is_sqlite(settings.url):
        await migrate_database(settings)
        return
    with _database_told(settings):
        if not await migrate.is_current(settings.url):
            raise ServingError("the database has not the schema of this version: run `session-service migrate`")


@contextmanager
def _database_told(settings: Settings) -> Iterator[None]:
    """Says in one line why the database cannot be used, without its password."""
    shown = make_url(settings.url).render_as_string(hide_password=True)
    try:
        yield
    except CommandError as error:
        raise ServingError(f"the database {shown} was migrated by another version of the service") from error
    except (DBAPIError, OSError) as error:
        raise ServingError(f"cannot use the database {shown}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    inner = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(inner).partition("\n")[0] or type(inner).__name__


def _user_trust(settings: Settings, listen: Listen) -> Trust:
    """The organisation's issuer, or on a laptop the one of dev-token."""
    if settings.user_jwks is not None:
        return user_trust(settings.user_issuer, settings.user_audience, KeySource.located(settings.user_jwks))
    directory = settings.dev_directory
    if not listen.is_local or directory is None:
        raise ServingError(
            "no issuer of user tokens: set TURNKEEPER_SESSION_USER_JWKS, _USER_ISSUER and _USER_AUDIENCE"
            + (", or for development TURNKEEPER_SESSION_DATA_DIR" if listen.is_local else "")
        )
    issuer = DevIssuer.open(directory)
    _log.warning("user tokens of dev-token are accepted: for development only", jwks=str(issuer.jwks_path))
    return user_trust(settings.user_issuer, settings.user_audience, KeySource.file(issuer.jwks_path))


def _servicers(
    storage: Storage, keys: KeyRing, settings: Settings, stopping: asyncio.Event
) -> Mapping[ServiceDescriptor, object]:
    """Every service of the contract that is ours; one without a servicer answers UNIMPLEMENTED."""
    pages = PageTokens(keys.page_key)
    limits = RunLimits(max_queued=settings.max_queued, default_timeout=microseconds(settings.run_seconds))

    def service(module: object, name: str) -> ServiceDescriptor:
        descriptor: ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined]
        return descriptor

    return {
        service(session_service_pb2, "SessionService"): SessionServicer(storage, pages),
        service(run_service_pb2, "RunService"): RunServicer(storage, pages, limits, stopping),
        service(turn_service_pb2, "TurnService"): TurnServicer(storage, keys),
        service(agent_service_pb2, "AgentService"): AgentServicer(storage, pages),
        service(identity_service_pb2, "IdentityService"): IdentityServicer(keys),
        service(secret_service_pb2, "SecretService"): object(),
        service(admin_service_pb2, "AdminService"): object(),
    }


def _lease_terms(settings: Settings) -> LeaseTerms:
    return LeaseTerms(
        lease=microseconds(settings.lease_seconds),
        stop_grace=microseconds(settings.stop_grace_seconds),
        confirm=microseconds(settings.confirm_seconds),
        hold=microseconds(settings.hold_seconds),
    )
