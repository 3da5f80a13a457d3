"""Waits for a server by evidence: look after look, until it is ready, has failed, or is stuck.

Never by a bare time-out.

Pure: `Watch.look` is given the facts of each look and the time, and says what to show and whether that was the last
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import ray_nodes, stall
from .engines import describe_phase

GRACE_SECONDS = 20.0  # a unit that was just started has no process yet
OTHER_RANK = "other_rank"  # the cause of a wait that ended because another rank of the same server had failed
MISSING_RANK_SECONDS = 15.0  # ranks start and end one after the other


@dataclass
class Verdict:
    """`state`: waiting, ready, failed or stalled. `message`: one line for a person; `advice`: what to do. `line`: the
    whole line of the log of which the message quotes a part."""

    state: str
    message: str
    advice: str = ""
    phase: str | None = None
    cause: str | None = None
    line: str = ""


@dataclass
class Watch:
    """`scale` stretches every patience; `limit_s` bounds the whole wait, and then says in which phase it was."""

    scale: float = 1.0
    limit_s: float = 0.0
    began: float | None = None
    _before: dict[str, Any] | None = None
    _moved_at: float = 0.0
    _missing_since: float | None = None
    _restarts: int | None = None
    history: list[str] = field(default_factory=list)

    def look(self, facts: dict[str, Any], now: float) -> Verdict:
        if self.began is None:
            self.began = self._moved_at = now
        moving, before = facts["moving"], self._before
        moved = stall.describe_progress(before, moving) if before else "the first look"
        if moved:
            self._moved_at = now
        self._before = moving
        verdict = self._judge(facts, now, before if not moved else None)
        verdict.phase = facts["log"]["phase"]
        if not self.history or self.history[-1] != verdict.message:
            self.history.append(verdict.message)
        return verdict

    def _judge(self, facts: dict[str, Any], now: float, unmoved: dict[str, Any] | None) -> Verdict:
        state = facts["state"]
        waited = now - (self.began or now)
        restarts = (facts["unit"] or {}).get("restarts")
        self._restarts = restarts if self._restarts is None else self._restarts
        if restarts is not None and self._restarts is not None and restarts > self._restarts:
            return self._failed(
                facts, "it ended and systemd started it again (%d times): " % (restarts - self._restarts)
            )
        if state == "ready":
            return Verdict("ready", "ready after %s" % format_duration(waited))
        if state == "failed" or (state == "unhealthy" and facts["fault"]):
            return self._failed(facts)
        if state in ("absent", "stopped"):
            if waited < GRACE_SECONDS * self.scale:
                return Verdict("waiting", "not started yet")
            # What the unit runs before the engine, such as Ray's head, takes its time.
            if (facts["unit"] or {}).get("active") == "active" and waited < stall.find_patience(None, self.scale):
                return Verdict("waiting", "its unit runs, and has not come to the engine yet")
            return Verdict(
                "failed", "it does not run: %s" % facts["why"], "Start it, and look at its unit and its log."
            )
        return self._stuck(facts, now, unmoved) or Verdict("waiting", describe_start(facts))

    def _failed(self, facts: dict[str, Any], lead: str = "") -> Verdict:
        fault = facts["fault"]
        if not fault:
            return Verdict(
                "failed", lead + facts["why"], "The log says more: %s" % (facts["log"]["path"] or "none was found")
            )
        line = fault["exception"] or fault["line"]
        return Verdict(
            "failed",
            "%s%s. Its log, line %d: %s" % (lead, fault["meaning"], fault["number"], line),
            fault["advice"],
            cause=fault["kind"],
            line=fault["line"],
        )

    def _stuck(self, facts: dict[str, Any], now: float, unmoved: dict[str, Any] | None) -> Verdict | None:
        quiet, phase = now - self._moved_at, facts["log"]["phase"]
        why = stall.find_cause(facts, unmoved)
        if why["cause"] in ("rank_missing", "rank_stopped", "kernel"):
            self._missing_since = now if self._missing_since is None else self._missing_since
            if now - self._missing_since >= MISSING_RANK_SECONDS * self.scale:
                return self._stalled(facts, why, max(quiet, now - self._missing_since))
        else:
            self._missing_since = None
        # One look may find a log that has been silent for long; that nothing else moves takes a second look.
        long_quiet = facts["state"] == "stalled" and unmoved is not None and why["cause"] != "rank_stopped"
        waits = ray_nodes.waits_for_server(facts)
        if not waits and (long_quiet or quiet > stall.find_patience(phase, self.scale)):
            return self._stalled(facts, why, max(quiet, facts["log"]["age_s"] or 0.0) if long_quiet else quiet)
        if self.limit_s and now - (self.began or now) > self.limit_s:
            return self._stalled(facts, why, quiet, "not ready within %s; " % format_duration(self.limit_s))
        return None

    @staticmethod
    def _stalled(facts: dict[str, Any], why: dict[str, str], since: float, lead: str = "") -> Verdict:
        doing = describe_phase(facts["log"]["phase"]) or "starts (no phase known)"
        return Verdict(
            "stalled",
            "%sit %s, and nothing has moved for %s: %s" % (lead, doing, format_duration(since), why["what"]),
            why["advice"],
            cause=why["cause"],
        )


def describe_start(facts: dict[str, Any]) -> str:
    """ "loads weights 41/83, 4 min left": what a start does now."""
    log = facts["log"]
    if ray_nodes.waits_for_server(facts):
        return "its Ray node waits for the ranks that rank 0 will start in it"
    text = describe_phase(log["phase"]) or "starts"
    absent = stall.name_absent_hosts(facts)
    if absent:
        text += "; not connected yet: %s" % absent
    progress = log["progress"]
    if progress and progress["phase"] == log["phase"] and progress["done"] < progress["total"]:
        text += " %d/%d" % (progress["done"], progress["total"])
        if progress["left_s"]:
            text += ", %s left" % format_duration(progress["left_s"])
    if facts["compilers"]:
        text += "; %d compilers run" % len(facts["compilers"])
    if facts["gpu"]["highest_mib"]:
        text += "; %d MiB on each GPU" % facts["gpu"]["highest_mib"]
    return text


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return "%d s" % round(seconds)
    return "%d min" % round(seconds / 60) if seconds < 5400 else "%.1f h" % (seconds / 3600)


def judge_answers(facts: dict[str, Any], model: str | None, context: int | None) -> Verdict:
    """What a server that says that it is ready is worth: the right model, the right context, and a real answer."""
    api, asked = facts["api"], facts["generation"]
    if model and api["model"] and model not in (api["models"] or ()):
        return Verdict(
            "failed",
            "it serves %s, not %s" % (", ".join(api["models"]), model),
            "Correct --served-model-name or the model.",
            cause="wrong_model",
        )
    if context and api["context_length"] and api["context_length"] != context:
        return Verdict(
            "failed",
            "its context length is %d, not %d" % (api["context_length"], context),
            "Set --context-length.",
            cause="wrong_context",
        )
    if asked["ran"] is None:
        return Verdict(
            "failed",
            "it says that it is ready, and cannot be asked for an answer: %s" % asked["skipped_reason"],
            cause="not_asked",
        )
    if not asked["ran"]:
        return Verdict("ready", "/health answers; no generation was tried: %s" % asked["skipped_reason"])
    if not asked["answered"]:
        fault = facts["fault"]
        why = " (%s)" % fault["meaning"] if fault else ""
        return Verdict(
            "failed",
            "it is listed and healthy, and cannot generate: %s%s" % (asked["problem"], why),
            fault["advice"] if fault else "",
            cause="no_generation",
        )
    if facts["fault"] and facts["fault"]["kind"] == "nan":
        return Verdict("failed", facts["fault"]["meaning"], facts["fault"]["advice"], cause="nan")
    for good, why in (
        (asked["sane"], asked["insane_because"]),
        (asked["finite"] is not False, "its logprobs are not finite"),
        (asked["expected"] is not False, "it does not match what is expected"),
    ):
        if not good:
            return Verdict(
                "failed",
                "it answers nonsense: %r: %s" % (asked["text"][:80], why),
                "Wrong data over peer-to-peer and NaN both do that: run the probe; try another attention backend.",
                cause="nonsense",
            )
    return Verdict(
        "ready", "it answers %r, first token after %.2f s" % (asked["text"].strip()[:60], asked["first_token_s"] or 0.0)
    )
