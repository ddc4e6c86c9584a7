"""The answer of /metrics: what this process counted, and what the database says of itself in one cheap statement."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from agent import metrics
from store import workers
from store.database import Database
from store.errors import PerdureError
from store.types import Gauges


class Everything:
    def __init__(self, gauges: Gauges | None) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        yield from metrics.registry.collect()
        yield GaugeMetricFamily(
            "perdure_postgres_up", "Whether Postgres answered.", value=int(self._gauges is not None)
        )
        if self._gauges is not None:
            yield from _families(self._gauges)


def _families(seen: Gauges) -> Iterable[Metric]:
    yield _by("perdure_tasks", "Tasks that are not over, by status.", "status", seen.tasks)
    yield _by("perdure_workers", "Workers that were ever known, by state.", "state", seen.workers)
    yield _by("perdure_breakers", "Breakers that are not closed, by state.", "state", seen.breakers)
    yield GaugeMetricFamily("perdure_dead_letters", "Tasks that wait for a person's word.", value=seen.dead)
    yield GaugeMetricFamily("perdure_effects_in_doubt", "Effects whose end nobody recorded.", value=seen.in_doubt)
    yield GaugeMetricFamily("perdure_alerts_open", "Alerts that are not resolved.", value=seen.alerts)
    yield GaugeMetricFamily("perdure_sessions_over_budget", "Sessions that wait for a budget.", value=seen.over_budget)


def _by(name: str, says: str, label: str, counts: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=[label])
    for value, number in counts.items():
        family.add_metric([value], number)
    return family


async def scrape(database: Database, accept: str | None) -> tuple[bytes, str]:
    """The body and its media type, OpenMetrics for those who ask for it."""
    gauges: Gauges | None = None
    with suppress(PerdureError):  # what the process counted is worth telling all the same
        gauges = await database.try_once(workers.read_gauges())
    encode, media_type = choose_encoder(accept or "")
    everything: Any = Everything(gauges)
    return encode(cast(CollectorRegistry, everything)), media_type
