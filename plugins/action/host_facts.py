"""Gathers every kind of facts that a host has, by the modules of those facts. library/host_facts.py documents it.

One task in the place of one a kind: for each task Ansible starts a process a host, copies what is known of the host,
and waits for the slowest.
"""

from __future__ import annotations

import importlib
from typing import Any

from ansible.plugins.loader import action_loader

Facts: Any = action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach, too
gathering = importlib.import_module("ansible.module_utils.gpu_report.gathering")

_WISHES = ("auto", "true", "false")
_ARGUMENT_SPEC = {
    "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
    "bundle": {"type": "path"},
    "proxmox": {"type": "bool", "default": False},
    "probe": {"type": "str", "choices": [*_WISHES, "force"], "default": "auto"},
    "probe_python": {"type": "path"},
    "probe_environment": {"type": "dict", "default": {}},
    "server": {"type": "str", "choices": list(_WISHES), "default": "auto"},
    "server_unit": {"type": "str"},
    "server_log": {"type": "path"},
    "server_api_key": {"type": "str", "no_log": True},
    "server_generate": {"type": "str", "choices": ["never", "idle", "always"], "default": "idle"},
    "server_expected": {"type": "dict", "default": {}},
}


class ActionModule(Facts):  # type: ignore[misc]
    """Ends at the first module that fails, with what was gathered before it."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super(Facts, self).run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=_ARGUMENT_SPEC)
        result.update(changed=False, ansible_facts={})
        if not self._add(result, "gpu_facts", {"gather_subset": args["gather_subset"]}, args, task_vars):
            return result
        for name, arguments in self._others(args, result["ansible_facts"]["gpu_host"]):
            if not self._add(result, name, arguments, args, task_vars):
                break
        return result

    @staticmethod
    def _others(args: dict[str, Any], gpu_host: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """(module, its arguments) of the facts beside gpu_facts."""
        found: list[tuple[str, dict[str, Any]]] = []
        if gathering.sees_proxmox(gpu_host, args["proxmox"]):
            found.append(("proxmox_facts", {}))
        if gathering.probes(gpu_host, args["probe"]):
            when_busy = "force" if args["probe"] == "force" else "skip"
            found.append(
                (
                    "p2p_facts",
                    {"when_busy": when_busy, "python": args["probe_python"], "environment": args["probe_environment"]},
                )
            )
        if gathering.sees_server(gpu_host, args["server"]):
            names = ("unit", "log", "api_key", "generate", "expected")
            found.append(("inference_server_facts", {name: args["server_" + name] for name in names}))
        return found

    def _add(
        self,
        result: dict[str, Any],
        name: str,
        arguments: dict[str, Any],
        args: dict[str, Any],
        task_vars: dict[str, Any] | None,
    ) -> bool:
        """Gather by one module into `result`; whether it went well."""
        given = {key: value for key, value in arguments.items() if value is not None}
        answer = self.facts_of(name, given, args["bundle"], task_vars or {})
        result["ansible_facts"].update(answer.get("ansible_facts") or {})
        if answer.get("failed") or answer.get("unreachable"):
            result.update({**answer, "ansible_facts": result["ansible_facts"]})
            return False
        return True
