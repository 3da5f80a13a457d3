"""Is a start working or stuck, and why? From one look, or better from two: pure functions of facts.

The reasons are those that were seen in the field (domain facts 4.5 and 7.4): compilers that run are work; a lock file
without a compiler, a rank that is missing, ranks that spin in a collective at the power of idle GPUs are not.
"""

from __future__ import annotations

import re
from typing import Any

from .engines import find_patience_of_phase

# What stands last in the log of a start that hangs when NCCL first moves data between GPUs. [NCCL prints its version
# when
# the first communicator is made; SGLang's and vLLM's own lines around it; vllm issue 33041, sglang's and rtx6kpro's
# reports of hangs]
_COMMUNICATOR = re.compile(r"NCCL version \d|using nccl==\d|NCCL INFO (?:Connected|Channel|Trees|comm 0x)")
WAITS_FOR_HOSTS = ("imports", "arguments", "engine", "placement", "distributed")  # phases, before all ranks are there
GROWTH_MIB = 16  # memory that moves by less is noise
SPIN_ADVICE = (
    "Prove peer-to-peer: stop the server, then ansible-playbook validate.yml --tags p2p. Look at the IOMMU "
    "(iommu=pt), ACS on the PCI bridges, and "
    "/etc/nccl.conf (inside the container too). NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce starts the server "
    "meanwhile, slowly."
)


def find_patience(phase: str | None, scale: float = 1.0) -> float:
    return find_patience_of_phase(phase) * scale


