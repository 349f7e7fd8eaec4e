"""Whether a turn may still work, and what ended it."""

import asyncio


class TurnStopped(Exception):
    """Raised into a harness that would go on although its turn must stop."""


class StopSignal:
    """One per turn. The first cause is kept; once anything is set, no further request of the turn leaves."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._closed = False
        self.cause: Exception | None = None
        """What to answer to the call; None when the call itself is over, and so nobody to answer."""
        self.refused_work = False
        """Whether the harness was refused something: an end that it reports after that is not its own."""

    @property
    def is_set(self) -> bool:
        """Whether the turn must stop before its end."""
        return self._event.is_set()

    def set(self, cause: Exception | None) -> None:
        """Asks the turn's supervisor to stop it."""
        if not self.is_set:
            self.cause = cause
            self._event.set()

    def stop(self, cause: Exception) -> TurnStopped:
        """As `set`, and gives what to raise into the harness."""
        self.set(cause)
        self.refused_work = True
        return TurnStopped()

    def close(self) -> None:
        """The turn is over, however it ended: whoever still works for it is refused."""
        self._closed = True

    def check(self) -> None:
        """Raises once the turn must stop or is over."""
        if self._closed or self.is_set:
            self.refused_work = True
            raise TurnStopped

    async def wait(self) -> None:
        """Returns when the turn must stop."""
        await self._event.wait()
