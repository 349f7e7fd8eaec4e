"""Structured logs: JSON lines, or readable ones in a terminal. Nothing that is logged holds a credential or a text."""

import logging
import sys

import structlog


def configure() -> None:
    """Sets up the logs of the process, on standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    # The HTTP libraries write URLs at INFO, and a tool's URL holds its arguments.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")


def _rendering() -> list[structlog.typing.Processor]:
    # Tracebacks as text, without the values of local variables, among which are tokens and messages.
    plain = structlog.dev.plain_traceback
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
