"""DBOS as Perdure runs it: pinned version, own worker id, bounded threads, one partitioned queue.

Together with `agent.recorder` this is all that knows DBOS's inside; see docs/decisions/0002-dbos.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import dbos._core
import dbos._sys_db
import sqlalchemy.exc
from dbos import DBOS, DBOSConfig
from dbos._context import DBOSContext, EnterDBOSWorkflow, extract_trace_context, otel_carrier_from_attributes
from dbos._dbos import _get_dbos_instance
from dbos._error import DBOSUnexpectedStepError
from dbos._tracer import dbos_tracer
from dbos._utils import GlobalParams, retriable_postgres_exception

from agent import tracing
from agent.serializer import JsonSerializer
from agent.watch import abandoned, followed
from store.types import StepRecord, TaskId, WorkerId

QUEUE = "perdure"
CARE_QUEUE = "perdure_care"
ISOLATION_QUEUE = "perdure_isolation"
"""Where suspects wait. Only a process that runs nothing else takes from it."""
CARE_CONCURRENCY = 1000
"""Most of them only wait, for the next try of a message."""
CARE_POLL_SECONDS = 0.5
APPLICATION = "perdure"
APPLICATION_VERSION = "perdure-1"
"""Pinned, so that a new release resumes what an older one began."""

MODEL_REQUEST = "__model.request"
"""In the name of every step that is one."""

POLL_SECONDS = 0.1
SCHEDULE_POLL_SECONDS = 2.0
"""How soon a worker knows of a schedule that was added or removed."""
THREADS = 64
"""DBOS records in these threads, and so does whatever users' tools hand to `asyncio.to_thread`."""
CONNECTIONS = 20
READ_ONLY = "25006"
"""What a server answers that is no longer, or not yet, the primary."""

PATIENCE_SECONDS = 86_400
"""How long a thread waits for a connection. A pool that is merely busy must never decide a task's fate."""


def is_worth_waiting_out(error: Exception) -> bool:
    """Whether DBOS should try again until Postgres is back, instead of ending the task with this error.

    DBOS asks the same question by the wording of the driver's message, which newer drivers have changed.
    """
    if isinstance(error, sqlalchemy.exc.TimeoutError) or retriable_postgres_exception(error):
        return True
    cause = error.orig if isinstance(error, sqlalchemy.exc.OperationalError) else None
    state = getattr(cause, "sqlstate", "unknown")
    return state is None or state == READ_ONLY


def configure(url: str, worker: WorkerId) -> None:
    setattr(dbos._sys_db, "retriable_postgres_exception", is_worth_waiting_out)  # noqa: B010
    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": url,
        "application_version": APPLICATION_VERSION,
        "executor_id": worker,
        "serializer": JsonSerializer(),
        "max_executor_threads": THREADS,
        "sys_db_pool_size": CONNECTIONS,
        "db_engine_kwargs": {"pool_timeout": PATIENCE_SECONDS, "pool_pre_ping": False, "hide_parameters": True},
        "scheduler_polling_interval_sec": SCHEDULE_POLL_SECONDS,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    if tracing.is_on():
        _trace()


def _trace() -> None:
    """DBOS makes its spans, without the exporters it would set up, and every execution of a task is in one trace."""
    dbos_tracer.disable_otlp = False
    dbos_tracer.otel_attribute_format = "semconv"

    def context_of(status: Any, _: Any) -> Any:
        kept = otel_carrier_from_attributes(status.get("attributes"))
        made = {"traceparent": tracing.made_for(status["workflow_uuid"])}
        return (extract_trace_context(kept) if kept else None) or extract_trace_context(made)

    setattr(dbos._core, "_workflow_otel_context", context_of)  # noqa: B010


async def launch(concurrency: int, *, is_isolated: bool = False) -> None:
    """Begin to take tasks. Launched on the running loop, so that workflows and HTTP share it."""
    DBOS.listen_queues([ISOLATION_QUEUE] if is_isolated else [QUEUE, CARE_QUEUE])
    DBOS.launch()
    _follow_threads()
    if is_isolated:
        return
    await DBOS.register_queue_async(
        QUEUE,
        partition_concurrency=1,
        worker_concurrency=concurrency,
        polling_interval_sec=POLL_SECONDS,
        on_conflict="always_update",
    )
    await DBOS.register_queue_async(
        CARE_QUEUE,
        worker_concurrency=CARE_CONCURRENCY,
        polling_interval_sec=CARE_POLL_SECONDS,
        on_conflict="always_update",
    )
    await DBOS.register_queue_async(
        ISOLATION_QUEUE, worker_concurrency=1, polling_interval_sec=POLL_SECONDS, on_conflict="always_update"
    )
    _keep_own_concurrency(concurrency)


