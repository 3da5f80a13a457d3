"""No remedy contradicts the facts.

Every recorded host under other names, places and drivers, and every check on it, failed or not, is asked which remedy
it would choose.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_checks import engine
from ansible.module_utils.gpu_checks.evaluator import Asked
from ansible.module_utils.gpu_host.virtualization import CLOUDS

pytestmark = pytest.mark.slow

Facts = dict[str, Any]
BASES = ("bare-metal", "kvm-q35", "h200-x2", "serving")


def place(placement: str, kind: str | None, container: str = "") -> Callable[[Facts], None]:
    """Another place of the host: what the facts of virtualization say of it, without a recorded hypervisor."""

    def change(host: Facts) -> None:
        guest = placement in ("kvm", "vm")
        host["virtualization"].update(
            placement=placement,
            hypervisor_kind=kind,
            cloud=None if kind in (None, "qemu") else kind in CLOUDS,
            vm=guest,
            container=container,
            host_facts=bool(container),
            hypervisor={"bare_metal": "", "kvm": "kvm", "vm": kind}.get(placement, ""),
            chipset="q35" if placement == "kvm" else None,
            hypervisor_is_proxmox=False,
            pve_kernel=placement == "lxc" and kind == "proxmox",
        )
        host.pop("hypervisor", None)

    return change


def i440fx(host: Facts) -> None:
    place("kvm", "qemu")(host)
    host["virtualization"].update(chipset="i440fx", chipset_reason="host bridge 8086:1237")


PLACES: dict[str, Callable[[Facts], None]] = {
    "bare metal": place("bare_metal", ""),
    "Proxmox VM": place("kvm", "proxmox"),
    "libvirt VM": place("kvm", "libvirt"),
    "QEMU VM": place("kvm", "qemu"),
    "i440FX VM": i440fx,
    "unknown VM": place("kvm", None),
    "Firecracker VM": place("kvm", "firecracker"),
    "EC2 instance": place("kvm", "amazon"),
    "VMware VM": place("vm", "vmware"),
    "Azure instance": place("vm", "azure"),
    "Proxmox LXC": place("lxc", "proxmox", "lxc"),
    "other LXC": place("lxc", None, "lxc"),
    "Docker": place("container", "", "docker"),
}


def rename(name: str, fabric: bool, branch: int) -> Callable[[Facts], None]:
    """Other cards and another driver. `fabric`: whether they belong to an NVSwitch fabric."""

    def change(host: Facts) -> None:
        gpus, driver = host["gpus"], host["driver"]
        for device in (gpus["devices"] or {}).values():
            device.update(name=name)
        version = "%d.95.05" % branch
        gpus.update(models=[name], fabric_present=fabric, driver_version=version, differing=[])
        driver.update(version=version, branch=branch, nvswitches=[], nvlink5=False)
        host["joined"].update(nvlink_present=fabric, blocked_between_models=False)

    return change


CARDS: dict[str, Callable[[Facts], None]] = {
    "GeForce": rename("NVIDIA GeForce RTX 4090", False, 570),
    "workstation": rename("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", False, 595),
    "NVSwitch": rename("NVIDIA H200", True, 580),
}


def refuse(status: str, meaning: str) -> Callable[[Facts], None]:
    def change(host: Facts) -> None:
        pairs = [{"source": "0000:01:00.0", "destination": "0000:11:00.0", "capability": "read", "status": status}]
        host["p2p"].update(
            all_granted=False,
            blocked_pairs=pairs,
            blocked_by_status=[{"status": status, "count": 56, "meaning": meaning}],
            all_nvlink=False,
        )

    return change


def granted(host: Facts) -> None:
    """Granted, and bytes get lost."""
    if "probe" in host:
        pairs = sorted(host["probe"]["pairs"] or {})
        host["probe"].update(all_delivered=False, undelivered_pairs=pairs)


GRANTS: dict[str, Callable[[Facts], None]] = {
    "granted": granted,
    "CNS": refuse("CNS", "chipset not supported"),
    "GNS": refuse("GNS", "GPU not supported"),
}


@dataclass(frozen=True)
class Said:
    check: str
    on: str
    text: str
    commands: str

    @property
    def all(self) -> str:
        return "%s $ %s" % (self.text, self.commands)


@functools.cache
def base_facts(name: str) -> Facts:
    return harness.facts_of_host(harness.base(name), harness.BASES[name].get("expected", {}))


@functools.cache
def speaking_checks() -> tuple[Any, ...]:
    """Those of which a remedy has a word that a rule looks for; the others cannot break one."""
    rules = (PROXMOX, LIBVIRT, FABRIC, GUEST_SETTINGS, HANDS_ON, OF_THE_KERNEL, re.compile("OVMF"))
    return tuple(
        check
        for check in harness.loaded_checks()
        if any(rule.search(str(remedy)) for rule in rules for remedy in check.remedy)
        or any(OF_THE_KERNEL.search(str(command)) for remedy in check.remedy for command in remedy.get("commands", ()))
    )


def remedies(base: str, *changes: Callable[[Facts], None]) -> tuple[Facts, list[Said]]:
    """What each check that applies would have done if it failed, on the recorded host with `changes`."""
    host = copy.deepcopy(base_facts(base))
    for change in changes:
        change(host)
    expected = harness.merged(harness.BASES[base].get("expected", {}), {})
    variables = engine.make_variables(host, expected, "host")
    asked = Asked(harness.evaluator(variables))
    said = []
    for check in speaking_checks():
        judge = engine._Judge(check, variables, asked)
        if not judge._hold(check.when):
            continue
        remedy = judge._remedy()
        if remedy is not None and "could not be filled in" not in str(remedy):  # it shows what only a failure has
            said.append(Said(check.id, remedy["on"], remedy["text"], " ;; ".join(remedy["commands"])))
    return host, said


# Says what to do if the cards are meant for virtual machines: an alternative that the reader decides.
PROXMOX_AS_A_CHOICE = {"gpus_stay_at_next_boot", "gpu_alone_in_iommu_group"}
PROXMOX = re.compile(r"Proxmox|proxmox|\bqm [a-z]|\bpct [a-z]|/etc/pve|\bpvesh|hostpci|\bVMID\b|\bCTID\b")
LIBVIRT = re.compile(r"libvirt|virsh|hostdev")
OF_A_SWITCH = {"log_no_nvswitch_error"}  # an SXid is the line of an NVSwitch that is there
FABRIC = re.compile(r"NVSwitch|Fabric ?Manager|fabricmanager|nvlsm", re.IGNORECASE)
GUEST_SETTINGS = re.compile(r"q35|chipset|clique|hidden|pcie=1|hypervisor must", re.IGNORECASE)
GRANTING = {"p2p_granted", "chipset_supports_p2p", "p2p_usable"}
HANDS_ON = re.compile(r"reseat|riser|bifurcation|firmware setup", re.IGNORECASE)
# A container loads no module, sets no port and boots no kernel.
OF_THE_KERNEL = re.compile(r"(?:^|;; |&& )(?:modprobe|setpci|update-grub|update-initramfs|reboot|dkms|mokutil)\b")


def contradictions(host: Facts, said: Said) -> Iterator[str]:
    virtualization, gpus = host["virtualization"], host["gpus"]
    kind = virtualization["hypervisor_kind"]
    if said.check not in PROXMOX_AS_A_CHOICE and kind != "proxmox" and not virtualization["pve_kernel"]:
        # Where the manager is not known, as one of several that are named: (Proxmox VE: …; libvirt: …)
        named = r"\((?:Proxmox VE|libvirt|VMware): [^()]*(?:\([^()]*\)[^()]*)*\)"
        text = re.sub(named, "", said.text) if kind in (None, "qemu") else said.text
        if PROXMOX.search(text) or PROXMOX.search(said.commands):
            yield "Proxmox, and the hypervisor is %s" % (kind or virtualization["placement"])
        if kind != "libvirt" and (LIBVIRT.search(text) or LIBVIRT.search(said.commands)):
            yield "libvirt, and the hypervisor is %s" % (kind or virtualization["placement"])
    if (
        said.check not in OF_A_SWITCH
        and gpus["fabric_present"] is False
        and not host["driver"]["nvswitches"]
        and FABRIC.search(said.all)
    ):
        yield "a Fabric Manager, and there is no NVSwitch"
    geforce = any("GeForce" in name for name in gpus["models"] or ())
    if geforce and said.check in GRANTING and GUEST_SETTINGS.search(said.text) and "GeForce" not in said.text:
        yield "a setting of the guest, and the cards are GeForce"
    if virtualization["placement"] == "bare_metal" and re.search(r"x-nv-gpudirect-clique|\bOVMF\b", said.all):
        yield "a setting of a guest, and this is bare metal"
    if virtualization["cloud"] is True and "link_width" in said.check and HANDS_ON.search(said.text):
        yield "hands on the card, and it is a cloud's"
    if virtualization["host_facts"] and said.on == "host" and OF_THE_KERNEL.search(said.commands):
        yield "a command for the kernel, inside a container"


# One host everywhere, the others where the words differ most: each asks for a quarter of a second.
CASES = [
    (base, where)
    for base in BASES
    for where in PLACES
    if base == BASES[0] or where in ("bare metal", "QEMU VM", "EC2 instance", "other LXC")
]


@pytest.mark.parametrize(("base", "where"), CASES)
def test_no_remedy_contradicts_the_facts(base: str, where: str) -> None:
    found = set()
    pairs = [("GeForce", "CNS"), ("workstation", "granted"), ("NVSwitch", "CNS")]
    pairs += [("GeForce", "granted"), ("workstation", "GNS")] if base == "bare-metal" else []
    for cards, grant in pairs:
        host, every = remedies(base, PLACES[where], CARDS[cards], GRANTS[grant])
        assert len(every) > 10
        for said in every:
            for problem in contradictions(host, said):
                found.add("%s on a host with %s cards, %s: %s: %s" % (said.check, cards, grant, problem, said.all))
    assert not found, "\n".join(sorted(found))


def test_the_rules_find_a_contradiction() -> None:
    """The test would see one."""
    host, _every = remedies("bare-metal", PLACES["QEMU VM"], CARDS["GeForce"], GRANTS["CNS"])
    wrong = {
        "Set it: qm set 101 --machine q35": "p2p_granted",
        "Give it hostpci lines (Proxmox VE).": "gpus_found",
        "Start the Fabric Manager.": "cuda_initialises",
        "Change the machine to q35.": "p2p_granted",
    }
    for text, check in wrong.items():
        assert list(contradictions(host, Said(check, "hypervisor", text, ""))), text
    fine = Said("gpus_found", "hypervisor", "Give it the GPUs (Proxmox VE: hostpciN lines; libvirt: hostdev).", "")
    assert not list(contradictions(host, fine))
