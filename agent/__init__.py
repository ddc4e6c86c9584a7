"""Perdure: Pydantic AI agents whose sessions outlive every process that ever worked on them."""

from agent.tools import effect, idempotency_key, pure
from agent.watch import beat

__all__ = ["beat", "effect", "idempotency_key", "pure"]
