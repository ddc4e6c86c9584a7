"""The composition root: one process that takes tasks, and serves HTTP beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import uvicorn
from starlette.types import ASGIApp

from agent import breath, engine, keeper, log, metrics, outside, runfile, systemd, tracing
from agent.breaker import ToolBreakers
from agent.broadcast import Broadcast
from agent.care import Care, register_care
from agent.config import Settings, is_loopback, read_settings
from agent.desk import Space
from agent.durability import Terms
from agent.health import build_health
from agent.home import Home, open_home
from agent.keyring import Keyring
from agent.leftovers import Leftovers
from agent.log import log as journal
from agent.registry import Agents, describe, load_agents, make_all_durable
from agent.request import Budget
from agent.schedule import catch_up, register_schedules
from agent.scribe import examine_with
from agent.supervisor import Supervisor
from agent.watch import Rescue, Step, Watchdog
from agent.workflow import register_workflow
from steps.handoff import write_handoff
from store import keys, schema, spending, supervision, tasks, workers
from store.bell import Bell
from store.database import Database, Link, check, connect, run_on
from store.errors import Fenced, Misconfigured, Unreachable
from store.supervision import CrashPolicy
from store.types import WorkerId

FAREWELL_SECONDS = 10.0
"""How long the last words of a planned stop may take."""

TRIAL_SECONDS = 30.0
"""How long a process waits for the suspect it was made for."""

MEGABYTE = 1024 * 1024

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def prepare(url: str) -> list[str]:
    """Check the database and bring it to this release's schema; the names of the migrations applied."""
    check(url)
    if schema.is_current(url):
        return []
    engine.migrate(url)
    return schema.migrate(url)


def run(settings: Settings, *, console: bool) -> None:
    """Serve until told to stop, then end the process with status 0."""
    log.configure()
    run_file = runfile.claim()
    listener = listen(settings.host, settings.port)
    agents = load_agents(settings.agents)
    with open_home(settings) as home:
        try:
            prepare(home.url)
            check_guarded(settings, home.url)
        except Unreachable:
            breath.tell(breath.CUT_OFF)
            raise
        asyncio.run(_serve(settings, home, agents, listener, run_file, console=console))


def depart(home: Home, run_file: int | None) -> NoReturn:
    """End the process now: neither a tool that blocks a thread nor a thread that waits for Postgres may hold it."""
    if home.embedded is not None:
        home.embedded.release()
    runfile.end_as_planned(run_file)
    breath.tell(breath.LEAVING)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(
    settings: Settings, home: Home, agents: Agents, listener: socket.socket, run_file: int | None, *, console: bool
) -> None:
    stop, told_to_stop, replacing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def obey() -> None:
        told_to_stop.set()
        stop.set()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, obey)
    async with Database(home.url, on_loss=home.embedded.revive if home.embedded else None) as database:
        supervisor, durable = await _furnish(settings, database, agents)
        await database.run(workers.register_agents(describe(durable, settings.context_window)))
        await database.run(spending.set_defaults(settings.session_budget, settings.user_budget))
        await catch_up(database)
        await engine.launch(settings.concurrency)
        supervisor.start()
        watchdog = _watchdog(settings, home, supervisor, stop, replacing)
        watchdog.start()
        bell = Bell(home.url)
        web = _web(settings, database, bell, lambda: not stop.is_set(), console=console)
        server = HttpServer(
            uvicorn.Config(web, log_level="warning", access_log=False, lifespan="off", server_header=False)
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if not keeper.is_restart():
            await database.run(supervision.resolve_alert(keeper.alert_key(settings)))
        _announce(settings, listener, list(durable), console=console)
        pulse = systemd.Pulse(lambda: watchdog.is_healthy)
        pulse.start()
        lag = asyncio.create_task(metrics.watch_loop(), name="perdure-lag")

        await stop.wait()
        if not replacing.is_set():
            systemd.notify("STOPPING=1")
        try:
            await asyncio.wait_for(_leave(settings, database, supervisor), settings.drain_seconds + FAREWELL_SECONDS)
        except TimeoutError:
            journal.warning("stopped without a word, for Postgres is away; what ran here goes on at the next start")
        watchdog.stop()
        pulse.stop()
        lag.cancel()
        await bell.stop()  # those who follow a session are let go, and find the next process
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving, FAREWELL_SECONDS)
        if replacing.is_set() and not told_to_stop.is_set():
            begin_anew(home)
        depart(home, run_file)


