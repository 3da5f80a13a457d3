"""The harness itself.

An overlay that changes nothing, or names what is not there, is an error and never a passing test.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import pytest
import yaml
from ansible.module_utils.gpu_host.evidence import bundle

RECORDS = [
    {"read": "/proc/version", "status": "ok", "text": "Linux 6.8\n"},
    {"read": "/sys/a/config", "status": "ok", "base64": "AAECAwQF"},
    {"read": "/sys/b/config", "status": "ok", "base64": "AAECAwQF"},
    {"read": "/etc/shadow", "status": "denied", "reason": "Permission denied"},
    {"list": "/dev", "status": "ok", "entries": {"nvidia0": {"kind": "char", "major": 195, "minor": 0, "mode": 438}}},
    {"run": ["nvidia-smi", "-L"], "status": "ok", "rc": 0, "stdout": "GPU 0: X\n"},
]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(harness, "base", lambda name: bundle.BundleEvidence({}, RECORDS))

    def apply(*changes: dict[str, Any]) -> bundle.BundleEvidence:
        path = tmp_path / "some_check.yml"
        path.write_text(yaml.safe_dump({"base": "x", "change": list(changes)}))
        return harness.changed(harness.overlay(path))

    return apply


def test_changes_of_a_file(change: Any) -> None:
    assert change({"read": "/proc/version", "text": "other"}).read("/proc/version").text == "other"
    assert change({"read": "/proc/version", "replace": {"6.8": "6.14"}}).read("/proc/version").text == "Linux 6.14\n"
    assert change({"read": "/proc/version", "append": "more"}).read("/proc/version").text == "Linux 6.8\nmore"
    assert change({"read": "/proc/version", "absent": True}).read("/proc/version").status == "absent"
    assert change({"read": "/proc/version", "denied": True}).read("/proc/version").status == "denied"
    assert change({"read": "/new", "text": "x"}).read("/new").text == "x"
    both = change({"read": "/sys/*/config", "bytes": {2: "ffee"}})
    assert both.read("/sys/a/config").data == both.read("/sys/b/config").data == bytes([0, 1, 0xFF, 0xEE, 4, 5])


def test_changes_of_a_directory(change: Any) -> None:
    assert change({"list": "/dev", "remove": ["nvidia0"]}).list("/dev").entries == {}
    assert (
        change({"list": "/dev", "add": {"nvidia1": {"kind": "char", "major": 195, "minor": 1}}})
        .list("/dev")
        .entries["nvidia1"]
        .minor
        == 1
    )
    assert change({"list": "/dev", "set": {"nvidia0": {"major": 240}}}).list("/dev").entries["nvidia0"].major == 240
    assert change({"list": "/dev", "absent": True}).list("/dev").status == "absent"


def test_changes_of_a_command(change: Any) -> None:
    assert (
        change({"run": "nvidia-smi -L", "replace": {"GPU 0": "GPU 1"}}).run(["nvidia-smi", "-L"]).text == "GPU 1: X\n"
    )
    assert change({"run": ["nvidia-smi", "-L"], "stdout": "", "rc": 9}).run(["nvidia-smi", "-L"]).rc == 9
    assert change({"run": "nvidia-smi -L", "status": "timeout"}).run(["nvidia-smi", "-L"]).status == "timeout"
    assert change({"run": "modinfo nvidia", "stdout": "x"}).run(["modinfo", "nvidia"]).text == "x"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"read": "/proc/version", "replace": {"7.0": "8"}}, "'7.0' does not occur"),
        ({"read": "/proc/version", "text": "Linux 6.8\n"}, "changes nothing"),
        ({"read": "/proc/version"}, "what to change"),
        ({"read": "/etc/shadow", "replace": {"a": "b"}}, "is denied in the base"),
        ({"read": "/none/*", "text": "x"}, "no file of the base matches"),
        ({"read": "/sys/a/config", "bytes": {9: "00"}}, "has 6 bytes"),
        ({"list": "/dev", "remove": ["nvidia9"]}, "no nvidia9"),
        ({"list": "/dev", "set": {"nvidia9": {"major": 1}}}, "no nvidia9"),
        ({"list": "/dev", "add": {}}, "changes nothing"),
        ({"run": "nvidia-smi -L", "replace": {"GPU 7": "x"}}, "'GPU 7' does not occur"),
        ({"run": "nvidia-smi -L", "rc": 0}, "changes nothing"),
        ({"run": "nvidia-smi -q", "replace": {"a": "b"}}, "is not_captured in the base"),
        ({"write": "/x"}, "needs one of read, list, run"),
    ],
)
def test_a_change_that_does_nothing_is_an_error(change: Any, bad: dict[str, Any], says: str) -> None:
    with pytest.raises(harness.OverlayError, match=says.replace("(", r"\(")) as caught:
        change(bad)
    assert str(caught.value).startswith("some_check.yml: ")


def test_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "some_check.yml"
    path.write_text("base: bare-metal\nchanges: []\n")
    with pytest.raises(harness.OverlayError, match=r"some_check\.yml: keys are base"):
        harness.overlay(path)


def test_a_change_leaves_the_base_as_it_was(change: Any) -> None:
    change({"read": "/proc/version", "text": "other"})
    assert harness.base("x").read("/proc/version").text == "Linux 6.8\n"


WRONG_PATH = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmmm"


@pytest.mark.parametrize("change", [{"text": "N\n"}, {"replace": {"Y": "N"}}], ids=["text", "replace"])
@pytest.mark.slow
def test_a_wrong_path_is_answered_with_the_message_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    """What pytest prints of a fixture with a misspelt path: which path was meant, and no traceback."""
    copy = tmp_path / "checks"
    shutil.copytree(
        harness.BROKEN.parent, copy, ignore=lambda folder, names: [n for n in names if folder.endswith("broken")]
    )
    fixture = {"base": "bare-metal", "change": [{"read": WRONG_PATH, **change}]}
    (copy / "broken" / "uvm_hmm_disabled.yml").write_text(yaml.safe_dump(fixture))
    harness_text = (
        (copy / "harness.py").read_text().replace("Path(__file__).resolve().parents[2]", "Path(%r)" % str(harness.ROOT))
    )
    (copy / "harness.py").write_text(harness_text)
    words = ["-q", "-p", "no:cacheprovider", "-c", str(harness.ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    case = "%s/test_broken.py::test_the_fixture_fails_its_check_and_no_other" % copy
    start = "import sys, ansible.module_utils as m; m.__path__.append(%r); sys.path.insert(0, %r); import pytest; " % (
        str(harness.ROOT / "module_utils"),
        str(harness.ROOT / "library"),
    )
    done = subprocess.run(
        [sys.executable, "-c", start + "sys.exit(pytest.main(%r))" % [*words, case]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = done.stdout.split("FAILURES")[1].split("short test summary")[0]
    assert "uvm_hmm_disabled.yml: " in told and WRONG_PATH in told
    assert "the nearest that it has is /sys/module/nvidia_uvm/parameters/uvm_disable_hmm" in told
    assert len([line for line in told.splitlines() if line.strip("=_ ")]) <= 3, told
