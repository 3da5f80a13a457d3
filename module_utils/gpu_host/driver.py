"""The NVIDIA driver: the module that runs, the module on disk, the libraries, and what stands around them."""

from __future__ import annotations

import re
from typing import Any

from . import device_nodes, kernel, modules
from .evidence.errors import Errors
from .evidence.interface import ABSENT, DENIED, Evidence
from .linux import versions
from .nvidia import cuda_toolkits, driver_packages, driver_requirements, driver_services
from .pcie import gpu_addresses

LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
)  # fmt: skip
LIBRARIES_COMMAND = (
    "find", *LIBRARY_DIRECTORIES, "-maxdepth", "1", "(", "-name", "libcuda.so*", "-o", "-name", "libnvidia-ml.so*", ")",
    "-printf", "%p\\t%l\\n",
)  # fmt: skip
MODINFO_COMMAND = ("modinfo", "nvidia")
DKMS_COMMAND = ("dkms", "status")
SECURE_BOOT_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
COMMANDS = [
    (MODINFO_COMMAND, 10.0),
    (LIBRARIES_COMMAND, 10.0),
    (driver_services.SYSTEMCTL_COMMAND, 10.0),
    (DKMS_COMMAND, 20.0),
    (driver_packages.DPKG_COMMAND, 20.0),
]
_LIBRARY = re.compile(r"(?P<name>libcuda|libnvidia-ml)\.so\.(?P<version>\d{3}\.\d+(?:\.\d+)?)")


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of the driver stack.

    `loaded` (None if unknown), `version` and `flavor` (open, proprietary) of the running module, `branch` (580);
    `on_disk` {version, flavor, license, signer, path} of the module that the next load takes, each None if there is
    none; `libraries` {libcuda, libnvidia_ml: [{path, version}]}; `mismatched`: sentences on what differs from the
    running module's version ([] all agree, None unknown); `cuda` the newest CUDA release of the running driver;
    `gsp_firmware` (PCI address -> version or None), `nouveau_loaded`, `secure_boot`, `dkms` ([{module, version, kernel,
    state}], None if not installed), `built_for_running_kernel`, `built_for_newest_kernel`, `nvswitches` (addresses);
    and the facts of `driver_requirements.find_requirements`,
    `driver_services`, `driver_packages` (as `packaging`) and `cuda_toolkits`.
    """
    running = modules.read_loaded_modules(evidence, errors)
    version, flavor = _running_module(evidence, errors, bool(running and "nvidia" in running))
    # A sandbox may hide the list of modules and still offer the driver's own files.
    loaded = True if version or flavor else None if running is None else "nvidia" in running
    devices = gpu_addresses.read_devices(evidence)
    on_disk = _module_on_disk(evidence, errors)
    libraries = _libraries(evidence, errors)
    services = driver_services.gather(evidence, errors)
    gpus = {
        device.address: device.device
        for device in (devices or {}).values()
        if device.is_gpu and device.driver != "vfio-pci"
    }
    requirements = driver_requirements.find_requirements(gpus, version, flavor)
    dkms = _dkms(evidence, errors)
    release = evidence.read("/proc/sys/kernel/osrelease").text.strip()
    return {
        "loaded": loaded,
        "version": version,
        "branch": versions.parse_major(version),
        "flavor": flavor,
        "on_disk": on_disk,
        "libraries": libraries,
        "mismatched": find_mismatches(version, on_disk["version"], libraries, services["fabric_manager"]["version"]),
        "cuda": driver_requirements.cuda_of_driver(version),
        "gsp_firmware": _gsp_firmware(evidence, errors),
        "nouveau_loaded": None if running is None else "nouveau" in running,
        "secure_boot": read_secure_boot(evidence, errors),
        "dkms": dkms,
        "built_for_running_kernel": _built(dkms, release),
        "built_for_newest_kernel": _built(
            dkms, kernel.choose_newest_kernel(kernel.find_installed_kernels(evidence.list("/boot"))) or release
        ),
        "nvswitches": None
        if devices is None
        else sorted(device.address for device in devices.values() if device.is_nvswitch),
        **requirements,
        **services,
        "packaging": driver_packages.gather(evidence, errors),
        **cuda_toolkits.gather(evidence, errors, version, requirements["minimum_toolkit"]),
    }


def find_mismatches(
    running: str | None, on_disk: str | None, libraries: dict[str, Any] | None, fabric_manager: str | None
) -> list[str] | None:
    """What differs from the running module's version, in words.

    None where that version or everything beside it is unknown.
    """
    if running is None:
        return None
    others = [("the module on disk is", on_disk), ("the Fabric Manager is", fabric_manager)]
    for entries in (libraries or {}).values():
        others += [("%s is" % entry["path"], entry["version"]) for entry in entries]
    known = [(what, version) for what, version in others if version]
    if not known and libraries is None:
        return None
    return ["%s %s" % (what, version) for what, version in known if not versions.is_same_version(version, running)]


def _running_module(evidence: Evidence, errors: Errors, loaded: bool | None) -> tuple[str | None, str | None]:
    """Version and flavour of the module in the kernel."""
    line = evidence.read("/proc/driver/nvidia/version")
    sysfs = evidence.read("/sys/module/nvidia/version")
    for reading in (line, sysfs):
        errors.unanswered(reading, absent_is_fine=not loaded)
    first = line.text.partition("\n")[0]
    match = versions.DRIVER_VERSION.search(first)
    version = sysfs.text.strip() or (match.group(1) if match else None)
    if version and versions.DRIVER_VERSION.fullmatch(version) is None:
        errors.add("/sys/module/nvidia/version", "holds no driver version: %r" % version[:40])
        version = match.group(1) if match else None
    if not first.startswith("NVRM version:"):
        return version, None
    return version, "open" if "Open Kernel Module" in first else "proprietary"


def _module_on_disk(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    outcome = evidence.run(MODINFO_COMMAND, 10.0)
    fields: dict[str, str] = {}
    if outcome.ok and outcome.rc == 0:
        for line in outcome.text.splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
    elif not outcome.ok:
        errors.unanswered(outcome, absent_is_fine=True)
    license_ = fields.get("license")
    return {
        "version": fields.get("version"),
        "flavor": None if not license_ else "open" if "GPL" in license_ else "proprietary",
        "license": license_,
        "signer": fields.get("signer"),
        "path": fields.get("filename"),
    }


def _libraries(evidence: Evidence, errors: Errors) -> dict[str, Any] | None:
    """The driver libraries by the version in their file name; None where `find` did not answer."""
    outcome = evidence.run(LIBRARIES_COMMAND, 10.0)
    if not outcome.ok or (not outcome.stdout and "-printf" in outcome.error_text):
        errors.unanswered(outcome)
        return None
    entries = [line.partition("\t")[::2] for line in outcome.text.splitlines()]
    # The loader opens NAME.so.1. Where that is a link, the version it leads to counts, and other files are left over.
    led_to = {}
    for path, target in entries:
        directory, _slash, name = path.rpartition("/")
        match = _LIBRARY.fullmatch(target.rpartition("/")[2])
        if name.endswith(".so.1") and match:
            led_to[directory, match["name"]] = match["version"]
    found: dict[str, list[dict[str, str]]] = {"libcuda": [], "libnvidia_ml": []}
    for path, target in entries:
        directory, _slash, name = path.rpartition("/")
        match = _LIBRARY.fullmatch(name)
        if match and not target and led_to.get((directory, match["name"]), match["version"]) == match["version"]:
            found[match["name"].replace("-", "_")].append({"path": path, "version": match["version"]})
    return found


def _gsp_firmware(evidence: Evidence, errors: Errors) -> dict[str, str | None]:
    """PCI address -> version of the GSP firmware that runs on the GPU, None where it runs without."""
    gpus = evidence.list(device_nodes.GPUS)
    firmware = {
        address.lower(): device_nodes.read_information(evidence, errors, address).get("GPU Firmware")
        for address in gpus.entries
    }
    return {address: value if value and value[0].isdigit() else None for address, value in firmware.items()}


def read_secure_boot(evidence: Evidence, errors: Errors) -> bool | None:
    """Whether Secure Boot is enforced: the last byte of the EFI variable; a machine without EFI has none."""
    efi = evidence.list("/sys/firmware/efi")
    if efi.status == ABSENT:
        return False
    reading = evidence.read(SECURE_BOOT_VARIABLE)
    if reading.ok and reading.data and len(reading.data) == 5:
        return reading.data[4] == 1
    if not efi.ok and efi.status != DENIED:
        errors.unanswered(efi)
        return None
    outcome = evidence.run(("mokutil", "--sb-state"), 10.0)
    match = re.search(r"SecureBoot (enabled|disabled)", outcome.text)
    if match:
        return match.group(1) == "enabled"
    if reading.status == ABSENT and "EFI variables are not supported" in outcome.text + outcome.error_text:
        return False
    errors.unanswered(reading)
    return None


def _dkms(evidence: Evidence, errors: Errors) -> list[dict[str, str | None]] | None:
    """`nvidia/580.95.05, 6.14.8-2-pve, x86_64: installed`; before DKMS 3 `nvidia, 580.95.05, …`.

    `added` has no kernel.
    """
    outcome = evidence.run(DKMS_COMMAND, 20.0)
    if outcome.status == ABSENT:
        return None
    if not outcome.ok or (outcome.rc != 0 and not outcome.stdout):
        if outcome.ok:
            errors.add("dkms status", "ended with exit code %s: %s" % (outcome.rc, outcome.error_text.strip()[:200]))
        else:
            errors.unanswered(outcome)
        return None
    found = []
    for line in outcome.text.splitlines():
        what, colon, state = line.rpartition(": ")
        parts = [part.strip() for part in what.replace("/", ", ", 1).split(",")]
        if colon and len(parts) >= 2 and parts[0].startswith("nvidia"):
            kernel = parts[2] if len(parts) > 2 else None
            found.append(
                {
                    "module": parts[0],
                    "version": parts[1],
                    "kernel": kernel,
                    "state": state.split()[0] if state.split() else None,
                }
            )
    return found


def _built(dkms: list[dict[str, str | None]] | None, release: str) -> bool | None:
    """Whether DKMS built the driver for the running kernel; None where DKMS does not manage it."""
    if not dkms or not release:
        return None
    return any(item["kernel"] == release and (item["state"] or "").startswith("installed") for item in dkms)
