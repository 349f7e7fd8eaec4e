"""Serves the process's metrics to Prometheus, where a setting asks for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, start_http_server
from turnkeeper.wire.serving import Listen, ServingError


@asynccontextmanager
async def serving_metrics(listen: str | None, insecure: bool, registry: CollectorRegistry) -> AsyncIterator[str | None]:
    """Serves http://{the address that it gives}/metrics until the block ends; nothing when `listen` is None.

    The endpoint has neither TLS nor tokens, so it is for this machine alone unless `insecure` says otherwise.
    """
    if listen is None:
        yield None
        return
    place = Listen.at(listen)
    if listen.startswith("unix:"):
        raise ServingError("metrics are served at host:port only")
    if not place.is_local and not insecure:
        raise ServingError(f"refusing to serve metrics at {listen}: only loopback is, unless you say insecure")
    try:
        server, thread = start_http_server(place.port, place.host, registry)
    except OSError as error:
        raise ServingError(f"cannot serve metrics at {listen}: is it in use?") from error
    try:
        host = f"[{place.host}]" if ":" in place.host else place.host
        yield f"{host}:{server.server_port}"
    finally:
        # Both wait for the server's thread, which looks up every half second.
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(thread.join)
        server.server_close()
