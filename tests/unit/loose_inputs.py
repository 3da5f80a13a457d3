"""Makes files as nvidia-bug-report.sh and sosreport write them, out of a recorded host."""

from __future__ import annotations

import re
from typing import Any

from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence

LINE = "____________________________________________\n\n"


def section(head: str, body: str = "") -> str:
    return LINE + head + "\n" + (body.rstrip("\n") + "\n" if body else "") + "\n"


def file_section(path: str, body: str, old: bool = False) -> str:
    """`*** PATH` and its `ls` line; drivers before 256 wrote the path alone."""
    head = (
        path
        if old
        else "*** %s\n*** ls: -r--r--r-- 1 root root 0 2026-04-09 00:00:00.000000000 +0000 %s" % (path, path)
    )
    return section(head, body)


def smi_log(xml: str) -> str:
    """The text of `nvidia-smi --query` for what its XML says: the fields that tell one GPU from another."""
    driver, cuda = (re.search("<%s>(.*?)</" % name, xml)[1] for name in ("driver_version", "cuda_version"))  # type: ignore[index]
    ids = re.findall('<gpu id="([0-9A-Fa-f:.]+)">', xml)
    names = re.findall("<product_name>(.*?)</product_name>", xml)
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [
        "%-50s: %s" % pair
        for pair in (("Timestamp", "Thu Apr  9 22:53:20 2026"), ("Driver Version", driver), ("CUDA Version", cuda))
    ]
    lines += ["", "%-50s: %d" % ("Attached GPUs", len(ids))]
    for address, name in zip(ids, names):
        lines += [
            "GPU %s" % address,
            "    %-46s: %s" % ("Product Name", name),
            "    %-46s: %s" % ("Persistence Mode", "Enabled"),
            "",
        ]
    return "\n".join(lines) + "\n"


def lspci(evidence: BundleEvidence) -> str:
    """`lspci -nn` for the devices that sysfs shows."""
    lines = []
    words = {
        "0600": "Host bridge",
        "0604": "PCI bridge",
        "0300": "VGA compatible controller",
        "0302": "3D controller",
        "0403": "Audio device",
    }
    for address in sorted(evidence.list("/sys/bus/pci/devices").entries):
        values = dict(
            line.split("=", 1)
            for line in evidence.read("/sys/bus/pci/devices/%s/uevent" % address).text.splitlines()
            if "=" in line
        )
        kind = values["PCI_CLASS"].rjust(6, "0")[:4].lower()
        maker = "NVIDIA Corporation" if values["PCI_ID"].startswith("10DE") else "Intel Corporation"
        lines.append(
            "%s %s [%s]: %s Device [%s]"
            % (address[5:], words.get(kind, "System peripheral"), kind, maker, values["PCI_ID"].lower())
        )
    return "\n".join(lines) + "\n"


def bug_report(evidence: BundleEvidence, *, old: bool = False, more: str = "", end: bool = True) -> str:
    """The sections in the script's order: files, lspci, dmidecode, log, /proc, nvidia-smi."""
    xml = evidence.run(("nvidia-smi", "-q", "-x")).text
    dmi = {
        name: evidence.read("/sys/class/dmi/id/" + name).text.strip()
        for name in ("sys_vendor", "product_name", "product_version", "bios_vendor", "bios_version")
    }
    parts = [
        section(
            "Start of NVIDIA bug report log file.  Please include this file, along",
            "with a detailed description of your problem, when reporting a graphics\n\nnvidia-bug-report.sh Version: "
            "31831145\n\n"
            "Date: Thu Apr  9 10:53:20 PM UTC 2026\nuname: Linux gpu1 %s #1 SMP x86_64 GNU/Linux\ncommand line flags: "
            % evidence.read("/proc/sys/kernel/osrelease").text.strip(),
        ),
        section("*** /var/log/nvidia-installer.log does not exist"),
        section('/usr/bin/lspci -d "10de:*" -v -xxx', ""),
        section("/usr/bin/lspci -t", ""),
        section("/usr/bin/lspci -nn\n", lspci(evidence)),
        section(
            "/usr/sbin/dmidecode\n",
            "# dmidecode 3.3\nHandle 0x0000, DMI type 0, 24 bytes\nBIOS Information\n\tVendor: %s\n\tVersion: %s\n\n"
            "Handle 0x0100, DMI type 1, 27 bytes\nSystem Information\n\tManufacturer: %s\n\tProduct Name: "
            "%s\n\tVersion: %s\n"
            % (dmi["bios_vendor"], dmi["bios_version"], dmi["sys_vendor"], dmi["product_name"], dmi["product_version"]),
        ),
        section(
            "Scanning kernel log files for NVIDIA kernel messages:",
            "\n  journalctl -b -0:\n%s\n  journalctl -b -1:\n"
            "Apr 08 10:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus." % more,
        ),
        section("dmesg:\n", evidence.run(("dmesg",)).text + more),
        section("xset -q:\n", 'xset:  unable to open display ""'),
    ]
    for path in evidence.paths():
        if path in (
            "/proc/cmdline",
            "/proc/cpuinfo",
            "/proc/meminfo",
            "/proc/modules",
            "/proc/version",
        ) or path.startswith("/etc/modprobe.d/"):
            parts.append(file_section(path, evidence.read(path).text, old))
        elif path.startswith("/proc/driver/nvidia/"):
            parts.append(file_section(path.replace("nvidia/", "nvidia/./", 1), evidence.read(path).text, old))
    parts.append(section("/usr/bin/nvidia-smi --query\n", smi_log(xml)))
    parts.append(
        section(
            "/usr/bin/nvidia-smi --query --unit\n",
            "\n==============NVSMI LOG==============\n\nDriver Version : 1\n\nAttached Units : 0\n",
        )
    )
    parts.append(section("/usr/bin/rocm-smi --showtopo\n", "ERROR: no AMD GPU"))
    return "".join(parts) + (section("End of NVIDIA bug report log file.") if end else "")


def sos_tree(evidence: BundleEvidence) -> dict[str, str]:
    """Names as sosreport gives them: copied files under their paths, commands with `_` for every blank."""
    top = "sosreport-gpu1-2026-04-09/"
    found = {
        top + path.lstrip("/"): evidence.read(path).text
        for path in evidence.paths()
        if path.startswith(
            ("/proc/cmdline", "/proc/modules", "/etc/modprobe.d/", "/etc/os-release", "/etc/default/grub")
        )
        and evidence.read(path).ok
    }
    commands: dict[str, Any] = {
        "sos_commands/kernel/dmesg": ("dmesg",),
        "sos_commands/nvidia/nvidia-smi_-q_-x": ("nvidia-smi", "-q", "-x"),
        "sos_commands/nvidia/nvidia-smi_topo_-p2p_r": ("nvidia-smi", "topo", "-p2p", "r"),
        "sos_commands/nvidia/nvidia-smi_topo_-p2p_w": ("nvidia-smi", "topo", "-p2p", "w"),
        "sos_commands/nvidia/nvidia-smi_topo_-m": ("nvidia-smi", "topo", "-m"),
    }
    found.update({top + name: evidence.run(argv).text for name, argv in commands.items()})
    found[top + "sos_commands/pci/lspci_-nnvv"] = lspci(evidence)
    found[top + "version.txt"] = "sosreport: 4.5.4\n"
    return found
