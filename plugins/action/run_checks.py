"""Judges one host by checks/*.yml, on the controller. library/run_checks.py documents the arguments and the result."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)


def _ours(name: str) -> Any:
    return importlib.import_module("ansible.module_utils." + name)


check_files, engine, evaluator, guest_cards, check_cache, subject, unproven, verdict, waivers = map(
    _ours,
    (
        "gpu_checks." + name
        for name in (
            "check_files",
            "engine",
            "evaluator",
            "guest_cards",
            "check_cache",
            "subject",
            "unproven",
            "verdict",
            "waivers",
        )
    ),
)
packed_facts = _ours("gpu_checks.packed_facts")
digest = _ours("gpu_report.digest")
baseline_files = _ours("gpu_report.baseline_files")
features = _ours("gpu_compare.features")
baseline = _ours("gpu_compare.baseline")
gather = _ours("gpu_host.gather")

_LISTS = ("tags", "skip_tags", "only", "exclude", "run_tags", "run_skip_tags")
_METRICS_FILE = "gpu_host_validation.prom"
_ARGUMENT_SPEC = {
    "checks_dir": {"type": "path", "default": check_cache.OWN},
    "expected": {"type": "dict", "default": {}},
    "waivers": {"type": "raw", "default": []},
    "baseline": {"type": "str", "choices": list(baseline.MODES), "default": baseline.OFF},
    "baseline_dir": {"type": "path", "default": os.path.join(os.path.dirname(check_cache.OWN), "baselines", "hosts")},
    "metrics_directory": {"type": "str", "default": ""},  # of the host: no path of this machine
    **{name: {"type": "list", "elements": "str", "default": []} for name in _LISTS},
}


with contextlib.suppress(check_files.ChecksError):  # a fault is told by the task
    check_cache.load_checks_cached()


class ActionModule(Base):  # type: ignore[misc]
    """One task judges one host by every check; nothing runs on the host, unless its metrics are to be written there."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, arguments = self.begin_task(tmp, task_vars, _ARGUMENT_SPEC)
        task_vars = self._vars
        try:
            every = check_cache.load_checks_cached(arguments["checks_dir"])
        except check_files.ChecksError as error:
            raise AnsibleActionFail("The checks cannot be used:\n%s" % error) from None
        chosen, problems = verdict.choose_checks(every, **{name: arguments[name] for name in _LISTS})
        waived, faults = waivers.parse_waivers(
            arguments["waivers"], [check.id for check in every], datetime.date.today()
        )
        try:
            host = subject.build_subject(task_vars, self._templar.template)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        part = "only %d of %d checks were chosen" % (len(chosen), len(every)) if len(chosen) < len(every) else ""
        if not arguments["tags"]:
            chosen = subject.choose_checks_of_pieces(chosen, host)
        if host.get("hypervisor") and host["hypervisor"]["name"] != subject.HANDED_IN_HYPERVISOR:
            self._add_findings_on_cards(host, every, task_vars)
        variables = engine.make_variables(host, arguments["expected"], task_vars.get("inventory_hostname", ""))
        results = engine.evaluate_checks(chosen, variables, self._evaluator(variables), waived)
        result.update(
            verdict.summarise_verdict(results, problems + faults), checks_dir=os.path.abspath(arguments["checks_dir"])
        )
        result["unproven"] = unproven.list_unproven(host)
        # As text: Ansible copies every value of a result for every callback, one by one, which takes longer than all
        # the checks.
        result["report_facts"] = json.dumps(digest.digest_facts(host))
        result["report_features"] = json.dumps(features.extract_features(host))
        part = part or _name_missing_subjects(host)
        if part:
            result["part"] = part
        look = baseline_files.Look(str(self._host), host, results, result, every, part, self._task.check_mode)
        directory = os.path.abspath(os.path.expanduser(arguments["baseline_dir"]))
        drift = baseline_files.follow_baseline(arguments["baseline"], directory, look)
        if drift is not None:
            result["report_drift"] = json.dumps(drift, default=str)
        live = (host.get("evidence") or {}).get("recorded") is False
        if arguments["metrics_directory"] and live and not part:
            problem = self._write_metrics(arguments["metrics_directory"], result)
            if problem:
                result.update(verdict.summarise_verdict(results, [*problems, *faults, problem]))
        return result

    def _write_metrics(self, directory: str, result: dict[str, Any]) -> str:
        """Leave the metrics of this host on it, from a report of this host alone; why that failed, "" where it did
        not. A part of a host, which would say less than what is there, and a recorded host never get here."""
        collector, report = _ours("gpu_report.collector").Collector(), _ours("gpu_report.metrics_report")
        collector.results(self._host, result)
        text = report.render_metrics(collector.report(report.describe_run_of_now())).decode()
        arguments = {"path": os.path.join(directory, _METRICS_FILE), "content": text}
        answer = self._execute_module("write_metrics", module_args=arguments, task_vars=self._vars)
        result["changed"] = bool(answer.get("changed"))
        return "its metrics are not on the host: %s" % answer.get("msg") if answer.get("failed") else ""

    def _evaluator(self, variables: dict[str, Any]) -> Any:
        return evaluator.TemplarEvaluator(self._templar.copy_with_new_env(), variables)

    def _add_findings_on_cards(self, host: dict[str, Any], every: list[Any], task_vars: dict[str, Any]) -> None:
        """What the same checks find on the Proxmox host about the cards of this guest."""
        seen_from = task_vars["hostvars"].raw_get(host["hypervisor"]["name"])
        facts = packed_facts.unpack_facts(seen_from.get("ansible_facts"))
        seen = None
        if isinstance(facts.get("gpu_host"), dict):
            seen = subject.make_host(facts)
            subject.describe_place(seen, ())
        guest_cards.add_findings(host["hypervisor"], every, seen, self._evaluator)


def _name_missing_subjects(host: dict[str, Any]) -> str:
    gathered = (host.get("evidence") or {}).get("subjects")
    missing = [name for name in gather.SUBJECTS if gathered is not None and name not in gathered]
    return "%s were not gathered" % ", ".join(missing) if missing else ""
