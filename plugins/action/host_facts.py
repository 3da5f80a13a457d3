"""Gathers every kind of facts that a host has. library/host_facts.py documents it, and is what runs on the host.

One task in the place of one per kind, and one module: for each task Ansible starts a process per host, copies what is
known of the host, and waits for the slowest; each module is half a megabyte to be made, sent and read.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.loader import action_loader

Facts: Any = action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach, too
bundles = importlib.import_module("ansible.module_utils.gpu_host.evidence.bundle")
anonymiser = importlib.import_module("ansible.module_utils.gpu_host.evidence.anonymise")
describer = importlib.import_module("ansible.module_utils.gpu_host.evidence.describe_bundle")
files = importlib.import_module("ansible.module_utils.gpu_report.files")
every_kind = importlib.import_module("ansible.module_utils.gpu_gather.every_kind")
packed_facts = importlib.import_module("ansible.module_utils.gpu_checks.packed_facts")
run_options = importlib.import_module("ansible.module_utils.gpu_checks.run_options")

with contextlib.suppress(OSError, KeyError, TypeError, AnsibleError):  # a fault is told by the task
    run_options.load_role_variables()  # once a run, before the workers

# Of the action, beside those of the facts.
_ARGUMENT_SPEC = {
    **{name: spec for name, spec in every_kind.ARGUMENT_SPEC.items() if name != "capture"},
    "bundle": {"type": "path"},
    "server_api_key": {"type": "str", "no_log": True},
    "capture_dest": {"type": "path"},
    "capture_anonymous": {"type": "bool", "default": False},
    "own_run": {"type": "bool", "default": False},
    "run_tags": {"type": "list", "elements": "str", "default": []},
}
# A module keeps the value of a key out of all that it answers: where the key is a common word, the other facts would
# lose that word, too.
_WITH_KEY = "inference_server_facts"


class ActionModule(Facts):  # type: ignore[misc]
    """Ends at the first kind of facts that fails, with what was gathered before it."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = packed_facts.pack_result(self._answer(tmp, task_vars))
        return result

    def _answer(self, tmp: Any, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        if self._task.args.get("own_run"):
            wrong = run_options.find_wrong_variables(task_vars or {}, self._templar.template)
            if wrong:
                raise AnsibleActionFail("Variables of the inventory are wrong: %s" % "; ".join(wrong))
        result, args = self.begin_task(tmp, task_vars, _ARGUMENT_SPEC)
        # A playbook of somebody's own has tags and settings of its own, which are no fault.
        problems = args["own_run"] and run_options.find_problems(
            args["run_tags"], str((task_vars or {}).get("playbook_dir", ""))
        )
        if problems:
            raise AnsibleActionFail(" ".join(problems))
        args["capture"] = bool(args["capture_dest"])
        found = self._gather(args)
        # What the modules recorded, each as the text of a bundle. It is no part of the result: Ansible copies every
        # value of a result for every callback.
        recorded = found.pop("bundle_texts", [])
        result.update(found)
        if args["capture_dest"] and not (found.get("failed") or found.get("unreachable")):
            result.update(self._write_bundle(recorded, args["capture_dest"], args["capture_anonymous"]))
        return result

    def _gather(self, args: dict[str, Any]) -> dict[str, Any]:
        """What `every_kind.gather_every_kind` gives: of a recorded host here, of a live one by one module on it and,
        for what that leaves, by one each."""

        def ask(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = self.facts_of(name, arguments, args["bundle"], self._vars)
            return answer

        if args["bundle"]:
            everything: dict[str, Any] = every_kind.gather_every_kind(args, ask, lambda name, gpu_host: False)
            return everything
        given = {name: args[name] for name in every_kind.ARGUMENT_SPEC if args[name] is not None}
        if args["server_api_key"]:
            given["left"] = [_WITH_KEY]
        found = ask("host_facts", given)
        found.setdefault("bundle_texts", [])
        found.pop("invocation", None)
        gpu_host = (found.setdefault("ansible_facts", {}) or {}).get("gpu_host")
        if found.get("failed") or found.get("unreachable") or not isinstance(gpu_host, dict):
            return found
        self.gpu_count = (gpu_host.get("gpus") or {}).get("count")
        for name, arguments in every_kind.list_others(args, gpu_host):
            known = every_kind.KEYS[name] in found["ansible_facts"]
            if not known and not every_kind.add_kind(found, name, arguments, args, ask):
                break
        return found

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
