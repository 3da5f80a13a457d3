"""Waits for an inference server and shows its phases; library/inference_server_ready.py documents it."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
watching = importlib.import_module("ansible.module_utils.gpu_server.watching")
REPEAT_SECONDS = 60.0  # a line that stays the same is shown again after this
ARGUMENT_SPEC = {
    "unit": {"type": "str"},
    "port": {"type": "int"},
    "log": {"type": "path"},
    "api_key": {"type": "str", "no_log": True},
    "model": {"type": "str"},
    "context_length": {"type": "int"},
    "expected_text": {"type": "str"},
    "interval": {"type": "float", "default": 5.0},
    "patience_scale": {"type": "float", "default": 1.0},
    "limit": {"type": "int", "default": 7200},
    "together": {"type": "str"},
    "members": {"type": "dict", "default": {}},
}


class OtherRanks:
    """Where the waits for the ranks of one server tell one another that one has failed.

    They run side by side in the workers of one ansible-playbook, which share its temporary directory on the controller.
    """

    def __init__(self, name: str, host: str) -> None:
        self.place = Path(str(constants.DEFAULT_LOCAL_TMP)) / ("ranks-" + name.replace("/", "-"))
        self.host = host

    def tell_failure(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / self.host.replace("/", "-")).touch()

    def find_failure(self) -> str | None:
        """The host of a rank that has failed."""
        return next((path.name for path in sorted(self.place.glob("*"))), None)


def name_absent(facts: dict[str, Any], members: dict[str, str]) -> None:
    """Adds to the part that this host has of a server the names of those that are not connected to it."""
    node = facts.get("node")
    if node and node["peers"] is not None:
        known = {*node["peers"], node["address"]}
        node["absent"] = [name for name, address in members.items() if address and address not in known]


def name_place(text: str, members: dict[str, str]) -> str:
    """Whose rank a line of the log is about, which says so by its address: "(RayWorkerWrapper pid=7, ip=10.0.0.2)"."""
    found = [name for name, address in members.items() if address and "ip=%s)" % address in text]
    return " (%s)" % found[0] if found else ""


class ActionModule(Base):  # type: ignore[misc]
    """Each look is one call of the facts module; what it means is judged here."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, args = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        if self._task.check_mode:
            return {**result, "changed": False, "msg": "would wait for the server", "state": "skipped", "history": []}
        began = time.monotonic()
        watch = watching.Watch(scale=args["patience_scale"], limit_s=float(args["limit"]))
        others = OtherRanks(args["together"], self._host) if args["together"] else None
        verdict = self._wait(watch, args, others)
        if verdict.state == "ready":
            verdict = self._ask(verdict, args)
            watch.history.append(verdict.message)
        if verdict.state != "ready":
            verdict.message += name_place(verdict.line or verdict.message, args["members"])
        if others and verdict.state != "ready" and verdict.cause != watching.OTHER_RANK:
            others.tell_failure()
        advice = " " + verdict.advice if verdict.advice and verdict.state != "ready" else ""
        result.update(
            changed=False, state=verdict.state, phase=verdict.phase, cause=verdict.cause, advice=verdict.advice,
            history=watch.history,
            seconds=round(time.monotonic() - began, 1), failed=verdict.state != "ready",
            msg="%s: %s%s" % (verdict.state, verdict.message, advice),
        )  # fmt: skip
        return result

    def _wait(self, watch: Any, args: dict[str, Any], others: OtherRanks | None = None) -> Any:
        shown, shown_at = "", 0.0
        while True:
            facts = self._facts(args, light=True, generate="never")
            name_absent(facts, args["members"])
            verdict = watch.look(facts, time.monotonic())
            failed = others.find_failure() if others and verdict.state == "waiting" else None
            if failed:
                verdict = watching.Verdict(
                    "failed", "it waited, and %s had failed" % failed, phase=verdict.phase, cause=watching.OTHER_RANK
                )
            if verdict.message != shown or time.monotonic() - shown_at > REPEAT_SECONDS:
                self.show_line(verdict.message)
                shown, shown_at = verdict.message, time.monotonic()
            if verdict.state != "waiting":
                return verdict
            time.sleep(max(0.1, args["interval"]))

    def _ask(self, before: Any, args: dict[str, Any]) -> Any:
        facts = self._facts(args, light=True, generate="always", expected_text=args["expected_text"])
        if facts["state"] not in ("ready", "unhealthy"):
            return watching.Verdict(
                "failed", "it was ready, and is %s: %s" % (facts["state"], facts["why"]), phase=before.phase
            )
        verdict = watching.judge_answers(facts, args["model"], args["context_length"])
        verdict.phase = before.phase
        if verdict.state == "ready":
            verdict.message = "%s; %s" % (before.message, verdict.message)
        self.show_line(verdict.message)
        return verdict

    def _facts(self, args: dict[str, Any], **more: Any) -> dict[str, Any]:
        module_args = {
            name: args[name] for name in ("unit", "port", "log", "api_key", "patience_scale") if args[name] is not None
        }
        module_args.update({name: value for name, value in more.items() if value is not None})
        problem = ""
        for _look in range(self.BROKEN_LOOKS):
            answer = self._execute_module(
                module_name="inference_server_facts", module_args=module_args, task_vars=self._vars
            )
            facts = (answer.get("ansible_facts") or {}).get("inference_server")
            if facts:
                return dict(facts)
            problem = answer.get("msg") or "no facts came back"
            if not answer.get("unreachable"):
                raise AnsibleActionFail("The server could not be looked at: %s" % problem)
            time.sleep(5)
        raise AnsibleActionFail("The host did not answer %d times in a row: %s" % (self.BROKEN_LOOKS, problem))
