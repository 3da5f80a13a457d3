"""Samples of the inference server."""

from __future__ import annotations

from typing import Any

from ...gpu_host.evidence.values import parse_mapping
from .exposition import Samples

Facts = dict[str, Any]
STATES = ("absent", "stopped", "failed", "starting", "stalled", "ready", "unhealthy")


def add_server_samples(samples: Samples, facts: Facts) -> None:
    """The server, where there is one or one was looked for (watched_facts.digest_server)."""
    server = facts.get("server")
    if not isinstance(server, dict):
        return
    state = server.get("state")
    known = state in STATES
    for one in STATES:
        samples.add_value("server_state", state == one if known else None, state=one)
    if state == "absent":  # where one is expected, a check fails
        return
    samples.add_value("server_ready", state == "ready" if known else None)
    engine, version, model, inside = (server.get(name) for name in ("engine", "version", "model", "in_container"))
    samples.add_info("server_info", engine=engine, version=version, model=model, in_container=inside)
    if state in ("stopped", "failed"):
        return
    samples.add_value("server_start_time_seconds", server.get("started_at"))
    settings = server.get("settings")
    for name, value in parse_mapping(settings).items():
        samples.add_info("server_setting_info", setting=name, value=value)
    if settings is None:
        samples.count_unknown("server_setting_info")
    samples.add_value("server_setting_differences", server.get("differences"))
    samples.add_value("server_decode_tokens_per_second", server.get("decode_tokens_per_s"))
    _add_generation(samples, parse_mapping(server.get("generation")))


def _add_generation(samples: Samples, generation: Facts) -> None:
    """The one answer that was asked for. It was not asked for, or could not be: unknown."""
    ran = bool(generation.get("ran"))
    told = [generation.get(name) for name in ("answered", "sane", "finite")]
    correct = None if not ran else 0 if False in told else 1 if all(one is True for one in told) else None
    samples.add_value("server_generation_correct", correct)
    samples.add_value("server_generation_tokens_per_second", generation.get("tokens_per_s") if ran else None)
    samples.add_value("server_first_token_seconds", generation.get("first_token_s") if ran else None)