def describe_progress(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """What moved between two looks (`moving` of the facts), as a word for a person; None where nothing did."""
    if after["log_lines"] != before["log_lines"] or after["last_line"] != before["last_line"]:
        return "the log"
    if after["phase"] != before["phase"]:
        return "the phase"
    if any(abs(after["memory"].get(gpu, 0) - used) > GROWTH_MIB for gpu, used in before["memory"].items()):
        return "GPU memory"
    if after["compilers"] and after["compiler_cpu_s"] != before["compiler_cpu_s"]:
        return "%d compilers" % after["compilers"]
    if after["read_bytes"] - before["read_bytes"] > 1 << 20:
        return "the disk"
    return None


def select_moving(facts: dict[str, Any]) -> dict[str, Any]:
    """What can move in a start, small enough to keep from look to look."""
    ranks, log = facts["ranks"] or [], facts["log"]
    return {
        "log_lines": log["lines"],
        "last_line": log["last_line"],
        "phase": log["phase"],
        "memory": {address: gpu["memory_used_mib"] or 0 for address, gpu in (facts["gpu"]["gpus"] or {}).items()},
        "compilers": len(facts["compilers"]),
        "compiler_cpu_s": sum(compiler["cpu_s"] or 0.0 for compiler in facts["compilers"]),
        "cpu_s": {str(rank["pid"]): rank["cpu_s"] for rank in ranks},
        "read_bytes": sum(rank["read_bytes"] or 0 for rank in ranks),
    }


def find_cause(facts: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, str]:
    """The most likely reason for a start that does not move: ``{cause, what, advice}``."""
    ranks, gpu, log = facts["ranks"] or [], facts["gpu"], facts["log"]
    stopped = find_stopped(facts)
    if stopped:
        return _verdict("rank_stopped", describe_stopped(stopped), _advise_stopped(stopped))
    stuck = [rank for rank in ranks if rank["state"] == "D"]
    if stuck:
        where = stuck[0]["wait_channel"] or "the kernel"
        return _verdict(
            "kernel",
            "%s waits in the kernel (%s) and cannot be interrupted" % (_names(stuck), where),
            "Storage or the driver: look into dmesg; a process in this state survives kill -9.",
        )
    missing = _missing(facts)
    if missing:
        return _verdict(
            "rank_missing",
            "%s of %d ranks: %s gone; the others wait for it" % (len(ranks), facts["ranks_expected"], missing),
            "Look for its end in the log and the kernel log (OOM killer, Xid), then restart the server.",
        )
    lonely = _describe_missing_hosts(facts)
    if lonely:
        return _verdict(
            "host_missing",
            lonely,
            "Look there at the unit and its log; then at the firewall, which must let every port through between these "
            "hosts, and at NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.",
        )
    if gpu["spinning"]:
        draw = [one["power_draw_w"] for one in gpu["gpus"].values() if one["power_draw_w"] is not None]
        return _verdict(
            "collective",
            "the GPUs are at %s at only %.0f to %.0f W: they spin in a collective that never ends, after: %s"
            % (_load(gpu), min(draw), max(draw), log["last_line"] or "no line"),
            SPIN_ADVICE,
        )
    if _COMMUNICATOR.search(log["last_line"] or "") and not facts["compilers"] and facts["ranks_expected"] != 1:
        return _verdict(
            "collective",
            "the last line is NCCL's (%s): the ranks set up their communicator, and its first transfer between GPUs "
            "never ends" % log["last_line"],
            SPIN_ADVICE,
        )
    load = gpu["utilization"] or []
    if load and min(load) < 50 <= max(load):
        return _verdict(
            "rank_behind",
            "the GPUs are unequal: %s %% utilisation; some wait for others" % ", ".join("%d" % value for value in load),
            "py-spy dump --pid on the ranks of the idle GPUs shows what they do instead.",
        )
    stale = _stale_locks(facts)
    if stale and not facts["compilers"]:
        return _verdict(
            "stale_lock",
            "no compiler runs, and %s was there before the server started (%d such files): a killed compilation left it"
            % (stale[0]["path"], len(stale)),
            "Stop the server, remove it, start again: rm -f %s" % " ".join(lock["path"] for lock in stale[:4]),
        )
    if facts["compilers"]:
        return _verdict(
            "compiling",
            "%d compilers run (%s)"
            % (len(facts["compilers"]), ", ".join(sorted({c["name"] for c in facts["compilers"]}))),
            "Wait: a first compilation for a new GPU takes 5 to 20 minutes.",
        )
    idle = _idle(facts, before)
    if idle:
        where = sorted({rank["wait_channel"] for rank in ranks if rank["wait_channel"]})
        return _verdict(
            "waiting",
            "the ranks use no CPU and the GPUs are idle%s" % (": they wait in %s" % ", ".join(where) if where else ""),
            "py-spy dump --pid of a rank shows for what; a rank, a lock or the network is missing.",
        )
    return _verdict(
        "unknown",
        "nothing at hand says why; last line: %s" % (log["last_line"] or "none"),
        "py-spy dump --pid of each rank shows where it is; NCCL_DEBUG=INFO and --soft-watchdog-timeout show more at "
        "the next start.",
    )


def find_stopped(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The server's process and ranks that a signal or a debugger has stopped (proc_pid_stat(5): T and t)."""
    top = {**(facts["process"] or {"state": None}), "rank": None}
    return [one for one in (top, *(facts["ranks"] or ())) if one["state"] in ("T", "t")]


def describe_stopped(stopped: list[dict[str, Any]]) -> str:
    names = ", ".join(
        "%s (pid %d)" % ("the server" if one["rank"] is None else "rank %s" % one["rank"], one["pid"])
        for one in stopped
    )
    return "%s %s stopped by a signal (SIGSTOP, SIGTSTP) or a debugger" % (names, "is" if len(stopped) == 1 else "are")


def _advise_stopped(stopped: list[dict[str, Any]]) -> str:
    return "End the debugger, or let it go on: kill -CONT %s" % " ".join(str(one["pid"]) for one in stopped)


def _verdict(name: str, what: str, advice: str) -> dict[str, str]:
    return {"cause": name, "what": what, "advice": advice}


def _names(ranks: list[dict[str, Any]]) -> str:
    return ", ".join("rank %s (pid %d)" % (rank["rank"], rank["pid"]) for rank in ranks)


def _missing(facts: dict[str, Any]) -> str | None:
    if not facts["ranks_expected"] or not facts["ranks"] or len(facts["ranks"]) >= facts["ranks_expected"]:
        return None
    here = {rank["rank"] for rank in facts["ranks"]}
    first = (facts.get("node") or {"first_rank": 0})["first_rank"]
    if first is None:
        return "one is"
    gone = [number for number in range(first, first + facts["ranks_expected"]) if number not in here]
    return (
        ("rank " + ", ".join(str(number) for number in gone) + (" is" if len(gone) == 1 else " are")) if gone else None
    )


def _describe_missing_hosts(facts: dict[str, Any]) -> str | None:
    """What a start over several hosts waits for; None where that is not it."""
    node = facts.get("node")
    if not node or node["nodes"] == 1 or facts["log"]["phase"] not in WAITS_FOR_HOSTS:
        return None
    place = "%s port %s" % (node["address"], node["port"])
    if node["follower"] and node["ray"]:
        return "its Ray node waits for the server of %s, or with it for another host" % place
    if node["follower"]:
        return "rank %s waits for rank 0 at %s, or with it for another host" % (node["rank"], place)
    if not node["peers_missing"]:
        return None
    here = ", ".join(node["peers"]) or "none"
    who = name_absent_hosts(facts) or "%d of the other hosts" % node["peers_missing"]
    if node["ray"]:
        return "Ray at %s waits for the GPUs of %s; connected: %s" % (place, who, here)
    return "rank 0 waits at %s for %s; connected: %s" % (place, who, here)


def name_absent_hosts(facts: dict[str, Any]) -> str:
    """The hosts that are not connected to rank 0, by the names that whoever waits knows them by (`absent`, of the
    action inference_server_ready); "" where none is, or none of them is known by name."""
    node = facts.get("node") or {}
    waits = node.get("peers_missing") and facts["log"]["phase"] in WAITS_FOR_HOSTS
    return ", ".join(node.get("absent") or ()) if waits else ""


def _load(gpu: dict[str, Any]) -> str:
    return (
        "%d %%" % min(gpu["utilization"])
        if len(set(gpu["utilization"])) == 1
        else "%d to %d %%" % (min(gpu["utilization"]), max(gpu["utilization"]))
    )


def _stale_locks(facts: dict[str, Any]) -> list[dict[str, Any]]:
    started = (facts["process"] or {}).get("started_at")
    return [lock for lock in facts["locks"] or [] if started is not None and lock["modified"] < started]


def _idle(facts: dict[str, Any], before: dict[str, Any] | None) -> bool:
    if before is None or not facts["ranks"]:
        return False
    return all(
        rank["cpu_s"] is not None and rank["cpu_s"] - (before["cpu_s"].get(str(rank["pid"])) or 0.0) < 0.2
        for rank in facts["ranks"]
    )
