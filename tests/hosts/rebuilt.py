"""The archives of systems that cannot be had here, rebuilt: packages with the real names, versions and relations.

Their contents are empty but for what a role looks at. What each is called, depends on, provides and conflicts with is
what NVIDIA's driver installation guide, its repositories' indexes and the pages of Ubuntu's, Debian's and Proxmox's
packages say (2026). So apt of a test host makes the plan that it would make there, and dpkg installs it.

    nvidia-ubuntu    NVIDIA's repository for Ubuntu: names with the branch up to 580, without it from 590 on
    nvidia-debian12  NVIDIA's for Debian 12, which Proxmox VE 8 uses: 580 and 595
    nvidia-debian13  for Debian 13 and Proxmox VE 9: nothing before 590
    ubuntu           Ubuntu's own restricted packages, rivals of the same names, and the kernel's
    pve              Proxmox's kernels and headers, and Debian's dkms
"""

from __future__ import annotations

import os
from pathlib import Path

import repository
from repository import Package

OLD, NEW = "580.95.05", "595.45.04"
UBUNTU_OWN = "580.126.09"
# Kernels that the hosts say they run.
KERNELS = {
    "ubuntu2204": "5.15.0-161-generic",
    "ubuntu2404": "6.8.0-88-generic",
    "pve8": "6.8.12-16-pve",
    "pve9": "6.17.2-1-pve",
}
SMI = {"usr/bin/nvidia-smi": repository.SMI}
PARTS = ("cfg1", "common", "decode", "encode", "extra", "fbc1", "gl")
DKMS = {"usr/sbin/dkms": repository.DKMS}
UNIT = repository.UNIT % ("Persistence Daemon", "nvidia-persistenced")
PERSISTENCED = {
    "usr/bin/nvidia-persistenced": repository.DAEMON,
    "usr/lib/systemd/system/nvidia-persistenced.service": UNIT,
}
FABRIC = {
    "usr/bin/nv-fabricmanager": repository.DAEMON,
    "usr/lib/systemd/system/nvidia-fabricmanager.service": repository.UNIT % ("Fabric Manager", "nv-fabricmanager"),
}


def build(target: Path) -> Path:
    """Make the archives in `target`; see `repository.build_archives`."""
    cuda = "NVIDIA CUDA"
    return repository.build_archives(
        target,
        {
            "nvidia-ubuntu": ("NVIDIA", cuda, [*suffixed(OLD), *unsuffixed(NEW), *companions([OLD, NEW])]),
            "nvidia-debian12": ("NVIDIA", cuda, [*debian(OLD), *debian(NEW), *companions([OLD, NEW])]),
            "nvidia-debian13": ("NVIDIA", cuda, [*debian(NEW), *companions([NEW])]),
            "ubuntu": ("Ubuntu", "Ubuntu", ubuntu()),
            "pve": ("Proxmox", "Proxmox Debian Repository", pve()),
        },
    )


def suffixed(version: str) -> list[Package]:
    """NVIDIA's packages for Ubuntu up to branch 580: `libnvidia-compute-580`, revision 0ubuntu1."""
    b, full = version.partition(".")[0], version + "-0ubuntu1"
    same = "(= %s)" % full
    libraries = [
        "libnvidia-%s-%s" % (part, b) for part in ("cfg1", "common", "decode", "encode", "extra", "fbc1", "gl")
    ]
    found = [Package(name, full) for name in [*libraries, "libnvidia-gpucomp-" + b]]
    found += [
        Package("libnvidia-compute-" + b, full, "libnvidia-gpucomp-%s %s" % (b, same), _libcuda(version)),
        Package(
            "nvidia-utils-" + b, full, "libnvidia-compute-%s %s" % (b, same), {"usr/bin/nvidia-smi": repository.SMI}
        ),
        Package(
            "nvidia-kernel-common-" + b, full, "nvidia-modprobe", provides="nvidia-kernel-common-%s-%s" % (b, version)
        ),
        Package("nvidia-firmware-%s-%s" % (b, version), full),
    ]
    for flavour, other in (("-open", ""), ("", "-open")):
        source = "nvidia-kernel-source-%s%s" % (b, flavour)
        relation = "nvidia-kernel-common-%s (>= %s), %s (>= %s), dkms (>= 3.1.8)" % (b, version, source, version)
        found += [
            Package(source, full),
            Package(
                "nvidia-dkms-%s%s" % (b, flavour), full, relation,
                postinst=repository.DKMS_POSTINST % version,
                conflicts="nvidia-dkms-%s%s, nvidia-dkms-%s-server, nvidia-dkms-%s-server-open" % (b, other, b, b),
            ),
            Package(
                "nvidia-driver-%s%s" % (b, flavour), full,
                ", ".join(["nvidia-dkms-%s%s %s" % (b, flavour, same), "nvidia-utils-%s %s" % (b, same),
                           *("%s %s" % (name, same) for name in libraries)]),
            ),
        ]  # fmt: skip
    found += [
        Package(
            "nvidia-open-" + b, full, "nvidia-driver-%s-open | nvidia-driver-%s-server-open" % (b, b),
            conflicts="cuda-drivers-%s, nvidia-driver-%s, nvidia-driver-%s-server" % (b, b, b),
        ),
        Package("cuda-drivers-" + b, full, "nvidia-driver-%s" % b),
        Package(
            "nvidia-driver-pinning-" + b, full,
            provides="nvidia-driver-pinning", conflicts="nvidia-driver-pinning",
        ),
    ]  # fmt: skip
    return found


