"""docs/remedies.md: what of the remedies was run, and where."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "roles"))
import remedies_run  # type: ignore[import-not-found]
from ansible.module_utils.gpu_checks import remedy_plan

TITLES = {
    "host": "Run on a systemd host",
    "proxmox": "Checked against the rules of Proxmox VE",
    "none": "Not run",
}
HEAD = """# Remedies

A report prints the remedy that fits the host. `ansible-playbook remedy.yml -b -l HOST -e check=ID` shows it, asks,
carries it out and validates again.

Every command that can be filled in from a broken host of the tests is read by ShellCheck. It can be typed twice. What
it replaces is saved first, beside the file or in /root, with a numbered backup.

| remedies | how they were tried |
|---|---|
"""


def render_remedies(files: dict[str, list[dict[str, Any]]]) -> str:
    """The page, from the items of checks/*.yml by subject."""
    rows = [
        (subject, item["id"], number, remedy)
        for subject, content in files.items()
        for item in content
        for number, remedy in enumerate(item["remedy"], 1)
    ]
    changing = [row for row in rows if "tried" in row[3]]
    by_kind = {kind: [row for row in changing if row[3]["tried"].partition(":")[0] == kind] for kind in TITLES}
    bare = [row for row in rows if not row[3].get("commands")]
    own = {(check, number) for each in remedies_run.ROUNDS for check, number in each.remedies.items()}
    table = (
        (len(rows), "all"),
        (
            len(by_kind["host"]),
            "were run for real, on a systemd host over which a recorded machine is laid: each of their commands that "
            "changes something is typed there as printed, twice, by `tests/roles/test_remedies.py`. For %d of them the "
            "test breaks the host, sees the finding, and sees the check pass; the others have the same commands"
            % len(own),
        ),
        (
            len(by_kind["proxmox"]),
            "are for `qm` and `pct`: stand-ins took them that refuse what the recorded answers of Proxmox's own code "
            "refuse (`tests/checks/test_remedies.py`)",
        ),
        (len(by_kind["none"]), "were not run; the reason of each stands below"),
        (len(rows) - len(changing) - len(bare), "only look; what has to be changed is told in their text"),
        (len(bare), "have no command: hardware, firmware, the inventory, or a decision"),
    )
    parts = [HEAD, *("| %d | %s |\n" % row for row in table)]
    for kind, title in TITLES.items():
        last = "why not" if kind == "none" else "role"
        parts.append("\n## %s\n\n| remedy | done on | stops | %s |\n|---|---|---|---|\n" % (title, last))
        parts += [_render_row(row, kind) for row in by_kind[kind]]
    return "".join(parts)


def _render_row(row: tuple[str, str, int, dict[str, Any]], kind: str) -> str:
    subject, check, number, remedy = row
    last = remedy["tried"].partition(": ")[2] if kind == "none" else remedy.get("role", "")
    cells = (
        check,
        number,
        subject,
        check,
        remedy["on"],
        remedy_plan.describe_disruption(remedy["disrupts"], "the machine"),
        last,
    )
    return "| [%s, %d](checks/%s.md#%s) | %s | %s | %s |\n" % cells
