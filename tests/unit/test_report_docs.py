"""docs/checks.md, docs/checks/ and docs/facts.md say what the checks and the readers say: run `make docs` after a
change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "checks"))

import harness  # type: ignore[import-not-found]


@pytest.mark.long
@pytest.mark.slow
def test_docs_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_fact_that_a_check_reads_is_documented() -> None:
    read = {
        match
        for path in sorted((ROOT / "checks").glob("*.yml"))
        for match in re.findall(r"\bhost\.(\w+)\.(\w+)", path.read_text())
    }
    words = set(re.findall(r"\w+", (ROOT / "docs/facts.md").read_text()))
    assert len(read) > 100 and sorted("%s.%s" % fact for fact in read if fact[1] not in words) == []


def test_every_fact_that_a_check_reads_has_a_source() -> None:
    """In the tables of docs/facts.md: by its own name, or by that of the dictionary that it is in."""
    text = (ROOT / "docs/facts.md").read_text()
    sections = {section.split("\n")[0].split(" ")[0]: section for section in text.split("\n## host.")[1:]}
    missing = []
    for path in sorted((ROOT / "checks").glob("*.yml")):
        for subject, fact in set(re.findall(r"\bhost\.(\w+)\.(\w+)", path.read_text())):
            if subject not in sections or "| facts | read from |" not in sections[subject]:
                continue  # what the hypervisor shows to its guests is in the section of proxmox
            rows = [line.split(" | ")[0] for line in sections[subject].split("\n") if line.startswith("| `")]
            named = {name.split(".")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
            # `common` is made of the probe's facts on the controller (gpu_checks/subject.py).
            if fact not in named and fact not in ("get", "items", "errors", "evidence", "common"):
                missing.append("%s.%s" % (subject, fact))
    assert len(sections) > 15 and missing == []


@pytest.mark.parametrize(
    ("subject", "fact", "source"),
    [
        ("driver", "flavor", "`/proc/driver/nvidia/version`"),
        ("pci", "acs_unreadable", "`/sys/bus/pci/devices/ADDRESS/config`"),
        ("p2p", "granted_pairs", "`nvidia-smi topo -p2p w`"),
        ("proxmox", "vms", "`/etc/pve/qemu-server/VMID.conf`"),
        ("server", "nccl", "`/proc/PID/environ`"),
        ("server", "api", "`GET http://127.0.0.1:PORT/v1/models`"),
        ("kernel", "values", "`/proc/cmdline`"),
        ("joined", "gpu_count", "`host.gpus.count`"),
    ],
)
def test_the_source_of_a_fact_is_named(subject: str, fact: str, source: str) -> None:
    text = (ROOT / "docs/facts.md").read_text()
    section = re.split(r"\n## host\.", text.split("\n## host.%s" % subject)[1])[0]
    rows = [line for line in section.split("\n") if re.match(r"\|.*`%s\b.*\|.*\|" % fact, line)]
    assert any(source in row.split(" | ", 1)[1] for row in rows), rows


def test_the_link_of_every_check_leads_to_its_page() -> None:
    checks = harness.loaded_checks()
    assert len(checks) > 50
    index = (ROOT / "docs/checks.md").read_text()
    for check in checks:
        page, _, anchor = check.docs.partition("#")
        headings = [line.split()[1] for line in (ROOT / page).read_text().split("\n") if line.startswith("## ")]
        assert headings.count(anchor) == 1, check.docs
        # A report that was written before the pages were split names the index.
        assert '<a id="%s"></a>' % check.id in index and "(checks/%s#%s)" % (Path(page).name, check.id) in index


def test_links_between_the_pages_lead_somewhere() -> None:
    pages = [ROOT / "docs/checks.md", *sorted((ROOT / "docs/checks").glob("*.md"))]
    for page in pages:
        text = page.read_text()
        for target, anchor in re.findall(r"\]\(([^)#:]*)#(\w+)\)", text):
            other = (page.parent / target).read_text() if target else text
            assert "## %s\n" % anchor in other, "%s: %s#%s" % (page.name, target, anchor)
