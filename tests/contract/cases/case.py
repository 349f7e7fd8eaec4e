"""What a case is, and what several of them are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from turnkeeper.v1 import reference_pb2 as references
from turnkeeper.wire.context import TokenKind

from tests.contract.worlds import World
from tests.fixtures.journeys import scripted

UNIMPLEMENTED = "UNIMPLEMENTED"
HELD = "HELD"


@dataclass(frozen=True)
class Case:
    """One valid request. Its maker is called with the world of whoever sends it, or of whom it is aimed at."""

    rpc: str
    scope: str | None
    """What the caller's token needs; None when it needs none."""
    make: Callable[[World], Message | list[Message]]
    required: str = ""
    """The fields that must be there, by their paths."""
    note: str = ""
    kind: TokenKind | None = TokenKind.USER
    """Whose token is sent; None for a public RPC."""
    answer: str = "OK"
    """OK, UNIMPLEMENTED, or HELD for a valid request that would not come to an end by itself and is not sent."""
    live: bool = False
    """Needs a world whose run is executing."""
    changes: bool = False
    """A success changes something, so that it is sent in a world of its own."""
    lenient: tuple[str, ...] = ()
    """Ids (by their names in a world) that are no error when foreign: they choose nothing, or are only data."""

    def __str__(self) -> str:
        return f"{self.rpc} {self.note}".rstrip()

    def requests(self, world: World) -> list[Message]:
        """What is sent."""
        made = self.make(world)
        return made if isinstance(made, list) else [made]


NAME = FieldMask(paths=["name"])
HELLO = scripted({"text": "Good day."})
DRAFT = scripted({"text": "Another day."})


def named(level: str, *, family: str = "WORKFLOW", **name: str) -> references.Reference:
    """A reference by id or slug, perhaps with a version."""
    return references.Reference(
        family=references.ReferenceFamily.Value(f"REFERENCE_FAMILY_{family}"),
        level=references.ReferenceLevel.Value(f"REFERENCE_LEVEL_{level}"),
        **name,
    )
