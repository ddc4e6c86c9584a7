"""A process that has Perdure imported and forks workers on request; see tests.workers.Nursery."""

from __future__ import annotations

import json
import os
import sys

import agent.service
from agent.config import read_settings


def main() -> None:
    children: set[int] = set()
    for line in sys.stdin:
        match json.loads(line):
            case {"bear": environment, "output": output}:
                pid = os.fork()
                if pid == 0:
                    live(environment, output)
                children.add(pid)
                print(pid, flush=True)
            case {"look": pid}:
                ended, status = os.waitpid(pid, os.WNOHANG)
                children.discard(ended)
                print(os.waitstatus_to_exitcode(status) if ended else "", flush=True)
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def live(environment: dict[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["agent", "worker"]  # what it becomes when it begins anew
    quiet = os.open(os.path.join(environment["TEST_WORLD"], "worker.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(quiet, 2)
    try:
        if "TEST_DEATHS" in environment:
            from tests import faults

            faults.install()
        agent.service.run(read_settings(), console=False)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
