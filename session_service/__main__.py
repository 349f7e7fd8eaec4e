"""`session-service`: serves, migrates its database, and signs tokens for development."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import structlog
import typer
from pydantic import ValidationError
from turnkeeper.wire import logs
from turnkeeper.wire.errors import Refused
from turnkeeper.wire.policy import SCOPES
from turnkeeper.wire.serving import ServingError, stop_event

from session_service.app import migrate_database, session_app
from session_service.identity.dev_issuer import DevIssuer
from session_service.settings import ENV_PREFIX, Settings

app = typer.Typer(
    help="Keeps sessions, runs and agents, and dispatches runs to Turnkeeper's runner service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback goes to the log, without the values of local variables
)
_DAY_SECONDS = 86_400
_USER_SCOPES = " ".join(sorted(SCOPES - {"admin"}))


def serve(**given: Any) -> None:
    """Serves until SIGTERM or SIGINT; running turns then get the shutdown grace.

    Every option can also be given by the environment variable beside it.
    """
    logs.configure()
    with _told():
        asyncio.run(_serve(_settings(given)))


async def _serve(settings: Settings) -> None:
    stopping = stop_event()
    log = structlog.get_logger("session_service")
    async with session_app(settings) as running:
        log.info("serving", address=running.address, runner_target=settings.runner_target)
        await stopping.wait()
        log.info("stopping", grace_seconds=settings.shutdown_grace_seconds)
    log.info("stopped")


def migrate(**given: Any) -> None:
    """Brings the database to the schema of this version; harmless when it has it, and when several do it at once."""
    logs.configure()
    with _told():
        asyncio.run(migrate_database(_settings(given)))
    typer.echo("the database has the schema of this version")


def dev_token(
    tenant: Annotated[str, typer.Option(help="The tenant of the token.")],
    user: Annotated[str, typer.Option(help="The user of the token, its `sub`.")],
    roles: Annotated[str, typer.Option(help="Roles, separated by spaces.")] = "",
    scopes: Annotated[str, typer.Option(help="Scopes, separated by spaces.")] = _USER_SCOPES,
    ttl: Annotated[int, typer.Option(min=1, max=30 * _DAY_SECONDS, help="Seconds that it is good for.")] = _DAY_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the token and what a service must trust.")
    ] = False,
    **given: Any,
) -> None:
    """Prints a user token for development, signed with a key that is made on first use.

    A session service on loopback without user_jwks accepts it; give a runner service the key's JWKS (see --json).
    """
    asked = frozenset(scopes.split())
    for option, value in {"--tenant": tenant, "--user": user}.items():
        if not value.strip():
            raise typer.BadParameter("must not be empty", param_hint=option)
    if unknown := sorted(asked - SCOPES):
        raise typer.BadParameter(
            f"unknown: {json.dumps(unknown)}; known are {', '.join(sorted(SCOPES))}", param_hint="--scopes"
        )
    with _told():
        settings = _settings(given)
        if settings.dev_directory is None:
            raise ServingError(f"no place for the key: set {ENV_PREFIX}DATA_DIR")
        issuer = DevIssuer.open(settings.dev_directory)
        token = issuer.token(
            issuer=settings.user_issuer,
            audience=settings.user_audience,
            tenant_id=tenant,
            user_id=user,
            roles=roles.split(),
            scopes=asked,
            seconds=ttl,
        )
    trust = {
        "user_jwks": str(issuer.jwks_path),
        "user_issuer": settings.user_issuer,
        "user_audience": settings.user_audience,
    }
    typer.echo(json.dumps({"token": token, **trust}, indent=2) if as_json else token)


def _settings(given: dict[str, Any]) -> Settings:
    return Settings(**{name: value for name, value in given.items() if value is not None})


@contextmanager
def _told() -> Iterator[None]:
    """Ends the program with a line that says what is wrong, and a code other than 0."""
    try:
        yield
    except ValidationError as error:
        for each in error.errors(include_input=False, include_url=False, include_context=False):
            name = ".".join(str(part) for part in each["loc"])
            where = f"setting {name} ({ENV_PREFIX}{name.upper()}): " if name else ""
            typer.echo(f"session-service: {where}{each['msg'].removeprefix('Value error, ')}; see --help", err=True)
        raise typer.Exit(2) from None
    except Refused:
        typer.echo("session-service: the database is not available", err=True)
        raise typer.Exit(1) from None
    except (ServingError, OSError) as error:
        typer.echo(f"session-service: {error}", err=True)
        raise typer.Exit(1) from None


def _with_settings(command: Callable[..., None], *names: str) -> None:
    """Adds the command, with an option for each of these settings (all when none is named)."""
    parameters = [each for each in inspect.signature(command).parameters.values() if each.name != "given"]
    for name in names or Settings.model_fields:
        field = Settings.model_fields[name]
        flag = field.annotation is bool
        default = field.default.get_secret_value() if name == "database_url" else field.default
        shown = "" if default is None or flag else f" Default: {default}."
        option = typer.Option(
            f"--{name.replace('_', '-')}", envvar=ENV_PREFIX + name.upper(), help=f"{field.description}{shown}"
        )
        annotation: Any = Annotated[bool | None if flag else str | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    required_first = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = inspect.Signature(required_first)  # type: ignore[attr-defined]
    app.command()(command)


_with_settings(serve)
_with_settings(migrate, "database_url")
_with_settings(dev_token, "database_url", "data_dir", "user_issuer", "user_audience")


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
