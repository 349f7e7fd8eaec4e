"""The harnesses of this runner, found by entry points."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from turnkeeper.v1 import run_pb2

from runner_service.harnesses.base import Harness, TurnFailed
from runner_service.settings import Settings

GROUP = "turnkeeper.harnesses"

HarnessFactory = Callable[[Settings], Harness]


class HarnessUnusable(Exception):
    """An installed package announces a harness that cannot be used; the message says which, and what to do."""


def discover() -> dict[str, HarnessFactory]:
    """By name, what makes each harness that an installed package announces."""
    found: dict[str, HarnessFactory] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in found:
            raise HarnessUnusable(f"two packages announce a harness named {entry.name!r}: uninstall one of them")
        found[entry.name] = _load(entry)
    return found


def _load(entry: EntryPoint) -> HarnessFactory:
    try:
        loaded = entry.load()
    except Exception as error:
        raise HarnessUnusable(
            f"the harness {entry.name!r} ({entry.value}) cannot be imported: {error!r}; "
            "repair or uninstall the package that announces it"
        ) from error
    if not isinstance(loaded, type) or not issubclass(loaded, Harness):
        raise HarnessUnusable(f"the harness {entry.name!r} ({entry.value}) is no subclass of Harness")
    return loaded


class Registry:
    """The harnesses by name, made once for the process."""

    def __init__(self, factories: Mapping[str, HarnessFactory], settings: Settings) -> None:
        self._harnesses = {name: make(settings) for name, make in sorted(factories.items())}

    def get(self, name: str) -> Harness:
        """The harness of that name; a turn that names another ends FAILED."""
        try:
            return self._harnesses[name]
        except KeyError:
            raise TurnFailed(
                run_pb2.FAILURE_REASON_HARNESS_UNKNOWN,
                f"The runner has no harness of that name; it has: {', '.join(self._harnesses)}.",
            ) from None

    def all(self) -> Sequence[tuple[str, Harness]]:
        """Every harness with its name, by name."""
        return list(self._harnesses.items())

    async def close(self) -> None:
        """Closes all harnesses."""
        for harness in self._harnesses.values():
            await harness.close()
