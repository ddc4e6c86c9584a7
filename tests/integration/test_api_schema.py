"""The description of HTTP and what is served are the same thing, whatever is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from agent.client import AgentClient
from tests.serving import serving

SECONDS = 60

ALLOWANCES = """
# What a description has no words for: which cursors and which days there are, how long a session's journal is, what may
# be in the texts inside other data, and that one of two members must be there.
[[operations]]
include-operation-id-regex = "^(list_|fork_session|rewind_session|approve_call|read_usage|set_budget)"
checks.positive_data_acceptance.expected-statuses = ["2xx", 403, 404, 409, 422]

# A session that was just made has neither a handoff nor files.
[[operations]]
include-operation-id-regex = "^(read_handoff|read_file)$"
checks.ensure_resource_availability.enabled = false
"""


def test_nothing_that_can_be_sent_breaks_it_or_its_description(
    url: str, client: AgentClient, db: psycopg.Connection, tmp_path: Path
) -> None:
    """Schemathesis makes up requests from the description, right ones and wrong ones, and chains of them."""
    with serving(url, keys=("k",)) as served:
        for number in range(3):
            client.enqueue("echo", f"n {number}", session=f"s-{number}", user="ana")
        db.execute("INSERT INTO agent.notices (session_id, kind, body) VALUES ('s-0', 'crash', 'told')")
        (tmp_path / "schemathesis.toml").write_text(ALLOWANCES)
        ended = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{served.address}/openapi.json",
                "--header", "Authorization: Bearer k", "--checks", "all",
                "--phases", "examples,coverage,fuzzing,stateful", "--max-time", str(SECONDS), "--max-examples", "10",
                "--seed", "7", "--no-color", "--warnings", "off",
                "--request-timeout", "20", "--suppress-health-check", "all",
            ],
            cwd=tmp_path,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis")},
            capture_output=True,
            text=True,
            timeout=SECONDS * 5,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-12_000:] + ended.stderr[-2000:]