def _follow_threads() -> None:
    """DBOS's threads are also those of `asyncio.to_thread`: a tool that hangs in one must be seen."""
    threads = _get_dbos_instance()._executor
    setattr(threads, "submit", partial(followed, threads.submit))  # noqa: B010


def _keep_own_concurrency(concurrency: int) -> None:
    """DBOS reads the queue's limits from a row that all workers share; how much one worker takes is its own affair."""
    system = _get_dbos_instance()._sys_db
    shared = system.get_queue

    def get_queue(name: str, **options: Any) -> Any:
        queue = shared(name, **options)
        if queue is not None and name == QUEUE:
            queue._worker_concurrency = concurrency
        return queue

    setattr(system, "get_queue", get_queue)  # noqa: B010


def migrate(url: str) -> None:
    DBOS.migrate(url)


def rename(worker: WorkerId) -> None:
    """Go on under a new worker id; executions under the old one can record nothing any more."""
    GlobalParams.executor_id = worker
    _get_dbos_instance()._sys_db.executor_id = worker


def active_tasks() -> list[str]:
    return _get_dbos_instance()._active_workflows_set.activeList()


def tasks_at_work() -> list[str]:
    """Without those that a blocked thread holds and that belong to somebody else by now."""
    given_up = abandoned()
    return [task for task in active_tasks() if task not in given_up]


def stop_taking() -> None:
    for event in _get_dbos_instance().background_thread_stop_events:
        event.set()


async def drain(seconds: float) -> list[str]:
    """Let running tasks go on for a while; those that still run are stopped where they stand."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (
        left := [task for task in active_tasks() if task not in abandoned()]
    ) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.05)
    running: list[asyncio.Task[Any]] = [task for task in _get_dbos_instance()._workflow_tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=2)
    return left


async def finish_one(stop: asyncio.Event, patience: float) -> None:
    """Wait until one task has come and gone, and take no second."""
    deadline = asyncio.get_running_loop().time() + patience
    while not active_tasks() and not stop.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    stop_taking()
    while active_tasks() and not stop.is_set():
        await asyncio.sleep(0.02)


async def destroy() -> None:
    with suppress(Exception):
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)


class EndOfRecord(BaseException):
    """A replay has come to a step that has not run yet. No `Exception`, so that no agent can take it for a failure."""


class Replay:
    """Stands where DBOS keeps its database, and knows nothing but the records of one task.

    A step on record is given as it was recorded, and nothing else can be asked of it: so no step runs, and nothing is
    written.
    """

    def __init__(self, records: Sequence[StepRecord]) -> None:
        self.serializer = JsonSerializer()
        self._records = {record.step: record for record in records}
        self._asked: dict[int, str] = {}

    def check_operation_execution(self, task: str, step: int, name: str) -> dict[str, Any]:
        self._asked[step] = name
        found = self._records.get(step)
        if found is None:
            raise EndOfRecord
        if found.name != name:
            raise DBOSUnexpectedStepError(task, step, name, found.name)
        return {**found.model_dump(include={"output", "error", "serialization"}), "child_workflow_id": None}

    def record_sleep(self, task: str, step: int, *_: Any, **__: Any) -> float:
        self.check_operation_execution(task, step, "DBOS.sleep")
        return 0.0

    def __getattr__(self, name: str) -> Any:
        raise EndOfRecord

    @property
    def left_over(self) -> StepRecord | None:
        """The first step on record that the code did not ask for."""
        return next((record for step, record in self._records.items() if step not in self._asked), None)

    @property
    def contradiction(self) -> str | None:
        """A model request that has not run yet although something after it has. Tool calls may: they run abreast."""
        for step, name in self._asked.items():
            later = next((record for known, record in self._records.items() if known > step), None)
            if step not in self._records and later is not None and MODEL_REQUEST in name:
                return f"step {later.step} is on record as {later.name}, and the code now asks for {name} before it"
        return None


class Inline(ThreadPoolExecutor):
    """Answers at once. All calls that run abreast have asked for their record before the first learns the answer."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(fn(*args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)
        return answer


@contextmanager
def replaying(task: TaskId, replay: Replay) -> Iterator[None]:
    """What runs inside is the task's workflow to DBOS, which was never launched and has no database but the replay."""
    instance: Any = _get_dbos_instance()
    instance._sys_db_field, instance._executor_field = replay, Inline(1)
    context = DBOSContext()
    context.id_assigned_for_next_workflow = task
    try:
        with EnterDBOSWorkflow({"name": "rehearsal"}, context):
            yield
    finally:
        instance._sys_db_field = instance._executor_field = None
