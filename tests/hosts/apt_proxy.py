"""A small HTTP proxy on the bridge.

A test host without a route can fetch packages of its distribution through it, and nothing else.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import machine
import rootfs


class Handler(BaseHTTPRequestHandler):
    """Passes GET on to the mirror that this machine uses itself; refuses every other address."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        mirror = urllib.parse.urlsplit(rootfs.mirror())
        wanted = urllib.parse.urlsplit(self.path)
        if wanted.netloc != mirror.netloc:
            self._answer(403, b"only %s is passed on\n" % mirror.netloc.encode())
            return
        try:
            with urllib.request.urlopen(self.path, timeout=60) as answer:
                self._answer(200, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, b"")
        except OSError as error:
            self._answer(502, str(error).encode())

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def running() -> Iterator[str]:
    """The address of the proxy, as apt's Acquire::http::Proxy takes it. The bridge must be there: boot a host first."""
    server = ThreadingHTTPServer((machine.NETWORK + ".1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield "http://%s:%d/" % server.server_address[:2]
    finally:
        server.shutdown()
        server.server_close()
