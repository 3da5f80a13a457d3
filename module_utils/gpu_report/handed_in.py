"""Of hosts that are known from loose pieces only: what was recognised, and which few commands would decide more."""

from __future__ import annotations

from typing import Any

ASKED = 3  # commands that are asked for at once: somebody has to type them
_SHOWN = 8

Facts = dict[str, Any]


def find_pieces(host: dict[str, Any]) -> Facts:
    """What the manifest says of the pieces; {} for any other host of a report."""
    found = ((host.get("facts") or {}).get("evidence") or {}).get("loose")
    return found if isinstance(found, dict) else {}


def list_recognised(loose: Facts) -> list[str]:
    """'topo.txt: nvidia-smi topo -p2p r', one for each piece; pieces of one kind in one file count together."""
    counts: dict[str, int] = {}
    for piece in loose.get("recognised") or ():
        name, what = str(piece.get("name")), str(piece.get("what"))
        text = what if name.endswith(": " + what) or name.partition(": ")[2] == what else "%s: %s" % (name, what)
        counts[text] = counts.get(text, 0) + 1
    return ["%s (%d times)" % (text, count) if count > 1 else text for text, count in counts.items()]


def list_unrecognised(loose: Facts) -> list[str]:
    """Names of pieces that say nothing here, and what was left out with the reason."""
    left_out = ["%s (%s)" % (entry[0], entry[1]) for entry in loose.get("left_out") or () if len(entry) == 2]
    return [str(name) for name in loose.get("unrecognised") or ()] + left_out


def shorten_list(texts: list[str], limit: int = _SHOWN) -> str:
    more = len(texts) - limit
    return "; ".join(texts[:limit]) + ("; and %d more, in report.json" % more if more > 0 else "")


def list_wanted(name: str, host: dict[str, Any]) -> list[tuple[str, str]]:
    """(command, what it would decide), the most useful first, ASKED at most; empty where nothing is undecided."""
    if not any(result.get("status") == "unknown" for result in host.get("results") or ()):
        return []
    facts, loose = host.get("facts") or {}, find_pieces(host)
    wanted = _of_a_proxmox_host(facts) if loose.get("hypervisor") == "self" else _of_a_gpu_host(name, facts, loose)
    return wanted[:ASKED]


def _of_a_proxmox_host(facts: Facts) -> list[tuple[str, str]]:
    found = []
    if not (facts.get("pci") or {}).get("gpus"):
        found.append(("lspci -nnk", "which cards the configuration means, and which driver has them"))
    if (facts.get("iommu") or {}).get("options") is None:
        found.append(("cat /proc/cmdline", "whether the IOMMU is on, and how"))
    found.append(("pvereport", "every guest, the version and the boot, in one file"))
    return found


def _of_a_gpu_host(name: str, facts: Facts, loose: Facts) -> list[tuple[str, str]]:
    p2p, gpus, place = (facts.get(subject) or {} for subject in ("p2p", "gpus", "virtualization"))
    blocked = bool(p2p.get("blocked_pairs"))
    found = []
    missing = [letter for letter, rows in (("r", p2p.get("read")), ("w", p2p.get("write"))) if not rows]
    if missing and not blocked:
        commands = "; ".join("nvidia-smi topo -p2p %s" % letter for letter in missing)
        found.append((commands, "whether the driver grants P2P, pair by pair"))
    if blocked and place.get("placement") is None:
        found.append(
            ("systemd-detect-virt; cat /sys/class/dmi/id/product_name", "where it runs, and so who refuses P2P")
        )
    if not gpus.get("count") or not str(gpus.get("source", "")).startswith("nvidia-smi -q"):
        found.append(("nvidia-smi -q", "the state of every GPU: model, driver, link, BAR1, errors"))
    if place.get("placement") == "kvm" and not loose.get("hypervisor"):
        found.append(("qm config VMID (on the Proxmox host)", "the chipset and the passthrough of the VM"))
    proven = (facts.get("probe") or {}).get("ran") or (facts.get("measurements") or {}).get("tools")
    if p2p.get("all_granted") and not proven:
        command = "ansible-playbook capture.yml -b -i %s, -e probe=true" % name
        found.append((command, "whether bytes arrive, and how fast (without Ansible: p2pBandwidthLatencyTest)"))
    partial = loose.get("partial") or ()
    if not (facts.get("pci") or {}).get("gpus") or "pci" in partial:
        found.append(("lspci -nnvvv (as root, whole)", "links, BARs, ACS and the drivers of the cards"))
    if _log_is_missing(facts, partial):
        found.append(("dmesg (as root, whole)", "Xids and other faults of this boot"))
    found.append(("nvidia-bug-report.sh (as root)", "most of the rest, in one file"))
    return found


def _log_is_missing(facts: Facts, partial: Any) -> bool:
    return "kernel_log" in partial or any(
        entry.get("subject") == "kernel_log" and entry.get("source") == "dmesg" for entry in facts.get("errors") or ()
    )
