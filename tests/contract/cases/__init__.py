"""A valid request for every RPC of the contract: the table that the suites of tenancy and of bad input are made from.

Each case is written by hand, also its scope and its answer, so that it checks the services' own tables. A case whose
answer is UNIMPLEMENTED says so: whoever fills the RPC in has to change it here, and the suites then cover it.
"""

from tests.contract.cases.agents import AGENTS
from tests.contract.cases.case import HELD, UNIMPLEMENTED, Case
from tests.contract.cases.others import OTHERS
from tests.contract.cases.runner import RUNNER
from tests.contract.cases.runs import RUNS
from tests.contract.cases.sessions import SESSIONS
from tests.contract.cases.turns import OF_RUNS, TURNS

__all__ = ["CASES", "HELD", "UNIMPLEMENTED", "Case"]

CASES: tuple[Case, ...] = (*SESSIONS, *RUNS, *AGENTS, *OF_RUNS, *TURNS, *OTHERS, *RUNNER)
