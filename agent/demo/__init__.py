"""Agents that need no key and no network: what `start` serves when none are named."""