def _web(settings: Settings, database: Database, bell: Bell, is_ready: Callable[[], bool], *, console: bool) -> ASGIApp:
    """What HTTP serves."""
    keyring = Keyring(database, settings.api_keys, is_public=not is_loopback(settings.host))
    if not console:
        return build_health(database, is_ready, keyring.may_scrape)
    from agent.console.site import build_site  # a worker without a console does without all of it

    bell.start()
    return build_site(
        database,
        is_ready,
        keyring,
        bell,
        hosts=settings.allowed_hosts,
        version=release(),
        drills=settings.are_drills_on,
    )


def check_guarded(settings: Settings, url: str) -> None:
    """Refuse to serve others than this machine before there is a key."""
    if settings.api_keys or is_loopback(settings.host):
        return
    with connect(url) as connection:
        if run_on(connection, keys.count_keys()).living:
            return
    raise Misconfigured(
        f"PERDURE_HOST is {settings.host!r}, which others can reach; set PERDURE_API_KEYS, make a key with"
        " perdure keys make NAME, or listen on 127.0.0.1."
    )


async def _furnish(
    settings: Settings, database: Database, agents: Agents, *, isolated_as: WorkerId | None = None
) -> tuple[Supervisor, Agents]:
    """Everything a worker needs, known to DBOS and to the others, and not yet at work."""
    breakers = ToolBreakers()
    supervisor = Supervisor(
        database,
        version=release(),
        agents=list(agents),
        beat_seconds=settings.heartbeat_seconds,
        policy=crash_policy(settings),
        breakers=breakers,
        leftovers=Leftovers(database, space_of(settings, database).base),
        session_seconds=settings.session_days * 86_400 if settings.session_days else None,
        isolated_as=isolated_as,
    )
    examiner = examine_with(settings.exam_model) if settings.exam_model else None
    budget = Budget(
        settings.context_fraction, settings.keep_messages, settings.context_window, examiner, settings.stall_seconds
    )
    terms = Terms(
        database,
        budget,
        settings.model,
        settings.notebook,
        settings.people,
        breakers,
        settings.stall_seconds,
        space_of(settings, database),
        settings.workspace,
        Broadcast(database),
    )
    if tracing.is_wanted():
        tracing.start(version=release(), worker=supervisor.worker, with_content=settings.trace_content)
    durable = make_all_durable(agents, terms)
    engine.configure(database.url, supervisor.worker)
    register_workflow(durable, database, lambda: supervisor.worker, patience=settings.approval_seconds)
    register_care(Care(database, durable, settings.handoff_seconds, examiner, outside.address_of(settings)))
    register_schedules(database)
    await supervisor.register()
    return supervisor, durable


def run_trial(url: str, worker: WorkerId) -> NoReturn:
    """Take one suspect, run it to its end, and leave."""
    log.configure()
    settings = read_settings()
    agents = load_agents(settings.agents)
    asyncio.run(_try_one(settings, url, agents, worker))
    os._exit(0)


async def _try_one(settings: Settings, url: str, agents: Agents, worker: WorkerId) -> None:
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Database(url, size=2) as database:
        supervisor, _ = await _furnish(settings, database, agents, isolated_as=worker)
        await engine.launch(1, is_isolated=True)
        supervisor.start()
        watchdog = _watchdog(settings, None, supervisor, stop, stop)
        watchdog.start()
        breath.begin(settings.stall_seconds)
        await engine.finish_one(stop, TRIAL_SECONDS)
        watchdog.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_leave(settings, database, supervisor), settings.drain_seconds + FAREWELL_SECONDS)
        os._exit(0)


