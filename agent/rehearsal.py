"""What the code of this checkout would make of the tasks under way, found out without doing any of it.

Each is replayed by the workflow's own `act` with its own agent and its own records. There is no DBOS database behind
the replay and only a read-only connection to Perdure's, so it cannot disturb the workers that run beside it. Only what
a recovery runs anew is run here too: instructions, validators and hooks, which must not change the world anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from agent.config import Settings
from agent.durability import Terms
from agent.engine import EndOfRecord, Replay, configure, replaying
from agent.recorder import Execution, executing
from agent.registry import Agents, load_agents, make_all_durable
from agent.request import Budget
from agent.workflow import Cancelled, Done, Failed, GivenBack, Outgrown, Waiting, act, read_history
from store import schema, tasks
from store.database import Database
from store.errors import Unusable
from store.types import OpenedTask, OwnerToken, Row, SessionId, TaskId, WorkerId

NOBODY = WorkerId("rehearsal")


class Misfit(Row):
    """A task whose records no longer fit, and where they first differ."""

    task_id: TaskId
    session_id: SessionId
    agent: str
    difference: str


@dataclass(frozen=True)
class Rehearsal:
    replayed: int
    misfits: Sequence[Misfit]


async def rehearse(settings: Settings, url: str) -> Rehearsal:
    """Replay every task that is under way. The database may still have the schema of the release that runs."""
    if not schema.last_applied(url):
        raise Unusable("The database has no Perdure schema yet, so there is nothing to rehearse: run perdure start.")
    async with Database(url, size=2, read_only=True) as database:
        agents = _prepare(settings, database)
        in_flight = await database.run(tasks.list_in_flight())
        misfits: list[Misfit] = []
        for task in in_flight:
            difference = await first_difference(task, agents, database)
            if difference is not None:
                misfits.append(
                    Misfit(task_id=task.task_id, session_id=task.session_id, agent=task.agent, difference=difference)
                )
    return Rehearsal(len(in_flight), misfits)


def _prepare(settings: Settings, database: Database) -> Agents:
    budget = Budget(settings.context_fraction, settings.keep_messages, settings.context_window)
    terms = Terms(database, budget, settings.model, settings.notebook, settings.people)
    agents = make_all_durable(load_agents(settings.agents), terms)
    configure(database.url, NOBODY)
    return agents


async def first_difference(task: OpenedTask, agents: Agents, database: Database) -> str | None:
    """Where the task's records and the code part, if they do."""
    agent = agents.get(task.agent)
    if agent is None:
        return f"no agent named {task.agent!r} is served here; add it to PERDURE_AGENTS"
    records = await database.run(tasks.read_records(task.task_id))
    replay = Replay(records)
    decisions = {decision.call_id: decision for decision in task.decisions}
    execution = Execution(task, OwnerToken(NOBODY), NOBODY, decisions, owed=list(task.owed))
    history = await read_history(database, execution)
    try:
        with executing(execution), replaying(task.task_id, replay):
            result = await act(agent, execution, history)
    except EndOfRecord:
        return replay.contradiction
    match result:
        case Outgrown(difference=difference):
            return difference
        case GivenBack(why=why):
            return f"the replay came to a halt: {why}"
        case Failed(error=error):
            ending = f"fails ({error})"
        case Cancelled():
            return None
        case Done():
            ending = "finishes"
        case Waiting():
            ending = "waits for a person"
        case _:
            assert_never(result)
    left = replay.left_over
    return f"step {left.step} is on record as {left.name}, and the code now {ending} before it" if left else None
