"""Every kind of facts that a host has: which are wanted, by what gpu_facts said of it, and in which order.

The same on a live host, where the module host_facts gathers them in one go, and on the controller for a recorded one.
"""

from __future__ import annotations

from typing import Any, Callable

from ..gpu_host.evidence import fact_module
from ..gpu_host.probe import not_run, wanted

# Module -> the key of its facts.
KEYS = {
    "gpu_facts": "gpu_host",
    "proxmox_facts": "proxmox",
    "p2p_facts": "p2p_probe",
    "inference_server_facts": "inference_server",
}
MODES = ("auto", "true", "false")
ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
    "proxmox": {"type": "str", "choices": list(MODES), "default": "auto"},
    "probe": {"type": "str", "choices": [*MODES, "force"], "default": "auto"},
    "probe_python": {"type": "path"},
    "probe_nccl": {"type": "path"},
    "probe_engine_all_reduce": {"type": "bool", "default": False},
    "probe_environment": {"type": "dict", "default": {}},
    "probe_between_hosts": {"type": "dict"},
    "server": {"type": "str", "choices": list(MODES), "default": "auto"},
    "server_unit": {"type": "str"},
    "server_log": {"type": "path"},
    "server_generate": {"type": "str", "choices": ["never", "idle", "always"], "default": "idle"},
    "server_expected": {"type": "dict", "default": {}},
    "capture": fact_module.ARGUMENTS["capture"],
}
# With more GPUs the probe, and with any number the engine's own all-reduce, takes longer than somebody waits without a
# word. Then it is a task of its own, which says how long it may take.
SILENT_GPUS = 2

Ask = Callable[[str, "dict[str, Any]"], "dict[str, Any]"]


def gather_every_kind(args: dict[str, Any], ask: Ask, apart: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
    """The result of all modules of facts together: ``{changed, ansible_facts, bundle_texts}`` and, where one failed,
    its ``failed`` or ``unreachable`` and ``msg``, with what was gathered before it.

    ``ask(module, its arguments)`` gives the result of one. ``apart(module, the facts of gpu_facts)`` leaves one to the
    caller.
    """
    result: dict[str, Any] = {"changed": False, "ansible_facts": {}, "bundle_texts": []}
    if not add_kind(result, "gpu_facts", {"gather_subset": args["gather_subset"]}, args, ask):
        return result
    gpu_host = result["ansible_facts"]["gpu_host"]
    if not wanted.wants_probe(gpu_host, args["probe"]):
        gpu_host.setdefault("evidence", {})["probe_not_run"] = not_run.explain_not_run(gpu_host, args["probe"])
    for name, arguments in list_others(args, gpu_host):
        if not apart(name, gpu_host) and not add_kind(result, name, arguments, args, ask):
            break
    return result


def add_kind(result: dict[str, Any], name: str, arguments: dict[str, Any], args: dict[str, Any], ask: Ask) -> bool:
    """Gather by the module `name` into `result`; whether it went well."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if name != "gpu_facts":  # a program that hangs is asked once in a run, not once by every module
        evidence = (result["ansible_facts"].get("gpu_host") or {}).get("evidence") or {}
        given["unanswered"] = evidence.get("unanswered") or {}
    if args.get("capture"):
        given["capture"] = True
    answer = ask(name, given)
    result["bundle_texts"].append(answer.pop("bundle_text", ""))
    result["ansible_facts"].update(answer.get("ansible_facts") or {})
    if answer.get("failed") or answer.get("unreachable"):
        result.update({**answer, "ansible_facts": result["ansible_facts"]})
        return False
    return True


def list_others(args: dict[str, Any], gpu_host: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(module, its arguments) of the facts beside gpu_facts that this host has."""
    from ..gpu_host import proxmox as proxmox_host  # noqa: PLC0415  what is not wanted is not read from the payload
    from ..gpu_server import detection  # noqa: PLC0415

    found: list[tuple[str, dict[str, Any]]] = []
    proxmox = proxmox_host.may_be_proxmox(gpu_host) if args["proxmox"] == "auto" else args["proxmox"] == "true"
    if proxmox:
        found.append(("proxmox_facts", {}))
    if wanted.wants_probe(gpu_host, args["probe"]):
        found.append(("p2p_facts", _arguments_of_probe(args)))
    named = bool(args["server_unit"] or args["server_log"] or args["server_expected"])
    seen = detection.sees_server(gpu_host, args["server"], named)
    if seen != "no":
        names = ("unit", "log", "api_key", "generate", "expected")
        arguments = {name: args.get("server_" + name) for name in names}
        # A Proxmox host sees the servers of its containers, too, which are asked where they run.
        own = proxmox and args["server"] == "auto" and not named
        arguments["outside_containers"] = True if own else None
        arguments["only_if_found"] = True if own or seen == "if_found" else None
        found.append(("inference_server_facts", arguments))
    return found


def _arguments_of_probe(args: dict[str, Any]) -> dict[str, Any]:
    return {
        "when_busy": "force" if args["probe"] == "force" else "skip",
        "python": args["probe_python"],
        "nccl_library": args["probe_nccl"],
        "environment": args["probe_environment"],
        "engine_all_reduce": args["probe_engine_all_reduce"] or None,
        "between_hosts": args["probe_between_hosts"],
    }


def takes_long(name: str, args: dict[str, Any], gpu_host: dict[str, Any]) -> bool:
    """Whether the module `name` takes longer on this host than somebody waits without a word."""
    if name != "p2p_facts":
        return False
    count = (gpu_host.get("gpus") or {}).get("count")
    return bool(args["probe_engine_all_reduce"]) or not isinstance(count, int) or count > SILENT_GPUS
