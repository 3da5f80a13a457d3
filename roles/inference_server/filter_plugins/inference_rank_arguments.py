"""What all ranks of a server over several hosts say together: whether they fit, and which of them is missing."""

from __future__ import annotations

DOCUMENTATION = r"""
name: inference_rank_arguments
short_description: What one rank of a server over several hosts is started with
description:
  - Looks up how the engine names the number of hosts, its own rank and the place where the ranks meet.
positional: rank, nodes, address, port
options:
  _input:
    description: The name of the engine, such as V(sglang).
    type: str
    required: true
  rank:
    description: The number of this host among the hosts of the server, from 0.
    type: int
    required: true
  nodes:
    description: How many hosts serve the model together.
    type: int
    required: true
  address:
    description: The address of rank 0.
    type: str
    required: true
  port:
    description: The port on which the ranks meet.
    type: int
    required: true
  by_ray:
    description: Whether Ray starts the ranks.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show what the second of two ranks is started with
  ansible.builtin.debug:
    msg: "{{ 'sglang' | inference_rank_arguments(1, 2, '10.0.0.1', 20000) }}"
"""

RETURN = r"""
_value:
  description:
    - The C(arguments) of the rank, the names that only the role sets (C(reserved)), and the variable for the host's
      own address (C(address_variable)).
  type: dict
"""

import importlib
import shlex
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.plugins.loader import action_loader

action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach
engines = importlib.import_module("ansible.module_utils.gpu_server.engines")

OTHER_RANK = "other_rank"  # the cause of a rank that ended its wait because another had failed
# What a rank dies of when another has gone.
FOLLOWED = ("host_missing", "peer_gone", "collective_timeout", "watchdog")


def plan_arguments(name: str, rank: int, nodes: int, address: str, port: int, by_ray: bool = False) -> dict[str, Any]:
    """``{arguments, reserved, address_variable}``: what one rank is started with, the names that only the role sets,
    and the variable for the host's own address, "" for none. `by_ray`: only rank 0 is started as the engine."""
    engine = engines.ENGINES.get(name)
    if engine is None or not engine.nodes_name:
        able = ", ".join(one.name for one in engines.ENGINES.values() if one.nodes_name)
        raise AnsibleFilterError("%s is not started over several hosts here. Those that are: %s." % (name, able))
    values = {"address": "[%s]" % address if ":" in address else address, "port": port}
    arguments: dict[str, Any] = {engine.nodes_name: nodes, engine.node_rank_name: rank}
    for argument, form in engine.meeting:
        alone = "{port}" not in form
        arguments[argument] = address if alone else form.format(**values)
    flags = dict.fromkeys(engine.follower_flags, True) if rank else {}
    reserved = [*arguments, *engine.follower_flags]
    if by_ray:
        arguments, flags = {engine.ray_setting[0]: engine.ray_setting[1]}, {}
    return {
        "arguments": {**arguments, **flags}, "reserved": reserved, "address_variable": engine.address_variable,
    }  # fmt: skip


def find_ray_problem(name: str, arguments: dict[str, Any], options: list[str], in_container: bool) -> dict[str, Any]:
    """``{needed, problem}``: whether Ray has to start the ranks of an engine with these `options`, since it has no
    argument for several hosts or its own argument asks for Ray; and what stands against that."""
    engine = engines.ENGINES[name]
    if not engine.ray_setting:
        return {"needed": False, "problem": ""}
    argument, value = engine.ray_setting
    asked = next((str(given) for key, given in arguments.items() if str(key).replace("_", "-") == argument), None)
    lacks = "--" + engine.nodes_name not in options and bool(options)
    needed, problem = asked == value or lacks, ""
    if lacks and asked not in (None, value):
        text = "this %s has no --%s and needs Ray for several hosts, and the argument %s is %s"
        problem = text % (engine.label, engine.nodes_name, argument, asked)
    elif needed and in_container:
        text = "Ray starts the ranks of this %s, which the role does not do in a container. Use one that has --%s"
        problem = text % (engine.label, engine.nodes_name)
    return {"needed": needed, "problem": problem}


def make_ray_command(
    words: list[str], program: str, rank: int, head: str, port: int, source: str, gpus: int
) -> list[str]:
    """What the unit of one host runs: on rank 0 a node of Ray with the table of the cluster, and then the engine, whose
    `words` these are; on another the node alone, which stays with the unit. All of it is of one unit, so that it starts
    and ends together."""
    own = ["--node-ip-address=%s" % source, "--num-gpus=%d" % gpus]
    if rank:
        at = "[%s]:%d" % (head, port) if ":" in head else "%s:%d" % (head, port)
        return [program, "start", "--address=%s" % at, *own, "--block"]
    start = [program, "start", "--head", "--port=%d" % port, *own, "--include-dashboard=false", "--disable-usage-stats"]
    return ["/bin/sh", "-c", shlex.join(start) + ' && exec "$@"', "engine", *words]


def list_members(hosts: list[str], hostvars: Any) -> dict[str, str]:
    """The address of every rank but the first, as it reaches rank 0, by its name for a person."""
    found = {}
    for number, host in list(enumerate(hosts))[1:]:
        way = hostvars[host].get("__inference_server_rank_way") or {}
        found[_name_rank(number, host)] = (way.get("brings") or {}).get("source") or ""
    return found


