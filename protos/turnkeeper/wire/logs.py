"""Structured logs: JSON lines, or readable ones in a terminal. Nothing that is logged holds a credential or a text."""

import logging
import sys

import structlog


def configure() -> None:
    """Sets up the logs of the process, on standard error; what libraries log by `logging` has the same form."""
    structlog.configure(
        processors=[*_stamps(), *_rendering()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_news)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_stamps(), structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering()],
        )
    )
    # The HTTP libraries write URLs at INFO, and a tool's URL holds its arguments.
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)


def _stamps() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _is_news(record: logging.LogRecord) -> bool:
    # gRPC says this with a traceback whenever a client breaks off a stream that is just being written, as watchers do;
    # the call's own line has its end. What a servicer raises is said with other words.
    ended = "ExecuteBatchError raised in core by servicer method"
    return not (record.name.startswith("grpc.") and record.getMessage().startswith(ended))


def _rendering() -> list[structlog.typing.Processor]:
    # Tracebacks as text, without the values of local variables, among which are tokens and messages.
    plain = structlog.dev.plain_traceback
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
