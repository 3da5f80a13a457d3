"""What nvidia-smi prints for the GPUs of a model, in the shape of the 580 and 595 drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from .tree import HostModel

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
P2P_LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""
NA = "N/A"


@dataclass
class Gpu:
    """One RTX PRO 6000 Blackwell Server Edition as nvidia-smi sees it; every default is a healthy idle card."""

    index: int
    address: str  # 0000:01:00.0
    used_mib: int = 0
    power_w: float = 33.0
    pstate: str = "P8"
    link_gen: int | None = 1
    host_gen: int | None = 5
    width: int | None = 16
    virtualization: str = "None"
    utilisation: int = 0
    processes: list[tuple[int, str, int]] = field(default_factory=list)  # pid, name, MiB
    temperature: int = 28

    @property
    def uuid(self) -> str:
        return "GPU-00000000-0000-4000-8000-%012d" % (self.index + 1)

    @property
    def long_address(self) -> str:
        return "0000" + self.address.upper()


PROCESS = """\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>{}</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>{}</process_name>
\t\t\t\t<used_memory>{} MiB</used_memory>
\t\t\t</process_info>
"""


def _gpu_xml(gpu: Gpu, driver: str) -> str:
    """One <gpu> block: gpu.xml beside this file, filled in."""
    domain, bus, slot = gpu.address.split(":")
    graphics, memory, video = (180, 405, 600) if gpu.pstate == "P8" else (2370, 12481, 2070)
    template = (Path(__file__).parent / "gpu.xml").read_text(encoding="utf-8")
    return template.format(
        long_address=gpu.long_address,
        domain=domain,
        bus=bus.upper(),
        device=slot.split(".")[0].upper(),
        board=int(bus, 16) << 8,
        index=gpu.index,
        number=gpu.index + 1,
        uuid=gpu.uuid,
        driver=driver,
        virtualization=gpu.virtualization,
        gen=gpu.link_gen or NA,
        max_gen=5 if gpu.link_gen else NA,
        host_gen=gpu.host_gen or NA,
        width="%dx" % gpu.width if gpu.width else NA,
        max_width="16x" if gpu.width else NA,
        tx=420 + 7 * gpu.index,
        rx=510 + 3 * gpu.index,
        pstate=gpu.pstate,
        idle="Not Active" if gpu.utilisation else "Active",
        used_mib=gpu.used_mib,
        free_mib=max(97887 - 636 - gpu.used_mib, 0),
        utilisation=gpu.utilisation,
        temperature=gpu.temperature,
        headroom=86 - gpu.temperature,
        power_w=gpu.power_w,
        graphics=graphics,
        memory=memory,
        video=video,
        processes="".join(PROCESS.format(*process) for process in gpu.processes),
    )


def query_xml(gpus: Sequence[Gpu], driver: str, cuda: str) -> str:
    """`nvidia-smi -q -x`."""
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
    head += (
        "\t<timestamp>Fri Apr 10 00:13:20 "
        "2026</timestamp>\n\t<driver_version>%s</driver_version>\n\t<cuda_version>%s</cuda_version>\n"
        % (
            driver,
            cuda,
        )
    )
    return (
        head
        + "\t<attached_gpus>%d</attached_gpus>\n" % len(gpus)
        + "".join(_gpu_xml(gpu, driver) for gpu in gpus)
        + "</nvidia_smi_log>\n"
    )


def topology(
    cells: Sequence[Sequence[str]],
    cpus: Sequence[str],
    nodes: Sequence[str],
    nics: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """`nvidia-smi topo -m`; `cells[i][j]` is the class of a pair, `nics` the class of each GPU by network device."""
    count = len(cells)
    labels = ["NIC%d" % number for number in range(len(nics))]
    out = (
        "\t\x1b[4m"
        + "\t".join(["GPU%d" % i for i in range(count)] + labels)
        + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    )
    for i in range(count):
        row = ["%4s" % " X " if i == j else cells[i][j] for j in range(count)] + [near[i] for near in nics.values()]
        out += "GPU%d\t%s\t%s\t%s\t\tN/A\n" % (
            i,
            "\t".join(cell if cell.strip() != "X" else " X " for cell in row),
            cpus[i],
            nodes[i],
        )
    for label, near in zip(labels, nics.values()):
        row = [*near, *(" X " if other == label else "SYS" for other in labels)]
        out += "%s\t%s\t\t\t\t\n" % (label, "\t".join(row))
    legend = "".join("  %s: %s\n" % pair for pair in zip(labels, nics))
    return out + LEGEND + ("\nNIC Legend:\n\n" + legend if legend else "")


def p2p(count: int, word: str) -> str:
    """`nvidia-smi topo -p2p …` with the same word for every pair."""
    out = " \t\x1b[4m" + "\t".join("GPU%d" % i for i in range(count)) + "\t\x1b[0m\n"
    for i in range(count):
        out += " GPU%d\t%s\t\n" % (i, "\t".join("X" if i == j else word for j in range(count)))
    return out + P2P_LEGEND


def install(
    model: HostModel,
    gpus: Sequence[Gpu],
    cells: Sequence[Sequence[str]],
    cpus: Sequence[str],
    nodes: Sequence[str],
    *,
    read_write: str = "OK",
    driver: str = "595.58.03",
    cuda: str = "13.2",
    nics: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Every nvidia-smi command that the readers know, answered for `gpus`."""
    model.command("nvidia-smi -q -x", query_xml(gpus, driver, cuda), seconds=0.31)
    model.command("nvidia-smi topo -m", topology(cells, cpus, nodes, nics), seconds=0.12)
    for letter, word in (("r", read_write), ("w", read_write), ("n", "NS"), ("a", "NS"), ("p", read_write)):
        model.command("nvidia-smi topo -p2p " + letter, p2p(len(gpus), word), seconds=0.09)
    listing = "".join(
        "GPU %d: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: %s)\n" % (gpu.index, gpu.uuid) for gpu in gpus
    )
    model.command("nvidia-smi -L", listing)
    model.command("nvidia-smi nvlink -s", listing)  # cards without NVLink print their name and nothing under it
    model.command(
        "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader",
        "".join("%d, %s\n" % (gpu.index, gpu.long_address) for gpu in gpus),
    )