def list_rows(hosts: list[str], hostvars: Any, stage: str) -> list[dict[str, Any]]:
    """What each host has said at this stage of the run, in the order of the ranks; of one that was lost before it, its
    name only."""
    nothing: dict[str, Any] = {"problems": [], "brings": None, "arguments": None, "result": None, "reasons": []}
    said = ((host, hostvars[host].get("__inference_server_says") or {}) for host in hosts)
    return [{**nothing, **(says if says.get("stage") == stage else {}), "host": host} for host, says in said]


def list_reasons(ranks: list[dict[str, Any]]) -> list[str]:
    """Why the ranks must start anew, each with its host; one where several have the same."""
    found: dict[str, list[str]] = {}
    for one in ranks:
        for reason in one["reasons"]:
            found.setdefault(reason, []).append(one["host"])
    return ["%s (%s)" % (reason, ", ".join(hosts)) for reason, hosts in found.items()]


def find_disagreements(ranks: list[dict[str, Any]], name: str) -> list[str]:
    """What keeps hosts from serving one model together, a sentence each.

    `ranks`: in their order ``{host, arguments, problems, brings: {versions, model, gpus}}``; `brings` is None of a host
    that could not be looked at.
    """
    found = []
    for number, one in enumerate(ranks):
        found += ["%s: %s" % (_name_rank(number, one["host"]), problem) for problem in one["problems"] or ()]
        if one["brings"] is None:
            found.append("%s could not be looked at" % _name_rank(number, one["host"]))
    known = [(number, one) for number, one in enumerate(ranks) if one["brings"] is not None]
    for what, key in (("the version of", "versions"), ("the model's", "model")):
        found += _compare([(number, one["host"], one["brings"].get(key)) for number, one in known], what)
    found += _compare([(number, one["host"], one["arguments"]) for number, one in known], "the argument")
    counts = [one["brings"].get("gpus") for _number, one in known]
    if len(counts) == len(ranks) and None not in counts:
        found += _count_gpus(ranks, counts, name)
    return found


def _name_rank(number: int, host: str) -> str:
    return "rank %d (%s)" % (number, host)


def _compare(values: list[tuple[int, str, Any]], what: str) -> list[str]:
    """What differs from the first, by key where all are dictionaries."""
    if not values:
        return []
    first = values[0][2] or {}
    found = []
    for number, host, value in values[1:]:
        mine = value or {}
        for key in sorted(set(first) | set(mine)):
            if first.get(key) != mine.get(key):
                ours, theirs = (_shorten(one.get(key)) for one in (mine, first))
                text = "%s: %s %s is %s, and %s on rank 0"
                found.append(text % (_name_rank(number, host), what, key, ours, theirs))
    return found


def _shorten(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _count_gpus(ranks: list[dict[str, Any]], counts: list[int], name: str) -> list[str]:
    """Whether the ranks that the arguments ask for are as many as there are GPUs, and fall evenly on the hosts."""
    engine = engines.ENGINES[name]
    words = [word for key, value in ranks[0]["arguments"].items() for word in ("--%s" % key, str(value))]
    settings = engines.find_settings(engine, words)
    kinds = (engine.tensor_parallel, engine.pipeline_parallel, engine.data_parallel)
    sizes = [engines.find_count(settings, names) for names in kinds]
    if None in sizes:
        return ["the numbers of ranks in the arguments cannot be read"]
    wanted, has = sizes[0] * sizes[1], " + ".join(str(count) for count in counts)
    # Data parallel attention divides the tensor-parallel ranks; other data parallelism multiplies them.
    if sum(counts) not in (wanted, wanted * sizes[2]):
        text = (
            "the arguments ask for %d ranks (tensor parallel %d x pipeline parallel %d), and the hosts have %s = %d "
            "GPUs. The numbers count all hosts together; where some GPUs are to stay free, CUDA_VISIBLE_DEVICES in "
            "inference_server_environment names the others"
        )
        return [text % (wanted, sizes[0], sizes[1], has, sum(counts))]
    if len(set(counts)) > 1:
        return ["the hosts have %s GPUs, and each runs equally many ranks" % has]
    return []


def judge_start(ranks: list[dict[str, Any]]) -> str:
    """ "" where every rank is ready; else which is missing and why, the cause before what followed from it.

    `ranks`: in their order ``{host, result}`` with the result of inference_server_ready, None of a host that was lost.
    """
    own: list[str] = []
    followed: list[tuple[str, str]] = []
    for number, one in enumerate(ranks):
        result, name = one["result"] or {}, _name_rank(number, one["host"])
        told = str(result.get("msg") or result.get("state") or "no reason is known")
        if result.get("state") == "ready":
            continue
        if not result:
            own.insert(0, "%s is missing: the host was lost, or a task failed on it." % name)
        elif result.get("cause") in (OTHER_RANK, *FOLLOWED):
            followed.append((name, told))
        else:
            own.append("%s is missing: %s" % (name, told))
    if followed and not own:
        return "The ranks did not come together. %s" % " ".join("%s: %s" % one for one in followed)
    return " ".join(own) + (" Ended with it: %s." % ", ".join(name for name, _told in followed) if followed else "")


class FilterModule:
    """Filters of the role inference_server."""

    def filters(self) -> dict[str, Any]:
        return {
            "inference_rank_arguments": plan_arguments,
            "inference_rank_members": list_members,
            "inference_rank_ray": find_ray_problem,
            "inference_rank_ray_command": make_ray_command,
            "inference_rank_disagreements": find_disagreements,
            "inference_rank_reasons": list_reasons,
            "inference_rank_rows": list_rows,
            "inference_rank_verdict": judge_start,
        }
