"""Agents for tests. Each leaves a line in the test's folder whenever its model or one of its tools really runs."""

from __future__ import annotations

from tests.agents.asks import asks as asks
from tests.agents.companion import companion as companion
from tests.agents.echo import echo as echo
from tests.agents.odd import odd as odd
from tests.agents.planner import planner as planner
from tests.agents.planner import strict as strict
from tests.agents.poison import poison as poison
from tests.agents.shapes import dynamic as dynamic
from tests.agents.shapes import faulty as faulty
from tests.agents.shapes import mailer as mailer
from tests.agents.shapes import validated as validated
from tests.agents.steady import gate as gate
from tests.agents.steady import steady as steady
from tests.agents.stuck import busy as busy
from tests.agents.stuck import halts as halts
from tests.agents.stuck import stuck as stuck
from tests.agents.sweep import sweep as sweep
