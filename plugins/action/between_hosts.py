"""Joins the steps of an all-reduce over several hosts. library/between_hosts.py documents it.

Each step runs on every host of the group; what the others said at the step before stands in their variables, under the
names that playbooks/tasks/between_hosts.yml registers.
"""

from __future__ import annotations

import importlib
import json
import shlex
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Facts: Any = action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach, too
between_hosts = importlib.import_module("ansible.module_utils.gpu_host.probe.between_hosts")
host_ranks = importlib.import_module("ansible.module_utils.gpu_host.probe.host_ranks")
p2p_probe = importlib.import_module("ansible.module_utils.gpu_host.p2p_probe")
packed_facts = importlib.import_module("ansible.module_utils.gpu_checks.packed_facts")
errors_of = importlib.import_module("ansible.module_utils.gpu_host.evidence.errors")
worker_run = importlib.import_module("ansible.module_utils.gpu_host.probe.worker_run")

LOOK, FIRST, OTHERS, FETCH = ("__between_hosts_" + step for step in ("look", "first", "others", "fetch"))
SHOW_SECONDS = 5.0
ARGUMENT_SPEC = {
    "step": {"type": "str", "choices": ["look", "first", "others", "fetch", "join"], "required": True},
    "group": {"type": "str", "required": True},
    "address": {"type": "str"},
    "python": {"type": "path"},
    "nccl_library": {"type": "path"},
    "environment": {"type": "dict", "default": {}},
    "sizes": {"type": "list", "elements": "int", "default": []},
}


