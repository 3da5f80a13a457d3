"""docs/symptoms.md: what people see, and the checks that name its cause.

What is seen stands in docs/symptoms.yml; what a cause means and what is to be done about it comes from checks/*.yml, so
that the page and the checks cannot disagree. tests/checks/test_symptoms.py tries every command, and that a host that
shows the symptom gets the cause that the page names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).resolve().parents[1] / "docs" / "symptoms.yml"
_INTRODUCTION = """# By symptom

What people see, and the checks that name its cause, the likeliest first. The command at the end of each part finds out
which of them it is, and says what to do, on which machine and at what risk. `gpu1` stands for your host; `llm-vm`,
`llm-ct` and `pve1` are hosts of the example inventory. If you have no access to the host, but a log or an output, see
[what somebody handed in](../README.md#validate-your-hosts): `make read F=PATH`.

"""


def read_symptoms() -> list[dict[str, Any]]:
    """The parts of docs/symptoms.yml, in their order."""
    return list(yaml.safe_load(SOURCE.read_text(encoding="utf-8")))


def render_symptoms(files: dict[str, list[dict[str, Any]]]) -> str:
    """The page, from the checks of each subject. KeyError where a symptom names a check that does not exist."""
    checks = {item["id"]: (subject, item) for subject, content in files.items() for item in content}
    symptoms = read_symptoms()
    index = "".join("- [%s](#%s)\n" % (symptom["title"], symptom["id"]) for symptom in symptoms)
    return _INTRODUCTION + index + "".join(_render_symptom(symptom, checks) for symptom in symptoms)


def _render_symptom(symptom: dict[str, Any], checks: dict[str, tuple[str, dict[str, Any]]]) -> str:
    rows = "".join(_render_cause(*checks[cause["check"]]) for cause in symptom["causes"])
    return (
        '\n## %s\n<a id="%s"></a>\n\n%s\n\n| cause | what should hold | why |\n|---|---|---|\n%s\n```console\n%s\n```\n'
        % (
            symptom["title"],
            symptom["id"],
            symptom["says"].strip(),
            rows,
            symptom["command"],
        )
    )


def _render_cause(subject: str, check: dict[str, Any]) -> str:
    why = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(check["why"].split()))[0]
    title = " ".join(check["title"].split())
    cells = ("[%s](checks/%s.md#%s)" % (check["id"], subject, check["id"]), title, why)
    return "| %s |\n" % " | ".join(cell.replace("|", "\\|") for cell in cells)
