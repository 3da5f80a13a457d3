#!/usr/bin/python
"""The inference_server_rank module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_rank
short_description: Say what a host brings to a server over several hosts, and whether it reaches rank 0
description:
  - Gives the versions, the model and the number of GPUs of this host, so that they can be compared with those of the
    others, and the network interface that leads to rank 0. As O(meet=listen) and O(meet=connect) it tries the port at
    which the ranks meet, through whatever firewall stands between.
  - Changes nothing. A listener ends by itself.
options:
  rank:
    description: The rank of this host.
    type: int
    required: true
  address:
    description: The name or address of rank 0.
    type: str
    required: true
  port:
    description: The port at which rank 0 waits.
    type: int
    required: true
  meet:
    description:
      - V(look) gives the facts. V(listen) greets on the port for O(seconds), V(end) stops that. V(connect) tries it.
    type: str
    choices: [look, listen, connect, end]
    default: look
  listener:
    description: What V(listen) returned, on rank 0; with V(connect), whether there is one.
    type: int
  seconds:
    description: How long a listener waits.
    type: int
    default: 60
  engine:
    description: The engine.
    type: str
  command:
    description: The command that starts it, without arguments.
    type: list
    elements: str
    default: []
  environment:
    description: The environment that the server will have.
    type: dict
    default: {}
  model_directory:
    description:
      - The directory with the model's files, or V("") where it is not known. Given once the engine is installed, whose
        versions have to be readable then.
    type: path
  ray:
    description:
      - The program C(ray) of the engine's environment, where the ranks are started by it. Its version then counts, and
        that of Python.
    type: path
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: What does this host bring?
  inference_server_rank:
    rank: 1
    address: gpu1
    port: 20000
    engine: sglang
    command: [/opt/sglang/bin/python, -m, sglang.launch_server]
"""

RETURN = r"""
brings:
  description: versions, model (hashes of its files), gpus (how many), interface (towards rank 0), source (its address).
  returned: with O(meet=look)
  type: dict
problems:
  description: What keeps this host from being a rank, a sentence each.
  returned: always
  type: list
  elements: str
listener:
  description: The process that listens; V(0) where the port is in use.
  returned: with O(meet=listen)
  type: int
"""

import contextlib
import os
import signal
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_host.probe import host_network
from ansible.module_utils.gpu_server import engines, rank_host

SETTINGS = (("NCCL_SOCKET_IFNAME", False), ("GLOO_SOCKET_IFNAME", True))


def find_ray_problems(program: str, versions: dict[str, str]) -> list[str]:
    """Why Ray cannot start this host's ranks."""
    if os.path.exists(program) and versions.get("ray"):
        return []
    return [
        "its engine has no Ray (%s); add ray to inference_server_packages, of the same version on every host" % program
    ]


def look_around(params: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """What this host brings; what is wrong with it goes into `problems`."""
    environment = {str(name): str(value) for name, value in params["environment"].items()}
    evidence, errors = LiveEvidence(), Errors("server")
    engine = engines.ENGINES[params["engine"]]
    brings: dict[str, Any] = {"interface": None, "source": None}
    brings["versions"] = rank_host.find_versions(evidence, params["command"], environment, engine.packages)
    installed = os.path.exists((params["command"] or [""])[0]) and params["model_directory"] is not None
    if params["ray"]:
        problems += find_ray_problems(params["ray"], brings["versions"])
        brings["versions"]["python"] = rank_host.find_python_version(params["command"])
    else:
        brings["versions"].pop("ray", None)
    if installed and not brings["versions"]:
        problems.append("the versions of its %s cannot be read" % engine.label)
    brings["model"] = rank_host.hash_model(params["model_directory"])
    brings["gpus"] = rank_host.count_gpus(evidence, environment.get("CUDA_VISIBLE_DEVICES"), errors)
    if brings["gpus"] is None:
        told = "; ".join("%(source)s %(problem)s" % entry for entry in errors.entries[:2])
        problems.append("its GPUs cannot be counted (%s)" % (told or "there is no nvidia-smi"))
    way = host_network.find_way(params["address"])
    if way["problem"]:
        problems.append("the address of rank 0: %s" % way["problem"])
        return brings
    address, brings["source"] = way["address"], way["source"]
    brings["interface"] = host_network.find_interface(address if params["rank"] == 0 else brings["source"])
    if params["rank"] == 0 and (brings["interface"] or "lo") == "lo":
        text = "%s is no address by which others reach it; name one (inference_server_rank0_address)"
        problems.append(text % ("%s (%s)" % (params["address"], address)))
    names = host_network.list_interfaces()
    for name, exact in SETTINGS:
        if name in environment:
            meant = rank_host.match_interfaces(environment[name], names, exact)
            if not meant:
                text = "%s=%s names no interface of it (%s)"
                problems.append(text % (name, environment[name], ", ".join(names)))
    if params["rank"] == 0:
        trouble = rank_host.find_port_problem(address, params["port"])
        if trouble and trouble != "in use":
            problems.append("it cannot wait at %s port %d: %s" % (address, params["port"], trouble))
        brings["port_in_use"] = trouble == "in use"
    return brings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "rank": {"type": "int", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "meet": {"type": "str", "choices": ["look", "listen", "connect", "end"], "default": "look"},
            "listener": {"type": "int"},
            "seconds": {"type": "int", "default": 60},
            "engine": {"type": "str"},
            "command": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "model_directory": {"type": "path"},
            "ray": {"type": "path"},
        },
        supports_check_mode=True,
        required_if=[("meet", "look", ("engine",))],
    )
    params = module.params
    problems: list[str] = []
    result: dict[str, Any] = {"changed": False, "problems": problems}
    if params["meet"] == "look":
        result["brings"] = look_around(params, problems)
    elif params["meet"] == "listen":
        address = host_network.find_way(params["address"])["address"] or params["address"]
        result["listener"] = rank_host.start_listening(address, params["port"], params["seconds"]) or 0
    elif params["meet"] == "connect":
        trouble = rank_host.find_connection_problem(params["address"], params["port"], bool(params["listener"]))
        if trouble:
            text = "it does not reach rank 0 at %s port %d: %s"
            problems.append(text % (params["address"], params["port"], trouble))
    elif params["listener"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(params["listener"], signal.SIGKILL)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
