"""A test host that looks like a recorded GPU host: its /sys and /proc, its programs and its device nodes.

Files of the recording are laid under the paths where the readers look, as a tree that programs can change:
tests/fixtures/gpu_programs/ holds the programs that do (nvidia-smi, modprobe, setpci, ...). `boot` is what the
firmware, the boot loader and the kernel do when the host starts: the command line is that of GRUB's configuration, and
modules come with the options of modprobe.d, as kmod reads them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine  # type: ignore[import-not-found]
from ssh_host import SshHost, run_over_ssh

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "fixtures" / "gpu_programs"
# What is mounted when the host is made, as nspawn has no such directory, and what each boot lays over.
AT_START = ("/sys/module",)
AT_BOOT = (
    *("/sys/bus", "/sys/class", "/sys/devices", "/sys/kernel"),
    *("/proc/driver", "/proc/modules", "/proc/cmdline", "/proc/devices", "/proc/cpuinfo"),
    *("/proc/sys/kernel/numa_balancing", "/proc/sys/kernel/osrelease", "/proc/1/environ"),
)
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
PACKAGE = """Package: %s
Version: %s
Architecture: all
Maintainer: a test <test@example.org>
Description: A stand-in
"""
UNIT = """[Unit]
Description=A stand-in for NVIDIA's persistence daemon
[Service]
RuntimeDirectory=nvidia-persistenced
ExecStart=/bin/sh -c 'echo $$ > /run/nvidia-persistenced/nvidia-persistenced.pid; exec sleep infinity'
[Install]
WantedBy=multi-user.target
"""


class Recording:
    """What a bundle holds, by path and by command line."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            lines = [json.loads(line) for line in handle]
        self.reads = {line["read"]: line for line in lines if "read" in line and line["status"] == "ok"}
        self.lists = {line["list"]: line["entries"] for line in lines if "list" in line and line["status"] == "ok"}
        self.runs = {tuple(line["run"]): line for line in lines if "run" in line and line["status"] == "ok"}

    def text(self, path: str) -> str:
        return str(self.reads[path]["text"])

    def output(self, *argv: str) -> str:
        return str(self.runs[argv]["stdout"])

    def write_tree(self, top: Path, prefixes: tuple[str, ...]) -> None:
        """Lay what is below `prefixes` into the directory `top`, links as links."""
        for path, entries in sorted(self.lists.items()):
            if path.startswith(prefixes):
                _lay_entries(Path(str(top) + path), entries)
        for path, line in self.reads.items():
            if path.startswith(prefixes):
                target = Path(str(top) + path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_bytes(line))


