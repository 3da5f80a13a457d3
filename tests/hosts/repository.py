"""A signed apt repository with packages of NVIDIA's names and small contents, in the flat layout of NVIDIA's own.

Two driver branches with two versions of one, the CUDA toolkits 12.8 and 13.1, the `cuda` metapackage that pulls a
driver in, and what they depend on. So pin, hold, upgrade, downgrade and refusal are decided by the real apt and dpkg of
a test host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

VERSIONS = ("580.65.06", "580.95.05", "595.45.04")
TOOLKITS = ("12-8", "13-1")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What the driver's nvidia-smi says and how it ends where no driver runs.
SMI = r"""#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver." \
  "Make sure that the latest NVIDIA driver is installed and running."
exit 9
"""
# As the real ones: they ask the GPUs as soon as they start, and end where there is none.
DAEMON = r"""#!/bin/sh
if [ ! -e /dev/nvidia0 ]; then
  echo "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist," \
    "and that user 0 has read and write permissions for those files."
  exit 1
fi
mkdir -p /run/nvidia-persistenced
sleep infinity &
"""
UNIT = (
    "[Unit]\nDescription=NVIDIA %s "
    "(stand-in)\n[Service]\nType=forking\nExecStart=/usr/bin/%s\n[Install]\nWantedBy=multi-user.target\n"
)
# Says what the real one would do and keeps a record, as the tests ask for it.
DKMS = """#!/bin/sh
[ "$1" = status ] && { cat /var/lib/dkms/status 2>/dev/null; exit 0; }
exit 0
"""
DKMS_POSTINST = """#!/bin/sh
set -e
mkdir -p /var/lib/dkms
for step in 1 2 3; do echo "Building module for $(uname -r), step $step ..."; done
echo "nvidia/%s, $(uname -r), x86_64: installed" > /var/lib/dkms/status
"""


class Package(NamedTuple):
    name: str
    version: str
    depends: str = ""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    postinst: str = ""
    conflicts: str = ""
    provides: str = ""


def driver(version: str) -> list[Package]:
    """The packages of one driver version, with the dependencies that matter here."""
    full = version + "-1"
    same = "(= %s)" % full

    def library(name: str, so: str) -> Package:
        return Package(
            name,
            full,
            files={"%s/%s.%s" % (LIBRARIES, so, version): version + "\n"},
            links={"%s/%s.1" % (LIBRARIES, so): "%s.%s" % (so, version)},
        )

    persistenced = {
        "usr/bin/nvidia-persistenced": DAEMON,
        "usr/lib/systemd/system/nvidia-persistenced.service": UNIT % ("Persistence Daemon", "nvidia-persistenced"),
    }
    fabric = {
        "usr/bin/nv-fabricmanager": DAEMON,
        "usr/lib/systemd/system/nvidia-fabricmanager.service": UNIT % ("Fabric Manager", "nv-fabricmanager"),
    }
    return [
        library("libcuda1", "libcuda.so"),
        library("libnvidia-ml1", "libnvidia-ml.so"),
        library("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so"),
        Package("nvidia-smi", full, "libnvidia-ml1 " + same, {"usr/bin/nvidia-smi": SMI}),
        Package("nvidia-persistenced", full, "", persistenced),
        Package("nvidia-modprobe", full),
        Package(
            "nvidia-driver-cuda",
            full,
            ", ".join(
                "%s %s" % (name, same)
                for name in ("libcuda1", "libnvidia-ml1", "nvidia-smi", "libnvidia-ptxjitcompiler1")
            ),
        ),
        Package(
            "nvidia-kernel-open-dkms", full, "dkms", postinst=DKMS_POSTINST % version, conflicts="nvidia-kernel-dkms"
        ),
        Package(
            "nvidia-kernel-dkms", full, "dkms", postinst=DKMS_POSTINST % version, conflicts="nvidia-kernel-open-dkms"
        ),
        Package(
            "nvidia-open",
            full,
            "nvidia-driver-cuda %s, nvidia-kernel-open-dkms %s, nvidia-persistenced %s" % (same, same, same),
        ),
        Package("nvidia-fabricmanager", full, "", fabric),
    ]


def others() -> list[Package]:
    kernel = os.uname().release
    packages = [
        Package("dkms", "3.0.12-1", "", {"usr/sbin/dkms": DKMS}),
        Package("linux-headers-" + kernel, "1.0"),
        Package("linux-headers-amd64", "1.0", "linux-headers-" + kernel),
        Package("linux-image-amd64", "1.0"),
        Package("nvidia-container-toolkit", "1.17.8-1", "libnvidia-container1"),
        Package("libnvidia-container1", "1.17.8-1"),
        Package("cuda", "13.1.0-1", "cuda-toolkit-13-1, nvidia-open"),
    ]
    for toolkit in TOOLKITS:
        dotted = toolkit.replace("-", ".")
        root = "usr/local/cuda-" + dotted
        files = {root + "/version.json": '{"cuda": {"name": "CUDA SDK", "version": "%s.0"}}\n' % dotted}
        files[root + "/bin/nvcc"] = "#!/bin/sh\necho 'Cuda compilation tools, release %s, V%s.40'\n" % (dotted, dotted)
        packages += [
            Package("cuda-nvcc-" + toolkit, dotted + ".40-1", "", files),
            Package("cuda-toolkit-" + toolkit, dotted + ".0-1", "cuda-nvcc-" + toolkit),
        ]
    return packages


def _write(package: Package, pool: Path, scratch: Path) -> None:
    tree = scratch / ("%s_%s" % (package.name, package.version))
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: Tests <tests@example.org>\n" % (
        package.name,
        package.version,
    )
    control += "Depends: %s\n" % package.depends if package.depends else ""
    control += "Conflicts: %s\n" % package.conflicts if package.conflicts else ""
    control += "Provides: %s\n" % package.provides if package.provides else ""
    (tree / "DEBIAN/control").write_text(control + "Description: stand-in for a test\n")
    if package.postinst:
        (tree / "DEBIAN/postinst").write_text(package.postinst)
        (tree / "DEBIAN/postinst").chmod(0o755)
    for name, content in package.files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if content.startswith("#!") else 0o644)
    for name, target in package.links.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(pool)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def build(target: Path) -> Path:
    """Make the repository in `target` (replaced if there): repo/, key.asc, wrong-key.asc, fingerprint.

    Returns `target`.
    """
    packages = others() + [package for version in VERSIONS for package in driver(version)]
    return build_archives(target, {"repo": ("NVIDIA", "", packages)})


def build_archives(target: Path, archives: dict[str, tuple[str, str, list[Package]]]) -> Path:
    """Flat archives in `target` (replaced if there), by name (origin, label, packages), all signed by one key.

    Beside them key.asc, wrong-key.asc and fingerprint. Returns `target`.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        gpg = _make_keys(target, Path(scratch))
        for name, (origin, label, packages) in archives.items():
            pool = target / name
            pool.mkdir()
            trees = Path(scratch) / name
            with ThreadPoolExecutor(2) as workers:
                list(workers.map(lambda package, pool=pool, trees=trees: _write(package, pool, trees), packages))
            _sign(pool, origin, label, gpg)
        subprocess.run(["gpgconf", "--homedir", str(Path(scratch) / "gnupg"), "--kill", "all"], check=False)
    return target


