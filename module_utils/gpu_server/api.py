"""What a server answers over HTTP: health, models, server information, metrics, and one real generation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, TIMEOUT, Evidence, Fetched
from ..gpu_host.evidence.sides import is_only_pieces
from .engines import Engine

HEALTH_SECONDS = 25.0  # SGLang's own health check generates a token and gives up after 20 s
SECONDS = 8.0
STRANGER_SECONDS = 3.0  # for what listens on the port of a server that does not listen yet
GENERATION_SECONDS = 90.0
PROMPT = "The capital of France is"
TOKENS = 24
FACTS = (
    "base", "reachable", "needs_key", "health", "models", "models_problem", "model", "context_length", "owned_by",
    "created", "info", "metrics",
    "version",
)  # fmt: skip
_METRIC = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([0-9.eE+-]+|NaN|[+-]Inf)(?: \d+)?$", re.MULTILINE)
_STREAM_END = re.compile(r"^data: ?\[DONE\]", re.MULTILINE)
# What a broken model or transfer gives: one character over and over ("!!!!!!"), or bytes that are no text.
_RUN = re.compile(r"(\S)\1{9,}|(\b\w{1,12}\b)(?:\W+\2\b){9,}")


def read_api(
    evidence: Evidence,
    base: str,
    engine: Engine | None,
    errors: Errors,
    *,
    key: str | None = None,
    light: bool = False,
    starts: bool = False,
    only_health: bool = False,
) -> dict[str, Any]:
    """FACTS. `reachable`: whether anything listens; None where it was not asked.

    `health`: ``{code, answered, seconds, problem}``.

    `models_problem`: what is wrong with the list of models; None where it is right, and where it is unknown.
    `light` asks for health and models only, `only_health` for the first; `starts`: the server does not listen yet, so
    an answer is another's.
    """
    headers = {"Authorization": "Bearer " + key} if key else {}
    found: dict[str, Any] = dict.fromkeys(FACTS)
    found["base"] = base
    health = evidence.fetch(
        "GET", base + "/health", headers=headers, timeout=STRANGER_SECONDS if starts else HEALTH_SECONDS
    )
    if health.status == NOT_CAPTURED:
        errors.add(health.name, "not captured in this bundle")
        if is_only_pieces(evidence):  # of what somebody handed in, each answer counts by itself
            _models(evidence.fetch("GET", base + "/v1/models"), found, errors)
            if engine:
                _information(evidence, engine, found, errors, headers={}, limit=SECONDS)
        return found
    found["reachable"] = health.status != ABSENT
    found["health"] = {
        "code": health.code,
        "answered": health.ok,
        "seconds": health.seconds,
        "problem": health.reason or ("it is cut off" if health.truncated else None),
    }
    if not health.ok and health.status != ABSENT:
        errors.add(health.name, found["health"]["problem"] or health.status)
    if health.status == ABSENT or only_health:
        return found
    limit = (
        STRANGER_SECONDS if health.status == TIMEOUT else SECONDS
    )  # a server that accepts and never answers is asked once in full
    _models(evidence.fetch("GET", base + "/v1/models", headers=headers, timeout=limit), found, errors)
    if engine and not light:
        _information(evidence, engine, found, errors, headers=headers, limit=limit)
    return found


def _models(answer: Fetched, found: dict[str, Any], errors: Errors) -> None:
    if answer.code in (401, 403):
        found["needs_key"] = True
        errors.add(answer.name, "answers %d: it wants an API key, give it as api_key" % answer.code)
        return
    if answer.ok:
        found["needs_key"] = False
    told = Errors("server")
    content = decode_answer(answer, told)
    entries = content.get("data") if isinstance(content, dict) else None
    if not isinstance(entries, list) and not told.entries and answer.status != NOT_CAPTURED:
        told.add(answer.name, "holds no list of models")
    errors.entries.extend(told.entries)
    if not isinstance(entries, list) and answer.status == NOT_CAPTURED:
        return
    if not isinstance(entries, list):
        found["models_problem"] = (
            "; ".join("%s %s" % (entry["source"], entry["problem"]) for entry in told.entries) or None
        )
        return
    models = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    found["models"] = [entry["id"] for entry in models]
    if not models:
        found["models_problem"] = "%s lists no model" % answer.name
    else:
        first = models[0]
        found.update(model=first["id"], owned_by=first.get("owned_by"))
        created = errors.read_decimal(answer.name, "created", first.get("created"))  # transformers gives fractions
        found.update(
            context_length=errors.read_whole(answer.name, "max_model_len", first.get("max_model_len")),
            created=None if created is None else round(created),
        )


def _information(
    evidence: Evidence,
    engine: Engine,
    found: dict[str, Any],
    errors: Errors,
    *,
    headers: Mapping[str, str],
    limit: float,
) -> None:
    base = found["base"]
    for path in engine.server_info:
        answer = evidence.fetch("GET", base + path, headers=headers, timeout=limit)
        if answer.ok and answer.code == 200:
            content = decode_answer(answer, errors)
            if isinstance(content, dict):
                found["version"] = content.get(engine.version_key)
                found["info"] = select_information(content)
            break
    answer = evidence.fetch("GET", base + engine.metrics_path, headers=headers, timeout=limit)
    if answer.ok and answer.code == 200:
        found["metrics"] = parse_metrics(answer.text, engine)


def select_information(content: dict[str, Any]) -> dict[str, Any]:
    """What of SGLang's /server_info decides how it serves, whatever other keys a version adds.

    None for those it lacks.
    """
    states = content.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    names = (
        "model_path",
        "served_model_name",
        "tp_size",
        "mem_fraction_static",
        "max_running_requests",
        "max_total_num_tokens",
        "context_length",
        "attention_backend",
        "kv_cache_dtype",
        "quantization",
        "disable_custom_all_reduce",
    )
    result = {name: content.get(name, state.get(name)) for name in names}
    result["last_gen_throughput"] = state.get("last_gen_throughput")
    result["memory_usage_gb"] = state.get("memory_usage") if isinstance(state.get("memory_usage"), dict) else None
    return result


def parse_metrics(text: str, engine: Engine) -> dict[str, float | None]:
    """``{running, queue, usage, tokens_per_s}`` of a Prometheus page, summed over labels; usage is the highest."""
    figures: dict[str, list[float]] = {}
    for name, value in _METRIC.findall(text):
        number = _finite(value)
        if number is not None:
            figures.setdefault(name, []).append(number)
    result: dict[str, float | None] = {}
    for ours, theirs in engine.metrics.items():
        found = figures.get(theirs)
        result[ours] = None if not found else max(found) if ours == "usage" else sum(found)
    return result


def _finite(text: str) -> float | None:
    return values.decimal_number(text)


def decode_answer(answer: Fetched, errors: Errors) -> Any:
    """The JSON of an answer; None, with the reason in `errors`, for anything else."""
    if not answer.ok:
        errors.add(answer.name, "is cut off" if answer.truncated else answer.reason or answer.status.replace("_", " "))
        return None
    try:
        content = values.json_value(answer.data.decode("utf-8"))
    except (ValueError, RecursionError):
        shown = " ".join(re.sub(r"<[^<>]*>", " ", answer.text[:2000]).split())[:120]
        errors.add(answer.name, "answers %s with what is not JSON: %s" % (answer.code, shown or "nothing"))
        return None
    if answer.code != 200:
        errors.add(answer.name, "answers %s: %s" % (answer.code, json.dumps(content)[:200]))
        return None
    return content


# What is known of a generation; None where it did not run.
GENERATION_FIELDS = (
    "answered",
    "text",
    "sane",
    "finite",
    "repeatable",
    "expected",
    "first_token_s",
    "tokens_per_s",
    "tokens",
    "problem",
    "insane_because",
)


def generate_answer(
    evidence: Evidence, base: str, model: str, errors: Errors, *, key: str | None = None, pattern: str | None = None
) -> dict[str, Any]:
    """The same deterministic prompt twice, through the API that clients use, streamed.

    ``{ran, answered, text, sane, finite, repeatable, expected, first_token_s, tokens_per_s, tokens, problem}``;
    `finite` None where the engine gives no logprobs, `expected` None where no pattern was given.
    """
    result: dict[str, Any] = dict.fromkeys(GENERATION_FIELDS)
    result["ran"] = True
    first = _once(evidence, base, model, key, 1)
    if not first.pop("captured"):
        why = "this bundle holds no generation (host_validation_server_generate=never leaves it out)"
        result.update(ran=None, skipped_reason=why)
        errors.add("the server", "was not asked for an answer: %s" % why)
        return result
    if first["problem"]:
        result.update(answered=False, problem=first["problem"])
        errors.add("the request for an answer", str(first["problem"]))
        return result
    second = _once(evidence, base, model, key, 2)
    if second["problem"] or not second["captured"]:
        errors.add("the second request for an answer", str(second["problem"] or "not captured in this bundle"))
    del second["captured"]
    result.update(first, answered=True, repeatable=None if second["problem"] else first["text"] == second["text"])
    result["insane_because"] = _insane(first["text"])
    result["sane"] = result["insane_because"] is None
    if pattern:
        try:
            result["expected"] = bool(re.search(pattern, first["text"]))
        except re.error as error:
            errors.add("expected_text", "no regular expression: %s" % error)
    if not second["problem"]:  # the first may pay for a compilation
        result.update({name: second[name] for name in ("first_token_s", "tokens_per_s")})
    return result


def _once(evidence: Evidence, base: str, model: str, key: str | None, number: int) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if key:
        headers["Authorization"] = "Bearer " + key
    settings = {"model": model, "max_tokens": TOKENS, "temperature": 0, "stream": True, "seed": 1}
    ways = (
        ("/v1/completions", {**settings, "prompt": PROMPT, "logprobs": 1}),
        (
            "/v1/chat/completions",
            {**settings, "messages": [{"role": "user", "content": "Name the capital of France."}]},
        ),
    )
    answer = Fetched("POST", base, ABSENT)
    for path, body in ways:
        answer = evidence.fetch(
            "POST",
            base + path,
            json.dumps(body).encode(),
            headers=headers,
            timeout=GENERATION_SECONDS,
            label="generation %d" % number,
        )
        if answer.code not in (404, 405):
            break
    return {**read_stream(answer), "captured": answer.status != NOT_CAPTURED}


def read_stream(answer: Fetched) -> dict[str, Any]:
    """One generation from server-sent events, or from one JSON object where the server does not stream."""
    result: dict[str, Any] = {
        "text": "",
        "tokens": 0,
        "finite": None,
        "first_token_s": answer.first_byte_s,
        "tokens_per_s": None,
        "problem": None,
    }
    if not answer.ok or answer.code != 200:
        said = " ".join(answer.text.split())[:200]
        result["problem"] = (
            (answer.reason or "the answer is cut off")
            if not answer.ok
            else "HTTP %s: %s" % (answer.code, said or "no text")
        )
        return result
    logprobs: list[Any] = []
    ended = _STREAM_END.search(answer.text) is not None
    for event in _events(answer.text):
        if isinstance(event.get("error"), (dict, str)):
            result["problem"] = json.dumps(event["error"])[:200]
        for choice in map(values.parse_mapping, values.parse_sequence(event.get("choices"))):
            _take_choice(choice, result, logprobs)
            ended = ended or bool(choice.get("finish_reason"))
    if logprobs:
        result["finite"] = all(isinstance(value, (int, float)) and math.isfinite(value) for value in logprobs)
    took = answer.seconds - (answer.first_byte_s or 0.0)
    if result["tokens"] > 1 and took > 0:
        result["tokens_per_s"] = round((result["tokens"] - 1) / took, 2)
    if not result["problem"] and not result["text"].strip():
        result["problem"] = "the answer holds no text"
    if not result["problem"] and not ended:
        result["problem"] = "the answer stops before its end: no finish_reason, and no [DONE]"
    return result


def _events(text: str) -> list[dict[str, Any]]:
    found = []
    pieces = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")] or [text]
    for piece in pieces:
        try:
            value = values.json_value(piece)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _take_choice(choice: dict[str, Any], result: dict[str, Any], logprobs: list[Any]) -> None:
    delta = choice.get("delta") if isinstance(choice.get("delta"), dict) else choice.get("message")
    words = choice.get("text")
    if isinstance(delta, dict):
        words = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(words, str) and words:
        result["text"] += words
        result["tokens"] += 1
    found = choice.get("logprobs")
    if isinstance(found, dict) and isinstance(found.get("token_logprobs"), list):
        # JSON has no NaN: engines write null, Python's parser also takes NaN. The first of an echoed prompt is null by
        # definition.
        logprobs.extend(found["token_logprobs"])
    if str(choice.get("finish_reason") or "").lower().startswith("nan"):
        result["problem"] = "the engine reports NaN"


def _insane(text: str) -> str | None:
    """Why a text is no answer of a working model; None where nothing speaks against it."""
    match = _RUN.search(text)
    if match:
        return "it repeats %r" % (match[1] or match[2])
    if "\ufffd" in text:
        return "it holds bytes that are no text"
    letters = sum(character.isalnum() for character in text)
    return "it holds no letters" if letters == 0 else None