class ActionModule(Facts):  # type: ignore[misc]
    """One step on one host."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, args = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        self._args = args
        self._hosts: list[str] = list((self._vars.get("groups") or {}).get(args["group"]) or ())
        if self._host not in self._hosts:
            raise AnsibleActionFail("%s is no host of the group %s" % (self._host, args["group"]))
        result["changed"] = False
        steps = {
            "look": self._look,
            "first": self._first,
            "others": self._others,
            "fetch": self._fetch,
            "join": self._join,
        }
        result.update(steps[args["step"]]())
        return result

    # -- what the hosts of the group have said

    def _said(self, host: str, name: str) -> dict[str, Any]:
        """What `host` registered under `name`; {} where it did not come so far."""
        if host == self._host:
            return dict(self._vars.get(name) or {})
        found = self._vars["hostvars"].raw_get(host).get(name)
        return dict(found) if isinstance(found, dict) else {}

    def _facts_of(self, host: str) -> dict[str, Any]:
        variables = self._vars if host == self._host else self._vars["hostvars"].raw_get(host)
        found: dict[str, Any] = packed_facts.unpack_facts(variables.get("ansible_facts"))
        return found

    def _plan(self) -> dict[str, Any]:
        """The same on every host, because it is made of the same answers."""
        hosts = []
        for host in self._hosts:
            said = self._said(host, LOOK)
            known = self._facts_of(host).get("p2p_probe")
            lost = "it was not reached" if said.get("unreachable") else str(said.get("msg") or "")[:300]
            hosts.append(
                {
                    "host": host,
                    "look": said.get("look"),
                    "lost": lost,
                    "own_probe": between_hosts.find_own_problem(known),
                }
            )
        plan: dict[str, Any] = between_hosts.plan_run(hosts)
        plan["sizes"] = self._args["sizes"] or plan["sizes"]
        return plan

    def _order(self, plan: dict[str, Any], identifiers: dict[str, str | None] | None, token: str) -> dict[str, Any]:
        environment = {str(name): str(value) for name, value in self._args["environment"].items()}
        look = self._said(self._host, LOOK)["look"]
        order: dict[str, Any] = between_hosts.make_order(plan, self._host, look, environment, identifiers, token)
        return order

    # -- the steps

    def _look(self) -> dict[str, Any]:
        names = ("step", "group", "address", "python", "nccl_library")
        return self._call({name: self._args[name] for name in names if self._args[name] is not None})

    def _first(self) -> dict[str, Any]:
        if self._host != self._hosts[0]:
            return {}
        plan = self._plan()
        if not plan["arms"]:
            return {}
        token = between_hosts.make_token()
        self.show_line(
            "all-reduce over %d GPUs of %d hosts: %s"
            % (len(plan["addresses"]), len(self._hosts), ", ".join(arm["name"] for arm in plan["arms"]))
        )
        return {**self._start("first", self._order(plan, None, token)), "token": token}

    def _others(self) -> dict[str, Any]:
        first = self._said(self._hosts[0], FIRST)
        if self._host == self._hosts[0] or not first.get("directory") or first.get("problem"):
            return {}
        order = self._order(self._plan(), first["identifiers"], first["token"])
        return self._start("others", order, meeting={"port": first["port"]})

    def _start(self, step: str, order: dict[str, Any], **more: Any) -> dict[str, Any]:
        given = {"step": step, "group": self._args["group"], "address": self._args["address"], "order": order, **more}
        return self._call({name: value for name, value in given.items() if value is not None})

    def _call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="between_hosts", module_args=arguments, task_vars=self._with_interpreter(self._vars)
        )
        return answer

    def _fetch(self) -> dict[str, Any]:
        """Follow this host's ranks to their end. Where a host did not start, those that wait for it are told to
        stop."""
        own = self._said(self._host, FIRST if self._host == self._hosts[0] else OTHERS)
        directory = own.get("directory")
        if not directory:
            return {"result": None}
        absent = self._find_absent()
        if absent:
            stop = "printf '%%s' %s > %s/%s" % (
                shlex.quote("not all hosts came: " + ", ".join(absent)),
                shlex.quote(directory),
                host_ranks.STOP,
            )
            self._low_level_execute_command(stop)
        shown, last = 0.0, ""

        def look(text: str, seconds: float) -> None:
            nonlocal shown, last
            line = text.strip().splitlines()[-1:] or [""]
            if seconds - shown >= SHOW_SECONDS and line[0] != last:
                shown, last = seconds, line[0]
                self.show_line("all-reduce between hosts: %s, %d s" % (last[:100], seconds))

        try:
            _progress, content = self.follow_detached(
                directory,
                output=host_ranks.PROGRESS,
                end=host_ranks.RESULT,
                label="the all-reduce between hosts",
                limit=host_ranks.LIMIT_S + 30,
                look=look,
            )
        finally:
            self.remove_directory(directory)
        try:
            return {"result": json.loads(content or "null")}
        except ValueError:
            return {"result": None, "why": "its result cannot be read: %s" % (content or "")[:200]}

    def _find_absent(self) -> list[str]:
        """The hosts that have not started their ranks."""
        return [
            host
            for number, host in enumerate(self._hosts)
            if not self._said(host, OTHERS if number else FIRST).get("directory")
        ]

    def _join(self) -> dict[str, Any]:
        """All results as one: ``{raw, ansible_facts}``."""
        said = {
            host: {
                "look": self._said(host, LOOK).get("look"),
                "started": self._said(host, OTHERS if number else FIRST),
                "fetched": self._said(host, FETCH),
            }
            for number, host in enumerate(self._hosts)
        }
        raw = between_hosts.join_results(self._args["group"], self._host, self._plan(), said)
        evidence = worker_run.ProbeEvidence({}, 1)
        evidence.commands[between_hosts.BETWEEN_COMMAND] = lambda: raw
        errors = errors_of.Errors("probe")
        found = p2p_probe.gather_between_hosts(evidence, errors)
        facts = self._facts_of(self._host)
        not_run = (((facts.get("gpu_host") or {}).get("evidence") or {}).get("probe_not_run")) or "it was not asked for"
        probe = {**(facts.get("p2p_probe") or p2p_probe.make_unasked(not_run)), "between_hosts": found}
        probe["errors"] = [*(probe.get("errors") or ()), *errors.entries]
        return {"raw": raw, "ansible_facts": {"p2p_probe": probe}, "msg": found["reason"] or found["verdict"]}
