"""QEMU itself on what we write for it and say of it: machine types, the properties of vfio-pci, the clique grant.

No guest runs: QEMU parses its command line, makes its devices and ends. A vfio-pci device of a card that this machine
does not have is refused last, so that refusal shows that all the rest was taken.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess

import harness
import pytest
from ansible.module_utils.gpu_host.proxmox import gather_host
from ansible.module_utils.gpu_host.pve import vm_changes
from vm import QEMU

pytestmark = [
    pytest.mark.vm,
    pytest.mark.xdist_group("vm"),
    pytest.mark.skipif(not shutil.which(QEMU), reason="needs QEMU: apt-get install qemu-system-x86"),
]
CONFIG = "/etc/pve/qemu-server/101.conf"
NO_SUCH_CARD = "no such host device"


def qemu(*words: str) -> tuple[int, str]:
    """(exit status, what it printed) of a QEMU that makes its devices and ends."""
    command = [QEMU, "-accel", "tcg", "-nodefaults", "-display", "none", "-S", "-monitor", "stdio", *words]
    done = subprocess.run(command, input="quit\n", capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


def newest(kind: str) -> str:
    """The newest versioned type of this QEMU, as a VM has it pinned: pc-i440fx-7.2."""
    lines = subprocess.run([QEMU, "-machine", "help"], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split()[0] for line in lines if line.startswith(kind))


@pytest.mark.parametrize("line", [None, "pc", "pinned", "type=pc"])
def test_the_machine_that_a_change_writes_is_one(line: str | None) -> None:
    given = newest("pc-i440fx-") if line == "pinned" else line
    written = vm_changes.q35_machine(given)
    assert "q35" in written and (line != "pinned" or written == newest("pc-q35-"))
    assert qemu("-machine", "type=" + written.replace("type=", "")) == (0, "")


def test_capitals_are_no_machine() -> None:
    code, said = qemu("-machine", "type=Q35")
    assert code != 0 and "unsupported machine type" in said


def test_vfio_pci_has_the_properties_that_we_read_and_write() -> None:
    text = subprocess.run([QEMU, "-device", "vfio-pci,help"], capture_output=True, text=True, check=True).stdout
    properties = {line.split("=")[0].strip() for line in text.splitlines() if "=<" in line}
    wanted = {"host", "addr", "multifunction", "rombar", "romfile", "x-vga", "x-nv-gpudirect-clique"}
    assert wanted | {"x-pci-vendor-id", "x-pci-device-id", "x-pci-sub-vendor-id", "x-pci-sub-device-id"} <= properties


def args_of_change(name: str, args: str) -> tuple[list[str], dict[str, str]]:
    """(words of the args line, the other settings) that `qm set` of this change would write for a recorded VM."""
    change = [{"read": CONFIG, "replace": {"cpu: host\n": "args: %s\ncpu: host\n" % args}}]
    vm = gather_host(harness.evidence_with(harness.base("pve-kvm"), change, "args"))["vms"]["101"]
    words = iter(shlex.split(vm["fixes"][name]))
    written = {word.lstrip("-"): next(words) for word in words}
    return shlex.split(written.pop("args")), written


def with_cards(count: int, *words: str, name: str = "hostpci%d") -> tuple[int, str]:
    """QEMU with passed-through cards in the form that Proxmox writes."""
    devices: list[str] = []
    for number in range(count):
        port = "pcie-root-port,id=ich9-pcie-port-%d,addr=10.%x,multifunction=on,bus=pcie.0,chassis=%d"
        card = "vfio-pci,host=0000:ff:%02x.0,id=%s,bus=ich9-pcie-port-%d,addr=0x0"
        devices += ["-device", port % (number + 1, number, number + 1)]
        devices += ["-device", card % (number, name % number if "%" in name else name, number + 1)]
    return qemu("-machine", "type=q35", *devices, *words)


def test_the_clique_grant_that_a_change_writes() -> None:
    words, _more = args_of_change("cliques", "-set device.hostpci0.x-nv-gpudirect-clique=3")
    assert words.count("-set") == 8 and "device.hostpci7.x-nv-gpudirect-clique=1" in words
    code, said = with_cards(8, *words)
    assert code != 0 and NO_SUCH_CARD in said and "clique" not in said, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-set device.hostpci9.x-nv-gpudirect-clique=1", 'there is no device "hostpci9" defined'),
        ("-set device.hostpci0.x-nv-gpudirect-cliques=1", "Property 'vfio-pci.x-nv-gpudirect-cliques' not found"),
        ("-set device.hostpci0.x-nv-gpudirect-clique=16", "clique"),
        ("-global vfio-pci.x-nv-gpudirect-clique=1", NO_SUCH_CARD),
    ],
)
def test_what_qemu_makes_of_other_grants(words: str, said: str) -> None:
    assert said in with_cards(1, *words.split())[1]


def test_a_name_with_a_dot_cannot_be_granted() -> None:
    """Of a line that passes all functions Proxmox makes hostpci0.0: -set reads the dot as the end of the name."""
    said = with_cards(1, *["-set", "device.hostpci0.0.x-nv-gpudirect-clique=1"], name="hostpci0.0")[1]
    assert 'there is no device "hostpci0" defined' in said