def unsuffixed(version: str) -> list[Package]:
    """NVIDIA's packages for Ubuntu from branch 590 on: no branch in the names, revision 1ubuntu1."""
    b, full = version.partition(".")[0], version + "-1ubuntu1"
    same = "(= %s)" % full
    libraries = ["libnvidia-" + part for part in PARTS]
    found = [Package(name, full) for name in [*libraries, "libnvidia-gpucomp", "nvidia-firmware"]]
    # The hard relation on persistenced, of the same full version.
    needs = "libnvidia-gpucomp %s, nvidia-persistenced (= %s-1)" % (same, version)
    found.append(Package("libnvidia-compute", full, needs, _libcuda(version)))
    for flavour, other in (("-open", ""), ("", "-open")):
        found += [
            Package(
                "nvidia-dkms" + flavour, full, "nvidia-firmware %s, nvidia-modprobe, dkms (>= 3.1.8)" % same,
                postinst=repository.DKMS_POSTINST % version, conflicts="nvidia-dkms" + other,
            ),
            Package(
                "nvidia-driver" + flavour, full,
                "nvidia-dkms%s %s, libnvidia-compute %s, libnvidia-gl %s" % (flavour, same, same, same),
                conflicts="nvidia-driver" + other,
            ),
        ]  # fmt: skip
    found += [
        Package("nvidia-open", full, "nvidia-driver-open " + same),
        Package("cuda-drivers", full, "nvidia-driver " + same),
        Package(
            "nvidia-driver-pinning-" + b, full, provides="nvidia-driver-pinning", conflicts="nvidia-driver-pinning"
        ),
    ]
    return found


def debian(version: str) -> list[Package]:
    """NVIDIA's packages for Debian, all branches alike."""
    full = version + "-1"
    same = "(= %s)" % full
    found = [Package(name, full) for name in ("libnvidia-ml1", "libnvidia-ptxjitcompiler1", "firmware-nvidia-gsp")]
    found += [
        Package("libcuda1", full, "libnvidia-ptxjitcompiler1 " + same, _libcuda(version)),
        Package("nvidia-smi", full, "libnvidia-ml1 " + same, {"usr/bin/nvidia-smi": repository.SMI}),
        Package(
            "nvidia-driver-cuda", full,
            "libcuda1 %s, nvidia-smi %s, nvidia-modprobe, nvidia-persistenced" % (same, same),
        ),
    ]  # fmt: skip
    for flavour, other in (("-open", ""), ("", "-open")):
        found.append(Package(
            "nvidia-kernel%s-dkms" % flavour, full, "dkms (>= 3.1.8), firmware-nvidia-gsp " + same,
            postinst=repository.DKMS_POSTINST % version, conflicts="nvidia-kernel%s-dkms" % other,
        ))  # fmt: skip
    found += [
        Package("nvidia-open", full, "nvidia-driver-cuda %s, nvidia-kernel-open-dkms %s" % (same, same)),
        Package("cuda-drivers", full, "nvidia-driver-cuda %s, nvidia-kernel-dkms %s" % (same, same)),
        Package(
            "nvidia-driver-pinning-" + version.partition(".")[0], full,
            provides="nvidia-driver-pinning", conflicts="nvidia-driver-pinning",
        ),
    ]  # fmt: skip
    return found


