"""The NVIDIA driver: the module that runs, the module on disk, the libraries, and what stands around them."""

from __future__ import annotations

import re
from typing import Any

from . import device_nodes, gpus, kernel, modules
from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, DENIED, OK, Evidence, Outcome
from .linux import modprobe, versions
from .nvidia import (
    cuda_toolkits,
    driver_build,
    driver_packages,
    driver_requirements,
    driver_services,
    fabric_services,
)
from .pcie import gpu_addresses
from .smi.smi_values import NOT_APPLICABLE

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
    state}], [] where DKMS is not installed, None if unknown), `built_for_running_kernel`, `built_for_newest_kernel`;
    `build_failure` and `next_build_failure`: why there is none for them (driver_build.find_build_failure);
    `disagreement` (find_disagreement);
    `nvswitches` (addresses); `nvlink5`: whether a GPU is of those whose NVLink fabric needs nvlsm beside the Fabric
    Manager (B200, B300, GB200, GB300); `fabric_services` (see fabric_services.py); `gridd` (the licensing daemon of a
    vGPU guest's driver, as a unit of driver_services; each None where no GPU is a vGPU); and the facts of
    `driver_requirements.of_gpus`, `driver_services`, `driver_packages` (as `packaging`) and `cuda_toolkits`.
    """
    running = modules.read_loaded_modules(evidence, errors)
    version, flavor = _running_module(evidence, errors, bool(running and "nvidia" in running))
    # A sandbox may hide the list of modules and still offer the driver's own files.
    loaded = True if version or flavor else None if running is None else "nvidia" in running
    devices = gpu_addresses.read_devices(evidence)
    on_disk = _module_on_disk(evidence, errors)
    libraries = _libraries(evidence, errors)
    services = driver_services.gather(evidence, errors)
    on_bus = {
        device.address: device.device
        for device in (devices or {}).values()
        if device.is_gpu and device.driver != "vfio-pci"
    }
    requirements = driver_requirements.find_requirements(on_bus, version, flavor)
    unread = _unread_devices(evidence, devices, errors)
    for name in ("gpus", "below_minimum", "wrong_flavor"):
        if unread and not requirements[name]:
            requirements[name] = None
    dkms, dkms_whole = _dkms(evidence, errors)
    release = _release(evidence, errors if dkms else Errors("driver"))
    smi = _shown_gpus(evidence)
    nvswitches: list[str] | None = sorted(one.address for one in (devices or {}).values() if one.is_nvswitch)
    nvswitches = nvswitches or (None if unread else [])
    if nvswitches and services["fabric_manager"]["installed"] == NOT_APPLICABLE:
        errors.add("systemctl show", "there is no systemd to ask for the Fabric Manager")
    nvlink5 = any(is_nvlink5(device) for device in on_bus.values())
    fabric = None if nvswitches is None and not nvlink5 else bool(nvswitches or nvlink5)
    boot = evidence.list("/boot")
    if dkms:
        errors.unanswered(boot, absent_is_fine=True)
    newest = (
        kernel.choose_newest_kernel(kernel.find_installed_kernels(boot)) if boot.ok or boot.status == ABSENT else None
    )
    for_running = _built(dkms, dkms_whole, release)
    next_kernel = (newest or release) if boot.ok or boot.status == ABSENT else None
    for_newest = _built(dkms, dkms_whole, next_kernel)
    return {
        "loaded": loaded,
        "version": version,
        "branch": versions.parse_major(version),
        "flavor": flavor,
        "on_disk": on_disk,
        "libraries": libraries,
        "mismatched": find_mismatches(version, on_disk, libraries, services["fabric_manager"], fabric),
        "disagreement": find_disagreement(version, on_disk, libraries, services["fabric_manager"], fabric),
        "cuda": driver_requirements.cuda_of_driver(version),
        "gsp_firmware": _gsp_firmware(evidence, errors),
        "nouveau_loaded": None if running is None else "nouveau" in running,
        "secure_boot": read_secure_boot(evidence, errors),
        "dkms": dkms if dkms or dkms_whole else None,
        "built_for_running_kernel": for_running,
        "built_for_newest_kernel": for_newest,
        "build_failure": driver_build.find_build_failure(evidence, dkms, for_running, release),
        "next_build_failure": driver_build.find_build_failure(evidence, dkms, for_newest, next_kernel),
        "nvswitches": nvswitches,
        "nvlink5": True if nvlink5 else None if unread else False,
        "fabric_services": fabric_services.gather(evidence, errors, smi["name"], running, services["fabric_manager"]),
        "gridd": fabric_services.ask_unit(evidence, errors, fabric_services.GRIDD_COMMAND, fabric_services.GRIDD_UNIT)
        if "VGPU" in (smi["virtualization"] or ())
        else driver_services.read_unit(None),
        **requirements,
        **services,
        "packaging": driver_packages.gather(evidence, errors),
        **cuda_toolkits.gather(evidence, errors, version, requirements["minimum_toolkit"]),
    }


_NAME = re.compile(rb"<product_name>([^<]{1,120})</product_name>")
_VIRTUALIZATION = re.compile(rb"<virtualization_mode>([^<]{1,40})</virtualization_mode>")


def _shown_gpus(evidence: Evidence) -> dict[str, list[str] | None]:
    """Names and virtualisation modes of the GPUs that nvidia-smi shows; None where it gave no whole answer."""
    answer = evidence.run(gpus.XML, gpus.LIMIT_SECONDS)
    if answer.status == ABSENT or (answer.ok and b"No devices were found" in answer.stdout[:4096]):
        return {"name": [], "virtualization": []}
    whole = answer.ok and b"</nvidia_smi_log>" in answer.stdout
    return {
        key: [found.decode("utf-8", "replace").strip().upper() for found in pattern.findall(answer.stdout)]
        if whole
        else None
        for key, pattern in (("name", _NAME), ("virtualization", _VIRTUALIZATION))
    }


def _unread_devices(evidence: Evidence, devices: dict[str, Any] | None, errors: Errors) -> bool:
    """Whether a device on the bus could not be told: any of them may be a GPU or an NVSwitch."""
    bus = evidence.list(gpu_addresses.DEVICES)
    if devices is None:
        errors.unanswered(bus, absent_is_fine=True)
        return True
    unread = sorted(set(bus.entries) - set(devices))
    for address in unread:
        uevent = evidence.read("%s/%s/uevent" % (gpu_addresses.DEVICES, address))
        errors.unanswered(uevent)
        if uevent.ok:
            errors.odd(uevent.path, "names no device", uevent.text)
    return bool(unread)


def is_nvlink5(device: int) -> bool:
    """B200 and GB200 (29xx), B300 and GB300 (31xx): their NVSwitches are no PCI devices of the host."""
    return 0x2900 <= device <= 0x297F or 0x3180 <= device <= 0x31FF


def find_mismatches(
    running: str | None,
    on_disk: dict[str, Any],
    libraries: dict[str, Any] | None,
    fabric_manager: dict[str, Any],
    fabric: bool | None = None,
) -> list[str] | None:
    """What differs from the running module's version, in words; None where that version is unknown, or nothing is known
    to differ and the module on disk, a library or an installed Fabric Manager could not be read. Without an NVSwitch
    `fabric` is False, and the Fabric Manager's version is of no account."""
    if running is None:
        return None
    others = [("the module on disk is", on_disk["version"])]
    others += [("the Fabric Manager is", fabric_manager["version"])] if fabric is not False else []
    for entries in (libraries or {}).values():
        others += [("%s is" % entry["path"], entry["version"]) for entry in entries or ()]
    found = [
        "%s %s" % (what, version)
        for what, version in others
        if version and not versions.is_same_version(version, running)
    ]
    unread = [on_disk["known"] is not True, libraries is None or None in libraries.values()]
    manager_unread = fabric_manager["installed"] is None or (
        fabric_manager["installed"] is True and fabric_manager["version"] is None
    )
    unread.append(fabric is not False and manager_unread)
    return found if found or not any(unread) else None


def find_disagreement(
    running: str | None,
    on_disk: dict[str, Any],
    libraries: dict[str, Any] | None,
    fabric_manager: dict[str, Any],
    fabric: bool | None,
) -> dict[str, Any] | None:
    """Which part is not of the running module's version: ``{library, library_newer, on_disk, on_disk_is_librarys,
    fabric_manager}``; None where that version is unknown.

    `library`, `on_disk`, `fabric_manager`: their version where it differs, else None; `library_newer`: whether the
    library is newer than the running module; `on_disk_is_librarys`: whether the next load of the module brings the
    library's version (None: unknown, or no library differs). Two different libraries: the newest counts.
    """
    if running is None:
        return None

    def other(version: str | None) -> str | None:
        return version if version and versions.is_same_version(version, running) is False else None

    found = [other(entry["version"]) for entries in (libraries or {}).values() for entry in entries or ()]
    library = max((text for text in found if text), key=lambda text: versions.split_numbers(text) or (), default=None)
    same = versions.is_same_version(on_disk["version"], library) if library else None
    if library and same is None and on_disk["known"] is True:
        same = False  # there is no module on disk
    return {
        "library": library,
        "library_newer": versions.is_at_least(library, running) if library else None,
        "on_disk": other(on_disk["version"]),
        "on_disk_is_librarys": same,
        "fabric_manager": other(fabric_manager["version"]) if fabric is not False else None,
    }


def _running_module(evidence: Evidence, errors: Errors, loaded: bool | None) -> tuple[str | None, str | None]:
    """Version and flavour of the module in the kernel; None where its two files tell of different versions."""
    line = evidence.read("/proc/driver/nvidia/version")
    sysfs = evidence.read("/sys/module/nvidia/version")
    for reading in (line, sysfs):
        errors.unanswered(reading, absent_is_fine=not loaded)
    first = line.text.partition("\n")[0] if line.ok else ""
    match = versions.DRIVER_VERSION.search(first)
    version = (sysfs.text.strip() if sysfs.ok else "") or (match.group(1) if match else None)
    if version and versions.DRIVER_VERSION.fullmatch(version) is None:
        errors.add("/sys/module/nvidia/version", "holds no driver version: %r" % version[:40])
        version = match.group(1) if match else None
    if version and match and match.group(1) != version:
        errors.add(sysfs.path, "holds %s where %s holds %s" % (version, line.path, match.group(1)))
        version = None
    if not first.startswith("NVRM version:"):
        return version, None
    return version, "open" if "Open Kernel Module" in first else "proprietary"


def _module_on_disk(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """`known`: whether modinfo said which module is there, or that there is none (so it is where nothing loads
    modules, as in a container without modinfo)."""
    outcome = evidence.run(MODINFO_COMMAND, 10.0)
    if _is_not_found(outcome):
        # Debian's own packages call the file otherwise, which modprobe is told and modinfo is not.
        unread = Errors("driver")
        name = modprobe.find_module_file(modprobe.read_configuration(evidence, unread), "nvidia")
        outcome = evidence.run(("modinfo", name), 10.0) if name else outcome
        if not name and unread.entries:
            errors.entries += unread.entries
            return {**dict.fromkeys(("version", "flavor", "license", "signer", "path")), "known": False}
    fields: dict[str, str] = {}
    known = outcome.status == ABSENT or _is_not_found(outcome)
    if outcome.ok and outcome.rc == 0:
        for line in outcome.text.splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
        known = "version" in fields
        if not known:
            errors.add(" ".join(MODINFO_COMMAND), "shows no version")
    elif not known:
        errors.unsuccessful(outcome)
    license_ = fields.get("license")
    return {
        "known": known,
        "version": fields.get("version"),
        "flavor": None if not license_ else "open" if "GPL" in license_ else "proprietary",
        "license": license_,
        "signer": fields.get("signer"),
        "path": fields.get("filename"),
    }


def _is_not_found(outcome: Outcome) -> bool:
    said = " ".join((outcome.text + " " + outcome.error_text).split())
    return bool(outcome.ok and outcome.rc != 0 and "not found" in said)


def _libraries(evidence: Evidence, errors: Errors) -> dict[str, Any] | None:
    """The driver libraries by the version in their file name; None where `find` did not answer. A kind of library of
    which nothing was found in an answer that is not whole is None."""
    outcome = evidence.run(LIBRARIES_COMMAND, 10.0)
    # find ends with 1 where one of the directories is not there, and says so.
    complaints = [line for line in outcome.error_text.splitlines() if "No such file" not in line]
    silent = bool(outcome.rc) and not outcome.stdout and not outcome.error_text.strip()
    whole = outcome.ok and not silent and not complaints
    if not whole:
        errors.unsuccessful(outcome)
    if outcome.status != OK or silent or (complaints and not outcome.stdout):
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
    return {**found, **({} if whole else {"unread": None})}


def _gsp_firmware(evidence: Evidence, errors: Errors) -> dict[str, str | None]:
    """PCI address -> version of the GSP firmware that runs on the GPU, None where it runs without."""
    gpus = evidence.list(device_nodes.GPUS)
    found: dict[str, str | None] = {}
    for address in gpus.entries:
        value = device_nodes.read_information(evidence, errors, address).get("GPU Firmware")
        known = value if value and values.is_digits(value[0]) else None
        if value and known is None and value != "N/A":
            errors.odd("%s/%s/information" % (device_nodes.GPUS, address), "GPU Firmware is no version", value)
        found[address.lower()] = known
    return found


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


def _dkms(evidence: Evidence, errors: Errors) -> tuple[list[dict[str, str | None]], bool]:
    """(builds, whether that is all of them: it is not where dkms failed or its answer was cut).

    `nvidia/580.95.05, 6.14.8-2-pve, x86_64: installed`; before DKMS 3 `nvidia, 580.95.05, …`; `added` has no kernel.
    """
    outcome = evidence.run(DKMS_COMMAND, 20.0)
    whole = outcome.status == ABSENT or outcome.succeeded
    errors.unsuccessful(outcome, absent_is_fine=True)
    found: list[dict[str, str | None]] = []
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
    return found, whole


def _release(evidence: Evidence, errors: Errors) -> str | None:
    reading = evidence.read("/proc/sys/kernel/osrelease")
    errors.unanswered(reading)
    return reading.text.strip() or None


def _built(dkms: list[dict[str, str | None]], whole: bool, release: str | None) -> bool | None:
    """Whether DKMS built the driver for the kernel `release`; None where DKMS does not manage it, or where that kernel
    or a part of the builds is unknown."""
    if release is None or not dkms:
        return None
    built = any(item["kernel"] == release and (item["state"] or "").startswith("installed") for item in dkms)
    return built if built or whole else None
