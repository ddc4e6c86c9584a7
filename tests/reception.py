"""A receiver of webhooks for tests."""

from __future__ import annotations

import base64
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()


class Receiver(ThreadingHTTPServer):
    """A real receiver: verifies each message, and refuses as many as it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reception)
        self.refuse = 0
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.tries = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Reception(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.tries += 1
        if self.server.tries <= self.server.refuse:
            self.send_response(503)
        else:
            told = Webhook(SECRET).verify(body, dict(self.headers.items()))
            self.server.received.append((self.headers["webhook-id"], told))
            self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
