"""An inference server: its log, its list of models, its description of itself, its metrics."""

from __future__ import annotations

import json
import re
from typing import Any

from ..evidence import values
from .piece import Piece, Recognised, read_record

BASE = "http://127.0.0.1:8000"
PORT = 8000
LOG = "/loose/server.log"
_LOG = re.compile(
    r"Decode batch|Prefill batch[, ]|server_args=ServerArgs|(?:sglang|vLLM) is using nccl|Uvicorn running on http"
    r"|Application startup complete|\(APIServer pid=|\(EngineCore|\(Worker(?:_TP\d+)? pid=|Load weight (?:begin|end)"
    r"|Loading safetensors checkpoint shards|Scheduler hit an exception|Scheduler watchdog timeout|KV Cache is "
    r"allocated"
    r"|[Cc]apture .{0,20}graph (?:begin|end)|The server is fired "
    r"up|--mem-fraction-static|torch\.(?:cuda\.)?OutOfMemoryError"
    r"|NCCL INFO |\[Gloo\] Rank|Init torch distributed|Memory pool end|max_total_num_tokens=|GPU KV cache size"
    r"|init engine \(profile|Received sigquit from a child|Custom allreduce is disabled|GET /health HTTP"
    r"|POST /v1/(?:chat/)?completions|No available shared memory broadcast block"
    r"|\[TRT-LLM\] \[[A-Z]\]|(?:main|llama_server): model loaded|llama_model_loader: loaded meta data|exiting due to "
    r"model loading error| - lmdeploy - (?:INFO|WARNING|ERROR) - |in a browser for detailed api usage"
)


def recognise_piece(piece: Piece) -> Recognised | None:
    text = piece.text.strip()
    document = _document(text)
    if isinstance(document, dict):
        return _answer(document, text)
    if re.search(r"^(?:# HELP )?(?:sglang|vllm|llamacpp|lmdeploy):\w+[ {]", text, re.M):
        return Recognised("metrics of a server", (_fetched("/metrics", text),), extra={"api": True})
    lines = [line for line in text.split("\n") if line.strip()]
    if _LOG.search(text[:2_000_000]) and len(lines) < 2_000_000:
        return Recognised(
            "log of an inference server, %d lines" % len(lines),
            (read_record(LOG, text + "\n"),),
            "server",
            True,
            len(text),
            extra={"log": True},
        )
    return None


def _document(text: str) -> Any:
    """The JSON in `text`; of the end of a server's description of itself, that end."""
    # A few closing tags of the page that it was copied from.
    text = text[:-400] + re.sub(r"(?:</?[a-z]{1,10}>\s{0,4}){1,8}\Z", "", text[-400:])
    for candidate in (text, '{"internal_states": [{' + text) if text[:1] == '"' else (text,):
        if candidate[:1] == "{":
            try:
                return values.json_value(candidate)
            except ValueError:
                continue
    return None


def _answer(document: dict[str, Any], text: str) -> Recognised | None:
    entries = document.get("data")
    if (
        document.get("object") == "list"
        and isinstance(entries, list)
        and all(isinstance(entry, dict) for entry in entries)
    ):
        owners = {str(entry.get("owned_by")) for entry in entries}
        extra: dict[str, Any] = {"api": True}
        engine = next(
            (name for name in ("sglang", "vllm", "llamacpp", "lmdeploy", "tensorrt_llm") if name in owners), None
        )
        extra.update({"engine": engine} if engine else {})
        return Recognised("list of models, /v1/models", (_fetched("/v1/models", json.dumps(document)),), extra=extra)
    states = document.get("internal_states")
    if isinstance(states, list) or {"model_path", "tp_size"} <= set(document):
        return Recognised(
            "description of a server, /server_info",
            (_fetched("/server_info", json.dumps(document)),),
            extra={"api": True, "engine": "sglang"},
        )
    return None


def _fetched(path: str, text: str) -> dict[str, Any]:
    return {"fetch": BASE + path, "method": "GET", "status": "ok", "code": 200, "text": text}
