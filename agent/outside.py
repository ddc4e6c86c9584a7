"""Messages to the outside: where they go, what an alert says, and the one that no worker is left to send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from agent.config import Settings
from steps import webhook
from store.types import AlertRow

Moment = Literal["raised", "resolved"]

LAST_WORD_SECONDS = 60.0
"""How long a process that ends tries to be heard."""


def address_of(settings: Settings) -> webhook.Address | None:
    if settings.webhook_url is None:
        return None
    secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else None
    return webhook.Address(url=settings.webhook_url, secret=secret, waits=settings.webhook_retry_seconds)


def message_about(alert: AlertRow, moment: Moment) -> webhook.Message | None:
    """Nothing when the outside has heard of it already. Its id is the same whoever sends it."""
    if moment == "raised" and alert.delivered_at is not None:
        return None
    told = alert.model_dump(mode="json", exclude={"delivered_at", "delivery_error"})
    at = alert.resolved_at if moment == "resolved" and alert.resolved_at else alert.since
    return webhook.Message(id=f"alert-{alert.alert_id}-{moment}", type=f"alert.{moment}", at=at, data=told)


def send_now(message: webhook.Message, address: webhook.Address, pause: Callable[[float], bool]) -> str | None:
    """What went wrong at last, or nothing. Tried again for a while, unless a pause says that there is none."""
    until = time.monotonic() + LAST_WORD_SECONDS
    for wait in address.waits:
        problem = asyncio.run(webhook.deliver(message, address))
        if problem is None or time.monotonic() + wait > until or not pause(wait):
            return problem
    return asyncio.run(webhook.deliver(message, address))
