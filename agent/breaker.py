"""Tools whose breaker is open, as this worker last heard."""

from __future__ import annotations

from datetime import UTC, datetime

from store.types import BreakerRow


class ToolBreakers:
    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}

    def learn(self, rows: list[BreakerRow]) -> None:
        never = datetime.max.replace(tzinfo=UTC)  # until the one call that is being tried has ended
        self._until = {
            row.scope: never if row.state == "half-open" else row.until for row in rows if row.scope.startswith("tool:")
        }

    def holding(self, agent: str, tool: str) -> str | None:
        """The scope of the breaker that a call has to wait for, if there is one."""
        if not self._until:
            return None
        scope = f"tool:{agent}/{tool}"
        until = self._until.get(scope)
        return scope if until is not None and until > datetime.now(UTC) else None
