"""Perdure: Pydantic AI agents whose sessions outlive every process that ever worked on them."""

from agent.tools import effect, idempotency_key, pure

__all__ = ["effect", "idempotency_key", "pure"]
