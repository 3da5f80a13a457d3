"""All guests of a Proxmox node.

Their configurations, resolved against the node's PCI devices, and what runs of them.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from ..pcie.pci_names import is_gpu
from . import (
    container_access,
    container_config,
    cpu_models,
    guest_config,
    guest_faults,
    node_driver,
    node_state,
    pci_mapping,
    qemu_process,
    start_rules,
    vm_changes,
    vm_config,
)

VM_DIRECTORY = "/etc/pve/qemu-server"
CT_DIRECTORY = "/etc/pve/lxc"
_NAME = re.compile(r"([0-9]{1,9})\.conf$")


def read_vms(
    evidence: Evidence,
    errors: Errors,
    node: str | None,
    devices: dict[str, dict[str, Any]] | None,
    iommu_on: bool | None = None,
) -> dict[str, dict[str, Any]] | None:
    """VMID -> facts of vm_config.read plus what its devices are here; of a VM without PCI devices only name and type.

    Beyond vm_config.read: `gpus` [addresses that it can get] (None: unknown), `gpu_count`, `claims` [addresses that it
    holds], `shared_claims` and `kept_claims` [those of them that it has as a mediated device, or with driver=keep],
    `running`, `qemu` (qemu_process.parse), `restart_pending` [text], `gpus_without_pcie`, `clique_faults`,
    `needed_window_mib`, `start` (would Proxmox start it: {starts, step, error, key, lasting}), `fixes` and
    `fix_problem` (vm_changes.commands), `restart_command`, `faults`, `refused` (guest_faults.describe). None if the
    directory cannot be listed.
    """
    names = _list_names(evidence, errors, VM_DIRECTORY)
    if names is None:
        return None
    result: dict[str, dict[str, Any]] = {}
    settings: dict[str, dict[str, str]] = {}
    mapping: dict[str, Any] | None = {}
    mapping_read = False
    for vmid, path, config, models in _vm_configurations(evidence, errors, names):
        facts = vm_config.read_vm(config, models)
        entries = facts["hostpci"] + facts["next_start"]["hostpci"]
        if not entries and not guest_faults.mentions_gpus(config):
            result[vmid] = {"type": "vm", "name": facts["name"], "gpus": [], "claims": [], "gpu_count": 0}
            continue
        if not mapping_read and any(entry["mapping"] for entry in entries):
            mapping, mapping_read = node_state.read_mapping(evidence, errors), True
        for entry in entries:
            resolve_devices(entry, mapping, node, devices)
        result[vmid] = {
            **facts,
            **_vm_state(evidence, errors, vmid, facts),
            **_vm_devices(facts["next_start"], devices),
        }
        result[vmid].update(_claims(result[vmid], devices))
        result[vmid]["file"] = path
        faults, refused = guest_faults.describe_faults(path, config)
        faults += ["%s: %s: %s" % (path, entry["key"], entry["problem"]) for entry in entries if entry["problem"]]
        result[vmid].update(faults=sorted(set(faults)), refused=refused)
        settings[vmid] = guest_config.effective_settings(config)
    named = {address for vm in result.values() for address in vm.get("addresses", [])}
    if devices is not None:
        node_state.add_start_facts(evidence, devices, sorted(named), errors)
    state = start_rules.NodeState(node, devices, mapping, node_state.cards_in_use(result), iommu_on)
    for vmid, effective in settings.items():
        verdict = start_rules.judge_vm(effective, state, vmid, result[vmid]["running"])
        result[vmid]["start"] = _start(verdict)
        fixes, refusal = vm_changes.make_commands(effective, result[vmid], vmid, state)
        stop = "qm shutdown %s && " % vmid if result[vmid]["running"] is not False else ""
        result[vmid].update(fixes=fixes, fix_problem=refusal, restart_command="%sqm start %s" % (stop, vmid))
    return {vmid: guest_config.make_printable(vm) for vmid, vm in result.items()}


def _start(verdict: start_rules.Verdict) -> dict[str, Any]:
    """{starts, step, error, key, lasting}: `lasting` False where the obstacle goes away by itself or is meant: a lock,
    another guest that runs now, a template."""
    return {
        "starts": verdict.starts,
        "step": verdict.step,
        "error": verdict.error,
        "key": verdict.key,
        "lasting": verdict.starts is False and verdict.step not in ("reserve", "choose", "lock", "template"),
    }


def _list_names(evidence: Evidence, errors: Errors, directory: str) -> list[str] | None:
    """The files of a directory of configurations, also where only some of them are known; None where none is."""
    listing = evidence.list(directory)
    if not listing.ok:
        errors.unanswered(listing)
    return sorted(listing.entries) if listing.ok or listing.entries or listing.status == ABSENT else None


def _configurations(evidence: Evidence, errors: Errors, directory: str, names: list[str]) -> list[tuple[str, str, str]]:
    """(number, path, text) of every configuration that can be read; every byte of it kept."""
    found = []
    for name in names:
        match = _NAME.match(name)
        if not match:
            continue
        path = "%s/%s" % (directory, name)
        reading = evidence.read(path)
        if reading.ok:
            found.append((match.group(1), path, (reading.data or b"").decode("utf-8", "surrogateescape")))
        else:
            errors.unanswered(reading)
    return found


def _vm_configurations(
    evidence: Evidence, errors: Errors, names: list[str]
) -> list[tuple[str, str, guest_config.GuestConfig, dict[str, dict[str, str]] | None]]:
    """(VMID, path, configuration, the cluster's own CPU models or None where they are not known)."""
    texts = _configurations(evidence, errors, VM_DIRECTORY, names)
    models: dict[str, dict[str, str]] | None = {}
    if any("custom-" in text for _vmid, _path, text in texts):
        reading = evidence.read(cpu_models.FILE)
        errors.unanswered(reading, absent_is_fine=True)
        models = cpu_models.parse_models(reading.text) if reading.ok else ({} if reading.status == ABSENT else None)
    return [
        (vmid, path, guest_config.parse_config(text, guest_config.VM, models), models) for vmid, path, text in texts
    ]


def resolve_devices(
    entry: dict[str, Any],
    mapping: dict[str, Any] | None,
    node: str | None,
    devices: dict[str, dict[str, Any]] | None,
) -> None:
    """Add to a hostpci entry:

    `addresses` (every function; of a mapping every alternative), `gpus`, `qemu_id`, `alternatives` (how many devices a
    mapping leaves Proxmox to choose from) and `with_pcie`, the value as it should be on Q35.

    `gpus` is None where it cannot be known; `qemu_id` is None where QEMU gets several functions, which it names
    hostpciN.0, hostpciN.1 …: `-set` cannot address those.
    """
    named = entry["devices"]
    functions_per_alternative: list[int] = []
    if entry["mapping"] is not None:
        known = (mapping or {}).get(entry["mapping"], {"maps": []})["maps"]
        maps = [item for item in known if node is None or item["node"] == node]
        named = [device for item in maps for device in item["devices"]]
        functions_per_alternative = [len(_functions(item["devices"], devices)) for item in maps]
        if not maps and mapping is not None:
            text = "no mapping %r for this node in %s" % (entry["mapping"], pci_mapping.FILE)
            entry["problem"] = "; ".join(filter(None, [entry["problem"], text]))
    addresses = _functions(named, devices)
    entry["addresses"] = addresses
    unknown = devices is None or (entry["mapping"] is not None and not named)
    entry["gpus"] = None if unknown else [item for item in addresses if _is_gpu(item, devices)]
    count = max(functions_per_alternative) if functions_per_alternative else len(addresses)
    entry["qemu_id"] = entry["key"] if count <= 1 else None
    entry["with_pcie"] = ",".join(
        [*(part for part in entry["value"].split(",") if not part.strip().startswith("pcie=")), "pcie=1"]
    )
    entry["alternatives"] = max(len(functions_per_alternative), 1)


def _functions(named: list[dict[str, Any]], devices: dict[str, dict[str, Any]] | None) -> list[str]:
    result: list[str] = []
    for device in named:
        if device["address"] is not None:
            result.append(device["address"])
        else:
            known = sorted(address for address in devices or {} if address.rpartition(".")[0] == device["slot"])
            result += known or [device["slot"] + ".0"]
    return result


def _is_gpu(address: str, devices: dict[str, dict[str, Any]] | None) -> bool:
    device = (devices or {}).get(address)
    return device is not None and is_gpu(device["vendor"], device["class"])


def _vm_state(evidence: Evidence, errors: Errors, vmid: str, facts: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {"running": None, "qemu": None, "restart_pending": None}
    pid_file = evidence.read("/var/run/qemu-server/%s.pid" % vmid)
    if not pid_file.ok:
        errors.unanswered(pid_file, absent_is_fine=True)
        if pid_file.status == ABSENT:
            state.update(running=False, restart_pending=[])
        return state
    pid = errors.read_whole(pid_file.path, "it", pid_file.text)
    if pid is None:
        return state
    process = evidence.read("/proc/%d/cmdline" % pid)
    if not process.ok and process.status != ABSENT:
        errors.unanswered(process)
        return state
    state["qemu"] = qemu_process.parse_process(process.data or b"", vmid)
    state["running"] = state["qemu"] is not None
    state["restart_pending"] = (
        qemu_process.find_differences(facts["next_start"], state["qemu"]) if state["qemu"] else []
    )
    return state


def _vm_devices(hardware: dict[str, Any], devices: dict[str, dict[str, Any]] | None) -> dict[str, Any]:
    entries = hardware["hostpci"]
    known = all(entry["gpus"] is not None for entry in entries)
    gpu_entries = [entry for entry in entries if entry["gpus"]]
    gpus = sorted({address for entry in gpu_entries for address in entry["gpus"]})
    return {
        "addresses": sorted({address for entry in entries for address in entry["addresses"]}),
        "gpus": gpus if known else None,
        "gpu_count": sum(len(entry["gpus"]) // entry["alternatives"] for entry in gpu_entries) if known else None,
        "gpu_entries": [entry["key"] for entry in gpu_entries],
        "gpus_without_pcie": [
            "%s (%s)" % (entry["key"], ", ".join(entry["gpus"])) for entry in gpu_entries if not entry["pcie"]
        ],
        "clique_faults": clique_faults(hardware, gpu_entries) if known else None,
        "needed_window_mib": _window(gpus, devices) if known else None,
    }


def _claims(vm: dict[str, Any], devices: dict[str, dict[str, Any]] | None) -> dict[str, list[str]]:
    """{claims, shared_claims, kept_claims}: the GPUs that a VM holds, if it runs; else those that it will take for
    certain (a mapping leaves Proxmox the choice). A template owns nothing: it never starts."""
    entries = [] if vm["template"] else vm["next_start"]["hostpci"]
    mediated = {item for entry in entries if entry["mdev"] for item in entry["gpus"] or []}
    kept = {item for entry in entries if entry["driver"] == "keep" for item in entry["gpus"] or []}
    if vm["qemu"] is not None:
        addresses = {str(device["address"]).lower() for device in vm["qemu"]["devices"].values()}
        addresses |= mediated
    else:
        addresses = {item for entry in entries if entry["alternatives"] == 1 for item in entry["gpus"] or []}
    claims = sorted(address for address in addresses if _is_gpu(address, devices))
    return {
        "claims": claims,
        "shared_claims": [address for address in claims if address in mediated],
        "kept_claims": [address for address in claims if address in kept],
    }


def clique_faults(hardware: dict[str, Any], gpu_entries: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the GPUDirect clique grant of a VM's `args`; empty if none is set."""
    cliques, everyone = hardware["cliques"], hardware["clique_of_all"]
    if not cliques and everyone is None:
        return []
    faults = []
    keys = {entry["key"] for entry in hardware["hostpci"]}
    for device in sorted(cliques):
        if "." in device:
            faults.append(
                "%s: QEMU's -set cannot address a name with a dot; name the function, .0, in %s"
                % (device, device.partition(".")[0])
            )
        elif device not in keys:
            faults.append("%s has a clique and is no device of this VM: QEMU will not start" % device)
    for entry in gpu_entries:
        if everyone is not None:
            continue  # -global gives it to every vfio-pci device, whatever its name
        if entry["qemu_id"] is None:
            text = "%s (%s) passes several functions, which QEMU names %s.0 ...; give the address with its function"
            faults.append(text % (entry["key"], entry["value"], entry["key"]))
        elif entry["key"] not in cliques:
            faults.append("%s (%s) has no clique" % (entry["key"], ", ".join(entry["gpus"])))
    given = {entry["key"]: cliques.get(entry["key"], everyone) for entry in gpu_entries}
    values = sorted({value for value in given.values() if value is not None})
    if len(values) > 1:
        faults.append("cliques differ (%s): no P2P between them" % ", ".join(map(str, values)))
    if hardware["hypervisor_hidden"]:
        faults.append(
            "the hypervisor is hidden (hidden=1, x-vga=1 or kvm=off), so the driver does not look for a clique"
        )
    return faults


def _window(gpus: list[str], devices: dict[str, dict[str, Any]] | None) -> int | None:
    """MiB of 64-bit address space that the BARs of these cards need, each aligned to its own size.

    None if a size is unknown.
    """
    total = 0
    for address in gpus:
        bars = (devices or {}).get(address, {}).get("bars")
        if bars is None:
            return None
        sizes = [bar["size_mib"] for bar in bars if bar["kind"] == "memory" and bar["bits"] == 64]
        if any(size is None for size in sizes):
            return None
        total += sum(sizes)
    return math.ceil(total)


def read_containers(evidence: Evidence, errors: Errors, driver: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """CTID -> facts of container_config.read plus what the host knows of its nodes; of a container without GPU nodes
    only
    name and type.

    Beyond container_config.read: `gpus` [addresses, or nodes that the driver does not know], `gpu_count`,
    `claims`, `running`, `live_nodes`, `missing_nodes`, `suggested_devices`, `stale_rules`,
    `wrong_majors`, `absent_optional`, `root_only_nodes`, `access_faults` (container_access.faults), `old_libraries`
    [libraries mounted by name that are of another version than the driver], `restart_pending`, `start` (as of a VM),
    `restart_command`, `hand_written_lines` [numbers], `hand_written_texts` [those lines], `faults`, `refused`. None if
    the directory cannot be listed.
    """
    names = _list_names(evidence, errors, CT_DIRECTORY)
    if names is None:
        return None
    result: dict[str, dict[str, Any]] = {}
    for ctid, path, text in _configurations(evidence, errors, CT_DIRECTORY, names):
        config = guest_config.parse_config(text, guest_config.CONTAINER)
        facts = container_config.read_container(config)
        for part in (facts, facts["next_start"]):
            container_config.add_mounted_directories(part, driver["nodes"] or {})
        by_hook = any("nvidia" in hook.lower() for hook in facts["next_start"]["hooks"])
        if not (facts["nodes"] or facts["next_start"]["nodes"] or by_hook or guest_faults.mentions_gpus(config)):
            result[ctid] = {"type": "lxc", "name": facts["name"], "gpus": [], "claims": [], "gpu_count": 0}
            continue
        facts.update(_container_state(evidence, errors, ctid))
        facts.update(_container_nodes(facts, driver))
        facts["file"] = path
        faults, refused = guest_faults.describe_faults(path, config)
        facts.update(faults=sorted(set(faults)), refused=refused)
        nvidia = {195, *(driver["majors"] or {}).values()}
        numbers = container_config.hand_written_lines(config, nvidia, driver["known_majors"] or [])
        facts["hand_written_lines"] = numbers
        facts["hand_written_texts"] = [
            line.text.rstrip("\r\n") for line in config.current.lines if line.number in numbers
        ]
        facts["restart_command"] = ("pct reboot %s" if facts["running"] is not False else "pct start %s") % ctid
        paths = [item["path"] for item in facts["next_start"]["devices"] if item["path"]]
        state = start_rules.NodeState(nodes=node_state.device_nodes(evidence, paths, errors))
        facts["start"] = _start(start_rules.judge_container(guest_config.effective_settings(config), state))
        result[ctid] = guest_config.make_printable(facts)
    return result


def _container_state(evidence: Evidence, errors: Errors, ctid: str) -> dict[str, Any]:
    """{running, live_nodes}: the nodes inside a running container, through /proc/PID/root of its first process."""
    info = evidence.run(["lxc-info", "-n", ctid, "-s", "-p"], 10.0)
    if not info.ok:
        errors.unanswered(info)
        return {"running": None, "live_nodes": None}
    state = re.search(r"^State:\s*(\w+)", info.text, re.M)
    said = re.search(r"^PID:\s*(\S+)", info.text, re.M)
    pid = errors.read_whole("lxc-info -n %s -s -p" % ctid, "PID", said.group(1)) if said else None
    running = None if state is None else state.group(1) == "RUNNING"
    live = node_driver.read_nodes(evidence, "/proc/%d/root/dev" % pid, errors) if running and pid else None
    return {"running": running, "live_nodes": live}


def _container_nodes(facts: dict[str, Any], driver: dict[str, Any]) -> dict[str, Any]:
    after, host_nodes, majors = facts["next_start"], driver["nodes"], driver["majors"]
    by_minor = {minor: address for address, minor in driver["minors"].items()}
    live = facts["live_nodes"]
    # What a hook brings is seen only in the running container.
    brought = set(live or ()) if after["hooks"] else set()
    minors = container_config.gpu_minors({**after["nodes"], **dict.fromkeys(brought)})
    stale = wrong = absent = access = None
    if majors is not None and host_nodes is not None:
        today = {path: node["major"] for path, node in host_nodes.items() if node["kind"] == "char"}
        stale = container_config.stale_rules(after, majors, today)
        # A mount that is `optional` and whose node the host lacks: the container starts without it and says nothing.
        absent = [path for path, how in sorted(after["nodes"].items()) if how["optional"] and path not in host_nodes]
        access = container_access.find_access_faults(after, host_nodes)
        if live is not None:
            wrong = [
                {"node": path, "major": node["major"], "today": today[path]}
                for path, node in sorted(live.items())
                if node["kind"] == "char" and path in today and node["major"] != today[path]
            ]
    pending = ["%s: changed, in force at the next start" % key for key in facts["pending_gpu_keys"]]
    if live is not None:
        passed = [path for path, how in sorted(after["nodes"].items()) if how["by"] == "dev"]
        pending += ["%s: configured, not in the running container" % path for path in passed if path not in live]
    missing: list[str] | None = [path for path in container_config.missing_nodes(after["nodes"]) if path not in brought]
    if brought and any(path.startswith("/dev/nvidia") and values.is_digits(path[-1]) for path in brought):
        missing = [path for path in missing or [] if path != "/dev/nvidia0"]
    if missing and after["hooks"] and live is None:
        missing = None  # a hook may make them
    version = driver["version"]
    return {
        "gpus": [by_minor.get(minor, "/dev/nvidia%d" % minor) for minor in minors],
        "claims": [by_minor[minor] for minor in minors if minor in by_minor] if not facts["template"] else [],
        "gpu_count": len(minors) if minors or not after["hooks"] or live is not None else None,
        "missing_nodes": missing,
        "suggested_devices": container_config.suggested_devices(after),
        "stale_rules": stale,
        "wrong_majors": wrong if live is not None else ([] if facts["running"] is False else None),
        "absent_optional": absent,
        "access_faults": access,
        "old_libraries": None
        if version is None and after["pinned_libraries"]
        else ["%(path)s (%(version)s)" % item for item in after["pinned_libraries"] if item["version"] != version],
        "root_only_nodes": container_access.root_only(after["devices"]),
        # Without the running container's nodes, nobody knows whether it has those of its configuration.
        "restart_pending": pending or (None if facts["running"] is None or (facts["running"] and live is None) else []),
    }
