"""The report as JUnit XML for CI systems: a test suite for each host, a test case for each check.

Only what makes a host unready fails a case. A warning passes its case and stands in its output; an unknown of severity
error is an error, as nothing is known to be good. A host without results is a suite with one error.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

from . import phrases

_BAD = ("fail", "unknown", "error")
# What XML 1.0 cannot hold, beyond the control characters that phrases.strip_controls removes.
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def render_junit(report: dict[str, Any]) -> bytes:
    """The bytes of junit.xml."""
    root = ET.Element("testsuites", name="gpu-host-validation")
    for name, host in report["hosts"].items():
        _suite(root, name, host, report["checks"], str(report["run"].get("started_at", "")))
    incomplete = phrases.describe_incomplete(report["run"])
    if incomplete:
        suite = ET.SubElement(root, "testsuite", name="run", tests="1", errors="1")
        case = ET.SubElement(suite, "testcase", classname="run", name="complete")
        ET.SubElement(case, "error", message=_safe(incomplete))
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _suite(root: ET.Element, name: str, host: dict[str, Any], checks: dict[str, Any], started: str) -> None:
    suite = ET.SubElement(root, "testsuite", name=_safe(name), hostname=_safe(name), timestamp=started)
    for result in host["results"]:
        case = ET.SubElement(suite, "testcase", classname=_safe(name), name=result["id"])
        _outcome(case, result, checks[result["id"]])
    messages = list(host["problems"])
    if host["state"] == "not_validated":
        messages.append(host["message"])
    for message in messages:
        case = ET.SubElement(suite, "testcase", classname=_safe(name), name="validation")
        ET.SubElement(case, "error", message=_safe(message), type="not_validated")
    if host.get("unproven"):
        ET.SubElement(suite, "system-out").text = _safe("\n".join("not proven: " + text for text in host["unproven"]))
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall("testcase/" + tag))))


def _outcome(case: ET.Element, result: dict[str, Any], check: dict[str, Any]) -> None:
    status = result["status"]
    reason = result.get("reason", "")
    if status == "skip":
        ET.SubElement(case, "skipped", message=_safe(reason))
    elif status == "waived":
        waiver = result["waiver"]
        ET.SubElement(case, "skipped", message=_safe("waived until %s: %s" % (waiver["expires"], waiver["reason"])))
    elif status in _BAD and check["severity"] == "error":
        tag = "failure" if status == "fail" else "error"
        element = ET.SubElement(case, tag, message=_safe(result.get("found") or reason), type=status)
        element.text = _safe(_explanation(result, check))
    elif status in _BAD:
        ET.SubElement(case, "system-out").text = _safe(
            "%s, %s\n%s" % (check["severity"], status, _explanation(result, check))
        )


def _explanation(result: dict[str, Any], check: dict[str, Any]) -> str:
    lines = ["wanted: " + check["title"], "found: " + (result.get("found") or result.get("reason", ""))]
    if result.get("caused_by"):
        lines.append("caused by: " + ", ".join(result["caused_by"]))
    remedy = result.get("remedy")
    if remedy:
        lines.append("do, on the %s: %s" % (remedy["on"], remedy["text"]))
        lines += remedy["commands"]
        lines += ["%s: %s" % (key, remedy[key]) for key in ("risk", "verify") if remedy[key]]
    return "\n".join(lines)


def _safe(text: Any) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", phrases.strip_controls(text))
