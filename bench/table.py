"""Figures of several rounds, as medians with their range, and as ratios of figures of the same round."""

import statistics
from collections.abc import Awaitable, Callable
from time import perf_counter


class Table:
    """One row per thing that is measured. The machine may be shared and noisy, so read the ratios first."""

    def __init__(self, title: str, base: str) -> None:
        """`base` is the row that the others are divided by."""
        self._title = title
        self._base = base
        self._rows: dict[str, list[float]] = {}

    def add(self, row: str, milliseconds: float) -> None:
        """One more round's figure."""
        self._rows.setdefault(row, []).append(milliseconds)

    def ratio(self, row: str) -> float:
        """The median over the rounds of a row's figure to the base's."""
        pairs = zip(self._rows[row], self._rows[self._base], strict=True)
        return statistics.median(figure / base for figure, base in pairs)

    def text(self) -> str:
        """The table, for people."""
        width = max(map(len, self._rows))
        lines = [
            f"{row:<{width}}  {statistics.median(figures):8.3f} ms  [{min(figures):.3f} .. {max(figures):.3f}]"
            f"  {self.ratio(row):6.2f} x"
            for row, figures in self._rows.items()
        ]
        return "\n".join([self._title, *lines])


async def median_of(calls: int, call: Callable[[], Awaitable[object]]) -> float:
    """The median time of so many calls, one after another, in milliseconds."""
    taken = []
    for _ in range(calls):
        began = perf_counter()
        await call()
        taken.append((perf_counter() - began) * 1000)
    return statistics.median(taken)
