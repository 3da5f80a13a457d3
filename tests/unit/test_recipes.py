"""CONTRIBUTING.md's recipes, tried literally: its own examples are added in the one place that it names, in a copy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpu_host.log import log_patterns
from ansible.module_utils.gpu_provision import systems

ROOT = Path(__file__).resolve().parents[2]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(heading: str) -> str:
    """The block of code of a recipe."""
    found = re.search(r"^\*\*%s\.\*\*.*?^```\w+\n(.*?)^```" % re.escape(heading), RECIPES, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def look(copy: Path, code: str) -> Any:
    """What `code` prints as JSON with the copy's module_utils in the place of ours."""
    begin = "import json, sys, ansible.module_utils as m; m.__path__[:0] = [%r]; sys.path.insert(0, %r)\n"
    text = begin % (str(copy), str(ROOT / "tests" / "unit")) + code
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "module_utils", tmp_path / "m", ignore=shutil.ignore_patterns("__pycache__")))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_fact_from_sys(copy: Path) -> None:
    reader = copy / "gpu_host" / "system.py"
    reader.write_text(reader.read_text(encoding="utf-8") + "\n\n" + example("A fact from /sys"), encoding="utf-8")
    change(
        reader,
        '        "uptime_s": _up',
        '        "huge_pages": _huge_pages(evidence, errors),\n        "uptime_s": _up',
    )
    told = look(
        copy,
        """
from ansible.module_utils.gpu_host import system
from ansible.module_utils.gpu_host.evidence.errors import Errors
from host_evidence import Host
path, found = "/sys/kernel/mm/transparent_hugepage/enabled", []
for host in (Host().file(path, "always [madvise] never\\n"), Host(), Host().file(path, status="denied"), Host().file(path, "?")):
    errors = Errors("system")
    value = system.gather(host, errors)["huge_pages"]
    found.append([value, any(path in entry["source"] for entry in errors.entries)])
print(json.dumps(found))
""",
    )
    assert told == [["madvise", False], ["", False], [None, True], [None, True]]


def test_a_gpu_model(copy: Path) -> None:
    change(copy / "gpu_host" / "pcie" / "pci_names.py", "    # GeForce\n", example("A GPU model") + "    # GeForce\n")
    told = look(
        copy,
        """
from ansible.module_utils.gpu_host.nvidia import driver_requirements
from ansible.module_utils.gpu_host.pcie import pci_names
print(json.dumps([
    pci_names.device_name("10de", "2bff"), driver_requirements.minimum_driver(0x2bff),
    driver_requirements.minimum_driver(0x2bfe), driver_requirements.architecture(0x2bff).name,
]))
""",
    )
    assert told == ["RTX PRO 9000 Made Up", "999.10", "570.86.16", "blackwell"]


def test_a_distribution(tmp_path: Path) -> None:
    text = (ROOT / "roles/nvidia_apt/vars/main.yml").read_text(encoding="utf-8")
    table = yaml.safe_load(text.replace("  rhel9:\n", example("A distribution") + "  rhel9:\n"))["nvidia_apt_systems"]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=madeup\nVERSION_ID="7"\n')
    own = {**systems.system(str(tmp_path)), "architecture": "x86_64"}
    entry = systems.choose_system(own, table)
    assert (entry["label"], entry["tested"]) == ("Made Up 7", False)
    assert entry["packages"] == table["debian12"]["packages"]


def test_a_fault_in_the_kernel_log_is_looked_for() -> None:
    for pattern in log_patterns.PATTERNS:
        assert pattern.kind in log_patterns.KINDS
        text = re.sub(r"\\(.)", r"\1", pattern.regex.pattern)
        assert log_patterns.HINT.search(text.encode()), "no line of %r passes HINT" % pattern.regex.pattern
    assert set(log_patterns.ENDED_BY_RELOAD) <= set(log_patterns.KINDS)


@pytest.mark.parametrize("path", re.findall(r"`((?:module_utils|roles|scripts|tests)/[\w/.-]+)`", RECIPES))
def test_a_recipe_names_files_that_are_there(path: str) -> None:
    known = "SUBJECT" in path or "ID" in path
    assert known or (ROOT / path).exists(), path


def test_checks_ask_for_what_containers_have_in_common() -> None:
    listed = re.compile(r"""placement (?:not )?in \[\s*(?:'lxc', 'container'|'container', 'lxc')\s*\]""")
    for folder in ("checks", "roles"):
        for path in sorted((ROOT / folder).rglob("*.yml")):
            assert not listed.search(path.read_text(encoding="utf-8")), "%s lists the containers" % path.relative_to(
                ROOT
            )
