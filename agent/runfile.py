"""The file through which whoever started us sees when we are gone, and whether we went as planned (see run.py)."""

from __future__ import annotations

import fcntl
import os

VARIABLE = "PERDURE_RUN_FILE"


def claim() -> int | None:
    """Hold the file while this process lives, if one was given."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    descriptor = os.open(name, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def end_as_planned(descriptor: int | None) -> None:
    if descriptor is not None:
        os.write(descriptor, b"stopped as planned")
