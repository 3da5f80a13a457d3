"""The two guests of the test: what is started, said once, so that the facts can be held against it."""

from __future__ import annotations

from gpu_device import Gpu
from vm import Guest

ROOT_DISK = "nvme,serial=root,drive=disk"
NETWORK = "virtio-net-pci,netdev=net,romfile="


def nvme(name: str, bus: str, gpu: Gpu, bar_mib: int = 64) -> list[str]:
    """The device that becomes `gpu`.

    Its controller memory buffer is a 64-bit prefetchable BAR 2, as a GPU's memory is BAR 1.
    """
    drive = "if=none,id=%s,driver=null-co,size=64M" % name
    device = "nvme,serial=%s,drive=%s,bus=%s,msix_qsize=%s,cmb_size_mb=%d" % (name, name, bus, gpu.vectors, bar_mib)
    return ["-drive", drive, "-device", device]


# --- i440FX: what Proxmox VE makes unless told otherwise. GPUs lie beside everything else on one conventional bus.
I440FX_GPUS = {"0000:00:05.0": Gpu(), "0000:00:06.0": Gpu(vectors=21)}
I440FX_ARGUMENTS = [
    *("-machine", "pc", "-m", "768", "-device", ROOT_DISK + ",addr=3", "-device", NETWORK + ",addr=4"),
    *("-device", "edu,addr=5", *nvme("b", "pci.0,addr=6", I440FX_GPUS["0000:00:06.0"])),
]

# --- Q35 with an IOMMU, two NUMA nodes and a server maker's DMI:
#   node 0  bus 20: root port -> NEAR_A;  root port -> NEAR_B            (ports with ACS)
#   node 1  bus 40: root port -> switch -> FAR_A, FAR_B, an NVMe drive   (the switch's ports have no ACS)
#           bus 00: two root ports without ACS, functions of one device -> PLAIN;  -> an NVMe drive
NEAR_A, NEAR_B, FAR_A, FAR_B, PLAIN = "0000:21:00.0", "0000:22:00.0", "0000:43:00.0", "0000:44:00.0", "0000:01:00.0"
NEAR_A_PORT, NEAR_B_PORT, FAR_PORT, PLAIN_PORT = "0000:20:00.0", "0000:20:01.0", "0000:40:00.0", "0000:00:07.0"
SWITCH, DOWN_A, DOWN_B = "0000:41:00.0", "0000:42:00.0", "0000:42:01.0"
DRIVE_BESIDE_PLAIN = "0000:02:00.0"
Q35_GPUS = {
    NEAR_A: Gpu(vectors=21, speed_gt_s=16.0, max_speed_gt_s=16.0),
    NEAR_B: Gpu(vectors=22, width=8),
    FAR_A: Gpu(vectors=23, device=0x2BB1, device_class=0x0300),
    FAR_B: Gpu(vectors=24, device=0x2BB1, device_class=0x0300),
    PLAIN: Gpu(vectors=25, device=0x2684, max_width=8, width=8),
}
Q35_ARGUMENTS = [
    *("-machine", "q35,kernel-irqchip=split", "-cpu", "EPYC", "-m", "768", "-device", "intel-iommu,intremap=on"),
    *(
        "-smbios",
        "type=1,manufacturer=Supermicro,product=AS-4124GS-TNR",
        "-smbios",
        "type=2,manufacturer=Supermicro,product=H12DSG-O-CPU",
    ),
    *("-object", "memory-backend-ram,id=m0,size=384M", "-object", "memory-backend-ram,id=m1,size=384M"),
    *("-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,memdev=m1"),
    *("-device", ROOT_DISK + ",bus=pcie.0,addr=3", "-device", NETWORK + ",bus=pcie.0,addr=4"),
    *("-device", "pxb-pcie,id=near,bus_nr=32,bus=pcie.0,numa_node=0,addr=5"),
    *("-device", "pcie-root-port,id=near0,bus=near,chassis=1,slot=1,addr=0,x-speed=16,x-width=16"),
    *("-device", "pcie-root-port,id=near1,bus=near,chassis=2,slot=2,addr=1,x-speed=16,x-width=16"),
    *nvme("near_a", "near0", Q35_GPUS[NEAR_A], bar_mib=1024),
    *nvme("near_b", "near1", Q35_GPUS[NEAR_B]),
    *("-device", "pxb-pcie,id=far,bus_nr=64,bus=pcie.0,numa_node=1,addr=6"),
    *("-device", "pcie-root-port,id=far0,bus=far,chassis=3,slot=3,addr=0,x-speed=16,x-width=16"),
    *("-device", "x3130-upstream,id=switch,bus=far0"),
    *("-device", "xio3130-downstream,id=down0,bus=switch,chassis=20,slot=20,addr=0"),
    *("-device", "xio3130-downstream,id=down1,bus=switch,chassis=21,slot=21,addr=1"),
    *("-device", "xio3130-downstream,id=down2,bus=switch,chassis=22,slot=22,addr=2"),
    *nvme("far_a", "down0", Q35_GPUS[FAR_A]),
    *nvme("far_b", "down1", Q35_GPUS[FAR_B]),
    *("-drive", "if=none,id=spare,driver=null-co,size=64M", "-device", "nvme,serial=spare,drive=spare,bus=down2"),
    *(
        "-device",
        "pcie-root-port,id=bare0,bus=pcie.0,chassis=40,slot=40,addr=7.0,multifunction=on,disable-acs=on,x-speed=8,x-width=8",
    ),
    *("-device", "pcie-root-port,id=bare1,bus=pcie.0,chassis=41,slot=41,addr=7.1,disable-acs=on"),
    *nvme("plain", "bare0", Q35_GPUS[PLAIN]),
    *("-drive", "if=none,id=beside,driver=null-co,size=64M", "-device", "nvme,serial=beside,drive=beside,bus=bare1"),
]

I440FX = Guest("i440fx", I440FX_ARGUMENTS, I440FX_GPUS)
Q35 = Guest("q35", Q35_ARGUMENTS, Q35_GPUS, append="intel_iommu=on")
