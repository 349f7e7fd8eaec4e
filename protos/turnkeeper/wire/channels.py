"""Channels between services: one per target for the life of the process."""

import json
from pathlib import Path
from typing import Any

import grpc

from turnkeeper.wire import policy

# At most five tries count in gRPC; the delays are randomised by it.
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.05s",
    "maxBackoff": "1s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def service_config() -> dict[str, Any]:
    """Retries for the methods that may be repeated, and for no others; calls spread over healthy replicas."""
    names = []
    for method, access in policy.METHODS.items():
        if access.idempotent:
            service, name = method.removeprefix("/").split("/")
            names.append({"service": service, "method": name})
    return {
        "methodConfig": [{"name": names, "retryPolicy": _RETRY}],
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
    }


def open_channel(target: str, *, tls_ca: Path | None = None) -> grpc.aio.Channel:
    """A channel to any gRPC name ("dns:///…", "unix:…", "host:port"), over TLS when `tls_ca` has the authorities."""
    options = (
        ("grpc.service_config", json.dumps(service_config())),
        # A target's own DNS record must not switch retries on for what may not be repeated.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A peer that is restarted must be found again within seconds, not gRPC's default two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )
    if tls_ca is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(tls_ca.read_bytes()), options=options)
