"""The machine that most recorded hosts are made of.

A dual-socket EPYC server with eight cards, each on its own root port.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import linux, pcie, smi
from .linux import Machine
from .tree import HostModel

GIB, MIB = 1 << 30, 1 << 20
NVIDIA, AMD, INTEL, RED_HAT = 0x10DE, 0x1022, 0x8086, 0x1B36
# The bus of each card and the NUMA node (socket) of its root complex.
CARDS = ((0x01, 0), (0x11, 0), (0x61, 0), (0x71, 0), (0x81, 1), (0x91, 1), (0xE1, 1), (0xF1, 1))
STORY = (
    "public write-ups of one deployment (8x RTX PRO 6000 Blackwell Server Edition, EPYC 9335, Proxmox VE); "
    "the shapes of outputs follow drivers 580 and 595"
)


def card(
    address: str,
    root: str,
    path: Sequence[str],
    number: int,
    *,
    port_type: int = pcie.LEGACY_ENDPOINT,
    numa_node: int = -1,
    group: int | None = None,
    driver_name: str | None = "nvidia",
    speed: int = 1,
) -> pcie.Device:
    base = 0x20000000000 + number * 0x4000000000
    return pcie.Device(
        address,
        NVIDIA,
        0x2BB5,
        0x030200,
        (NVIDIA, 0x204E),
        root,
        tuple(path),
        driver_name,
        numa_node,
        group,
        port_type,
        speed=speed,
        irq=480 + number,
        bars={
            0: (base + 0x2000000000, 64 * MIB, True),
            2: (base, 128 * GIB, True),
            4: (base + 0x2010000000, 32 * MIB, True),
        },
    )


def _host_bridge(address: str, root: str, node: int, group: int) -> pcie.Device:
    return pcie.Device(
        address, AMD, 0x153A, 0x060000, (AMD, 0x153A), root, numa_node=node, iommu_group=group, revision=0
    )


def build_pci_tree(model: HostModel, with_gpus: bool = True, visible_bytes: int = 4096, speed: int = 1) -> list[str]:
    """The PCI tree of the dual-socket EPYC host; returns what the kernel log says of it."""
    log = []
    group = 0
    for place, (bus, node) in enumerate(CARDS):
        top = bus - 1
        root = "pci0000:%02x" % top
        host, port, address = "0000:%02x:00.0" % top, "0000:%02x:01.1" % top, "0000:%02x:00.0" % bus
        pcie.add(model, _host_bridge(host, root, node, group), visible_bytes)
        pcie.add(
            model,
            pcie.Device("0000:%02x:00.2" % top, AMD, 0x153B, 0x080600, (AMD, 0x153B), root, numa_node=node, revision=0),
            visible_bytes,
        )
        if with_gpus:
            pcie.add(
                model,
                pcie.Device(
                    port,
                    AMD,
                    0x153E,
                    0x060400,
                    (AMD, 0x1453),
                    root,
                    (),
                    "pcieport",
                    node,
                    group + 1,
                    pcie.ROOT_PORT,
                    speed=speed,
                    acs_control=pcie.ACS_NO_REDIRECT,
                    buses=(top, bus, bus),
                    revision=1,
                    irq=40 + place,
                ),
                visible_bytes,
            )
            pcie.add(
                model, card(address, root, [port], place, numa_node=node, group=group + 2, speed=speed), visible_bytes
            )
            log += [
                "pci %s: [10de:2bb5] type 00 class 0x030200 PCIe Legacy Endpoint" % address,
                "pci %s: BAR 2 [mem 0x%x-0x%x 64bit pref]"
                % (address, 0x20000000000 + place * 0x4000000000, 0x20000000000 + place * 0x4000000000 + 128 * GIB - 1),
            ]
        for number in (group, group + 1, group + 2) if with_gpus else (group,):
            model.file("/sys/kernel/iommu_groups/%d/type" % number, "identity\n")
            model.directory("/sys/kernel/iommu_groups/%d/reserved_regions" % number)
        model.link(
            "/sys/class/iommu/ivhd%d" % place, "../../devices/%s/0000:%02x:00.2/iommu/ivhd%d" % (root, top, place)
        )
        group += 3
    # A network card and a disk, so that not everything on the bus is a GPU.
    root = "pci0000:a0"
    pcie.add(model, _host_bridge("0000:a0:00.0", root, 1, group), visible_bytes)
    pcie.add(
        model,
        pcie.Device(
            "0000:a0:01.1",
            AMD,
            0x153E,
            0x060400,
            (AMD, 0x1453),
            root,
            (),
            "pcieport",
            1,
            group + 1,
            pcie.ROOT_PORT,
            4,
            5,
            4,
            4,
            pcie.ACS_NO_REDIRECT,
            (0xA0, 0xA1, 0xA1),
            revision=1,
        ),
        visible_bytes,
    )
    pcie.add(
        model,
        pcie.Device(
            "0000:a1:00.0",
            0x144D,
            0xA80A,
            0x010802,
            (0x144D, 0xA801),
            root,
            ("0000:a0:01.1",),
            "nvme",
            1,
            group + 2,
            pcie.ENDPOINT,
            4,
            4,
            4,
            4,
            bars={0: (0xF0000000, 16384, False)},
            revision=0,
        ),
        visible_bytes,
    )
    for number in (group, group + 1, group + 2):
        model.file("/sys/kernel/iommu_groups/%d/type" % number, "identity\n")
    return log


def write_proc_bus(model: HostModel) -> None:
    """/proc/bus/pci/devices, from what sysfs shows."""
    out = ""
    for address in sorted(model.list("/sys/bus/pci/devices").entries):
        text = {
            name: model.read("/sys/bus/pci/devices/%s/%s" % (address, name)).text.strip()
            for name in ("vendor", "device", "irq")
        }
        bound = [
            line[7:]
            for line in model.read("/sys/bus/pci/devices/%s/uevent" % address).text.splitlines()
            if line.startswith("DRIVER=")
        ]
        _domain, bus, slot = address.split(":")
        devfn = int(slot.split(".")[0], 16) << 3 | int(slot.split(".")[1])
        out += "%s%02x\t%s%s\t%x\t%s\t%s\n" % (
            bus,
            devfn,
            text["vendor"][2:],
            text["device"][2:],
            int(text["irq"] or 0),
            "\t".join(["%16x" % 0] * 14),
            "".join(bound),
        )
    model.file("/proc/bus/pci/devices", out)


def install_smi(model: HostModel, machine: Machine, gpus: Sequence[smi.Gpu]) -> None:
    """nvidia-smi of the host's own cards, each on the NUMA node of its socket."""
    nodes = [node for _bus, node in CARDS]
    cells = _node_cells(nodes)
    smi.install(model, gpus, cells, [linux.cpu_list(machine, node) for node in nodes], [str(node) for node in nodes])


def _node_cells(nodes: Sequence[int]) -> list[list[str]]:
    return [
        ["X" if a == b else "NODE" if nodes[a] == nodes[b] else "SYS" for b in range(len(nodes))]
        for a in range(len(nodes))
    ]


AMD_IOMMU = (
    "AMD-Vi: Using global IVHD EFR:0x246577efa2254afa, EFR2:0x0",
    "iommu: Default domain type: Passthrough (set via kernel command line)",
    *["AMD-Vi: Found IOMMU cap 0x40" for _ in range(8)],
    "AMD-Vi: Interrupt remapping enabled",
    "AMD-Vi: Virtual APIC enabled",
)
