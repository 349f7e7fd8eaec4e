"""The values of dispatching."""

from dataclasses import dataclass

from session_service.runs.model import AnyRow, RunKey


@dataclass(frozen=True, slots=True)
class Candidate:
    """A queued run that may be claimed, as it was seen."""

    key: RunKey
    session_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt that this dispatcher holds. `remaining` is the time to the call's deadline, in microseconds."""

    run: AnyRow
    input: str
    config_json: str
    remaining: int

    @property
    def key(self) -> RunKey:
        """The run's name in the database."""
        return RunKey(self.run.tenant_id, self.run.run_id)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How attempts are held, in microseconds.

    A run is reclaimed only after lease + stop_grace; a cancel without a report is unconfirmed after confirm.
    """

    lease: int
    stop_grace: int
    confirm: int
    hold: int
