"""How the role starts an engine, from the engine's entry in module_utils/gpu_server/engines/."""

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


def plan_start(name: str, venv: str, model: str) -> dict[str, Any]:
    """``{command, model_words, arguments, names}``: the words that start the engine, the model where it is a word of
    its own, the model as an argument where it is one, and what the engine calls the `host`, the `port` and the name by
    which the model is `served`."""
    engine = engines.ENGINES.get(name)
    if engine is None:
        known = ", ".join(engines.ENGINES)
        raise AnsibleFilterError("inference_server_engine is %r, which is not known. Known are: %s." % (name, known))
    return {
        "command": engines.make_start_command(engine, venv),
        "model_words": [] if engine.model_flag else [model],
        "arguments": {engine.model_flag: model} if engine.model_flag else {},
        "names": {
            "host": engine.host_names[-1],
            "port": engine.port_names[-1],
            "served": engine.served_names[-1],
        },
    }


class FilterModule:
    """Filters of the role inference_server."""

    def filters(self) -> dict[str, Any]:
        return {"inference_engine_start": plan_start}
