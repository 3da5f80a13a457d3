"""The operating system of a model: kernel, CPU, memory, services and packages of a healthy host."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome

from .tree import BOOTED_AT, TAKEN_AT, HostModel

FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "mmxext fxsr_opt "
    "pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 x2apic "
    "movbe popcnt aes "
    "xsave avx f16c rdrand lahf_lm svm abm sse4a misalignsse 3dnowprefetch fsgsbase bmi1 avx2 smep bmi2 erms avx512f "
    "avx512dq rdseed "
    "adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 clzero wbnoinvd "
    "avx512_bf16 umip pku "
    "ospke avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni rdpid"
)


@dataclass
class Machine:
    """What differs from host to host."""

    release: str = "6.8.0-64-generic"
    cmdline: str = "BOOT_IMAGE=/vmlinuz-6.8.0-64-generic root=UUID=00000000-0000-4000-8000-00000000000a ro iommu=pt"
    os: str = "ubuntu"
    cpus: int = 128
    numa_nodes: int = 2
    memory_gib: int = 1536
    guest: bool = False  # a KVM guest
    container: bool = False  # an LXC container
    vendor: str = "Supermicro"
    product: str = "AS -5126GS-TNRT2"
    product_version: str = "0123456789"
    board: str = "H14DSG-OD"
    bios_vendor: str = "American Megatrends International, LLC."
    bios: str = "1.3"
    bios_date: str = "06/12/2025"


OS_RELEASE = {
    "ubuntu": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nVERSION="24.04.3 LTS (Noble '
    'Numbat)"\n'
    "VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\nUBUNTU_CODENAME=noble\n",
}


def cpu_list(machine: Machine, node: int) -> str:
    """The CPUs of a NUMA node as sysfs prints them; the second half of the numbers are the second threads."""
    if machine.numa_nodes == 1:
        return "0-%d" % (machine.cpus - 1)
    per_node = machine.cpus // 2 // machine.numa_nodes
    first, second = node * per_node, machine.cpus // 2 + node * per_node
    return "%d-%d,%d-%d" % (first, first + per_node - 1, second, second + per_node - 1)


def _cpuinfo(machine: Machine) -> str:
    flags = FLAGS + (" hypervisor" if machine.guest else "")
    threads = 1 if machine.guest else 2
    one = (
        "processor\t: %d\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9335 "
        "32-Core Processor\nstepping\t: 1\n"
        "microcode\t: 0xb00211a\ncpu MHz\t\t: 3000.000\ncache size\t: 1024 KB\nphysical id\t: %d\nsiblings\t: "
        "%d\ncore id\t\t: %d\ncpu cores\t: 32\n"
        "fpu\t\t: yes\ncpuid level\t: 16\nwp\t\t: yes\nflags\t\t: %s\nbogomips\t: 6000.00\n"
        "clflush size\t: 64\naddress sizes\t: 52 bits physical, 57 bits virtual\n\n"
    )
    return "".join(one % (n, n // 32 % 2, 32 * threads, n % 32, flags) for n in range(machine.cpus))


def _limits() -> str:
    rows = [
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max file size", "unlimited", "unlimited", "bytes"),
        ("Max data size", "unlimited", "unlimited", "bytes"),
        ("Max stack size", "8388608", "unlimited", "bytes"),
        ("Max core file size", "0", "unlimited", "bytes"),
        ("Max resident set", "unlimited", "unlimited", "bytes"),
        ("Max processes", "6189021", "6189021", "processes"),
        ("Max open files", "1048576", "1048576", "files"),
        ("Max locked memory", "unlimited", "unlimited", "bytes"),
        ("Max address space", "unlimited", "unlimited", "bytes"),
        ("Max file locks", "unlimited", "unlimited", "locks"),
        ("Max pending signals", "6189021", "6189021", "signals"),
        ("Max msgqueue size", "819200", "819200", "bytes"),
        ("Max nice priority", "0", "0", ""),
        ("Max realtime priority", "0", "0", ""),
        ("Max realtime timeout", "unlimited", "unlimited", "us"),
    ]
    head = "%-25s %-20s %-20s %-10s\n" % ("Limit", "Soft Limit", "Hard Limit", "Units")
    return head + "".join("%-25s %-20s %-20s %-10s\n" % row for row in rows)


def install(model: HostModel, machine: Machine) -> None:
    """Everything that has nothing to do with GPUs."""
    kib = machine.memory_gib << 20
    model.file("/etc/os-release", OS_RELEASE[machine.os])
    model.file("/proc/sys/kernel/osrelease", machine.release + "\n")
    model.file(
        "/proc/version",
        "Linux version %s (buildd@build) (gcc 13.3.0, GNU ld 2.42) #1 SMP PREEMPT_DYNAMIC\n" % machine.release,
    )
    model.file("/proc/cmdline", machine.cmdline + "\n")
    model.file("/proc/uptime", "%.2f %.2f\n" % (TAKEN_AT - BOOTED_AT, (TAKEN_AT - BOOTED_AT) * machine.cpus * 0.98))
    model.file(
        "/proc/stat",
        "cpu  90210 0 81234 1000000 120 0 300 0 0 0\nintr 1\nctxt 1\nbtime %d\nprocesses 51234\n" % BOOTED_AT,
    )
    model.file("/proc/cpuinfo", _cpuinfo(machine))
    model.file(
        "/proc/meminfo",
        "MemTotal:       %d kB\nMemFree:        %d kB\nMemAvailable:   %d kB\nSwapTotal:             0 kB\nSwapFree:  "
        "            0 kB\n" % (kib - 9000000, kib - 30000000, kib - 20000000),
    )
    for node in range(machine.numa_nodes):
        base = "/sys/devices/system/node/node%d" % node
        model.file(base + "/cpulist", cpu_list(machine, node) + "\n")
        model.file(base + "/distance", " ".join("10" if n == node else "32" for n in range(machine.numa_nodes)) + "\n")
        share = (kib - 9000000) // machine.numa_nodes
        model.file(
            base + "/meminfo",
            "Node %d MemTotal:       %d kB\nNode %d MemFree:        %d kB\n" % (node, share, node, share - 10000000),
        )
    model.file(
        "/sys/devices/system/node/online", "0\n" if machine.numa_nodes == 1 else "0-%d\n" % (machine.numa_nodes - 1)
    )
    for cpu in range(machine.cpus):
        model.directory("/sys/devices/system/cpu/cpu%d" % cpu)
        if not machine.guest:
            model.file("/sys/devices/system/cpu/cpufreq/policy%d/scaling_governor" % cpu, "performance\n")
            model.link("/sys/devices/system/cpu/cpu%d/cpufreq" % cpu, "../cpufreq/policy%d" % cpu)
    half = kib // 2
    model.file(
        "/proc/mounts",
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\nproc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0\n",
    )
    model.command(
        "df -kP /dev/shm",
        "Filesystem     1024-blocks      Used Available Capacity Mounted on\ntmpfs          %11d         0 %9d       "
        "0%% /dev/shm\n" % (half, half),
    )
    model.file("/proc/self/limits", _limits())
    model.file("/proc/1/limits", _limits())
    model.file("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=8M\n")
    model.file("/etc/systemd/system.conf.d/10-memlock.conf", "[Manager]\nDefaultLimitMEMLOCK=infinity\n")
    model.file("/proc/sys/kernel/numa_balancing", "0\n")
    _platform(model, machine)


def _platform(model: HostModel, machine: Machine) -> None:
    """DMI, firmware, boot files and what tells a guest or a container from a bare host."""
    for name, value in {
        "sys_vendor": machine.vendor,
        "product_name": machine.product,
        "product_version": machine.product_version,
        "board_vendor": machine.vendor,
        "board_name": machine.board,
        "bios_vendor": machine.bios_vendor,
        "bios_version": machine.bios,
        "bios_date": machine.bios_date,
        "chassis_vendor": machine.vendor,
    }.items():
        if not (machine.guest and name in ("board_vendor", "board_name")):  # QEMU leaves the board out
            model.file("/sys/class/dmi/id/" + name, value + "\n")
    identity = str(uuid.uuid5(uuid.NAMESPACE_DNS, model.name))
    model.file("/sys/class/dmi/id/product_uuid", identity + "\n", mode=0o400)
    if not machine.guest:
        model.file("/sys/class/dmi/id/board_serial", "OM%s\n" % identity[:8].upper(), mode=0o400)
    vm, container = ("kvm" if machine.guest else "none"), ("lxc" if machine.container else "none")
    model.command("systemd-detect-virt --vm", vm + "\n", rc=0 if machine.guest else 1)
    model.command("systemd-detect-virt --container", container + "\n", rc=0 if machine.container else 1)
    model.command(
        "systemd-detect-virt",
        (container if machine.container else vm) + "\n",
        rc=0 if machine.guest or machine.container else 1,
    )
    # Only the allowed names of an environment ever reach a bundle; a bare host has none of them in that of PID 1.
    model.file("/proc/1/environ", b"container=lxc" if machine.container else b"", mode=0o400)
    model.file("/proc/1/cgroup", "0::/init.scope\n")
    for name in ("boot", "home", "opt", "root", "run", "srv", "tmp", "var"):
        model.directory("/" + name)
    for name in ("bin", "lib", "lib64", "sbin"):
        model.link("/" + name, "usr/" + name)
    if machine.container:
        model.file("/run/systemd/container", "lxc\n")
    else:
        model.file("/boot/vmlinuz-" + machine.release, b"", modified=BOOTED_AT - 90000)
        model.file("/boot/initrd.img-" + machine.release, b"", modified=BOOTED_AT - 3600)
        model.directory("/usr/lib/modules/" + machine.release)
        words = machine.cmdline.partition(" ro ")[2] or "quiet"
        model.file(
            "/etc/default/grub",
            'GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="%s"\nGRUB_CMDLINE_LINUX=""\n' % words,
        )
        if not machine.guest:
            model.file(
                "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\x00\x00\x00\x00"
            )
            model.command("mokutil --sb-state", "SecureBoot disabled\n")


def done(argv: Sequence[str], stdout: str, rc: int = 0, stderr: str = "") -> Outcome:
    """The outcome of a command that ran to its end."""
    return Outcome(tuple(argv), OK, rc=rc, stdout=stdout.encode(), stderr=stderr.encode(), seconds=0.03)
