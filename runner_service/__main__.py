"""`runner-service`: serves turns, and lists what can play them."""

import asyncio
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import structlog
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from turnkeeper.wire import logs
from turnkeeper.wire.serving import ServingError, stop_event

from runner_service.app import SettingsIncomplete, runner_app
from runner_service.harnesses.registry import HarnessUnusable, discover
from runner_service.settings import Settings, variables
from runner_service.tools.headers import HeaderRefused

app = typer.Typer(
    help="Executes turns of AI agents for Turnkeeper's session service.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback in colours would show the values of variables, keys among them.
    pretty_exceptions_enable=False,
)


def serve(**given: Any) -> None:
    """Serves until SIGTERM or SIGINT; running turns then get the shutdown grace.

    Every option can also be given by the environment variable beside it.
    """
    logs.configure()
    with _told():
        asyncio.run(_serve(Settings(**{name: value for name, value in given.items() if value is not None})))


async def _serve(settings: Settings) -> None:
    stopping = stop_event()
    log = structlog.get_logger("runner_service")
    async with runner_app(settings) as running:
        log.info("serving", address=running.address, session_target=settings.session_target)
        await stopping.wait()
        log.info("stopping", grace_seconds=settings.shutdown_grace_seconds)
    log.info("stopped")


@contextmanager
def _told() -> Iterator[None]:
    """Ends the program with a line that says what is wrong, and a code other than 0."""
    try:
        yield
    except ValidationError as error:
        for each in error.errors(include_input=False, include_url=False, include_context=False):
            what = each["msg"].removeprefix("Value error, ")
            typer.echo(f"runner-service: {_setting(each['loc'])}{what}; see --help", err=True)
        raise typer.Exit(2) from None
    except (ServingError, HarnessUnusable, SettingsIncomplete, HeaderRefused, OSError) as error:
        typer.echo(f"runner-service: {error}", err=True)
        raise typer.Exit(1) from None


def _setting(place: tuple[int | str, ...]) -> str:
    """The setting that an error is about, with its variable. What lies deeper in it may be no one's business."""
    for name in Settings.model_fields:
        # An error names a setting by itself or by the variable that it was read from.
        if place and place[0] in (name, *variables(name)):
            return f"setting {name} ({variables(name)[0]}): "
    return ""


def _options() -> inspect.Signature:
    """One option per setting, so that neither can be without the other."""
    parameters = []
    for name, field in Settings.model_fields.items():
        flag = field.annotation is bool
        shown = "" if flag or field.default_factory or field.default in (None, ()) else f" Default: {field.default}."
        option = typer.Option(
            f"--{name.replace('_', '-')}", envvar=list(variables(name)), help=f"{field.description}{shown}"
        )
        annotation: Any = Annotated[bool | None if flag else str | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return inspect.Signature(parameters)


serve.__signature__ = _options()  # type: ignore[attr-defined]
app.command()(serve)


@app.command()
def harnesses(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Lists the harnesses that configs may name, with the packages' own words for them."""
    with _told():
        found = {name: make(Settings()) for name, make in sorted(discover().items())}
    if as_json:
        listed = [
            {"name": name, "description": harness.description, "tools_visible": harness.tools_visible}
            for name, harness in found.items()
        ]
        typer.echo(json.dumps(listed, indent=2))
        return
    table = Table("name", "description", "tools visible")
    for name, harness in found.items():
        table.add_row(name, harness.description, "yes" if harness.tools_visible else "no")
    Console().print(table)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