def _watchdog(
    settings: Settings, home: Home | None, supervisor: Supervisor, stop: asyncio.Event, replacing: asyncio.Event
) -> Watchdog:
    """Watches this worker; in a trial, where there is nothing to replace, the process just ends."""
    link = Link(supervisor.url, size=1)

    def give_up(step: Step) -> None:
        with contextlib.suppress(Fenced):
            link.run(supervision.stall(step.task, step.owner, step=step.name, seconds=settings.stall_seconds))

    def report(what: str, stack: str) -> None:
        link.run(
            supervision.raise_alert(
                f"blocked:{supervisor.worker}",
                what=f"{what}. Worker {supervisor.worker}. Where:\n{stack[-2000:]}",
                did="The task was aborted as hung, and the worker replaced.",
                advice="Make the tool a plain function, or await what blocks: asyncio.to_thread.",
            )
        )
        link.run(supervision.resolve_alert(f"blocked:{supervisor.worker}"))

    async def replace() -> None:
        replacing.set()
        stop.set()

    def replace_now() -> None:
        with contextlib.suppress(Exception):  # whatever could not be given back is adopted
            link.run(workers.leave(supervisor.worker))
        if home is None:
            os._exit(0)
        begin_anew(home)

    return Watchdog(
        asyncio.get_running_loop(),
        settings.stall_seconds,
        Rescue(give_up, report, engine.stop_taking, replace, replace_now),
    )


def begin_anew(home: Home) -> NoReturn:
    """The same command in the same process, without what blocked it."""
    if home.embedded is not None:
        home.embedded.release()
    breath.tell(breath.ANEW)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "agent", *sys.argv[1:]])  # noqa: S606


def space_of(settings: Settings, database: Database) -> Space:
    base = settings.home.absolute() / "workspaces"
    return Space(database, base, settings.file_mb * MEGABYTE, settings.workspace_mb * MEGABYTE)


def crash_policy(settings: Settings) -> CrashPolicy:
    return CrashPolicy(
        settings.backoff_seconds, settings.isolate_after, settings.crash_limit, settings.crash_window_seconds
    )


async def _leave(settings: Settings, database: Database, supervisor: Supervisor) -> None:
    engine.stop_taking()
    supervisor.stop_trials()
    await database.run(workers.set_state(supervisor.worker, "draining"))
    running = len(engine.active_tasks())
    if running:
        journal.info("stopping: %d running tasks have %g s to finish", running, settings.drain_seconds)
    left = await engine.drain(settings.drain_seconds)
    await supervisor.stop()
    await _hand_over(database, supervisor.worker, left)
    given_back = await database.run(workers.leave(supervisor.worker))
    await supervisor.fall_silent()
    await supervisor.end_trials(settings.drain_seconds)
    if tracing.is_on():
        await asyncio.to_thread(tracing.stop)  # before DBOS takes the threads down
    await engine.destroy()
    if not supervisor.is_isolated:
        journal.info("stopped as planned%s", f"; {given_back} tasks go on at the next start" if given_back else "")


async def _hand_over(database: Database, worker: WorkerId, left: Sequence[str]) -> None:
    """A handoff for every session still in flight; what cannot be written in time is written after the start."""
    for task_id in left:
        row = await database.run(tasks.read_task(task_id))
        if row is not None:
            await write_handoff(
                database, session=row.session_id, task=task_id, reason="planned", occasion=f"{worker}:{task_id}"
            )


def _announce(settings: Settings, listener: socket.socket, names: list[str], *, console: bool) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    where = "embedded Postgres" if settings.database_url is None else "Postgres"
    journal.info("serving %s on %s", ", ".join(names), where)
    if console:
        print(f"Perdure is ready: http://{shown}:{port}", flush=True)
    else:
        print(f"Perdure worker is ready: http://{shown}:{port}/readyz", flush=True)
    breath.begin(settings.stall_seconds)
    systemd.notify("READY=1")


class HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's: it drains first and stops HTTP last."""
        yield


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        raise Misconfigured(
            f"PERDURE_PORT is {port}, and {host}:{port} cannot be listened on ({error.strerror or error});"
            " choose another, or 0 for any that is free."
        ) from error
    return listener


def release() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "source"
