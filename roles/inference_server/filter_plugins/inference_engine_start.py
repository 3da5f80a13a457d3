"""How the role starts an engine, from the engine's entry in module_utils/gpu_server/engines/.

And the words that run it in a container.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: inference_engine_start
short_description: How the role inference_server starts an engine
description:
  - Looks the engine up among those that this project knows.
positional: venv, model
options:
  _input:
    description: The name of the engine, such as V(sglang).
    type: str
    required: true
  venv:
    description: The virtual environment that the engine is installed in.
    type: path
    required: true
  model:
    description: The model to serve, a path or a name.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the words that start the engine
  ansible.builtin.debug:
    msg: "{{ 'sglang' | inference_engine_start('/opt/sglang', '/srv/models/a') }}"
"""

RETURN = r"""
_value:
  description:
    - The C(command) that starts the engine, the model as a word of its own (C(model_words)) or among the
      C(arguments), and the C(names) of the host, the port and the served name.
  type: dict
"""

import importlib
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.plugins.loader import action_loader

action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach
engines = importlib.import_module("ansible.module_utils.gpu_server.engines")
processes = importlib.import_module("ansible.module_utils.gpu_server.processes")
container_words = importlib.import_module("ansible.module_utils.gpu_provision.container_words")


def plan_start(name: str, venv: str, model: str, in_image: bool = False) -> dict[str, Any]:
    """``{command, model_words, arguments, may_need_ray, names}``: the words that start the engine, the model where it
    is a word of its own, the model as an argument where it is one, whether a version of it needs Ray for several hosts,
    and what the engine calls the `host`, the `port` and the name by
    which the model is `served`. `in_image`: the engine is on the PATH of an image rather than in `venv`."""
    engine = engines.ENGINES.get(name)
    if engine is None:
        known = ", ".join(engines.ENGINES)
        raise AnsibleFilterError("inference_server_engine is %r, which is not known. Known are: %s." % (name, known))
    return {
        "command": engines.make_image_command(engine) if in_image else engines.make_start_command(engine, venv),
        "model_words": [] if engine.model_flag else [model],
        "arguments": {engine.model_flag: model} if engine.model_flag else {},
        "may_need_ray": bool(engine.ray_setting),
        "names": {
            "host": engine.host_names[-1],
            "port": engine.port_names[-1],
            "served": engine.served_names[-1],
        },
    }


def plan_container(plan: dict[str, Any], unit: str) -> dict[str, Any]:
    """``{options, image, words}`` of the container of a `unit`, see module_utils/gpu_provision/container_words.py."""
    return dict(container_words.make_run_words({**plan, "slice": processes.make_slice_name(unit)}))


class FilterModule:
    """Filters of the role inference_server."""

    def filters(self) -> dict[str, Any]:
        return {
            "inference_engine_start": plan_start,
            "inference_container": plan_container,
            "inference_container_volumes": container_words.make_volumes,
        }
