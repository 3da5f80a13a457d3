"""Why a fact is unknown, in the words of the reader that could not read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..gpu_host.cross_facts import SOURCES

_SHOWN = 3
# Facts of other modules under `host`, and what to do so that they exist.
_OTHER_MODULES = {
    "probe": "the P2P probe has not run on this host",
    "server": "no facts of an inference server were gathered on this host",
    "proxmox": "no Proxmox facts were gathered on this host",
    "hypervisor": "nothing is known of this host's hypervisor: name it as proxmox_host in the inventory, and validate "
    "it in the same run",
}


def explain_unknown(host: dict[str, Any], path: tuple[str, ...]) -> tuple[str, bool]:
    """(why the fact at `path` is unknown, whether root would see it)."""
    name = ".".join(path)
    if path[0] != "host":
        return "%s is empty in gpu_host_expected" % name, False
    subject = path[1]
    if subject in _OTHER_MODULES and host.get(subject) is None:
        return _OTHER_MODULES[subject], False
    gathered = (host.get("evidence") or {}).get("subjects")
    if host.get(subject) is None and gathered is not None and subject not in gathered and subject != "joined":
        return "%s was not gathered (gather_subset)" % subject, False
    # The facts of other modules bring their own errors; Proxmox's stand under `host.proxmox` and `host.hypervisor`
    # alike.
    errors = host[subject].get("errors") if subject in _OTHER_MODULES else host.get("errors")
    if path[1:3] == ("hypervisor", "card_findings"):
        errors = host[subject].get("cards_unjudged")
    subjects = _subjects_of(path)
    entries = [entry for entry in errors or () if subject == "hypervisor" or entry.get("subject") in subjects]
    entries = entries or _unread(host, subject, subjects)
    if not entries:
        return "%s is unknown, and its reader gave no reason" % name, False
    return _explain_entries(entries)


def explain_partly_read(host: dict[str, Any], paths: Iterable[tuple[str, ...]]) -> tuple[str, bool] | None:
    """As explain_unknown, of facts at `paths` that are known to be bad: what of their subjects could not be read, so
    that they may not name all that is bad. None where all was read."""
    subjects = {subject for path in paths if path[0] == "host" and len(path) > 1 for subject in _subjects_of(path)}
    if (host.get("kernel_log") or {}).get("covers_boot") is not None:
        subjects.discard("kernel_log")  # one of its sources answered to its end, whatever became of the others
    entries = [entry for entry in host.get("errors") or () if entry.get("subject") in subjects]
    return _explain_entries(entries) if entries else None


def _subjects_of(path: tuple[str, ...]) -> tuple[str, ...]:
    return (path[1], *(SOURCES.get(path[2], ()) if path[1] == "joined" and len(path) > 2 else ()))


def _explain_entries(entries: list[dict[str, Any]]) -> tuple[str, bool]:
    rootless = [entry for entry in entries if entry.get("needs_root")]
    if rootless:
        return "needs root: " + _listed([str(entry.get("source")) for entry in rootless]), True
    return _listed(["%s %s" % (entry.get("source"), entry.get("problem")) for entry in entries], "; "), False


def _unread(host: dict[str, Any], subject: str, subjects: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the readers of a fact asked for in vain and did not call an error."""
    if subject in _OTHER_MODULES:
        facts = host[subject]
        return list(facts.get("unread") or (facts.get("evidence") or {}).get("unread") or ())
    noted = (host.get("evidence") or {}).get("unread") or ()
    return [entry for entry in noted if entry.get("subject") in subjects]


def _listed(words: list[str], separator: str = ", ") -> str:
    words = list(dict.fromkeys(words))
    more = len(words) - _SHOWN
    return separator.join(words[:_SHOWN]) + (" and %d more" % more if more > 0 else "")
