"""The examples run as they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.workers import ROOT, Place, Worker


def test_the_examples_run(place: Place, hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    hire("tests.example_agents:support")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "enqueue.py", place.url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["Order 17 is refunded."] * 2
    assert "tool.refund {'cents': 1200, 'order': '17'} order 17 was refunded" in done.stdout
    refunds = [json.loads(line) for line in (place.folder / "refunds.jsonl").read_text().splitlines()]
    assert len(refunds) == 1
