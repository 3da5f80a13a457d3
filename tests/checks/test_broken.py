"""Every check is broken by a fixture of its own, which it fails, and with it only what it explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import complete_commands
import degraded
import harness
import pytest
import remedy_rules

CHECKS = {check.id: check for check in harness.loaded_checks()}
FILES = harness.overlays()


def explained_by(check: str) -> set[str]:
    """Everything that a failure of `check` is the cause of, over any number of steps."""
    found: set[str] = set()
    todo = list(CHECKS[check].explains)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += CHECKS[name].explains if name in CHECKS else ()
    return found


def test_the_checks_are_well_formed_and_explain_only_each_other() -> None:
    assert {check.id for check in harness.loaded_checks(strict=True)} == set(CHECKS)
    assert len(CHECKS) >= 50


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_the_check_has_a_broken_fixture(check: str) -> None:
    assert any(path.name.split(".")[0] == check for path in FILES), (
        "write tests/checks/broken/%s.yml (CONTRIBUTING.md says how)" % check
    )


@pytest.mark.parametrize("path", FILES, ids=[path.name[:-4] for path in FILES])
def test_the_fixture_fails_its_check_and_no_other(path: Path) -> None:
    broken = harness.overlay(path)
    assert broken.check in CHECKS, "%s names no check" % path.name
    judged = degraded.judge_broken(broken)
    results = judged.results
    result = results[broken.check]
    unrecorded = harness.unrecorded_files(broken)
    if result["status"] != broken.status and unrecorded:
        raise harness.OverlayError("%s; the check is %s" % ("; ".join(unrecorded), result["status"]))
    assert result["status"] == broken.status, {
        key: result[key] for key in ("status", "found", "reason", "failed_condition")
    }
    symptoms = explained_by(broken.check)
    assert set(broken.also) <= symptoms, "declare them in `explains` of %s" % broken.check
    bad = {
        name: (other["status"], other["found"] or other["reason"])
        for name, other in results.items()
        if other["status"] in ("fail", "error")
    }
    bad.pop(broken.check, None)
    assert set(bad) == {name for name in broken.also if results[name]["status"] != "unknown"}, bad
    healthy = harness.judged_base(broken.base)
    unknown = {
        name: other["reason"]
        for name, other in results.items()
        if other["status"] == "unknown" and healthy[name]["status"] != "unknown" and name != broken.check
    }
    assert set(unknown) <= symptoms | set(broken.also), "became unknown without a cause that explains it: %s" % unknown
    if broken.status == "fail":
        assert result["found"] and "could not be filled in" not in result["found"]
        assert result["root_cause"] is True
        assert result["remedy"] is not None, "no remedy applies to this host"
        assert "could not be filled in" not in str(result["remedy"])
        check_words(broken, result)
        causeless = [name for name in broken.also if results[name]["root_cause"]]
        assert not causeless, "fail by themselves, not as symptoms: %s" % causeless
    for name, other in results.items():
        assert complete_commands.find_incomplete(other, judged.host) == [], name
        assert not other["remedy"] or remedy_rules.find_faults(other["remedy"]) == [], name


def check_words(broken: harness.Overlay, result: dict[str, Any]) -> None:
    """What the fixture says of the remedy for its cause: the right words are there, those of another cause are not."""
    assert set(broken.remedy) <= {"on", "says", "not"}, broken.path.name
    remedy = result["remedy"]
    said = " ".join([remedy["text"], *remedy["commands"]])
    assert remedy["on"] == broken.remedy.get("on", remedy["on"]), said
    missing = [word for word in broken.remedy.get("says", ()) if str(word).lower() not in said.lower()]
    assert not missing, (missing, said)
    wrong = [word for word in broken.remedy.get("not", ()) if str(word).lower() in said.lower()]
    assert not wrong, (wrong, said)
    assert all(word.lower() in result["found"].lower() for word in broken.found), result["found"]


@pytest.mark.parametrize(
    "command",
    [
        *(
            "qm set VMID --machine q35",
            "pct reboot CTID",
            "qm config 999",
            "nvidia-smi -pl WATTS",
            "cat /etc/pve/lxc/7.conf",
        ),
        *(
            "qm set 101 --hostpci0 0000:05:00.0",
            "docker run …",
            "pct set 101 --dev0 /dev/nvidia0",
            "cat FILE",
            "kill <pid>",
        ),
        *("systemctl stop None", "grep -n x /etc/N"),
    ],
)
def test_an_example_in_a_command_is_found(command: str) -> None:
    host = {"hypervisor": {"vmid": "101", "guest": {"gpus": ["0000:01:00.0"]}}}
    for given, faults in ((command, 1), ("qm config 101; lspci -s 0000:01:00.0; dmesg | grep -E 'NVRM|BAR'", 0)):
        result = {"remedy": {"commands": [given], "verify": "nvidia-smi -L"}}
        assert bool(complete_commands.find_incomplete(result, host)) == bool(faults), given
