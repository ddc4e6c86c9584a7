"""Settings: read once from the environment, checked, frozen."""

from __future__ import annotations

import base64
import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from store.errors import Misconfigured
from store.spending import read_limits
from store.types import Limit

Commas = Annotated[tuple[str, ...], NoDecode]
Seconds = Annotated[tuple[float, ...], NoDecode]

Limits = Annotated[tuple[Limit, ...], NoDecode]

DEMO_AGENTS = ("agent.demo.agents:researcher", "agent.demo.agents:assistant")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PERDURE_", frozen=True, extra="ignore", env_ignore_empty=True)

    database_url: str | None = None
    home: Path = Path(".perdure")
    agents: Commas = DEMO_AGENTS
    model: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    api_keys: Commas = ()
    allowed_hosts: Commas = ()
    concurrency: int = Field(100, ge=1, le=10_000)
    heartbeat_seconds: float = Field(5, ge=0.1, le=3600)
    drain_seconds: float = Field(20, ge=0, le=86_400)
    backoff_seconds: Seconds = (5, 30, 120, 600)
    isolate_after: int = Field(2, ge=1)
    isolation_memory_mb: int = Field(2048, ge=128)
    memory_mb: int | None = Field(None, ge=128)
    crash_limit: int = Field(3, ge=1)
    crash_window_seconds: float = Field(3600, gt=0)
    stall_seconds: float = Field(300, gt=0)
    context_fraction: float = Field(0.8, gt=0, le=1)
    keep_messages: int = Field(20, ge=1)
    context_window: int | None = Field(None, ge=500)
    notebook: bool = True
    people: bool = True
    approval_seconds: float = Field(604_800, gt=0)
    session_days: float | None = Field(None, gt=0)
    workspace: bool = False
    file_mb: int = Field(16, ge=1, le=100)
    workspace_mb: int = Field(256, ge=1)
    handoff_seconds: float = Field(10, ge=0, le=600)
    exam_model: str | None = None
    drills: bool | None = None
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = None
    webhook_retry_seconds: Seconds = (1, 5, 30, 120, 600)
    session_budget: Limits = ()
    user_budget: Limits = ()
    trace_content: bool = False

    @property
    def are_drills_on(self) -> bool:
        """Whether the console may kill workers: when told so, and with the demo agents unless told otherwise."""
        return self.drills if self.drills is not None else self.agents == DEMO_AGENTS and is_loopback(self.host)

    @field_validator("agents", "api_keys", "allowed_hosts", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given

    @field_validator("backoff_seconds", "webhook_retry_seconds", mode="before")
    @classmethod
    def _numbers(cls, given: Any) -> Any:
        seconds = tuple(float(part) for part in given.split(",")) if isinstance(given, str) else given
        if not seconds or not all(0 <= each <= 1_000_000 for each in seconds):
            raise ValueError("seconds, separated by commas, as in 5,30,120,600")
        return seconds

    @field_validator("session_budget", "user_budget", mode="before")
    @classmethod
    def _limits(cls, given: Any) -> Any:
        return read_limits(given) if isinstance(given, str) else given

    @field_validator("agents", mode="after")
    @classmethod
    def _some(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if not given:
            raise ValueError("name at least one agent as package.module:attribute")
        return given

    @field_validator("webhook_url", mode="after")
    @classmethod
    def _web(cls, given: str | None) -> str | None:
        if given is not None and not given.startswith(("http://", "https://")):
            raise ValueError("an address that begins with https:// or http://")
        return given

    @field_validator("webhook_secret", mode="after")
    @classmethod
    def _secret(cls, given: SecretStr | None) -> SecretStr | None:
        try:
            decoded = base64.b64decode(given.get_secret_value().removeprefix("whsec_") + "==") if given else b"-"
        except ValueError:
            decoded = b""
        if not decoded:
            raise ValueError("whsec_ followed by base64")
        return given


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_settings() -> Settings:
    """The settings, or one sentence that names the variable, the value and what is allowed."""
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise Misconfigured(first["msg"].removeprefix("Value error, ") + ".") from None
        name = f"PERDURE_{str(first['loc'][0]).upper()}"
        allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        given = "not usable" if "SECRET" in name or "KEY" in name else repr(os.environ.get(name))
        raise Misconfigured(f"{name} is {given}; allowed is {allowed}.") from None
    if settings.database_url is None and os.environ.get("DBOS_SYSTEM_DATABASE_URL"):
        settings = settings.model_copy(update={"database_url": os.environ["DBOS_SYSTEM_DATABASE_URL"]})
    return settings
