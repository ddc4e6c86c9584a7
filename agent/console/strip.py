"""The last 24 hours of a session as a row of cells: where it worked, where it was interrupted, where it was silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from store.overview import CELL_SECONDS

CELLS = 86_400 // CELL_SECONDS


@dataclass(frozen=True)
class Cell:
    x: float
    level: int
    """0 for silence, 1 to 4 for how much happened."""
    mark: str
    """`restart`, `compaction` or nothing."""


def strip_of(told: Sequence[tuple[int, int, int]] | None) -> list[Cell]:
    """The cells in which something happened."""
    busiest = max((events for _, events, _ in told or ()), default=1)
    return [
        Cell(
            min(max(cell, 0), CELLS - 1),
            1 + min(3, 4 * events // (busiest + 1)),
            "restart" if mark == 2 else "compaction" if mark else "",
        )
        for cell, events, mark in told or ()
    ]


def describe(told: Sequence[tuple[int, int, int]] | None) -> str:
    """The strip for those who do not see it."""
    events = sum(count for _, count, _ in told or ())
    restarts = sum(mark == 2 for _, _, mark in told or ())
    compactions = sum(mark == 1 for _, _, mark in told or ())
    silent = (CELLS - len(told or ())) * CELL_SECONDS / 3600
    parts = [f"{events} events in the last 24 hours", f"silent for {silent:.0f} hours"]
    if restarts:
        parts.append(f"{restarts} with restarts")
    if compactions:
        parts.append(f"{compactions} with compactions")
    return ", ".join(parts)
