"""The values of facts and run context."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from session_service.agents.model import Reference


@dataclass(frozen=True, slots=True)
class Known:
    """A name that was read; never blank."""

    text: str


class NoName(Enum):
    """Why there is no name to tell."""

    UNNAMED = auto()
    UNKNOWN = auto()


Name = Known | NoName


@dataclass(frozen=True, slots=True)
class SessionFact:
    """The session's half: one value, read whole or not at all (SPEC 6.2)."""

    name: Name
    first_turn: bool


@dataclass(frozen=True, slots=True)
class Workflow:
    """What the turn executes: one coherent target. Without a revision it is a draft that differs (SPEC 7.2)."""

    agent_id: str
    agent_slug: str
    variant_id: str
    variant_slug: str
    revision_id: str | None
    version: str | None
    is_draft: bool


@dataclass(frozen=True, slots=True)
class AgentHalf:
    """The agent's half: its name, and what of it the run context may tell."""

    name: Name
    workflow: Workflow | None


class Reading(Enum):
    """How the reading of one half went."""

    READ = auto()
    DENIED = auto()
    MISSING = auto()
    FAILED = auto()


class Outcome(StrEnum):
    """How well the reading went as a whole, under the contract's names."""

    OK = "OK"
    PARTIAL = "PARTIAL"
    AMBIGUOUS = "AMBIGUOUS"
    DENIED = "DENIED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class DirectTurn:
    """What a direct turn says of itself; a run's turn says nothing, its row does."""

    session_id: str | None
    turn_number: int
    references: Sequence[Reference]
    config_json: str | None


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Everything that is answered. `session` is None when it could not be read."""

    agent: AgentHalf
    session: SessionFact | None
    session_id: str | None
    run_id: str | None
    outcome: Outcome
