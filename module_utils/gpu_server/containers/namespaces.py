"""Which namespaces of a process are its own, and where its ports can be reached from the host."""

from __future__ import annotations

import re
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import Evidence, Listing

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_LOCAL = re.compile(r"\|-- ([0-9]{1,3}(?:\.[0-9]{1,3}){3})\n\s*/32 host LOCAL")


def read_namespaces(evidence: Evidence, pid: int, errors: Errors) -> dict[str, str] | None:
    """``{kind: "ipc:[4026531839]"}`` of a process; None without the right to see them."""
    listing = evidence.list("/proc/%d/ns" % pid)
    errors.unanswered(listing)
    return select_targets(listing) if listing.ok else None


def select_targets(listing: Listing) -> dict[str, str]:
    """Of a /proc/PID/ns, what each kind that matters links to."""
    targets = {name: entry.target for name, entry in listing.entries.items() if name in KINDS}
    return {name: target for name, target in targets.items() if target and re.fullmatch(r"\w+:\[\d+\]", target)}


def read_of_host(evidence: Evidence, errors: Errors) -> dict[str, str] | None:
    """Those of the host's first process; where a sandbox hides them, our own, which see the host as we do."""
    first = read_namespaces(evidence, 1, Errors("server"))
    if first:
        return first
    listing = evidence.list("/proc/self/ns")
    errors.unanswered(listing)
    return select_targets(listing) if listing.ok else None


def compare_namespaces(own: dict[str, str] | None, others: dict[str, str] | None) -> dict[str, bool | None]:
    """Kind -> whether the process has one of its own; None where one of the two could not be seen."""
    return {
        kind: own[kind] != others[kind] if own and others and kind in own and kind in others else None for kind in KINDS
    }


def read_inner_pid(evidence: Evidence, pid: int) -> int | None:
    """The number of the process in its own PID namespace, from NSpid of /proc/PID/status."""
    match = re.search(r"^NSpid:(.*)$", evidence.read("/proc/%d/status" % pid, 16384).text, re.MULTILINE)
    words = match[1].split() if match else []
    return values.whole_number(words[-1]) if words else None


def find_local_addresses(text: str) -> list[str]:
    """The IPv4 addresses of a network namespace, from the text of its /proc/net/fib_trie, without those of loopback."""
    return list(dict.fromkeys(one for one in _LOCAL.findall(text) if not one.startswith("127.")))


def find_proxied(words: list[str]) -> dict[str, Any] | None:
    """What a docker-proxy passes on, by its command line: ``{host_address, host_port, address, port}``."""
    if not words or words[0].rpartition("/")[2] != "docker-proxy":
        return None
    given = {flag.lstrip("-"): value for flag, value in zip(words, words[1:]) if flag.startswith("-")}
    host_port, port = values.whole_number(given.get("host-port")), values.whole_number(given.get("container-port"))
    if given.get("proto") != "tcp" or not host_port or not port:
        return None
    return {
        "host_address": given.get("host-ip") or "0.0.0.0",  # noqa: S104  compared, not bound
        "host_port": host_port,
        "address": given.get("container-ip"),
        "port": port,
    }
