"""The NVIDIA driver of a model.

Modules, options, device nodes, libraries, packages, services and its lines in the kernel log.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome

from .linux import Machine, done
from .smi import Gpu
from .tree import BOOTED_AT, HostModel

UVM_MAJOR, CAPS_MAJOR = 511, 236
PARAMS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""
PACKAGES = (
    "libnvidia-cfg1",
    "libnvidia-compute",
    "libnvidia-gpucomp",
    "nvidia-dkms-open",
    "nvidia-driver-cuda",
    "nvidia-kernel-common",
    "nvidia-kernel-source-open",
    "nvidia-modprobe",
    "nvidia-persistenced",
)


def install(
    model: HostModel, machine: Machine, gpus: Sequence[Gpu], version: str = "595.58.03", toolkit: str = "13.2"
) -> None:
    """A loaded open driver whose three states (files, initramfs, running) agree."""
    model.file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (dvs-builder@U22-I3-AM25-28-3)\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n" % version,
    )
    model.file("/proc/driver/nvidia/params", PARAMS)
    model.file("/proc/driver/nvidia/registry", 'Binary: ""\n')
    for gpu in gpus:
        model.file(
            "/proc/driver/nvidia/gpus/%s/information" % gpu.address,
            (
                "Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition\nIRQ:   \t\t %d\nGPU UUID: \t %s\n"
                "Video BIOS: \t 98.02.67.00.0a\nBus Type: \t PCIe\n"
                "DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\n"
                "GPU Firmware: \t %s\nGPU Excluded:\t No\n"
            )
            % (480 + gpu.index, gpu.uuid, gpu.address, gpu.index, version),
        )
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"):
        model.file("/sys/module/%s/version" % module, version + "\n")
        model.file("/sys/module/%s/initstate" % module, "live\n")
        model.file(
            "/sys/module/%s/refcnt" % module,
            "%d\n" % {"nvidia": 24, "nvidia_uvm": 4, "nvidia_modeset": 1, "nvidia_drm": 0}[module],
        )
    model.file(
        "/proc/modules",
        "nvidia_uvm 2224128 4 - Live 0x0000000000000000 (OE)\nnvidia_drm 139264 0 - Live 0x0000000000000000 (OE)\n"
        "nvidia_modeset 1830912 1 nvidia_drm, Live 0x0000000000000000 (OE)\n"
        "nvidia 14381056 24 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (OE)\n"
        "%sext4 1114112 1 - Live 0x0000000000000000\nnvme 61440 2 - Live 0x0000000000000000\n"
        % ("virtio_net 98304 0 - Live 0x0000000000000000\n" if machine.guest else ""),
    )
    for name, value in {
        "uvm_disable_hmm": "Y",
        "uvm_debug_prints": "0",
        "uvm_ats_mode": "1",
        "uvm_peer_copy": "phys",
    }.items():
        model.file("/sys/module/nvidia_uvm/parameters/" + name, value + "\n")
    model.file("/sys/module/nvidia_drm/parameters/modeset", "Y\n")
    model.file("/sys/module/nvidia_drm/parameters/fbdev", "N\n")
    _configuration(model, machine)
    _nodes(model, machine, gpus)
    _userspace(model, machine, version, toolkit)


def absent(model: HostModel) -> None:
    """No NVIDIA driver: what is asked of one is answered as not installed."""
    model.directory("/usr/local/bin")
    model.directory("/etc/ld.so.conf.d")
    model.command("modinfo nvidia", rc=1, stderr="modinfo: ERROR: Module nvidia not found.\n")
    missing = "Result=success\nId=%s\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
    units = "\n".join(missing % unit for unit in ("nvidia-persistenced.service", "nvidia-fabricmanager.service"))
    model.program("systemctl", lambda argv: done(argv, units) if argv[1] == "show" else None)
    model.program(
        "find",
        lambda argv: (
            done(argv, "", 1, "find: '/usr/lib64': No such file or directory\n") if "libcuda.so*" in argv else None
        ),
    )
    model.program("dpkg-query", lambda argv: done(argv, "", 1, "dpkg-query: no packages found matching nvidia*\n"))
    model.command("apt-mark showhold", "")


def _configuration(model: HostModel, machine: Machine) -> None:
    model.directory("/etc/modprobe.d")
    model.file("/usr/lib/modprobe.d/fbdev-blacklist.conf", "blacklist vesafb\nblacklist efifb\n")
    if machine.container:  # the modules are the hypervisor's; its /etc is not to be seen here
        return
    model.file(
        "/etc/modprobe.d/nvidia-uvm.conf",
        "# HMM off: cuInit fails where KASLR leaves no physical address room\noptions nvidia_uvm uvm_disable_hmm=1\n",
    )
    model.file("/etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
    model.file("/etc/modprobe.d/nvidia-graphics-drivers-kms.conf", "options nvidia_drm modeset=1 fbdev=0\n")


def _nodes(model: HostModel, machine: Machine, gpus: Sequence[Gpu]) -> None:
    for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        model.device("/dev/" + name, 1, minor)
    for gpu in gpus:
        model.device("/dev/nvidia%d" % gpu.index, 195, gpu.index)
    model.device("/dev/nvidiactl", 195, 255)
    model.device("/dev/nvidia-uvm", UVM_MAJOR, 0)
    model.device("/dev/nvidia-uvm-tools", UVM_MAJOR, 1)
    if not machine.container:
        model.device("/dev/nvidia-modeset", 195, 254)
        model.device("/dev/nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400)
        model.device("/dev/nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444)
    model.file(
        "/proc/devices",
        "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n195 nvidia\n195 nvidia-modeset\n195 "
        "nvidiactl\n%d nvidia-caps\n"
        "237 nvidia-caps-imex-channels\n%d nvidia-uvm\n\nBlock devices:\n259 blkext\n" % (CAPS_MAJOR, UVM_MAJOR),
    )


def _userspace(model: HostModel, machine: Machine, version: str, toolkit: str) -> None:
    library = "/usr/lib/x86_64-linux-gnu/"
    names = "".join(
        "%s%s.so.1\t%s.so.%s\n%s%s.so.%s\t\n" % (library, name, name, version, library, name, version)
        for name in ("libcuda", "libnvidia-ml")
    )
    model.program(
        "find",
        lambda argv: (
            Outcome(
                argv,
                OK,
                rc=1,
                stdout=names.encode(),
                stderr=b"find: '/usr/lib64/nvidia': No such file or directory\n",
                seconds=0.03,
            )
            if "libcuda.so*" in argv
            else None
        ),
    )
    if machine.container:
        model.command("modinfo nvidia", rc=1, stderr="modinfo: ERROR: Module nvidia not found.\n")
    else:
        model.command(
            "modinfo nvidia",
            (
                "filename:       /lib/modules/%s/updates/dkms/nvidia.ko.zst\nimport_ns:      DMA_BUF\nalias:          "
                "char-major-195-*\n"
                "version:        %s\n"
                "supported:      external\nlicense:        Dual MIT/GPL\nsrcversion:     0123456789ABCDEF0123456\n"
                "signer:         host Secure Boot Module Signature key\n"
                "vermagic:       %s SMP preempt mod_unload modversions\nparm:           NVreg_RegistryDwords:charp\n"
            )
            % (machine.release, version, machine.release),
        )
        model.command("dkms status", "nvidia/%s, %s, x86_64: installed\n" % (version, machine.release))
    model.directory("/usr/local/bin")
    model.link("/usr/local/cuda", "/usr/local/cuda-" + toolkit)
    model.file(
        "/usr/local/cuda-%s/version.json" % toolkit,
        '{"cuda": {"name": "CUDA SDK", "version": "%s.0"}, "cuda_nvcc": {"name": "CUDA NVCC", "version": "%s.48"}}\n'
        % (toolkit, toolkit),
    )
    model.file(
        "/etc/ld.so.conf.d/x86_64-linux-gnu.conf",
        "/usr/local/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n",
    )
    packages = [
        name
        for name in PACKAGES
        if not (machine.container and ("dkms" in name or "kernel" in name or "persistenced" in name))
    ]
    rows = "".join("%s\t%s-0ubuntu1\thold\tinstalled\n" % (name, version) for name in packages)
    model.program(
        "dpkg-query",
        lambda argv: Outcome(
            argv,
            OK,
            rc=1,
            stdout=rows.encode(),
            stderr=b"dpkg-query: no packages found matching cuda-compat*\n",
            seconds=0.03,
        ),
    )
    model.command("apt-mark showhold", "".join(name + "\n" for name in packages))
    running = (
        "Result=success\nId=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nSubState=running\n"
        "UnitFileState=enabled\n"
    )
    missing = "Result=success\nId=%s\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
    first = missing % "nvidia-persistenced.service" if machine.container else running
    model.program(
        "systemctl",
        lambda argv: (
            Outcome(
                argv, OK, rc=0, stdout=(first + "\n" + missing % "nvidia-fabricmanager.service").encode(), seconds=0.02
            )
            if argv[1] == "show" and "nvidia-persistenced.service" in argv
            else None
        ),
    )
    if not machine.container:
        model.file("/run/nvidia-persistenced/nvidia-persistenced.pid", "1402\n", modified=BOOTED_AT)


def kernel_log(
    machine: Machine,
    gpus: Sequence[Gpu],
    iommu: Sequence[str],
    version: str = "595.58.03",
    gpu_lines: Sequence[str] = (),
) -> str:
    """`dmesg` from the first line of the boot on."""
    lines = [
        (
            0.0,
            "Linux version %s (buildd@build) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0, GNU ld 2.42) #67 SMP "
            "PREEMPT_DYNAMIC" % machine.release,
        ),
        (0.0, "Command line: " + machine.cmdline),
        (0.0, "KERNEL supported cpus:"),
        (0.0, "  AMD AuthenticAMD"),
        (0.000001, "DMI: %s %s/%s, BIOS %s" % (machine.vendor, machine.product, machine.board, machine.bios)),
        *([(0.000002, "Hypervisor detected: KVM")] if machine.guest else []),
        (0.7, "Kernel command line: " + machine.cmdline),
        (1.9, "smpboot: Allowing %d CPUs, 0 hotplug CPUs" % machine.cpus),
    ]
    stamp = 2.3
    for line in iommu:
        lines.append((stamp, line))
        stamp += 0.0004
    for line in gpu_lines:
        lines.append((stamp, line))
        stamp += 0.0003
    lines.append((8.05, "nvidia: loading out-of-tree module taints kernel."))
    lines.append((8.06, "nvidia-nvlink: Nvlink Core is being initialized, major device number %d" % 235))
    for gpu in gpus:
        lines.append((8.1 + gpu.index * 0.01, "nvidia %s: enabling device (0000 -> 0002)" % gpu.address))
    lines += [
        (
            8.3,
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (dvs-builder@U22-I3-AM25-28-3)"
            % version,
        ),
        (
            8.4,
            "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  %s  Release Build  "
            "(dvs-builder@U22-I3-AM25-28-3)" % version,
        ),
        (8.5, "[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver"),
        (11.2, "nvidia-uvm: Loaded the UVM driver, major device number %d." % UVM_MAJOR),
        (14.8, "systemd[1]: Started nvidia-persistenced.service - NVIDIA Persistence Daemon."),
    ]
    return "".join("[%12.6f] %s\n" % line for line in lines)
