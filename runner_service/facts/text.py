"""The facts as text before a prompt: one line each, and no name can add a line (SPEC 6.7)."""

import json
import re
import unicodedata
from collections.abc import Collection, Iterator

from turnkeeper.v1 import facts_pb2

RENAME_AGENT = "rename_agent"
RENAME_SESSION = "rename_session"
MAX_NAME_CODE_POINTS = 200

_PLACEHOLDER = re.compile(r"new agent( [0-9]+)?|untitled( agent)?")
# Control characters, what ends a line, lone surrogates, and what is there but not seen, such as a change of direction.
_STRIPPED = {"Cc", "Zl", "Zp", "Cs", "Cf"}
# Not seen either, but scripts and emoji are written with them.
_JOINERS = "\u200c\u200d"


def render(facts: facts_pb2.Facts, offered: Collection[str]) -> str:
    """The lines for what is known, "" when nothing is. `offered` names the turn's tools: no other tool is hinted at."""
    return "\n".join([*_agent_lines(facts.agent_name, offered), *_session_lines(facts.session, offered)])


def _agent_lines(fact: facts_pb2.NameFact, offered: Collection[str]) -> Iterator[str]:
    name = _known(fact)
    if not name:
        return
    if not _PLACEHOLDER.fullmatch(" ".join(fact.known.casefold().split())):
        yield f"The agent's name is {name}."
        return
    hint = f" Once its purpose is clear, give it a name with the tool {RENAME_AGENT}."
    yield f"The agent's name is {name}, which is a placeholder.{hint if RENAME_AGENT in offered else ''}"


def _session_lines(fact: facts_pb2.SessionFact, offered: Collection[str]) -> Iterator[str]:
    name = _known(fact.known.name)
    if name is None:
        # A session's half without its name is no half: both are known, or neither is (SPEC 6.2).
        return
    if name:
        yield f"The session's name is {name}; keep it."
    else:
        hint = f" Once its subject is clear, give it a short name with the tool {RENAME_SESSION}."
        yield f"The session has no name.{hint if RENAME_SESSION in offered else ''}"
    first = fact.known.first_turn
    yield f"This is {'' if first else 'not '}the first turn of the session."


def _known(fact: facts_pb2.NameFact) -> str | None:
    """The name in quotes; "" when there is none, None when that is not known."""
    match fact.WhichOneof("fact"):
        case "known":
            return _quoted(fact.known)
        case "unnamed":
            return ""
        case _:
            return None


def _quoted(name: str) -> str:
    """As a JSON string on one line, cut to the cap; "" when nothing of the name can be seen."""
    seen = "".join(each for each in name if each in _JOINERS or unicodedata.category(each) not in _STRIPPED).strip()
    if len(seen) > MAX_NAME_CODE_POINTS:
        seen = seen[: MAX_NAME_CODE_POINTS - 1] + "…"
    return json.dumps(seen, ensure_ascii=False) if seen.strip(_JOINERS) else ""
