"""Agents on a worker that polls quickly, for tests of many turns."""

import agent.engine
from tests.agents import asks as asks
from tests.agents import companion as companion
from tests.agents import planner as planner
from tests.agents import strict as strict

agent.engine.POLL_SECONDS = 0.02