def companions(versions: list[str]) -> list[Package]:
    """What is called alike on every system, and the dkms that NVIDIA ships because the distributions' are too old."""
    found = [Package("dkms", "1:3.4.0-1", "", DKMS), Package("nvlsm", "2025.10.14-1", "infiniband-diags, libibumad3")]
    found += [
        Package("nvidia-container-toolkit", "1.17.8-1", "libnvidia-container1"),
        Package("libnvidia-container1", "1.17.8-1"),
    ]
    for version in versions:
        full = version + "-1"
        b = version.partition(".")[0]
        found += [
            Package("nvidia-modprobe", full),
            Package("nvidia-persistenced", full, "", PERSISTENCED),
            # No relation to the driver: that their versions are equal is the planner's to see to.
            Package("nvidia-fabricmanager", full, "", FABRIC),
            Package("libnvidia-nscq", full, provides="libnvidia-nscq-" + b),
            Package("libnvsdm", full),
            Package("nvidia-imex", full, "nvidia-modprobe", provides="nvidia-imex-" + b),
        ]
    return found


def ubuntu() -> list[Package]:
    """Ubuntu's own: two flavours with their branch in the name, an older dkms, and the kernel's headers."""
    found = [Package("dkms", "3.0.11-1ubuntu13", "", DKMS)]
    for kernel in (KERNELS["ubuntu2204"], KERNELS["ubuntu2404"]):
        found += [Package("linux-headers-" + kernel, "1.0"), Package("linux-modules-extra-" + kernel, "1.0")]
    found += infiniband()
    found += [Package("linux-image-generic", "1.0"), Package("linux-headers-generic", "1.0")]
    b, full = "580", UBUNTU_OWN + "-0ubuntu0.24.04.1"
    same = "(= %s)" % full
    for server in ("", "-server"):
        common = "nvidia-kernel-common-%s%s" % (b, server)
        compute = "libnvidia-compute-%s%s" % (b, server)
        own = "%s-%s" % (common, UBUNTU_OWN)
        found += [
            Package(common, full, "nvidia-modprobe", provides=own),
            Package(compute, full, own, _libcuda(UBUNTU_OWN)),
            Package("nvidia-utils-%s%s" % (b, server), full, "%s %s" % (compute, same), SMI),
            Package(
                "nvidia-compute-utils-%s%s" % (b, server), full, "%s %s" % (compute, same), PERSISTENCED,
                conflicts="nvidia-persistenced",
            ),
        ]  # fmt: skip
        for flavour in ("", "-open"):
            source = "nvidia-kernel-source-%s%s%s" % (b, server, flavour)
            found += [
                Package(source, full),
                Package(
                    "nvidia-dkms-%s%s%s" % (b, server, flavour), full, "%s, %s %s, dkms" % (own, source, same),
                    postinst=repository.DKMS_POSTINST % UBUNTU_OWN,
                ),
                Package(
                    "nvidia-driver-%s%s%s" % (b, server, flavour), full,
                    "nvidia-dkms-%s%s%s %s, nvidia-utils-%s%s %s" % (b, server, flavour, same, b, server, same),
                ),
            ]  # fmt: skip
    # Of the -server driver only, and of exactly its version.
    for name, files in (("nvidia-fabricmanager-" + b, FABRIC), ("libnvidia-nscq-" + b, {})):
        found.append(Package(name, full, "nvidia-kernel-common-%s-server-%s" % (b, UBUNTU_OWN), files))
    found.append(Package("nvidia-modprobe", "580.126.09-1"))
    return found


def pve() -> list[Package]:
    """Proxmox's: no linux-headers of a -pve kernel; linux-headers-amd64 would bring a Debian kernel along."""
    found = [Package("dkms", "3.0.10-8", "", DKMS), Package("proxmox-default-kernel", "1.0")]
    for key, series in (("pve8", "6.8"), ("pve9", "6.17")):
        kernel = KERNELS[key]
        found += [
            Package("proxmox-kernel-%s-signed" % kernel, "1.0", provides="linux-image-" + kernel),
            Package("proxmox-kernel-" + series, "1.0", "proxmox-kernel-%s-signed" % kernel),
            Package("proxmox-headers-" + kernel, "1.0"),
            Package("proxmox-headers-" + series, "1.0", "proxmox-headers-" + kernel),
        ]
    found += infiniband()
    found += [
        Package("proxmox-default-headers", "1.0"),
        Package("pve-manager", "8.4.1"),
        Package("pve-manager", "9.1.2"),
        Package("linux-headers-amd64", "6.1.1", "linux-image-amd64"),
        Package("linux-image-amd64", "6.1.1"),
    ]
    return found


def infiniband() -> list[Package]:
    """The distributions' own, which nvlsm depends on."""
    return [Package("infiniband-diags", "50.0-2", "libibumad3"), Package("libibumad3", "50.0-2")]


def _libcuda(version: str) -> dict[str, str]:
    return {"%s/libcuda.so.%s" % (repository.LIBRARIES, version): version + "\n"}


if __name__ == "__main__":
    import sys

    print(build(Path(os.path.abspath(sys.argv[1]))))
