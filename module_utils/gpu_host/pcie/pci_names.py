"""PCI identifiers that matter here, as https://pci-ids.ucw.cz lists them.

An identifier that is not here stays without a name.
"""

from __future__ import annotations

NVIDIA = "10de"
BASE_CLASS_NETWORK = "02"
CLASS_VGA = "0300"
CLASS_3D = "0302"
CLASS_AUDIO = "0403"
CLASS_HOST_BRIDGE = "0600"
CLASS_PCI_BRIDGE = "0604"
CLASS_OTHER_BRIDGE = "0680"

# Class as lspci words it -> its first four digits; only what the readers tell apart.
CLASS_WORDS = {
    "VGA compatible controller": CLASS_VGA,
    "3D controller": CLASS_3D,
    "Audio device": CLASS_AUDIO,
    "Host bridge": CLASS_HOST_BRIDGE,
    "PCI bridge": CLASS_PCI_BRIDGE,
    "Bridge": CLASS_OTHER_BRIDGE,
}

# One row per product: its name and, where the first driver release whose README lists it is later than its
# architecture's (nvidia/driver_requirements.py), that release. A GPU without a row is read all the same.
_PRODUCTS: dict[str, str | tuple[str, str]] = {
    # Data centre
    "15f8": "Tesla P100 PCIe 16GB",
    "15f9": "Tesla P100 SXM2 16GB",
    "1b38": "Tesla P40",
    "1db1": "Tesla V100 SXM2 16GB",
    "1db4": "Tesla V100 PCIe 16GB",
    "1db5": "Tesla V100 SXM2 32GB",
    "1db6": "Tesla V100 PCIe 32GB",
    "1eb8": "Tesla T4",
    "20b0": "A100 SXM4 40GB",
    "20b2": "A100 SXM4 80GB",
    "20b5": "A100 PCIe 80GB",
    "20b7": "A30",
    "20f1": "A100 PCIe 40GB",
    "20f3": "A800 SXM4 80GB",
    "20f5": "A800 PCIe 80GB",
    "2235": "A40",
    "2236": "A10",
    "2237": "A10G",
    "2321": "H100 NVL",
    "2322": "H800 PCIe",
    "2324": "H800",
    "2329": "H20",
    "2330": "H100 SXM5 80GB",
    "2331": "H100 PCIe",
    "2335": "H200 SXM 141GB",
    "233b": "H200 NVL",
    "2342": "GH200 120GB / 480GB",
    "25b6": "A2 / A16",
    "26b5": "L40",
    "26b9": "L40S",
    "26ba": "L20",
    "27b8": "L4",
    "2901": "B200",
    "2941": "GB200",
    "2bb5": ("RTX PRO 6000 Blackwell Server Edition", "575.57.08"),
    "3182": "B300 SXM6 AC",
    "31c2": "GB300",
    # Workstation
    "1e30": "Quadro RTX 6000 / 8000",
    "2230": "RTX A6000",
    "2231": "RTX A5000",
    "26b1": "RTX 6000 Ada Generation",
    "26b2": "RTX 5000 Ada Generation",
    "27b0": "RTX 4000 SFF Ada Generation",
    "27b1": "RTX 4500 Ada Generation",
    "27b2": "RTX 4000 Ada Generation",
    "2bb1": ("RTX PRO 6000 Blackwell Workstation Edition", "570.133.07"),
    "2bb3": "RTX PRO 5000 Blackwell",
    "2bb4": ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "570.133.07"),
    "2c31": "RTX PRO 4500 Blackwell",
    "2c34": "RTX PRO 4000 Blackwell",
    # GeForce
    "1b82": "GeForce GTX 1070 Ti",
    "1d81": "TITAN V",
    "1e04": "GeForce RTX 2080 Ti",
    "1e07": "GeForce RTX 2080 Ti Rev. A",
    "1e81": "GeForce RTX 2080 SUPER",
    "2203": "GeForce RTX 3090 Ti",
    "2204": "GeForce RTX 3090",
    "2206": "GeForce RTX 3080",
    "2684": "GeForce RTX 4090",
    "2685": "GeForce RTX 4090 D",
    "2702": "GeForce RTX 4080 SUPER",
    "2704": "GeForce RTX 4080",
    "2b85": "GeForce RTX 5090",
    "2c02": "GeForce RTX 5080",
    "2c05": "GeForce RTX 5070 Ti",
    "2f04": "GeForce RTX 5070",
    # NVSwitch
    "1ac2": "NVSwitch (V100)",
    "1af1": "NVSwitch (A100)",
    "22a3": "NVSwitch (H100)",
}
NVIDIA_DEVICES = {device: row if isinstance(row, str) else row[0] for device, row in _PRODUCTS.items()}
FIRST_DRIVERS = {device: row[1] for device, row in _PRODUCTS.items() if not isinstance(row, str)}
# The host bridge at 00:00.0 of a virtual machine -> chipset; QEMU's hw/pci-host/.
HOST_BRIDGE_CHIPSETS = {
    "8086:1237": "i440fx",  # 82441FX
    "8086:29c0": "q35",  # 82G33, the MCH of QEMU's q35
    "1b36:0008": "other",  # QEMU's generic PCI Express host bridge (`virt`, `microvm`)
}


def device_name(vendor: str | None, device: str | None) -> str | None:
    """The product that an identifier stands for, or None where the small table does not have it."""
    return NVIDIA_DEVICES.get(device or "") if vendor == NVIDIA else None


def is_gpu(vendor: str | None, device_class: str | None) -> bool:
    return vendor == NVIDIA and (device_class or "")[:4] in (CLASS_VGA, CLASS_3D)


def is_nvswitch(vendor: str | None, device_class: str | None) -> bool:
    return vendor == NVIDIA and (device_class or "")[:4] == CLASS_OTHER_BRIDGE


def is_bridge(device_class: str | None) -> bool:
    """A PCI-to-PCI bridge: root port, switch port or conventional."""
    return (device_class or "")[:4] == CLASS_PCI_BRIDGE
