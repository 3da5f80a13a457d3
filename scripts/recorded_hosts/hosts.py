"""The recorded hosts: which machine each one is, put together from smi.py, pcie.py, linux.py and driver.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from . import containers, driver, linux, pcie, probe, server, smi
from .epyc_board import (
    AMD_IOMMU,
    CARDS,
    GIB,
    INTEL,
    RED_HAT,
    STORY,
    build_pci_tree,
    card,
    install_smi,
    write_proc_bus,
)
from .linux import Machine
from .proxmox import pve_kvm, pve_lxc, pve_story
from .rdma import rdma
from .tree import HostModel

NO_IOMMU = ("iommu: Default domain type: Translated", "iommu: DMA domain TLB invalidation policy: lazy mode")


def bare_metal(uid: int = 0, *, serves: bool = False) -> HostModel:
    """Idle, as an ordinary user sees it where `uid` says so; with `serves`, a model is loaded on its GPUs."""
    name = "unprivileged" if uid else "bare-metal"
    model = HostModel(
        name,
        "Reconstructed from "
        + STORY
        + (". As an ordinary user sees it." if uid else ". The same machine run as bare metal, idle and healthy."),
        uid,
    )
    machine = Machine()
    linux.install(model, machine)
    lines = build_pci_tree(model, visible_bytes=64 if uid else 4096, speed=5 if serves else 1)
    gpus = [
        smi.Gpu(i, "0000:%02x:00.0" % bus, power_w=32.4 + 0.31 * i, temperature=27 + i % 3)
        for i, (bus, _node) in enumerate(CARDS)
    ]
    if serves:
        _serving(gpus, IDLE_WATTS)
        for gpu in gpus:
            gpu.processes = [(server.FIRST_RANK + gpu.index, "sglang::scheduler_TP%d" % gpu.index, 94842)]
    install_smi(model, machine, gpus)
    driver.install(model, machine, gpus)
    if not serves:
        probe.install(model, [gpu.address for gpu in gpus], [node for _bus, node in CARDS])
    write_proc_bus(model)
    log = driver.kernel_log(machine, gpus, AMD_IOMMU, gpu_lines=lines)
    if uid:
        model.command("dmesg", rc=1, stderr="dmesg: read kernel buffer failed: Operation not permitted\n")
        model.command(
            "journalctl -k -b -o short-unix --no-pager -n 100000",
            "-- No entries --\n",
            rc=1,
            stderr=(
                "Hint: You are currently not seeing messages from other users and the system.\n"
                "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
                "      Pass -q to turn off this notice.\nNo journal files were opened due to insufficient "
                "permissions.\n"
            ),
        )
        model.file("/var/log/kern.log", "", mode=0o640)
        model.command(
            "tail -c 4194304 /var/log/kern.log",
            rc=1,
            stderr="tail: cannot open '/var/log/kern.log' for reading: Permission denied\n",
        )
    else:
        model.command("dmesg", log)
    return model


def no_gpu() -> HostModel:
    model = HostModel(
        "no-gpu", "Reconstructed: a server of the same family without any GPU and without the NVIDIA driver."
    )
    machine = Machine(
        cmdline="BOOT_IMAGE=/vmlinuz-6.8.0-64-generic root=UUID=00000000-0000-4000-8000-00000000000a ro iommu=pt quiet"
    )
    linux.install(model, machine)
    build_pci_tree(model, with_gpus=False)
    write_proc_bus(model)
    model.file("/proc/modules", "ext4 1114112 1 - Live 0x0000000000000000\nnvme 61440 2 - Live 0x0000000000000000\n")
    model.directory("/etc/modprobe.d")
    model.device("/dev/null", 1, 3)
    model.file("/proc/devices", "Character devices:\n  1 mem\n  5 /dev/tty\n136 pts\n\nBlock devices:\n259 blkext\n")
    driver.absent(model)
    model.command("dmesg", driver.kernel_log(machine, [], AMD_IOMMU).split("[    8.050000]")[0])
    return model


ADDRESSES = ["0000:%02x:00.0" % bus for bus, _node in CARDS]


def _serving(gpus: Sequence[smi.Gpu], watts: Sequence[float]) -> None:
    """The model is loaded and no request runs: memory full, clocks up, no utilisation."""
    for gpu, power in zip(gpus, watts):
        gpu.used_mib, gpu.power_w, gpu.pstate, gpu.link_gen, gpu.temperature = 94857, power, "P0", 5, 34
        gpu.processes = [(21340 + gpu.index, "sglang::scheduler_TP%d" % gpu.index, 94842)]


IDLE_WATTS = (80.97, 82.11, 83.40, 81.62, 84.19, 82.75, 85.03, 81.33)


def lxc_story() -> HostModel:
    model = HostModel(
        "lxc-story",
        "Reconstructed from " + STORY + ": state 2, the privileged LXC container on the Proxmox host, model loaded.",
    )
    machine = Machine(
        release="6.14.11-3-pve",
        cmdline="initrd=\\EFI\\proxmox\\6.14.11-3-pve\\initrd.img-6.14.11-3-pve root=ZFS=rpool/ROOT/pve-1 boot=zfs "
        "iommu=pt",
        container=True,
    )
    linux.install(model, machine)
    lines = build_pci_tree(model, speed=5)  # under load the links are up
    gpus = [smi.Gpu(i, "0000:%02x:00.0" % bus) for i, (bus, _node) in enumerate(CARDS)]
    _serving(gpus, IDLE_WATTS)
    for gpu in gpus:  # a container has its own process numbers, and the driver shows those of its own processes
        gpu.processes = [(gpu.index + 412, "sglang::scheduler_TP%d" % gpu.index, 94842)]
    install_smi(model, machine, gpus)
    driver.install(model, machine, gpus, toolkit="12.8")
    write_proc_bus(model)
    model.command("dmesg", driver.kernel_log(machine, gpus, AMD_IOMMU, gpu_lines=lines))
    return model


def _guest(
    name: str,
    note: str,
    machine: Machine,
    *,
    host_bridge: int,
    addresses: Sequence[str],
    root_ports: bool,
    read_write: str,
) -> HostModel:
    model = HostModel(name, note)
    linux.install(model, machine)
    pcie.add(
        model, pcie.Device("0000:00:00.0", INTEL, host_bridge, 0x060000, (0x1AF4, 0x1100), port_type=None, revision=2)
    )
    pcie.add(
        model,
        pcie.Device(
            "0000:00:12.0", 0x1AF4, 0x1000, 0x020000, (0x1AF4, 0x0001), driver="virtio-pci", port_type=None, revision=0
        ),
    )
    pcie.add(
        model,
        pcie.Device(
            "0000:00:0a.0", 0x1AF4, 0x1001, 0x010000, (0x1AF4, 0x0002), driver="virtio-pci", port_type=None, revision=0
        ),
    )
    gpus, lines = [], []
    for number, address in enumerate(addresses):
        port = "0000:00:%s" % ("1c.%d" % number if number < 4 else "1d.%d" % (number - 4))
        if root_ports:
            pcie.add(
                model,
                pcie.Device(
                    port,
                    RED_HAT,
                    0x000C,
                    0x060400,
                    (RED_HAT, 0),
                    driver="pcieport",
                    port_type=pcie.ROOT_PORT,
                    speed=5,
                    width=16,
                    acs_control=pcie.ACS_NO_REDIRECT,
                    buses=(0, number + 1, number + 1),
                    revision=0,
                ),
            )
        device = card(address, "pci0000:00", [port] if root_ports else [], number, speed=5)
        pcie.add(model, device, 4096 if root_ports else 256)
        lines.append(
            "pci %s: BAR 2 [mem 0x%x-0x%x 64bit pref]" % (address, device.bars[2][0], device.bars[2][0] + 128 * GIB - 1)
        )
        gpus.append(
            smi.Gpu(
                number,
                address,
                host_gen=5 if root_ports else None,
                virtualization="Pass-Through",
                link_gen=5,
                pstate="P0",
                power_w=71.2,
            )
        )
    model.directory("/sys/class/iommu")
    model.directory("/sys/kernel/iommu_groups")
    if root_ports:
        probe.install(model, addresses, [node for _bus, node in CARDS], in_guest=True)
    else:
        _serving(gpus, IDLE_WATTS)
    count = len(gpus)
    cells = [["X" if a == b else "PHB" for b in range(count)] for a in range(count)]
    smi.install(model, gpus, cells, [linux.cpu_list(machine, 0)] * count, ["0"] * count, read_write=read_write)
    driver.install(model, machine, gpus, toolkit="13.1")
    write_proc_bus(model)
    model.command("dmesg", driver.kernel_log(machine, gpus, NO_IOMMU, gpu_lines=lines))
    return model


def _qemu(product: str, version: str) -> Machine:
    return Machine(
        cmdline="BOOT_IMAGE=/vmlinuz-6.8.0-64-generic root=UUID=00000000-0000-4000-8000-00000000000b ro",
        cpus=64,
        numa_nodes=1,
        memory_gib=960,
        guest=True,
        vendor="QEMU",
        product=product,
        product_version=version,
        board="",
        bios_vendor="Proxmox distribution of EDK II",
        bios="4.2025.02-4",
    )


def kvm_story() -> HostModel:
    return _guest(
        "kvm-story",
        "Reconstructed from "
        + STORY
        + ": state 1, the KVM guest on the legacy i440FX chipset, model loaded, no request running.",
        _qemu("Standard PC (i440FX + PIIX, 1996)", "pc-i440fx-9.2+pve1"),
        host_bridge=0x1237,
        addresses=["0000:00:%s.0" % slot for slot in ("10", "11", "18", "19", "1a", "1b", "1c", "1d")],
        root_ports=False,
        read_write="NS",
    )


def kvm_q35() -> HostModel:
    return _guest(
        "kvm-q35",
        "Reconstructed from "
        + STORY
        + ": a guest of the same host with the Q35 chipset and PCI Express root ports, idle and healthy.",
        _qemu("Standard PC (Q35 + ICH9, 2009)", "pc-q35-9.2+pve1"),
        host_bridge=0x29C0,
        addresses=["0000:%02x:00.0" % n for n in range(1, 9)],
        root_ports=True,
        read_write="OK",
    )


def serving() -> HostModel:
    """The container of state 2 with its server on the right settings, idle."""
    model = lxc_story()
    model.name = "serving"
    model.note = (
        "Reconstructed from "
        + STORY
        + ": the LXC container with its inference server, settings mended, idle and healthy."
    )
    server.install(model, ADDRESSES)
    return model


def docker() -> HostModel:
    """Bare metal whose server runs in a container that docker compose started."""
    return containers.docker(bare_metal(serves=True), ADDRESSES)


def kubernetes() -> HostModel:
    """The same machine as a node of Kubernetes, its server in a pod."""
    return containers.kubernetes(bare_metal(serves=True), ADDRESSES)


def podman() -> HostModel:
    """The same machine with a quadlet of podman."""
    return containers.podman(bare_metal(serves=True), ADDRESSES)


def all_hosts() -> dict[str, Callable[[], HostModel]]:
    """Name -> what makes the model."""
    return {
        "bare-metal": bare_metal,
        "unprivileged": lambda: bare_metal(1000),
        "no-gpu": no_gpu,
        "lxc-story": lxc_story,
        "serving": serving,
        "kvm-story": kvm_story,
        "kvm-q35": kvm_q35,
        "docker": docker,
        "kubernetes": kubernetes,
        "podman": podman,
        "rdma": rdma,
        "pve-kvm": pve_kvm,
        "pve-lxc": pve_lxc,
        "pve-story": pve_story,
    }
