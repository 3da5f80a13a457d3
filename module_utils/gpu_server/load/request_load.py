"""Load for a server: so many requests at once through its OpenAI-compatible API, streamed, each timed.

Standard library only.

For hosts that have none of the generators of generators.py: it needs no package, no tokenizer and no hub. Prompts are
random words, and what the server counts (`usage`) is what is reported.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from ...gpu_host.evidence import values

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part "
    "place case week company system program question work number night point home water room mother area money story "
    "fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line "
    "end member law car city community name "
)
WORDS = _WORDS.split()


class Load:
    """One cell: `requests` requests, `concurrency` at a time.

    `run` blocks until all have ended or `time_limit` is over.
    """

    def __init__(self, base: str, model: str, key: str | None, *, seed: int = 0) -> None:
        self._parts = urlsplit(base)
        self._model, self._key, self._seed = model, key, seed
        self._lock = threading.Lock()
        self._done: list[dict[str, Any]] = []
        self._next = 0
        self._refused: set[str] = set()

    @property
    def done(self) -> int:
        """Requests that have ended, for a look from another thread."""
        with self._lock:
            return len(self._done)

    def run(
        self, concurrency: int, requests: int, prompt_tokens: int, output_tokens: int, time_limit: float
    ) -> dict[str, Any]:
        began = time.monotonic()
        end = began + time_limit

        def work() -> None:
            while time.monotonic() < end:
                with self._lock:
                    number, self._next = self._next, self._next + 1
                if number >= requests:
                    return
                result = self._request(number, prompt_tokens, output_tokens, end)
                with self._lock:
                    self._done.append(result)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()) + 5.0)
        with self._lock:
            done = list(self._done)
        return {
            "concurrency": concurrency, "prompt_tokens_asked": prompt_tokens, "output_tokens_asked": output_tokens,
            "requests": requests,
            **summarise_requests(done, requests, time.monotonic() - began),
        }  # fmt: skip

    def _request(self, number: int, prompt_tokens: int, output_tokens: int, end: float) -> dict[str, Any]:
        words = random.Random("%d/%d" % (self._seed, number))
        # Every prompt begins differently, or the prefix cache would answer. A word is a token, near enough; the server
        # counts them.
        prompt = " ".join(words.choice(WORDS) for _ in range(max(1, prompt_tokens)))
        while True:
            refused = set(self._refused)
            body = {
                "model": self._model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "stream": True,
                **{name: value for name, value in self._extras(output_tokens).items() if name not in refused},
            }  # fmt: skip
            result = self._post(body, end)
            named = {
                name
                for name in self._extras(output_tokens)
                if name not in refused and name in (result["problem"] or "")
            }
            if not result["refused"] or not named:
                return result
            self._refused |= named

    @staticmethod
    def _extras(output_tokens: int) -> dict[str, Any]:
        """What makes answers equally long, and counted, but is not OpenAI's:

        `transformers serve` answers 422 and names the field.
        """
        return {"min_tokens": output_tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}

    def _post(self, body: dict[str, Any], end: float) -> dict[str, Any]:
        began = time.monotonic()
        result: dict[str, Any] = {
            "ok": False, "refused": False, "problem": None, "first_s": None, "total_s": None, "output": 0, "prompt": 0,
            "gaps": [],
        }  # fmt: skip
        connection: http.client.HTTPConnection | None = None
        try:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=max(1.0, end - began))
            headers = {
                "Content-Type": "application/json",
                **({"Authorization": "Bearer " + self._key} if self._key else {}),
            }
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            self._read(connection.getresponse(), began, result)
        except (OSError, http.client.HTTPException, ValueError) as error:
            result["problem"] = "%s: %s" % (type(error).__name__, error)
        finally:
            if connection:
                connection.close()
        result["total_s"] = time.monotonic() - began
        result["ok"] = result["problem"] is None and result["output"] > 0
        if not result["ok"] and not result["problem"]:
            result["problem"] = "the answer holds no text"
        return result

    @staticmethod
    def _read(answer: http.client.HTTPResponse, began: float, result: dict[str, Any]) -> None:
        if answer.status != 200:
            result["refused"] = answer.status in (400, 422)
            result["problem"] = "HTTP %d: %s" % (answer.status, answer.read(300).decode("utf-8", "replace"))
            return
        pieces, last = 0, None
        while True:
            line = answer.readline(1 << 20)
            if not line:
                break
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            event = values.json_value(line[5:].decode("utf-8", "replace"))
            if not isinstance(event, dict):
                raise ValueError("an event that is no object")
            now = time.monotonic()
            if any(values.parse_mapping(choice).get("text") for choice in values.parse_sequence(event.get("choices"))):
                pieces += 1
                if last is None:
                    result["first_s"] = now - began
                else:
                    result["gaps"].append(now - last)
                last = now
            usage = event.get("usage")
            if isinstance(usage, dict):
                result["prompt"] = values.whole_number(usage.get("prompt_tokens")) or 0
                result["output"] = values.whole_number(usage.get("completion_tokens")) or 0
        result["output"] = result["output"] or pieces


def summarise_requests(done: list[dict[str, Any]], requests: int, seconds: float) -> dict[str, Any]:
    """The figures of one load.

    ``{completed, failed, seconds, output_tokens_per_s, total_tokens_per_s, per_stream_tokens_per_s, first_token_s,
    token_gap_ms, problems}``.
    """
    good = [one for one in done if one["ok"]]
    output, prompt = sum(one["output"] for one in good), sum(one["prompt"] for one in good)
    timed = [one for one in good if one["first_s"] and one["output"] > 1 and one["total_s"] > one["first_s"]]
    streams = [(one["output"] - 1) / (one["total_s"] - one["first_s"]) for one in timed]
    return {
        "completed": len(good),
        "failed": requests - len(good),
        "seconds": round(seconds, 2),
        "output_tokens": output,
        "prompt_tokens": prompt,
        "output_tokens_per_s": round(output / seconds, 2) if good else None,
        "total_tokens_per_s": round((output + prompt) / seconds, 2) if good else None,
        "per_stream_tokens_per_s": round(statistics.median(streams), 2) if streams else None,
        "first_token_s": summarise_spread([one["first_s"] for one in good if one["first_s"]], 1.0),
        "token_gap_ms": summarise_spread([gap for one in good for gap in one["gaps"]], 1000.0),
        "problems": sorted({one["problem"] for one in done if one["problem"]})[:5],
    }


def summarise_spread(values: list[float], factor: float) -> dict[str, float] | None:
    """``{median, p95}``; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    return {"median": round(statistics.median(ordered) * factor, 4), "p95": round(high * factor, 4)}
