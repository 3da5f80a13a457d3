"""The real recording of two H200 with NVLink, brought into the form of a bundle.

tests/fixtures/recordings/h200-x2-nvlink holds what the machine printed. Nothing is made up here: what was not recorded is
"not captured". That there is no DMI, no IOMMU, no systemd and a flat PCI bus was seen on the machine.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from . import pcie
from .tree import HostModel

RECORDING = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "recordings" / "h200-x2-nvlink"
FILES = {
    "nvidia-smi -q -x": "nvidia-smi_-q_-x.xml",
    "nvidia-smi -q": "nvidia-smi_-q.txt",
    "nvidia-smi": "nvidia-smi.txt",
    "nvidia-smi -L": "nvidia-smi_-L.txt",
    "nvidia-smi nvlink -s": "nvidia-smi_nvlink_-s.txt",
    "nvidia-smi topo -m": "nvidia-smi_topo_-m.txt",
    "nvidia-smi topo -mp": "nvidia-smi_topo_-mp.txt",
    **{"nvidia-smi topo -p2p " + letter: "nvidia-smi_topo_-p2p_%s.txt" % letter for letter in "rwnap"},
}


def _text(name: str) -> str:
    return (RECORDING / name).read_text(encoding="utf-8")


def _sections(name: str) -> dict[str, str]:
    """A recording of several files: `== PATH` and its content."""
    found: dict[str, str] = {}
    for part in re.split(r"(?m)^== ", _text(name))[1:]:
        path, _newline, content = part.partition("\n")
        found[path.strip()] = content
    return found


def h200_x2() -> HostModel:
    model = HostModel(
        "h200-x2", "Recorded on a KVM guest with two NVIDIA H200 (NV18), driver 580.159.04; converted from raw outputs, identifiers replaced."
    )
    # Of all other paths nobody wrote down whether they were there.
    model.unrecorded = (
        "/etc",
        "/boot",
        "/lib",
        "/usr",
        "/var",
        "/proc/sys",
        "/proc/cmdline",
        "/proc/mounts",
        "/proc/self",
        "/proc/1",
        "/proc/stat",
        "/proc/uptime",
        "/proc/meminfo",
        "/proc/devices",
        "/proc/bus",
        "/sys/devices",
        "/sys/bus/pci/devices/",
        "/run",
        "/sys/module",
    )
    for argv, name in FILES.items():
        model.command(argv, _text(name), seconds=0.2)
    _query_gpu(model)
    for path, content in {**_sections("proc_driver_nvidia.txt")}.items():
        model.file(path, content)
    model.file("/proc/modules", _text("proc_modules.txt"))
    model.file("/etc/os-release", _text("os-release.txt"))
    for line in _text("sys_module_nvidia_parameters.txt").splitlines():
        path, _equals, value = line.partition(" = ")
        model.file(path, value + "\n")
    for line in _text("sys_module_nvidia_version.txt").splitlines():
        path, version = line.split()[:2]
        model.file(path + "/version", version + "\n")
    _device_nodes(model)
    _pci(model)
    _cpu(model)
    model.directory("/sys/class")  # no /sys/class/dmi, no /sys/class/iommu
    model.directory("/sys/kernel")
    for program in ("systemd-detect-virt", "systemctl", "mokutil", "dkms"):
        model.no_command(program)
    return model


def _query_gpu(model: HostModel) -> None:
    """The recorded CSV, with the columns that the readers ask for taken from the recorded XML and list."""
    rows = list(csv.DictReader(io.StringIO(_text("nvidia-smi_--query-gpu.csv")), skipinitialspace=True))
    uuids = re.findall(r"UUID: ([^)]+)", _text("nvidia-smi_-L.txt"))
    columns = ("index", "pci.bus_id", "name", "driver_version", "memory.total [MiB]", "memory.used [MiB]", "utilization.gpu [%]")
    out = ", ".join((*columns[:2], "uuid", *columns[2:])) + "\n"
    for row, uuid in zip(rows, uuids):
        cells = [row[column] for column in columns]
        out += ", ".join((*cells[:2], uuid, *cells[2:])) + "\n"
    model.command(
        "nvidia-smi --query-gpu=index,pci.bus_id,uuid,name,driver_version,memory.total,memory.used,utilization.gpu --format=csv", out, seconds=0.1
    )


def _device_nodes(model: HostModel) -> None:
    directory = "/dev"
    modes = {"r": 4, "w": 2, "x": 1}
    for line in _text("dev_nvidia.txt").splitlines():
        if line.endswith(":"):
            directory = line[:-1]
        elif line.startswith("c"):
            fields = line.replace(",", " ").split()
            bits = sum(modes.get(letter, 0) << shift for shift, part in zip((6, 3, 0), (line[1:4], line[4:7], line[7:10])) for letter in part)
            name = fields[-1] if fields[-1].startswith("/") else "%s/%s" % (directory, fields[-1])
            model.device(name, int(fields[4]), int(fields[5]), bits)


def _pci(model: HostModel) -> None:
    """sysfs as recorded: ids, class, driver, link and NUMA node of each function; configuration space and BARs were not."""
    for line in _text("sys_bus_pci_devices.txt").splitlines():
        address = line.split()[0].rsplit("/", 1)[1]
        field = dict(re.findall(r"(\w+)=((?:[^=]*?))(?= \w+=|$)", line))
        width = field["cur"].rpartition("/")[2]
        pcie.add(
            model,
            pcie.Device(
                address,
                int(field["vendor"], 16),
                int(field["device"], 16),
                int(field["class"], 16),
                driver=field["drv"].rsplit("/", 1)[-1] or None,
                numa_node=int(field["numa"]),
                port_type=pcie.ENDPOINT if width else None,
                width=int(width or 0),
                max_width=int(width or 0),
            ),
        )
        for name in (
            "uevent",
            "config",
            "resource",
            "irq",
            "enable",
            "subsystem_vendor",
            "subsystem_device",
            "revision",
            "reset_method",
            "power_state",
            "d3cold_allowed",
            "broken_parity_status",
        ):
            model.remove("/sys/devices/pci0000:00/%s/%s" % (address, name))


def _cpu(model: HostModel) -> None:
    """/proc/cpuinfo from the recorded lscpu."""
    lscpu = dict(re.findall(r"(?m)^([^:]+):\s+(.*)$", _text("lscpu.txt")))
    one = "processor\t: %d\nvendor_id\t: %s\ncpu family\t: %s\nmodel\t\t: %s\nmodel name\t: %s\nstepping\t: %s\nflags\t\t: %s\n\n"
    model.file(
        "/proc/cpuinfo",
        "".join(
            one % (n, lscpu["Vendor ID"], lscpu["CPU family"], lscpu["Model"], lscpu["Model name"], lscpu["Stepping"], lscpu["Flags"])
            for n in range(int(lscpu["CPU(s)"]))
        ),
    )
    base = "/sys/devices/system/node/node0"
    model.file(base + "/cpulist", lscpu["NUMA node0 CPU(s)"] + "\n")
    for cpu in range(int(lscpu["CPU(s)"])):
        model.directory("/sys/devices/system/cpu/cpu%d" % cpu)
