"""The Proxmox hosts of the recorded fleet: the guests' configurations, the running QEMU processes, the boot loader."""

from __future__ import annotations

from collections.abc import Sequence

from . import driver, linux, smi
from .epyc_board import AMD_IOMMU, CARDS, STORY, build_pci_tree, install_smi, write_proc_bus
from .linux import Machine
from .tree import BOOTED_AT, HostModel

ADDRESSES = ["0000:%02x:00.0" % bus for bus, _node in CARDS]
RELEASE = "6.14.11-3-pve"
COMMAND_LINE = "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt"
VM, CONTAINER = "101", "102"
MODERN_VM = """#The inference guest. Its GPUs reach one another only on Q35%3A
agent: 1
balloon: 0
bios: ovmf
boot: order=scsi0;net0
cores: 64
cpu: host
efidisk0: local-zfs:vm-101-disk-0,efitype=4m,pre-enrolled-keys=0,size=1M
{hostpci}machine: q35
memory: 983040
name: llm-vm
net0: virtio=02:00:00:00:00:01,bridge=vmbr0
numa: 1
onboot: 1
ostype: l26
scsi0: local-zfs:vm-101-disk-1,iothread=1,size=2T
scsihw: virtio-scsi-single
smbios1: uuid=00000000-0000-0000-0000-000000000101
sockets: 1
vmgenid: 00000000-0000-0000-0000-000000000102

[before-q35]
#state of the first week
balloon: 0
cores: 64
hostpci0: 0000:01:00
memory: 983040
name: llm-vm
snaptime: 1775000000
"""
CONTAINER_CONF = """arch: amd64
cores: 64
{devices}features: nesting=1
hostname: llm-ct
memory: 983040
net0: name=eth0,bridge=vmbr0,hwaddr=02:00:00:00:00:02,ip=dhcp,type=veth
onboot: 1
ostype: ubuntu
rootfs: local-zfs:subvol-102-disk-0,size=2T
swap: 0
"""
NODES_UNIT = """[Unit]
Description=Create the NVIDIA device nodes before the guests start
Before=pve-guests.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-modprobe -c 0 -u

[Install]
WantedBy=multi-user.target
"""


def _proxmox(name: str, note: str, gpu_driver: str) -> tuple[HostModel, Machine, list[str]]:
    model = HostModel(name, "Reconstructed from " + STORY + ": " + note)
    machine = Machine(
        release=RELEASE,
        cmdline="initrd=\\EFI\\proxmox\\%s\\initrd.img-%s %s" % (RELEASE, RELEASE, COMMAND_LINE),
        memory_gib=1536,
    )
    linux.install(model, machine)
    lines = build_pci_tree(model)
    for address in ADDRESSES:
        _bind(model, address, gpu_driver)
    model.link("/etc/pve/local", "nodes/pve1")
    model.link("/etc/pve/qemu-server", "nodes/pve1/qemu-server")
    model.link("/etc/pve/lxc", "nodes/pve1/lxc")
    model.directory("/etc/pve/nodes/pve1/qemu-server")
    model.directory("/etc/pve/nodes/pve1/lxc")
    # Guests without a GPU, so that not every guest of the host is one of ours.
    model.file(
        "/etc/pve/nodes/pve1/qemu-server/100.conf",
        "cores: 2\nmemory: 4096\nname: router\nonboot: 1\nscsi0: local-zfs:vm-100-disk-0,size=8G\n",
        mode=0o640,
    )
    model.file(
        "/etc/pve/nodes/pve1/lxc/110.conf",
        "arch: amd64\nhostname: dns\nmemory: 512\nostype: debian\nunprivileged: 1\n",
        mode=0o640,
    )
    model.command("pveversion", "pve-manager/9.1.3/0000000000000000 (running kernel: %s)\n" % RELEASE, seconds=0.6)
    model.file("/etc/kernel/cmdline", COMMAND_LINE + "\n")
    model.file("/etc/kernel/proxmox-boot-uuids", "AAAA-0001\nAAAA-0002\n")
    model.command(
        "proxmox-boot-tool status",
        (
            "Re-executing '/usr/sbin/proxmox-boot-tool' in new private mount namespace..\nSystem currently booted "
            "with uefi\n"
            "AAAA-0001 is configured with: uefi (versions: %s)\nAAAA-0002 is configured with: uefi (versions: %s)\n"
        )
        % (RELEASE, RELEASE),
        seconds=0.4,
    )
    model.directory("/etc/systemd/system/multi-user.target.wants")
    model.directory("/etc/modules-load.d")
    model.file("/etc/modules", "# one module a line\n")
    model.file("/etc/modprobe.d/pve-blacklist.conf", "# nidiafb see bugreport\nblacklist nvidiafb\n")
    return model, machine, lines


def _bind(model: HostModel, address: str, name: str) -> None:
    """Give a card to another driver than nvidia, which scripts/recorded_hosts/hosts.py binds."""
    if name == "nvidia":
        return
    base = "/sys/bus/pci/devices/" + address
    real = model._resolve(base) or base
    model.file(real + "/uevent", model.read(real + "/uevent").text.replace("DRIVER=nvidia", "DRIVER=" + name))
    target = model.list(real).entries["driver"].target or ""
    model.link(real + "/driver", target.rpartition("/")[0] + "/" + name)
    model.remove("/sys/bus/pci/drivers/nvidia/" + address)
    model.link("/sys/bus/pci/drivers/%s/%s" % (name, address), "../../../.." + real[4:])


