"""Those on trial are watched by who began the trial."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from agent.breath import ALIVE, Ward
from agent.config import Settings
from agent.court import BIRTH_SECONDS, Child, Court


@pytest.mark.parametrize("word", [b"", ALIVE])
def test_a_process_that_is_not_ready_in_time_is_ended_and_convicts_nobody(word: bytes) -> None:
    child = Child("w-1", Ward(300), began_at=time.monotonic() - BIRTH_SECONDS - 1)
    os.write(child.ward.writing, word)
    with subprocess.Popen(["sleep", "600"]) as process:
        Court(Settings())._judge(process.pid, child)
        if not word:
            assert process.wait(10) == -signal.SIGKILL
            assert (child.sentence, child.is_hang) == ("it was not ready within 120 s", False)
        else:
            assert (process.poll(), child.sentence) == (None, None), "it had been"
            process.kill()
    child.ward.close()
