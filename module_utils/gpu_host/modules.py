"""Kernel modules that decide how GPUs work, and their options in three states: configured, in the initramfs, running.

A value that a file holds says nothing about the running module, and the running value says nothing about the next boot.
"""

from __future__ import annotations

from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence
from .evidence.offenders import Offenders
from .linux import initramfs, kept_off, kernel_cmdline, modprobe, module_values

MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nouveau", "vfio_pci")
NVIDIA_PARAMS = "/proc/driver/nvidia/params"
# Read even where nobody configured them: they decide a verdict or explain one. NVreg_ options are all in one file.
_PARAMETERS = {
    "nvidia_uvm": ("uvm_disable_hmm", "uvm_debug_prints", "uvm_ats_mode", "uvm_peer_copy"),
    "nvidia_drm": ("modeset", "fbdev"),
    "nvidia_peermem": ("peerdirect_support",),
    "nouveau": ("modeset",),
    "vfio_pci": ("disable_idle_d3",),
}
# Registry keys that make the driver grant P2P whatever it finds, with the values that leave it alone (nvrm_registry.h).
_FORCES_P2P = {
    "ForceP2P": (2,),
    "RMForceP2PType": (0,),
    "RMPcieP2PType": (0,),
    "PeerMappingOverride": (0,),
    "RmForceP2P": (2,),
}
_DWORDS = "NVreg_RegistryDwords"
# Static options that RegistryDwords may hold too.
_STATIC = frozenset(
    {"EnableResizableBar", "GrdmaPciTopoCheckOverride", "EnablePCIERelaxedOrderingMode"}
    | {"DmaRemapPeerMmio", "NvLinkDisable", "EnableStreamMemOPs"}
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """A dictionary for each module, and what needs several of them.

    The modules are `nvidia`, `nvidia_uvm`, `nvidia_modeset`, `nvidia_drm`, `nvidia_peermem`, `nouveau`, `vfio_pci`.

    Per module: `loaded` (None if unknown), `references` (None where the kernel does not count), `used_by` (modules),
    `options` (name -> {live, configured, source, cmdline, pending}: the running value, the value of the files and where
    it stands, the value of the kernel command line, and whether the next load would change it), `blacklisted` (places),
    `configured_options` (names that a file sets). `live_options`: module -> {option: running value}. `registry_dwords`:
    {live, configured}, each name -> value. `pending_options`, `unsaved_options` (set now, but nowhere configured; with
    the `line` to write), `conflicting_options`: lists with `text` for people.
    `forced_p2p`: registry keys that force the P2P grant, [{name, value, where}], None when the driver's parameters are
    unknown. `configuration`: {complete, files, faults}. `driver_kept_off`: what keeps nvidia from being loaded at boot
    (kept_off.find_kept_off). `initramfs`: see `initramfs.gather`.
    """
    loaded = read_loaded_modules(evidence, errors)
    configuration = modprobe.read_configuration(evidence, errors)
    cmdline = _cmdline_options(evidence, errors)
    params = _nvidia_params(evidence, errors, loaded)
    unread: set[tuple[str, str]] = set()
    facts: dict[str, Any] = {}
    for module in MODULES:
        state = None if loaded is None else loaded.get(module)
        facts[module] = {
            "loaded": None if loaded is None else state is not None,
            "references": state["references"] if state else None,
            "used_by": state["used_by"] if state else [],
            "options": _options(
                evidence,
                errors,
                module,
                loaded=state is not None,
                configuration=configuration,
                cmdline=cmdline or [],
                params=params,
                unread=unread,
            ),
            "blacklisted": [command.source for command in configuration.blacklisted(module)]
            or ([] if configuration.complete else None),
            "configured_options": sorted({option.name for option in configuration.options_of(module)})
            if configuration.complete
            else None,
        }
    facts["live_options"] = {module: _live_values(facts[module]["options"]) for module in MODULES}
    dwords = facts["nvidia"]["options"].get(_DWORDS, {})
    facts["registry_dwords"] = {
        "live": None if params is None else module_values.registry_dwords(str(params.get("RegistryDwords", ""))),
        "configured": module_values.registry_dwords(str(dwords.get("configured") or ""))
        if configuration.complete
        else None,
    }
    unknown = not configuration.complete or cmdline is None
    facts["pending_options"] = _pending(facts, unknown or loaded is None, unread)
    facts["unsaved_options"] = _unsaved(facts, unknown or loaded is None, unread)
    facts["conflicting_options"] = _conflicts(configuration, cmdline or [], unknown)
    facts["forced_p2p"] = _forced_p2p(facts, dwords.get("source"))
    facts["configuration"] = {
        "complete": configuration.complete,
        "files": len(configuration.files),
        "faults": configuration.faults or ([] if configuration.complete else None),
    }
    facts["driver_kept_off"] = kept_off.find_kept_off(evidence, errors, "nvidia", configuration)
    facts["initramfs"] = initramfs.gather(evidence, errors, configuration)
    return facts


def read_loaded_modules(evidence: Evidence, errors: Errors) -> dict[str, dict[str, Any]] | None:
    """name -> {references, used_by} from /proc/modules; None when it cannot be read.

    A kernel without modules has no such file, nor has a sandbox that hides it; there, /sys/module says what is loaded.
    """
    reading = evidence.read("/proc/modules")
    if reading.status == ABSENT:
        return _modules_of_sysfs(evidence, errors)
    errors.unanswered(reading)
    if not reading.ok:
        return None
    found = {}
    for line in reading.text.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        users = (
            [name for name in fields[3].split(",") if name not in ("", "-", "[permanent]")] if len(fields) > 3 else []
        )
        # "-": the kernel does not count (CONFIG_MODULE_UNLOAD is off).
        what = "the references of " + fields[0]
        references = None if fields[2] == "-" else errors.read_whole(reading.path, what, fields[2])
        found[fields[0]] = {"references": references, "used_by": users}
    return found


def _modules_of_sysfs(evidence: Evidence, errors: Errors) -> dict[str, dict[str, Any]] | None:
    """The same from /sys/module: what is built into the kernel has no `initstate` there."""
    listing = evidence.list("/sys/module")
    errors.unanswered(listing, absent_is_fine=True)
    if not listing.ok and listing.status != ABSENT:
        return None
    found = {}
    for name in sorted(listing.entries):
        state = evidence.read("/sys/module/%s/initstate" % name)
        if not state.ok and state.status != ABSENT:
            errors.unanswered(state)
            return None
        if state.text.strip() != "live":
            continue
        count = evidence.read("/sys/module/%s/refcnt" % name)
        references = errors.read_whole(count.path, "the references of " + name, count.text) if count.ok else None
        holders = evidence.list("/sys/module/%s/holders" % name)
        found[name] = {"references": references, "used_by": sorted(holders.entries)}
    return found


def _nvidia_params(evidence: Evidence, errors: Errors, loaded: dict[str, Any] | None) -> dict[str, Any] | None:
    """Name without NVreg_ -> value, from the running driver; None when it is not loaded or its file cannot be read."""
    reading = evidence.read(NVIDIA_PARAMS)
    if not reading.ok:
        errors.unanswered(reading, absent_is_fine=not (loaded and "nvidia" in loaded))
        return None
    found = {}
    for line in reading.text.splitlines():
        name, colon, value = line.partition(": ")
        if colon and name.strip():
            found[name.strip()] = module_values.parse_live_value(value)
    if not found:
        errors.add(NVIDIA_PARAMS, "holds no parameters")
    return found or None


def _cmdline_options(evidence: Evidence, errors: Errors) -> list[modprobe.Option] | None:
    reading = evidence.read("/proc/cmdline")
    errors.unanswered(reading)
    if not reading.ok:
        return None
    parameters = kernel_cmdline.parse_command_line(reading.text)
    return [
        modprobe.Option(module, name, value, "/proc/cmdline", 1)
        for module, name, value in kernel_cmdline.module_parameters(parameters)
    ]


def _options(
    evidence: Evidence,
    errors: Errors,
    module: str,
    *,
    loaded: bool,
    configuration: modprobe.Configuration,
    cmdline: list[modprobe.Option],
    params: dict[str, Any] | None,
    unread: set[tuple[str, str]],
) -> dict[str, dict[str, Any]]:
    written = _with_dwords(configuration.options_of(module))
    ordered = {option.name: option for option in written}  # the last word wins
    booted = {option.name: option for option in cmdline if option.module == module}
    names = [*_PARAMETERS.get(module, ()), *ordered, *booted]
    if module == "nvidia" and params is not None:
        names += ["NVreg_" + name for name in params]
    result = {}
    for name in dict.fromkeys(names):
        shown = _live(evidence, errors, module, name, params=params, unread=unread) if loaded else None
        in_file, at_boot = ordered.get(name), booted.get(name)
        option: dict[str, Any] = {
            "live": shown,
            "configured": module_values.parse_configured_value(name, in_file.value, shown) if in_file else None,
            "source": in_file.source if in_file else None,
            "cmdline": module_values.parse_configured_value(name, at_boot.value, shown) if at_boot else None,
            "pending": None,
        }
        wanted = option["configured"] if option["cmdline"] is None else option["cmdline"]
        if wanted is not None and shown is not None:
            option["pending"] = not _equal(name, wanted, shown)
        result[name] = option
    return result


def _equal(name: str, left: Any, right: Any) -> bool:
    if name == _DWORDS:
        return module_values.registry_dwords(str(left)) == module_values.registry_dwords(str(right))
    return bool(left == right)


def _with_dwords(options: list[modprobe.Option]) -> list[modprobe.Option]:
    """The options, and those that the last RegistryDwords holds for a static option:

    `EnableResizableBar=1` in it shows up as the option of that name in the running driver.
    """
    dwords = [option for option in options if option.name == _DWORDS]
    if not dwords:
        return options
    last = dwords[-1]
    keys = module_values.registry_dwords(last.value or "")
    return options + [
        modprobe.Option("nvidia", "NVreg_" + key, str(value), last.file, last.line)
        for key, value in keys.items()
        if key in _STATIC
    ]


def _live(
    evidence: Evidence,
    errors: Errors,
    module: str,
    name: str,
    *,
    params: dict[str, Any] | None,
    unread: set[tuple[str, str]],
) -> Any:
    """The running value; None where this release has no such parameter, or (`unread`) where it could not be read."""
    if module == "nvidia" and name.startswith("NVreg_"):
        if params is None:
            unread.add((module, name))
        return None if params is None else params.get(name[len("NVreg_") :])
    if "/" in name or name.startswith("."):
        return None
    reading = evidence.read("/sys/module/%s/parameters/%s" % (module, name))
    # Absent: this release has no such parameter, or does not show it.
    errors.unanswered(reading, absent_is_fine=True)
    if not reading.ok and reading.status != ABSENT:
        unread.add((module, name))
    return module_values.parse_live_value(reading.text) if reading.ok and reading.text.strip() else None


def _live_values(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: option["live"] for name, option in options.items() if option["live"] is not None}


def _pending(facts: dict[str, Any], unknown: bool, unread: set[tuple[str, str]]) -> list[dict[str, Any]] | None:
    found = Offenders(unknown)
    for module in MODULES:
        for name, option in facts[module]["options"].items():
            if (module, name) in unread and (option["configured"], option["cmdline"]) != (None, None):
                found.unread()
            elif option["pending"]:
                wanted = option["configured"] if option["cmdline"] is None else option["cmdline"]
                source = option["source"] if option["cmdline"] is None else "/proc/cmdline"
                text = "%s %s: %s in %s, %s in the running module" % (
                    module,
                    name,
                    format_value(wanted),
                    source,
                    format_value(option["live"]),
                )
                found.judge(
                    True,
                    {
                        "module": module,
                        "name": name,
                        "live": option["live"],
                        "wanted": wanted,
                        "source": source,
                        "text": text,
                    },
                )
    return found.listed()


def _unsaved(facts: dict[str, Any], unknown: bool, unread: set[tuple[str, str]]) -> list[dict[str, Any]] | None:
    """Settings that someone made by hand and that the next load will lose.

    Only those with a known default can be told.
    """
    if unknown or ("nvidia_uvm", "uvm_disable_hmm") in unread:
        return None
    option = facts["nvidia_uvm"]["options"]["uvm_disable_hmm"]
    if option["live"] is True and option["configured"] is None and option["cmdline"] is None:
        text = "nvidia_uvm uvm_disable_hmm: Y in the running module, not configured anywhere"
        return [
            {
                "module": "nvidia_uvm",
                "name": "uvm_disable_hmm",
                "live": True,
                "line": "options nvidia_uvm uvm_disable_hmm=1",
                "text": text,
            }
        ]
    return []


def _conflicts(
    configuration: modprobe.Configuration, cmdline: list[modprobe.Option], unknown: bool
) -> list[dict[str, Any]] | None:
    found = Offenders(unknown)
    for module in MODULES:
        given: dict[str, list[modprobe.Option]] = {}
        for option in [*configuration.options_of(module), *(item for item in cmdline if item.module == module)]:
            given.setdefault(option.name, []).append(option)
        for name, options in given.items():
            given_values = {str(module_values.parse_configured_value(name, option.value)) for option in options}
            if len(given_values) > 1:
                places = ["%s in %s" % (option.value, option.source) for option in options]
                text = "%s %s: %s; the last one counts" % (module, name, ", ".join(places))
                found.judge(True, {"module": module, "name": name, "places": places, "text": text})
    return found.listed()


def _forced_p2p(facts: dict[str, Any], source: str | None) -> list[dict[str, Any]] | None:
    live, written = facts["registry_dwords"]["live"], facts["registry_dwords"]["configured"]
    found = Offenders(unknown=written is None or (live is None and facts["nvidia"]["loaded"] is not False))
    seen = set()
    for where, keys in (("the running module", live or {}), (source, written or {})):
        for name, value in keys.items():
            if name in _FORCES_P2P and value not in _FORCES_P2P[name] and name not in seen:
                seen.add(name)
                text = "%s=%s in %s" % (name, format_value(value), where)
                found.judge(True, {"name": name, "value": value, "where": where, "text": text})
    return found.listed()


def format_value(value: Any) -> str:
    """A value as the kernel prints it."""
    if isinstance(value, bool):
        return "Y" if value else "N"
    return '"%s"' % value if isinstance(value, str) else str(value)
