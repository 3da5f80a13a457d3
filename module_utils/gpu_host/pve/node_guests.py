"""All guests of a Proxmox node: their configurations, resolved against the node's PCI devices, and what runs of them."""

from __future__ import annotations

import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from ..pcie.pci_names import is_gpu
from . import container_config, guest_config, node_driver, pci_mapping, qemu_process, vm_config

VM_DIRECTORY = "/etc/pve/qemu-server"
CT_DIRECTORY = "/etc/pve/lxc"
MAPPING_FILE = "/etc/pve/mapping/pci.cfg"
_NAME = re.compile(r"([0-9]{1,9})\.conf$")


def vms(
    evidence: Evidence, errors: Errors, node: str | None, devices: dict[str, dict[str, Any]] | None
) -> dict[str, dict[str, Any]] | None:
    """VMID -> facts of pve_vm.read plus what its devices are here; of a VM without PCI devices only name and type.

    Beyond pve_vm.read: `gpus` [addresses that it can get] (None: unknown), `gpu_count`, `claims` [addresses that it
    holds], `running`, `qemu` (pve_qemu.parse), `restart_pending` [text], `gpus_without_pcie`, `clique_faults`,
    `needed_window_mib`, `faults`. None if the directory cannot be listed.
    """
    listing = evidence.list(VM_DIRECTORY)
    if not listing.ok:
        errors.unanswered(listing)
        if not listing.entries:  # where some are known, those are read
            return {} if listing.status == ABSENT else None
    mapping: dict[str, list[dict[str, Any]]] | None = None
    result: dict[str, dict[str, Any]] = {}
    for vmid, path, config in _configurations(evidence, errors, VM_DIRECTORY, sorted(listing.entries)):
        facts = vm_config.read(config)
        entries = facts["hostpci"] + facts["next_start"]["hostpci"]
        if not entries:
            result[vmid] = {"type": "vm", "name": facts["name"], "gpus": [], "claims": [], "gpu_count": 0}
            continue
        if mapping is None and any(entry["mapping"] for entry in entries):
            reading = evidence.read(MAPPING_FILE)
            errors.unanswered(reading)
            mapping = pci_mapping.parse(reading.text)
        for entry in entries:
            resolve(entry, mapping or {}, node, devices)
        result[vmid] = {
            **facts,
            **_vm_state(evidence, errors, vmid, facts),
            **_vm_devices(facts["next_start"], devices),
        }
        result[vmid]["claims"] = _claims(result[vmid], devices)
        result[vmid]["file"] = path
        result[vmid]["faults"] = _faults(path, config, [entry for entry in entries if entry["problem"]])
    return result


def _configurations(
    evidence: Evidence, errors: Errors, directory: str, names: list[str]
) -> list[tuple[str, str, guest_config.GuestConfig]]:
    found = []
    for name in names:
        match = _NAME.match(name)
        if not match:
            continue
        path = "%s/%s" % (directory, name)
        reading = evidence.read(path)
        if reading.ok:
            found.append((match.group(1), path, guest_config.parse(reading.text)))
        else:
            errors.unanswered(reading)
    return found


def resolve(
    entry: dict[str, Any],
    mapping: dict[str, list[dict[str, Any]]],
    node: str | None,
    devices: dict[str, dict[str, Any]] | None,
) -> None:
    """Add to a hostpci entry: `addresses` (every function; of a mapping every alternative), `gpus`, `qemu_id`,
    `alternatives`
    (how many devices a mapping leaves Proxmox to choose from) and `with_pcie`, the value as it should be on Q35.

    `gpus` is None where it cannot be known; `qemu_id` is None where QEMU gets several functions, which it names
    hostpciN.0, hostpciN.1 …: `-set` cannot address those.
    """
    named = entry["devices"]
    functions_per_alternative: list[int] = []
    if entry["mapping"] is not None:
        maps = [item for item in mapping.get(entry["mapping"], []) if node is None or item["node"] in (None, node)]
        named = [device for item in maps for device in item["devices"]]
        functions_per_alternative = [len(_functions(item["devices"], devices)) for item in maps]
        if not maps:
            text = "no mapping %r for this node in %s" % (entry["mapping"], MAPPING_FILE)
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
    pid = pid_file.text.strip()
    process = evidence.read("/proc/%s/cmdline" % pid) if pid.isdigit() else None
    if process is not None and not process.ok and process.status != ABSENT:
        errors.unanswered(process)
        return state
    state["qemu"] = qemu_process.parse(process.data or b"", vmid) if process is not None else None
    state["running"] = state["qemu"] is not None
    state["restart_pending"] = qemu_process.differences(facts["next_start"], state["qemu"]) if state["qemu"] else []
    return state


