"""How asking for facts goes: a counter by outcome and a duration, without any id (SPEC 6.6)."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class FactsOutcome(StrEnum):
    """The closed set of outcomes."""

    OK = "ok"
    PARTIAL = "partial"
    """A half is unknown; the other stands."""
    TIMEOUT = "timeout"
    ERROR = "error"
    DENIED = "denied"
    UNCONFIGURED = "unconfigured"
    """What the runner takes for the session service has no facts to give."""


class FactsMetrics:
    """The facts' part of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = Counter(
            "turnkeeper_facts_total", "Turns by how asking for their facts went.", ["outcome"], registry=registry
        )
        self._seconds = Histogram(
            "turnkeeper_facts_duration_seconds",
            "What a turn spent on its facts, in seconds, clean-up included.",
            buckets=BUCKETS_SECONDS,
            registry=registry,
        )
        for outcome in FactsOutcome:
            # Shown as 0 from the start: a rate over a series that begins with its first fault misses that fault.
            self._outcomes.labels(outcome)

    def count(self, outcome: FactsOutcome, seconds: float) -> None:
        """One turn has asked, and spent so many seconds on it."""
        self._outcomes.labels(outcome).inc()
        self._seconds.observe(seconds)
