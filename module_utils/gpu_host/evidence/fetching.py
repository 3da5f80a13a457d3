"""One HTTP request of a live host: bounded in time and size whatever the other side does, and never an exception.

`http.client` limits each read, not the whole answer; a server that sends a byte a minute would hold us for ever. So
every read has the time that is left.
"""

from __future__ import annotations

import http.client
import itertools
import socket
import ssl
import time
from urllib.parse import urlsplit

from . import secrets
from .interface import ABSENT, FAILED, OK, TIMEOUT, Fetched, Request

ANSWER_LIMIT_BYTES = 4 * 1024 * 1024


def fetch_answer(request: Request) -> Fetched:
    """The answer to one request, of any code. Connection refused is ``absent``: nobody listens there."""
    began = time.monotonic()

    def unanswered(status: str, reason: str) -> Fetched:
        return request.answered(status, seconds=_since(began), reason=reason)

    try:
        parts = urlsplit(request.url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, request.timeout)
    except ValueError as error:
        return request.answered(FAILED, reason="no usable address: %s" % error)
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    try:
        connection.request(request.method, target, request.body, dict(request.headers))
        answer = connection.getresponse()
        data, first, status = _body(answer, connection.sock, began, request.timeout)
        return request.answered(
            status,
            code=answer.status,
            data=redact_answer(request.method, data[:ANSWER_LIMIT_BYTES]),
            content_type=answer.getheader("Content-Type") or "",
            seconds=_since(began),
            first_byte_s=first,
            truncated=len(data) > ANSWER_LIMIT_BYTES,
            reason="the answer did not end within %g s" % request.timeout if status == TIMEOUT else "",
        )
    except ConnectionRefusedError:
        return unanswered(ABSENT, "connection refused: nothing listens there")
    except (TimeoutError, socket.timeout):
        return unanswered(TIMEOUT, "no answer within %g s" % request.timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return unanswered(FAILED, "%s: %s" % (type(error).__name__, error or "the connection was closed"))
    finally:
        connection.close()


def redact_answer(method: str, data: bytes) -> bytes:
    """What a server says of itself may hold keys.

    What it generates from our own prompt holds lists of "tokens" instead, which are none; an error beside it may hold
    some.
    """
    if method != "POST":
        return secrets.redact_text(data)
    runs = itertools.groupby(data.split(b"\n"), key=lambda line: b'"choices"' in line)
    texts = ((generated, b"\n".join(lines)) for generated, lines in runs)  # a key may stand in several lines
    return b"\n".join(text if generated else secrets.redact_text(text) for generated, text in texts)


def _connection(scheme: str, host: str, port: int | None, timeout: float) -> http.client.HTTPConnection:
    if scheme == "https":
        # The server's own certificate on its own address: what is asked is whether it answers, and the key goes nowhere
        # else.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout)


def _body(
    answer: http.client.HTTPResponse, sock: socket.socket | None, began: float, timeout: float
) -> tuple[bytes, float | None, str]:
    """The bytes, the seconds until the first of them, and ``ok`` or ``timeout``."""
    chunks: list[bytes] = []
    size, first = 0, None
    while size <= ANSWER_LIMIT_BYTES:
        left = timeout - (time.monotonic() - began)
        if left <= 0:
            return b"".join(chunks), first, TIMEOUT
        if sock is not None and sock.fileno() >= 0:
            sock.settimeout(left)
        try:
            chunk = answer.read1(65536)
        except (TimeoutError, socket.timeout):
            return b"".join(chunks), first, TIMEOUT
        if not chunk:
            break
        first = _since(began) if first is None else first
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks), first, OK


def _since(began: float) -> float:
    return round(time.monotonic() - began, 4)
