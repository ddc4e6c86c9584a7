"""What a start allows, and what programs that need no HTTP do without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from agent.client import AgentClient
from agent.config import Settings
from agent.service import check_guarded
from store.errors import Misconfigured
from tests.workers import ROOT, Place, Worker


def test_an_address_that_others_can_reach_needs_a_living_key(url: str, client: AgentClient) -> None:
    public = Settings(host="0.0.0.0")
    says = r"PERDURE_HOST is '0\.0\.0\.0', which others can reach; set PERDURE_API_KEYS, make a key"
    with pytest.raises(Misconfigured, match=says):
        check_guarded(public, url)
    check_guarded(Settings(host="127.0.0.1"), url)
    check_guarded(Settings(host="0.0.0.0", api_keys=("k",)), url)
    client.make_key("ops")
    check_guarded(public, url)
    client.revoke_key("ops")
    with pytest.raises(Misconfigured):
        check_guarded(public, url)


def test_keys_are_made_listed_and_revoked_from_the_command_line(place: Place) -> None:
    def perdure(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent", "keys", *words],
            cwd=ROOT, env=place.environment([]), capture_output=True, text=True,
        )  # fmt: skip

    assert perdure().stdout == "No keys. Make one: perdure keys make NAME\n"
    shown = perdure("make", "ops")
    assert shown.returncode == 0 and shown.stdout.startswith("pdk_") and len(shown.stdout.strip()) >= 47
    assert "not shown again" in shown.stderr
    made = json.loads(perdure("make", "ana", "--user", "ana", "--read-only", "--json").stdout)
    assert (made["name"], made["user_id"], made["is_read_only"]) == ("ana", "ana", True)
    again = perdure("make", "ops")
    assert again.returncode == 1 and "there is already a key named 'ops'" in again.stderr
    assert perdure("revoke", "ops").stdout == "Revoked.\n"
    listed = perdure("--json")
    assert shown.stdout.strip() not in listed.stdout and made["key"] not in listed.stdout
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["ops"]["revoked_at"] and not rows["ana"]["revoked_at"] and rows["ana"]["user_id"] == "ana"
    assert "revoked" in perdure().stdout and "never" in perdure().stdout
    assert perdure("forget", "ana").returncode == 1
    assert perdure("forget", "ops").stdout == "Forgotten.\n"


def test_a_worker_serves_health_and_nothing_else(hire: Callable[..., Worker]) -> None:
    worker = hire("tests.agents:echo")
    for path, status in (("/livez", 200), ("/readyz", 200), ("/v1/sessions", 404), ("/", 404), ("/openapi.json", 404)):
        assert httpx.get(f"http://{worker.address}{path}").status_code == status, path


def test_neither_commands_nor_workers_load_the_api() -> None:
    look = "print([name for name in sys.modules if name.startswith('agent.api')])"
    for module in ("agent.cli", "agent.client", "agent.service"):
        loaded = subprocess.run(
            [sys.executable, "-c", f"import sys, {module}; {look}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert loaded.stdout == "[]\n", module