def _make_keys(target: Path, scratch: Path) -> list[str]:
    """The command of gpg with the keys right@example.org and wrong@example.org in its home."""
    home = scratch / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--yes"]
    for name in ("right", "wrong"):
        subprocess.run(
            [*gpg, "--passphrase", "", "--quick-gen-key", "%s@example.org" % name, "rsa3072", "sign", "1y"],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        key = subprocess.run(
            [*gpg, "--armor", "--export", "%s@example.org" % name], check=True, stdout=subprocess.PIPE
        ).stdout
        (target / ("key.asc" if name == "right" else "wrong-key.asc")).write_bytes(key)
    listing = subprocess.run(
        [*gpg, "--with-colons", "--list-keys", "right@example.org"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    (target / "fingerprint").write_text(
        next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr")) + "\n"
    )
    return gpg


def _sign(pool: Path, origin: str, label: str, gpg: list[str]) -> None:
    """Write Packages, Release and InRelease of a flat archive."""
    release = ["apt-ftparchive", "-o", "APT::FTPArchive::Release::Origin=" + origin]
    release += ["-o", "APT::FTPArchive::Release::Label=" + label] if label else []
    for name, argv in (("Packages", ["apt-ftparchive", "packages", "."]), ("Release", [*release, "release", "."])):
        content = subprocess.run(argv, cwd=pool, check=True, stdout=subprocess.PIPE).stdout
        (pool / name).write_bytes(content)
    words = ["--local-user", "right@example.org", "--clearsign", "--output", str(pool / "InRelease")]
    subprocess.run([*gpg, *words, str(pool / "Release")], check=True)


if __name__ == "__main__":
    import sys

    print(build(Path(sys.argv[1])))
