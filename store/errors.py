"""Everything that can go wrong, for a reason somebody can act on.

PerdureError
├── Refused                what was asked for cannot be done; nothing was written
│   ├── InvalidInput
│   ├── NotFound
│   ├── NotAllowed
│   ├── Conflict
│   └── TooLarge
├── DatabaseError          Postgres cannot serve us
│   ├── Unreachable        transient: worth trying again
│   └── Unusable           final: a person must change something
├── Fenced                 this execution lost its task to another worker
├── TaskNotDone            a result was asked of a task that has none
│   ├── TaskFailed
│   └── TimedOut
└── Misconfigured          the start is refused
"""

from __future__ import annotations


class PerdureError(Exception):
    """Something Perdure can put into one sentence."""


class Refused(PerdureError):
    """The request was refused and nothing was written."""


class InvalidInput(Refused):
    """The input is not acceptable."""


class NotFound(Refused):
    """There is no such thing."""


class NotAllowed(Refused):
    """It belongs to somebody else."""


class Conflict(Refused):
    """It contradicts what is already there."""


class TooLarge(Refused):
    """The input is larger than accepted."""


class DatabaseError(PerdureError):
    """Postgres cannot serve this."""


class Unreachable(DatabaseError):
    """Postgres does not answer."""


class Unusable(DatabaseError):
    """Postgres answers, but cannot be used as it is."""


class Fenced(PerdureError):
    """The task now belongs to another execution."""


class TaskNotDone(PerdureError):
    """The task has no result."""


class TaskFailed(TaskNotDone):
    """The task ended without a result."""


class TimedOut(TaskNotDone):
    """The task was still under way."""


class Misconfigured(PerdureError):
    """The configuration cannot work."""


REFUSALS: dict[str, type[PerdureError]] = {
    "PD001": Fenced,
    "PD400": InvalidInput,
    "PD403": NotAllowed,
    "PD404": NotFound,
    "PD409": Conflict,
    "PD413": TooLarge,
}
"""The SQLSTATEs that Perdure's own SQL functions raise."""
