"""Messages to the outside, signed as Standard Webhooks says, so that receivers can trust and deduplicate them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx
from pydantic import BaseModel, ConfigDict
from standardwebhooks import Webhook

from store.types import Json

DELIVER = "webhook.deliver"
ANSWER_SECONDS = 10.0


class Address(BaseModel):
    """Where messages go, and the secret they are signed with."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    url: str
    secret: str | None
    waits: tuple[float, ...]
    """Seconds between one try and the next; after the last, the message is given up."""

    @property
    def host(self) -> str:
        """What may be logged of it: the rest of an address is often a secret."""
        return httpx.URL(self.url).host


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    type: str
    at: datetime
    data: Json

    @property
    def body(self) -> str:
        told = {"type": self.type, "timestamp": self.at.isoformat(), "data": self.data}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


async def deliver(message: Message, address: Address) -> str | None:
    """Safe to repeat: the receiver knows a message by its id. Returns what went wrong, or nothing."""
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(int(now.timestamp())),
    }
    if address.secret:
        headers["webhook-signature"] = Webhook(address.secret).sign(message.id, now, message.body)
    try:
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, follow_redirects=False) as client:
            answer = await client.post(address.url, content=message.body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return None if answer.is_success else f"the receiver answered {answer.status_code}"