def _vm_devices(hardware: dict[str, Any], devices: dict[str, dict[str, Any]] | None) -> dict[str, Any]:
    entries = hardware["hostpci"]
    known = all(entry["gpus"] is not None for entry in entries)
    gpu_entries = [entry for entry in entries if entry["gpus"]]
    gpus = sorted({address for entry in gpu_entries for address in entry["gpus"]})
    return {
        "gpus": gpus if known else None,
        "gpu_count": sum(len(entry["gpus"]) // entry["alternatives"] for entry in gpu_entries) if known else None,
        "gpu_entries": [entry["key"] for entry in gpu_entries],
        "gpus_without_pcie": [
            "%s (%s)" % (entry["key"], ", ".join(entry["gpus"])) for entry in gpu_entries if not entry["pcie"]
        ],
        "clique_faults": clique_faults(hardware, gpu_entries) if known else None,
        "needed_window_mib": _window(gpus, devices) if known else None,
    }


def _claims(vm: dict[str, Any], devices: dict[str, dict[str, Any]] | None) -> list[str]:
    """The GPUs that a VM holds, if it runs; else those that it will take for certain (a mapping leaves Proxmox the
    choice)."""
    if vm["qemu"] is not None:
        addresses = {str(device["address"]).lower() for device in vm["qemu"]["devices"].values()}
    else:
        addresses = {
            item for entry in vm["next_start"]["hostpci"] if entry["alternatives"] == 1 for item in entry["gpus"] or []
        }
    return sorted(address for address in addresses if _is_gpu(address, devices))


def clique_faults(hardware: dict[str, Any], gpu_entries: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the GPUDirect clique grant of a VM's `args`; empty if none is set."""
    cliques = hardware["cliques"]
    if not cliques:
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
        if entry["qemu_id"] is None:
            text = "%s (%s) passes several functions, which QEMU names %s.0 ...; give the address with its function"
            faults.append(text % (entry["key"], entry["value"], entry["key"]))
        elif entry["key"] not in cliques:
            faults.append("%s (%s) has no clique" % (entry["key"], ", ".join(entry["gpus"])))
    values = sorted({cliques[entry["key"]] for entry in gpu_entries if entry["key"] in cliques})
    if len(values) > 1:
        faults.append("cliques differ (%s): no P2P between them" % ", ".join(map(str, values)))
    if hardware["hypervisor_hidden"]:
        faults.append(
            "the hypervisor is hidden (hidden=1, x-vga=1 or kvm=off), so the driver does not look for a clique"
        )
    return faults


def _window(gpus: list[str], devices: dict[str, dict[str, Any]] | None) -> int | None:
    """MiB of 64-bit address space that the BARs of these cards need, each aligned to its own size; None if a size is
    unknown."""
    total = 0.0
    for address in gpus:
        bars = (devices or {}).get(address, {}).get("bars")
        if bars is None:
            return None
        sizes = [bar["size_mib"] for bar in bars if bar["kind"] == "memory" and bar["bits"] == 64]
        if any(size is None for size in sizes):
            return None
        total += sum(sizes)
    return int(total)


def containers(evidence: Evidence, errors: Errors, driver: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """CTID -> facts of pve_lxc.read plus what the host knows of its nodes; of a container without GPU nodes only name
    and type.

    Beyond pve_lxc.read: `gpus` [addresses, or nodes that the driver does not know], `gpu_count`,
    `claims`, `running`, `live_nodes`, `missing_nodes`, `suggested_devices`, `stale_rules`,
    `wrong_majors`, `absent_optional`, `root_only_nodes`, `restart_pending`, `faults`. None if the directory cannot be
    listed.
    """
    listing = evidence.list(CT_DIRECTORY)
    if not listing.ok:
        errors.unanswered(listing)
        if not listing.entries:  # where some are known, those are read
            return {} if listing.status == ABSENT else None
    result: dict[str, dict[str, Any]] = {}
    for ctid, path, config in _configurations(evidence, errors, CT_DIRECTORY, sorted(listing.entries)):
        facts = container_config.read(config)
        if not facts["nodes"] and not facts["next_start"]["nodes"]:
            result[ctid] = {"type": "lxc", "name": facts["name"], "gpus": [], "claims": [], "gpu_count": 0}
            continue
        facts.update(_container_state(evidence, errors, ctid))
        facts.update(_container_nodes(facts, driver))
        facts["file"] = path
        facts["faults"] = _faults(path, config, [])
        result[ctid] = facts
    return result


def _container_state(evidence: Evidence, errors: Errors, ctid: str) -> dict[str, Any]:
    """{running, live_nodes}: the nodes inside a running container, through /proc/PID/root of its first process."""
    info = evidence.run(["lxc-info", "-n", ctid, "-s", "-p"], 10.0)
    if not info.ok:
        errors.unanswered(info)
        return {"running": None, "live_nodes": None}
    state = re.search(r"^State:\s*(\w+)", info.text, re.M)
    pid = re.search(r"^PID:\s*(\d+)", info.text, re.M)
    running = None if state is None else state.group(1) == "RUNNING"
    live = node_driver.nodes(evidence, "/proc/%s/root/dev" % pid.group(1), errors) if running and pid else None
    return {"running": running, "live_nodes": live}


def _container_nodes(facts: dict[str, Any], driver: dict[str, Any]) -> dict[str, Any]:
    after, host_nodes, majors = facts["next_start"], driver["nodes"], driver["majors"]
    by_minor = {minor: address for address, minor in driver["minors"].items()}
    minors = container_config.gpu_minors(after["nodes"])
    live = facts["live_nodes"]
    stale = wrong = absent = None
    if majors is not None and host_nodes is not None:
        today = {path: node["major"] for path, node in host_nodes.items() if node["kind"] == "char"}
        stale = container_config.stale_rules(after, majors, today)
        # A mount that is `optional` and whose node the host lacks: the container starts without it and says nothing.
        absent = [path for path, how in sorted(after["nodes"].items()) if how["optional"] and path not in host_nodes]
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
    return {
        "gpus": [by_minor.get(minor, "/dev/nvidia%d" % minor) for minor in minors],
        "claims": [by_minor[minor] for minor in minors if minor in by_minor],
        "gpu_count": len(minors),
        "missing_nodes": container_config.missing_nodes(after["nodes"]),
        "suggested_devices": container_config.suggested_devices(after),
        "stale_rules": stale,
        "wrong_majors": wrong if live is not None else ([] if facts["running"] is False else None),
        "absent_optional": absent,
        # Proxmox makes a devN node with mode 0660 and owner root unless the line says otherwise.
        "root_only_nodes": [
            item["path"]
            for item in after["devices"]
            if container_config.NVIDIA_NODE.match(item["path"] or "")
            and not (item["mode"] or item["uid"] or item["gid"])
        ],
        "restart_pending": pending if facts["running"] is not None else None,
    }


def _faults(path: str, config: guest_config.GuestConfig, entries: list[dict[str, Any]]) -> list[str]:
    """What Proxmox would ignore or refuse in the current settings, each with file and line."""
    faults = [
        "%s line %d: not a setting: %s" % (path, line.number, line.text.strip()[:60])
        for line in config.current.lines
        if line.is_junk
    ]
    faults += ["%s: %s is set more than once; the last counts" % (path, key) for key in config.current.duplicates()]
    faults += ["%s: %s: %s" % (path, entry["key"], entry["problem"]) for entry in entries]
    return sorted(set(faults))
