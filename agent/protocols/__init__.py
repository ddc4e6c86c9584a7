"""Protocols that other people's clients speak: AG-UI, Vercel AI, OpenAI Responses, MCP.

None of them runs an agent inside a request. What comes in becomes a durable task, and what goes out is told from the
durable stream, so that any process can tell it, again if need be.
"""
