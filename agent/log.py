"""One line for each thing that matters, on standard error; a stack only when nothing else says where."""

from __future__ import annotations

import logging
import sys

from store.errors import TaskFailed

LONGEST_LINE = 400

NOISE = (
    "Asyncio task cancelled",
    "is no longer owned by this execution",
    "psycopg.OperationalError",  # a lost connection is said once, by the supervisor
    "psycopg.errors.AdminShutdown",
    "Notification listener error",
    "Database connection failed",
)
REPLACED = "DBOSAwaitedWorkflowCancelledError"
"""What DBOS sees of a task that was handed over. By name, for clients log too and need not load DBOS."""


class Quiet(logging.Filter):
    """Drops what Perdure says better itself: ended tasks are in the journal, tracebacks of theirs in the rows."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TaskFailed) or type(error).__name__ == REPLACED:
            return False
        return not any(text in record.getMessage() for text in NOISE)


class OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text} ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        text = " ".join(text.split())
        line = f"{at}  {level}{text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + '…'}"
        where = getattr(record, "where", None)
        return f"{line}\n{where}" if where else line


def configure() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    handler.addFilter(Quiet())
    for name, level in (("perdure", logging.INFO), ("dbos", logging.WARNING), ("psycopg.pool", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)


log = logging.getLogger("perdure")
