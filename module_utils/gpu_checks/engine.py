"""Judges one host: checks + facts + expectations -> results. Pure: no playbook, no connection, no clock.

A result is a plain dictionary::

    {id, title, severity, tags, docs,
     status: pass | fail | unknown | skip | waived | error,
     found: what was seen, for fail and waived,
     reason: why it is unknown, skipped, waived or broken,
     needs_root: unknown only because the facts were not gathered as root,
     why: the background, where it failed,
     failed_condition, remedy: {number (of those of its check, from 1), on, hypervisor (its kind, where known), text,
        commands, risk, verify, and what of disrupts, role, settings, by_hand the check gives} or None,
     explains: [ids], caused_by: [ids of the nearest failing causes], root_cause: bool,
     waiver: {reason, expires, status} or None}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ansible.template import is_trusted_as_template, trust_as_template

from . import causes, expressions, unknowns, waivers
from .check_files import Check
from .evaluator import EMPTY, Asked, EvaluationError, Evaluator

PASS, FAIL, UNKNOWN, SKIP, WAIVED, ERROR = "pass", "fail", "unknown", "skip", "waived", "error"
STATUSES = (PASS, FAIL, UNKNOWN, SKIP, WAIVED, ERROR)
SECTIONS = (
    "gpus",
    "p2p",
    "driver",
    "modules",
    "kernel",
    "pci",
    "iommu",
    "virtualization",
    "system",
    "server",
    "proxmox",
    "probe",
    "topology",
)


def make_variables(
    host: dict[str, Any], expected: dict[str, Any] | None = None, inventory_hostname: str = ""
) -> dict[str, Any]:
    """The variables that a check sees.

    Every section of `expected` is there, so that `expected.gpus.count is defined` can be asked.
    """
    sections = {**dict.fromkeys(SECTIONS), **(expected or {})}
    return {
        "host": host,
        "expected": {name: {} if value is None else value for name, value in sections.items()},
        "inventory_hostname": inventory_hostname,
    }


def evaluate_checks(
    checks: Iterable[Check], variables: dict[str, Any], evaluator: Evaluator, waived: Iterable[waivers.Waiver] = ()
) -> list[dict[str, Any]]:
    """One result for each check, in order, with waivers applied and causes filled in.

    Nothing that a check does wrong stops the others.
    """
    asked = Asked(evaluator)
    results = [_Judge(check, variables, asked).result() for check in checks]
    waivers.apply_waivers(waived, results)
    causes.fill_in_causes(results)
    return results


class _Unknown(Exception):
    def __init__(self, reason: str, needs_root: bool = False) -> None:
        super().__init__(reason)
        self.needs_root = needs_root


class _Judge:
    """One check on one host."""

    def __init__(self, check: Check, variables: dict[str, Any], evaluator: Asked) -> None:
        self._check = check
        self._variables = variables
        self._evaluator = evaluator

    def result(self) -> dict[str, Any]:
        check = self._check
        record: dict[str, Any] = {
            "id": check.id,
            "title": check.title,
            "severity": check.severity,
            "tags": list(check.tags),
            "docs": check.docs,
            "status": PASS,
            "found": "",
            "reason": "",
            "needs_root": False,
            "why": "",
            "failed_condition": "",
            "remedy": None,
            "explains": self._explained(),
            "caused_by": [],
            "root_cause": False,
            "waiver": None,
        }
        try:
            record.update(self._judge())
        except _Unknown as unknown:
            record.update(status=UNKNOWN, reason=str(unknown), needs_root=unknown.needs_root)
        except EvaluationError as error:
            record.update(status=ERROR, reason="the check itself is broken (checks/%s): %s" % (check.file, error))
        except Exception as error:  # a fault of ours or of a filter: this check is lost, the others are not
            record.update(
                status=ERROR, reason="the check could not be evaluated: %s: %s" % (type(error).__name__, error)
            )
        return record

    def _judge(self) -> dict[str, Any]:
        for condition in self._check.when:
            if not self._decided(condition):
                return {
                    "status": SKIP,
                    "reason": self._filled(self._check.skip) or "does not apply: %s is false" % condition,
                }
        for path in self._check.needs:
            if self._lacks(path):
                raise self._because(path)
        unknown: _Unknown | None = None
        for condition in self._check.that:
            try:
                if not self._decided(condition):
                    return self._failed(condition)
            except _Unknown as raised:  # another condition may still fail, and a failure says more
                unknown = unknown or raised
        if unknown:
            raise unknown
        return {"status": PASS}

    def _failed(self, condition: Any) -> dict[str, Any]:
        return {
            "status": FAIL,
            "why": str(self._check.why),
            "failed_condition": str(condition),
            "found": self._filled(self._check.found),
            "remedy": self._remedy(),
        }

    def _decided(self, condition: Any) -> bool:
        value = self._three_valued(condition)
        if isinstance(value, _Unknown):
            raise value
        return value

    def _three_valued(self, condition: Any) -> bool | _Unknown:
        """Kleene's logic: a null fact makes its comparison unknown, and `false and unknown` is still false."""
        if isinstance(condition, bool):
            return condition
        text = str(condition)
        if not self._nulls(expressions.find_reads(text).paths):
            return self._asked(condition)
        operator, operands = expressions.split_expression(text)
        if operator == "leaf":
            read = expressions.find_reads(text)
            nulls = [
                path
                for path in self._nulls(read.unguarded)
                if not self._is_missing_expectation(path) and not (path in read.defaulted and self._is_missing(path))
            ]
            return self._because(nulls[0]) if nulls else self._asked(condition)
        decisive = {"or": True, "and": False}.get(operator)
        values: list[bool | _Unknown] = []
        for operand in operands:  # as Python does: what follows a decisive operand may have no value at all
            values.append(self._three_valued(self._like(condition, operand)))
            if values[-1] is decisive:
                return values[-1]
        if operator == "not":
            return values[0] if isinstance(values[0], _Unknown) else not values[0]
        return next((value for value in values if isinstance(value, _Unknown)), not decisive)

    def _asked(self, condition: Any) -> bool | _Unknown:
        try:
            return self._evaluator.condition(condition)
        except EvaluationError as error:
            if error.unknown and not self._missing_expectation(condition):
                return _Unknown("a value inside is unknown: %s" % error)
            raise

    def _missing_expectation(self, condition: Any) -> bool:
        return any(self._is_missing_expectation(path) for path in expressions.find_reads(str(condition)).unguarded)

    def _is_missing_expectation(self, path: tuple[str, ...]) -> bool:
        """What the inventory does not say is no unknown fact: a check must ask for it in its `when`."""
        return path[0] == "expected" and self._is_missing(path)

    def _is_missing(self, path: tuple[str, ...]) -> bool:
        return expressions.look_up_path(self._variables, path) is expressions.MISSING

    @staticmethod
    def _like(original: Any, text: str) -> Any:
        """`text`, trusted if the condition that it is a part of is trusted."""
        return trust_as_template(text) if is_trusted_as_template(original) else text

    def _nulls(self, paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        return [path for path in paths if self._lacks(path)]

    def _lacks(self, path: tuple[str, ...]) -> bool:
        value = expressions.look_up_path(self._variables, path)
        return value is None or value is expressions.MISSING

    def _because(self, path: tuple[str, ...]) -> _Unknown:
        reason, needs_root = unknowns.explain_unknown(self._variables.get("host") or {}, path)
        return _Unknown(reason, needs_root)

    def _filled(self, template: str) -> str:
        if not template:
            return ""
        try:
            return self._evaluator.text(template)
        except EvaluationError as error:
            return "(the text of this check could not be filled in: %s) %s" % (error, template)

    def _remedy(self) -> dict[str, Any] | None:
        for number, remedy in enumerate(self._check.remedy, 1):
            if self._applies(remedy):
                return {
                    "number": number,
                    "on": self._machine(str(remedy["on"])),
                    **self._hypervisor(str(remedy["on"])),
                    "text": self._filled(remedy["text"]),
                    "commands": self._commands(remedy.get("commands", ())),
                    "risk": self._filled(remedy.get("risk", "")),
                    "verify": self._filled(remedy.get("verify", "")),
                    **{name: remedy[name] for name in ("disrupts", "role", "settings", "by_hand") if name in remedy},
                }
        return None

    def _commands(self, templates: Sequence[str]) -> list[str]:
        """Those that are complete: one that comes out empty lacks something that is not known, and is not given."""
        filled = (self._filled(template) for template in templates)
        return [command for command in filled if command not in ("", EMPTY)]

    def _machine(self, on: str) -> str:
        """What is a hypervisor's to do for a guest is, for a container of Docker and the like, its host's."""
        placement = ((self._variables.get("host") or {}).get("virtualization") or {}).get("placement")
        return "container_host" if on == "hypervisor" and placement == "container" else on

    def _hypervisor(self, on: str) -> dict[str, str]:
        """`hypervisor`, the kind of the one on which it is done, where that is known."""
        virtualization = (self._variables.get("host") or {}).get("virtualization") or {}
        kind = str(virtualization.get("hypervisor_kind") or "")
        return {"hypervisor": kind} if kind and self._machine(on) == "hypervisor" else {}

    def _explained(self) -> list[str]:
        """The symptoms of this check on this host: without those whose condition does not hold, or is unknown."""
        conditions = self._check.explains_when
        return [name for name in self._check.explains if name not in conditions or self._hold(conditions[name])]

    def _applies(self, remedy: dict[str, Any]) -> bool:
        when = remedy.get("when", True)
        return self._hold(when if isinstance(when, list) else [when])

    def _hold(self, conditions: Iterable[Any]) -> bool:
        try:
            return all(self._decided(condition) for condition in conditions)
        except (_Unknown, EvaluationError):
            return False
