"""The script that clears ACS redirection at boot: only the three bits, each port read back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "roles" / "pci_acs" / "files" / "gpu-pci-acs"


@pytest.fixture
def ports(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "setpci").symlink_to(ROOT / "tests" / "fixtures" / "pve" / "setpci")
    for port, value in (("0000:00:01.1", "001d"), ("0000:10:01.1", "007f"), ("0000:20:01.1", "0011")):
        (tmp_path / port).write_text(value + "\n")
    (tmp_path / "list").write_text("# a note\n\n0000:00:01.1\n0000:10:01.1\n0000:20:01.1\n")
    return tmp_path


def run(ports: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "%s:%s" % (ports / "bin", os.environ["PATH"]),
        "SETPCI_DIR": str(ports),
        "GPU_PCI_ACS_LIST": str(ports / "list"),
    }
    return subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False)


def values(ports: Path) -> list[str]:
    return [(ports / port).read_text().strip() for port in ("0000:00:01.1", "0000:10:01.1", "0000:20:01.1")]


def test_only_the_redirecting_bits_are_cleared(ports: Path) -> None:
    assert run(ports, "--check").returncode == 1
    assert values(ports) == ["001d", "007f", "0011"]
    done = run(ports)
    assert done.returncode == 0, done.stderr
    assert values(ports) == ["0011", "0053", "0011"]
    assert run(ports, "--check").returncode == 0


def test_a_port_that_keeps_its_bits_fails(ports: Path) -> None:
    (ports / "0000:10:01.1.stuck").touch()
    done = run(ports)
    assert done.returncode == 1 and "0000:10:01.1: ACSCtl is 0x007f, redirection is still on" in done.stderr
    assert values(ports)[0] == "0011"


def test_a_port_that_is_gone_fails_and_the_others_are_cleared(ports: Path) -> None:
    (ports / "0000:00:01.1").unlink()
    done = run(ports)
    assert done.returncode == 1 and "0000:00:01.1: no answer" in done.stderr
    assert (ports / "0000:10:01.1").read_text() == "0053\n"


def test_no_list(ports: Path) -> None:
    (ports / "list").unlink()
    assert run(ports).returncode != 0