def _without_driver(model: HostModel, machine: Machine) -> None:
    """A host that gives its cards away has no NVIDIA driver of its own."""
    model.file(
        "/proc/modules",
        "vfio_pci 20480 8 - Live 0x0000000000000000\nvfio_iommu_type1 53248 1 - Live 0x0000000000000000\n",
    )
    model.file(
        "/etc/modprobe.d/vfio.conf",
        "options vfio-pci ids=10de:2bb5 disable_vga=1\nsoftdep nvidia pre: vfio-pci\nblacklist nouveau\nblacklist "
        "nvidia\n",
    )
    model.device("/dev/null", 1, 3)
    model.device("/dev/vfio/vfio", 10, 196)
    model.file(
        "/proc/devices",
        "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n511 vfio\n\nBlock devices:\n259 blkext\n",
    )
    driver.absent(model)


def qemu_arguments(machine_type: str, devices: Sequence[str], express: bool, extra: Sequence[str] = ()) -> bytes:
    """The NUL-separated command line of VM 101 as qemu-server starts it.

    It is shortened to what has to do with its devices.
    """
    argv = [
        "/usr/bin/kvm",
        "-id",
        VM,
        "-name",
        "llm-vm,debug-threads=on",
        "-no-shutdown",
        "-pidfile",
        "/var/run/qemu-server/%s.pid" % VM,
        "-daemonize",
        "-smp",
        "64,sockets=1,cores=64,maxcpus=64",
        "-nodefaults",
        "-cpu",
        "host,+kvm_pv_eoi,+kvm_pv_unhalt",
        "-m",
        "983040",
    ]
    for number, address in enumerate(devices):
        if express and number > 3:
            port = (
                "pcie-root-port,id=ich9-pcie-port-%d,addr=10.%d,x-speed=16,x-width=32,multifunction=on,bus=pcie.0,"
                "port=%d,chassis=%d"
            )
            argv += ["-device", port % (number + 1, number - 4, number + 1, number + 1)]
        slot = [16, 17, 27, 28, 13, 14, 15, 16][number]
        bus = (
            "ich9-pcie-port-%d,addr=0x0" % (number + 1)
            if express
            else "pci.%d,addr=0x%x" % (0 if number < 4 else 2, slot)
        )
        argv += ["-device", "vfio-pci,host=%s,id=hostpci%d,bus=%s" % (address, number, bus)]
    argv += [*extra, "-machine", "type=" + machine_type]
    return b"\0".join(word.encode() for word in argv) + b"\0"


def _running_vm(model: HostModel, arguments: bytes) -> None:
    model.file("/run/qemu-server/%s.pid" % VM, "4711\n", modified=BOOTED_AT + 60)
    model.link("/var/run", "/run")
    model.file("/proc/4711/cmdline", arguments)


def _vm_host(name: str, note: str, config: str, arguments: bytes) -> HostModel:
    model, machine, lines = _proxmox(name, note, "vfio-pci")
    _without_driver(model, machine)
    model.file("/etc/pve/nodes/pve1/qemu-server/%s.conf" % VM, config, mode=0o640)
    _running_vm(model, arguments)
    write_proc_bus(model)
    model.command("dmesg", driver.kernel_log(machine, [], AMD_IOMMU, gpu_lines=lines).split("[    8.050000]")[0])
    return model


def pve_kvm() -> HostModel:
    """Healthy: the VM has Q35, pcie=1 and cpu host, and runs as configured."""
    devices = "".join("hostpci%d: %s,pcie=1\n" % (number, address) for number, address in enumerate(ADDRESSES))
    note = "the Proxmox host with its cards in a Q35 VM, as it should be."
    return _vm_host("pve-kvm", note, MODERN_VM.format(hostpci=devices), qemu_arguments("q35+pve1", ADDRESSES, True))


def pve_story() -> HostModel:
    """State 1 of the story: no machine line, so i440FX, and no pcie=1, which it could not have."""
    devices = "".join("hostpci%d: %s\n" % (number, address) for number, address in enumerate(ADDRESSES))
    config = MODERN_VM.format(hostpci=devices).replace("machine: q35\n", "").partition("\n[before-q35]")[0]
    note = "state 1, the Proxmox host of the KVM guest, whose configuration has no machine line."
    return _vm_host("pve-story", note, config, qemu_arguments("pc+pve1", ADDRESSES, False))


def pve_lxc() -> HostModel:
    """Healthy: the container gets its nodes by devN lines, a unit makes them before the guests start."""
    model, machine, lines = _proxmox(
        "pve-lxc", "state 2, the Proxmox host of the LXC container, as it should be.", "nvidia"
    )
    gpus = [smi.Gpu(i, address) for i, address in enumerate(ADDRESSES)]
    install_smi(model, machine, gpus)
    driver.install(model, machine, gpus)
    paths = ["/dev/nvidia%d" % number for number in range(8)] + [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    devices = "".join("dev%d: %s,mode=0666\n" % (number, path) for number, path in enumerate(paths))
    model.file("/etc/pve/nodes/pve1/lxc/%s.conf" % CONTAINER, CONTAINER_CONF.format(devices=devices), mode=0o640)
    model.command("lxc-info -n %s -s -p" % CONTAINER, "State:          RUNNING\nPID:            5120\n")
    for path in paths:
        node = model.list("/dev").entries[path[5:]]
        model.device("/proc/5120/root" + path, node.major or 0, node.minor or 0)
    model.file("/etc/modules-load.d/nvidia.conf", "nvidia\nnvidia_uvm\n")
    model.file("/etc/systemd/system/nvidia-nodes.service", NODES_UNIT)
    model.link(
        "/etc/systemd/system/multi-user.target.wants/nvidia-nodes.service", "/etc/systemd/system/nvidia-nodes.service"
    )
    write_proc_bus(model)
    model.command("dmesg", driver.kernel_log(machine, gpus, AMD_IOMMU, gpu_lines=lines))
    return model