def _lay_entries(directory: Path, entries: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, entry in entries.items():
        place = directory / name
        if os.path.lexists(place):
            continue
        if entry["kind"] == "link":
            place.symlink_to(entry["target"])
            if not entry["target"].startswith("/"):
                Path(os.path.normpath(directory.resolve() / entry["target"])).mkdir(parents=True, exist_ok=True)
        elif entry["kind"] == "dir":
            place.mkdir()
        else:
            place.touch()


def _bytes(line: dict[str, Any]) -> bytes:
    import base64

    return (
        base64.b64decode(line["base64"]) if "base64" in line else str(line["text"]).encode("utf-8", "surrogateescape")
    )


class RecordedMachine(SshHost):
    """The host; `kernel` is the tree on this machine that it has at /opt/kernel."""

    def __init__(self, make_host: Any, name: str, work: Path, recording: str) -> None:
        self.recorded = Recording(ROOT / "tests" / "fixtures" / "hosts" / (recording + ".jsonl.gz"))
        self.kernel = work / "kernel"
        self._write_kernel()
        binds = ["--bind=%s:/opt/kernel" % self.kernel, "--bind-ro=%s:/opt/programs" % PROGRAMS]
        binds += ["--bind=%s%s:%s" % (self.kernel, place, place) for place in AT_START]
        super().__init__(make_host(name, "trixie", *binds), work)
        self._install()
        self.boot()

    def ssh(self, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = run_over_ssh(self.host, command)
        assert done.returncode == 0 or not check, "%s\n%s%s" % (command, done.stdout, done.stderr)
        return done

    def play(self, playbook: str, *options: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return self.run_playbook(playbook, "-e", json.dumps(variables), *options)

    def reboot(self) -> None:
        """As somebody does who types it, and then what the boot brings."""
        self.ssh("reboot", check=False)
        time.sleep(2)
        machine.wait_ready(machine.Host(**self._state()), Path(self.host["root"]).parents[2])
        deadline = time.monotonic() + 60
        while self.ssh("systemctl is-system-running --wait", check=False).stdout.strip() not in ("running", "degraded"):
            assert time.monotonic() < deadline, "the host does not come up"
        self.boot()

    def _state(self) -> dict[str, Any]:
        path = Path(self.host["root"]).parent / "host.json"
        return dict(json.loads(path.read_text()))

    def results(self, **variables: Any) -> dict[str, dict[str, Any]]:
        """Every result of a validation, by the id of the check; the remedies are as they are printed."""
        (self.work / "reports" / "report.json").unlink(missing_ok=True)
        done = self.play("validate.yml", **{"probe": "false", **variables})
        assert (self.work / "reports" / "report.json").exists(), done.stdout + done.stderr
        report = json.loads((self.work / "reports" / "report.json").read_text())
        return {result["id"]: result for result in report["hosts"][self.host["name"]]["results"]}

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def _write_kernel(self) -> None:
        self.kernel.mkdir(parents=True)
        self.recorded.write_tree(self.kernel, ("/sys/", "/proc/"))
        proc = self.kernel / "proc"
        (proc / "1").mkdir(exist_ok=True)
        (proc / "1" / "environ").write_bytes(b"HOME=/\0TERM=linux\0")
        for policy in sorted((self.kernel / "sys/devices/system/cpu/cpufreq").glob("policy*")):
            cpu = policy.parents[1] / ("cpu" + policy.name[len("policy") :])
            cpu.mkdir(exist_ok=True)
            if not os.path.lexists(cpu / "cpufreq"):
                (cpu / "cpufreq").symlink_to("../cpufreq/" + policy.name)
        for module in MODULES:  # as they are before they are loaded, with their own defaults
            shutil.copytree(self.kernel / "sys/module" / module, self.kernel / "modules" / module)
        (self.kernel / "modules/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N\n")
        for module in ("nouveau", "nvidia_peermem"):
            (self.kernel / "modules" / module).mkdir()
            (self.kernel / "modules" / module / "initstate").write_text("live\n")
        (self.kernel / "smi.xml").write_text(self.recorded.output("nvidia-smi", "-q", "-x"))
        for argv, line in self.recorded.runs.items():
            if argv[0] == "nvidia-smi":
                path = self.kernel / "smi" / "_".join(argv[1:]).replace("/", "_")
                path.parent.mkdir(exist_ok=True)
                path.write_text(line["stdout"])
        (self.kernel / "dmesg").write_text(self.recorded.output("dmesg"))
        for name in ("dkms", "modinfo", "mokutil"):
            output = next(line["stdout"] for argv, line in self.recorded.runs.items() if argv[0] == name)
            (self.kernel / name).write_text(output)

    def _install(self) -> None:
        """The programs, files and packages of the recorded host."""
        places = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/etc/systemd/system.conf.d", "/boot")
        files = {path: self.recorded.text(path) for path in self.recorded.reads if path.startswith(places[:3])}
        script = ["mkdir -p /boot/grub /etc/default/grub.d /usr/local/sbin", "rm -f /etc/modprobe.d/*"]
        script += ["mkdir -p %s; cat > %s <<'END'\n%s\nEND" % (os.path.dirname(path), path, text.rstrip("\n"))
                   for path, text in files.items()]  # fmt: skip
        script += ["ln -sf /opt/programs/%s /usr/local/sbin/%s" % (name, name) for name in os.listdir(PROGRAMS)]
        script += ["printf '#!/bin/sh\\necho none; exit 1\\n' > /usr/local/sbin/systemd-detect-virt"]
        script += ["printf '#!/bin/sh\\ncat /opt/kernel/dmesg\\n' > /usr/local/sbin/dmesg"]
        script += [
            "printf '#!/bin/sh\\ncat /opt/kernel/%s\\n' > /usr/local/sbin/%s" % (name, name)
            for name in ("dkms", "mokutil")
        ]
        script += ["ln -sf /opt/programs/update-grub /usr/sbin/update-grub", "chmod +x /usr/local/sbin/* || true"]
        line = self.recorded.text("/proc/cmdline").split()
        own = [word for word in line if not word.startswith("BOOT_IMAGE=")]
        script += ["echo 'GRUB_CMDLINE_LINUX=\"%s\"' > /etc/default/grub" % " ".join(own)]
        script += ["cat > /etc/systemd/system/nvidia-persistenced.service <<'END'\n%sEND" % UNIT]
        script += ["systemctl daemon-reload; systemctl enable --now nvidia-persistenced"]
        version = re.search(r"^version:\s+(\S+)", self.recorded.output("modinfo", "nvidia"), re.M)[1]  # type: ignore[index]
        library = "/usr/lib/x86_64-linux-gnu/"
        for name in ("libcuda", "libnvidia-ml"):
            script += [
                "touch %s%s.so.%s; ln -sf %s.so.%s %s%s.so.1" % (library, name, version, name, version, library, name)
            ]
        packages = self.recorded.output("apt-mark", "showhold").split()
        for name in packages:
            script += [
                "mkdir -p /tmp/p/%s/DEBIAN; cat > /tmp/p/%s/DEBIAN/control <<'END'\n%sEND"
                % (name, name, PACKAGE % (name, version))
            ]
        script += ["cd /tmp/p; for p in *; do dpkg-deb -b $p /tmp/$p.deb; done; dpkg -i /tmp/*.deb"]
        script += ["apt-mark hold " + " ".join(packages)]
        release = self.recorded.text("/proc/sys/kernel/osrelease").strip()
        script += ["touch /boot/vmlinuz-%s; sleep 1; touch /boot/initrd.img-%s" % (release, release), "update-grub"]
        self.ssh("set -e\n" + "\n".join(script))

    def boot(self) -> None:
        """What happens before and while systemd starts; after a reboot of the host, call it again."""
        root = Path(self.host["root"])
        grub = (root / "boot/grub/grub.cfg").read_text().split()
        words = ["BOOT_IMAGE=/vmlinuz", *dict.fromkeys(grub[grub.index("ro") :])]
        (self.kernel / "proc/cmdline").write_text(" ".join(words) + "\n")
        for path in (self.kernel / "sys/module").iterdir():
            shutil.rmtree(path)
        kind = "identity" if "iommu=pt" in words else "DMA-FQ"
        for path in (self.kernel / "sys/kernel/iommu_groups").glob("*/type"):
            path.write_text(kind + "\n")
        smi = self.kernel / "smi.xml"
        for pending in ("ecc", "mig"):  # what waited for a reset is in force after a boot
            smi.write_text(_take_pending(smi.read_text(), pending))
        self._mount()
        self.ssh("rm -f /run/systemd/container /dev/nvidia*")
        asked = self.ssh("/usr/sbin/modprobe -c").stdout
        taken = "blacklist nouveau" not in asked
        if taken:
            self.ssh("modprobe nouveau", check=False)
        first = next((self.kernel / "sys/bus/pci/devices").glob("0000:01:00.0")) / "uevent"
        first.write_text(re.sub(r"DRIVER=\w+", "DRIVER=nouveau" if taken else "DRIVER=nvidia", first.read_text()))
        self.ssh("for m in nvidia nvidia_modeset nvidia_drm nvidia_uvm; do modprobe $m || true; done")
        minors = " ".join("-c %d" % number for number in range(8))
        self.ssh("nvidia-modprobe %s && nvidia-modprobe -u -c 0" % minors, check=False)

    def _mount(self) -> None:
        for place in AT_BOOT:
            script = str(ROOT / "tests" / "hosts" / "make_hosts.py")
            # A machine whose kernel has no modules has no /proc/modules either.
            shown = "[ ! -e %s ] || mount --bind /opt/kernel%s %s" % (place, place, place)
            command = ["enter", self.host["name"], "sh", "-c", shown]
            done = subprocess.run([sys.executable, script, *command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, (place, done.stdout + done.stderr)


def _take_pending(xml: str, name: str) -> str:
    def one(match: re.Match[str]) -> str:
        pending = re.search("<pending_%s>([^<]*)" % name, match.group())
        now = pending.group(1) if pending else ""
        return re.sub("<current_%s>[^<]*" % name, "<current_%s>%s" % (name, now), match.group())

    return re.sub("<gpu id=.*?</gpu>", one, xml, flags=re.S)
