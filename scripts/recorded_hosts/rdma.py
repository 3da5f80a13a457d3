"""A host whose GPUs stand below PCI Express switches, each switch with a network card for GPUDirect RDMA."""

from __future__ import annotations

from . import between_hosts, driver, linux, pcie, probe, smi
from .epyc_board import AMD, AMD_IOMMU, GIB, card, write_proc_bus
from .linux import Machine
from .tree import HostModel

BROADCOM, MELLANOX = 0x1000, 0x15B3
# Root complex -> (first bus of the switch, NUMA node). Below it two GPUs and a network card.
SWITCHES = {"pci0000:00": (0x01, 0), "pci0000:80": (0x81, 1)}


def rdma() -> HostModel:
    model = HostModel(
        "rdma",
        "Reconstructed: four RTX PRO 6000 Blackwell Server Edition below two PCI Express switches with a ConnectX-7 "
        "each; the shapes of outputs follow drivers 580 and 595, the matrix of nvidia-smi those of public 8-GPU hosts.",
    )
    machine = Machine()
    linux.install(model, machine)
    gpus: list[smi.Gpu] = []
    lines: list[str] = []
    for root, (bus, node) in SWITCHES.items():
        _add_switch(model, root, bus, node, gpus, lines)
    nodes = [node for _bus, node in SWITCHES.values() for _gpu in range(2)]
    smi.install(
        model,
        gpus,
        [[_cell(a, b) for b in range(4)] for a in range(4)],
        [linux.cpu_list(machine, node) for node in nodes],
        [str(node) for node in nodes],
        nics={"mlx5_0": ["PXB", "PXB", "SYS", "SYS"], "mlx5_1": ["SYS", "SYS", "PXB", "PXB"]},
    )
    driver.install(model, machine, gpus)
    probe.install(model, [gpu.address for gpu in gpus], nodes, between_hosts=True)
    between_hosts.install(model, [gpu.address for gpu in gpus])
    write_proc_bus(model)
    model.command("dmesg", driver.kernel_log(machine, gpus, AMD_IOMMU, gpu_lines=lines))
    return model


def _cell(a: int, b: int) -> str:
    return "X" if a == b else "PXB" if a // 2 == b // 2 else "SYS"


def _add_switch(model: HostModel, root: str, bus: int, node: int, gpus: list[smi.Gpu], lines: list[str]) -> None:
    """Root port, upstream port, three downstream ports, and what hangs from them."""
    top = bus - 1
    group = 0 if node == 0 else 20
    host, port, upstream = "0000:%02x:00.0" % top, "0000:%02x:01.1" % top, "0000:%02x:00.0" % bus
    amd, broadcom = (AMD, 0x1453), (BROADCOM, 0xA064)
    pcie.add(model, pcie.Device(host, AMD, 0x153A, 0x060000, (AMD, 0x153A), root, numa_node=node, iommu_group=group))
    unit = "0000:%02x:00.2" % top
    pcie.add(model, pcie.Device(unit, AMD, 0x153B, 0x080600, (AMD, 0x153B), root, numa_node=node))
    model.link("/sys/class/iommu/ivhd%d" % node, "../../devices/%s/%s/iommu/ivhd%d" % (root, unit, node))

    def bridge(
        address: str, path: tuple[str, ...], ids: tuple[int, int], subsystem: tuple[int, int], kind: int,
        buses: tuple[int, int, int], number: int,
    ) -> None:  # fmt: skip
        acs = None if kind == pcie.UPSTREAM else pcie.ACS_NO_REDIRECT
        pcie.add(
            model,
            pcie.Device(
                address, *ids, 0x060400, subsystem, root, path, "pcieport", node, group + number, kind,
                acs_control=acs, buses=buses, revision=1,
            ),
        )  # fmt: skip

    bridge(port, (), (AMD, 0x153E), amd, pcie.ROOT_PORT, (top, bus, bus + 4), 1)
    bridge(upstream, (port,), (BROADCOM, 0xC030), broadcom, pcie.UPSTREAM, (bus, bus + 1, bus + 4), 2)
    for place in range(3):
        down = "0000:%02x:%02x.0" % (bus + 1, place)
        below = bus + 2 + place
        bridge(
            down, (port, upstream), (BROADCOM, 0xC030), broadcom, pcie.DOWNSTREAM, (bus + 1, below, below), 3 + place
        )
        address, path = "0000:%02x:00.0" % below, (port, upstream, down)
        if place == 2:
            pcie.add(
                model,
                pcie.Device(
                    address, MELLANOX, 0x1021, 0x020700, (MELLANOX, 0x0023), root, path, "mlx5_core", node,
                    group + 6 + place, pcie.ENDPOINT, revision=0,
                ),
            )  # fmt: skip
            continue
        number = len(gpus)
        pcie.add(model, card(address, root, path, number, numa_node=node, group=group + 6 + place))
        gpus.append(smi.Gpu(number, address, power_w=33.1 + 0.2 * number))
        base = 0x20000000000 + number * 0x4000000000
        lines += [
            "pci %s: [10de:2bb5] type 00 class 0x030200 PCIe Legacy Endpoint" % address,
            "pci %s: BAR 2 [mem 0x%x-0x%x 64bit pref]" % (address, base, base + 128 * GIB - 1),
        ]
    for number in range(group, group + 9):
        model.file("/sys/kernel/iommu_groups/%d/type" % number, "identity\n")
        model.directory("/sys/kernel/iommu_groups/%d/reserved_regions" % number)
