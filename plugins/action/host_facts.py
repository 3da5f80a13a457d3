"""Gathers every kind of facts that a host has, by the modules of those facts. library/host_facts.py documents it.

One task in the place of one per kind: for each task Ansible starts a process per host, copies what is known of the
host, and waits for the slowest.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Facts: Any = action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach, too
wanted = importlib.import_module("ansible.module_utils.gpu_host.probe.wanted")
bundles = importlib.import_module("ansible.module_utils.gpu_host.evidence.bundle")
anonymiser = importlib.import_module("ansible.module_utils.gpu_host.evidence.anonymise")
describer = importlib.import_module("ansible.module_utils.gpu_host.evidence.describe_bundle")
files = importlib.import_module("ansible.module_utils.gpu_report.files")
detection = importlib.import_module("ansible.module_utils.gpu_server.detection")
proxmox_host = importlib.import_module("ansible.module_utils.gpu_host.proxmox")
not_run = importlib.import_module("ansible.module_utils.gpu_host.probe.not_run")
packed_facts = importlib.import_module("ansible.module_utils.gpu_checks.packed_facts")
run_options = importlib.import_module("ansible.module_utils.gpu_checks.run_options")

_MODES = ("auto", "true", "false")
_ARGUMENT_SPEC = {
    "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
    "bundle": {"type": "path"},
    "proxmox": {"type": "str", "choices": list(_MODES), "default": "auto"},
    "probe": {"type": "str", "choices": [*_MODES, "force"], "default": "auto"},
    "probe_python": {"type": "path"},
    "probe_nccl": {"type": "path"},
    "probe_engine_all_reduce": {"type": "bool", "default": False},
    "probe_environment": {"type": "dict", "default": {}},
    "probe_between_hosts": {"type": "dict"},
    "server": {"type": "str", "choices": list(_MODES), "default": "auto"},
    "server_unit": {"type": "str"},
    "server_log": {"type": "path"},
    "server_api_key": {"type": "str", "no_log": True},
    "server_generate": {"type": "str", "choices": ["never", "idle", "always"], "default": "idle"},
    "server_expected": {"type": "dict", "default": {}},
    "capture_dest": {"type": "path"},
    "capture_anonymous": {"type": "bool", "default": False},
    "own_run": {"type": "bool", "default": False},
    "run_tags": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(Facts):  # type: ignore[misc]
    """Ends at the first module that fails, with what was gathered before it."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = packed_facts.pack_result(self._gather(tmp, task_vars))
        return result

    def _gather(self, tmp: Any, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result, args = self.begin_task(tmp, task_vars, _ARGUMENT_SPEC)
        # A playbook of somebody's own has tags and settings of its own, which are no fault.
        problems = args["own_run"] and run_options.find_problems(
            args["run_tags"], str((task_vars or {}).get("playbook_dir", ""))
        )
        if problems:
            raise AnsibleActionFail(" ".join(problems))
        result.update(changed=False, ansible_facts={})
        # What the modules recorded, each as the text of a bundle. It is no part of the result: Ansible copies every
        # value of a result for every callback.
        recorded: list[str] = []
        if not self._add(result, "gpu_facts", {"gather_subset": args["gather_subset"]}, args, recorded):
            return result
        gpu_host = result["ansible_facts"]["gpu_host"]
        if not wanted.wants_probe(gpu_host, args["probe"]):
            gpu_host.setdefault("evidence", {})["probe_not_run"] = not_run.explain_not_run(gpu_host, args["probe"])
        for name, arguments in self._others(args, gpu_host):
            if not self._add(result, name, arguments, args, recorded):
                return result
        if args["capture_dest"]:
            result.update(self._write_bundle(recorded, args["capture_dest"], args["capture_anonymous"]))
        return result

    @staticmethod
    def _others(args: dict[str, Any], gpu_host: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """(module, its arguments) of the facts beside gpu_facts."""
        found: list[tuple[str, dict[str, Any]]] = []
        proxmox = proxmox_host.may_be_proxmox(gpu_host) if args["proxmox"] == "auto" else args["proxmox"] == "true"
        if proxmox:
            found.append(("proxmox_facts", {}))
        if wanted.wants_probe(gpu_host, args["probe"]):
            when_busy = "force" if args["probe"] == "force" else "skip"
            found.append(
                (
                    "p2p_facts",
                    {
                        "when_busy": when_busy,
                        "python": args["probe_python"],
                        "nccl_library": args["probe_nccl"],
                        "environment": args["probe_environment"],
                        "engine_all_reduce": args["probe_engine_all_reduce"] or None,
                        "between_hosts": args["probe_between_hosts"],
                    },
                )
            )
        named = bool(args["server_unit"] or args["server_log"] or args["server_expected"])
        seen = detection.sees_server(gpu_host, args["server"], named)
        if seen != "no":
            names = ("unit", "log", "api_key", "generate", "expected")
            arguments = {name: args["server_" + name] for name in names}
            # A Proxmox host sees the servers of its containers, too, which are asked where they run.
            own = proxmox and args["server"] == "auto" and not named
            arguments["outside_containers"] = True if own else None
            arguments["only_if_found"] = True if own or seen == "if_found" else None
            found.append(("inference_server_facts", arguments))
        return found

    def _add(
        self, result: dict[str, Any], name: str, arguments: dict[str, Any], args: dict[str, Any], recorded: list[str]
    ) -> bool:
        """Gather by one module into `result` and, where a bundle is written, `recorded`; whether it went well."""
        given = {key: value for key, value in arguments.items() if value is not None}
        if name != "gpu_facts":  # a program that hangs is asked once in a run, not once by every module
            gpu_host = result["ansible_facts"].get("gpu_host") or {}
            self.gpu_count = (gpu_host.get("gpus") or {}).get("count")
            given["unanswered"] = (gpu_host.get("evidence") or {}).get("unanswered") or {}
        if args["capture_dest"]:
            given["capture"] = True
        answer = self.facts_of(name, given, args["bundle"], self._vars)
        recorded.append(answer.pop("bundle_text", ""))
        result["ansible_facts"].update(answer.get("ansible_facts") or {})
        if answer.get("failed") or answer.get("unreachable"):
            result.update({**answer, "ansible_facts": result["ansible_facts"]})
            return False
        return True

    def _write_bundle(self, recorded: list[str], dest: str, anonymous: bool) -> dict[str, Any]:
        """Write one bundle of all that was recorded, whole or not at all:

        ``{changed, dest, records, size_bytes, summary, msg}``.
        """
        path = os.path.abspath(os.path.expanduser(dest))
        try:
            text, count = bundles.join_bundles(recorded)
        except ValueError as error:
            raise AnsibleActionFail("What the host sent is no bundle, nothing was written: %s" % error) from None
        text = anonymiser.anonymise_bundle(text) if anonymous else text
        data = bundles.compress_bundle(text)
        changed = files.read_or_none(path) != data
        if changed and not self._task.check_mode:
            try:
                files.write_file(path, data, mode=0o600)
            except OSError as error:
                raise AnsibleActionFail("%s cannot be written: %s" % (path, error.strerror or error)) from None
        message = "%s: %d answers, %d KiB" % (path, count, len(data) // 1024)
        return {
            "changed": changed,
            "dest": path,
            "records": count,
            "size_bytes": len(data),
            "summary": describer.summarise_bundle(text),
            "msg": message,
        }
