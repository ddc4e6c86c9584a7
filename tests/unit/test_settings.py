"""A wrong value stops the start with one sentence that names the variable, the value and what is allowed."""

from __future__ import annotations

import os

import pytest

from agent.config import read_settings
from store.errors import Misconfigured


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "DBOS_")):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_contract() -> None:
    settings = read_settings()
    assert settings.database_url is None
    assert (settings.host, settings.port, settings.concurrency) == ("127.0.0.1", 8080, 100)
    assert (settings.heartbeat_seconds, settings.drain_seconds) == (5, 20)
    assert settings.backoff_seconds == (5, 30, 120, 600)
    assert (settings.crash_limit, settings.crash_window_seconds, settings.stall_seconds) == (3, 3600, 300)
    assert (settings.context_fraction, settings.keep_messages, settings.context_window) == (0.8, 20, None)
    assert (settings.workspace, settings.file_mb, settings.workspace_mb) == (False, 16, 256)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PERDURE_PORT", "http", "PERDURE_PORT is 'http'; allowed is a valid integer"),
        ("PERDURE_PORT", "70000", "PERDURE_PORT is '70000'; allowed is less than or equal to 65535"),
        ("PERDURE_CONCURRENCY", "0", "PERDURE_CONCURRENCY is '0'; allowed is greater than or equal to 1"),
        ("PERDURE_BACKOFF_SECONDS", "5,soon", "PERDURE_BACKOFF_SECONDS is '5,soon'"),
        ("PERDURE_CONTEXT_FRACTION", "2", "PERDURE_CONTEXT_FRACTION is '2'; allowed is less than or equal to 1"),
        ("PERDURE_AGENTS", ",", "PERDURE_AGENTS is ','; allowed is name at least one agent"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured) as caught:
        read_settings()
    assert says in str(caught.value)


def test_lists_are_comma_separated_and_empty_means_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_AGENTS", "a.b:c, d.e:f ,")
    monkeypatch.setenv("PERDURE_BACKOFF_SECONDS", "1,2")
    monkeypatch.setenv("PERDURE_MODEL", "")
    settings = read_settings()
    assert settings.agents == ("a.b:c", "d.e:f")
    assert settings.backoff_seconds == (1, 2)
    assert settings.model is None


def test_the_database_of_dbos_is_honoured_when_ours_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBOS_SYSTEM_DATABASE_URL", "postgresql://theirs")
    assert read_settings().database_url == "postgresql://theirs"
    monkeypatch.setenv("PERDURE_DATABASE_URL", "postgresql://ours")
    assert read_settings().database_url == "postgresql://ours"
