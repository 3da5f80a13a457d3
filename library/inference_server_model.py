#!/usr/bin/python
"""The inference_server_model module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_model
short_description: Say what of a model has to be downloaded, or prove that it is whole
description:
  - Compares the hub's list of a repository (C(org/name)) with its cache on the host, and the bytes that are missing
    with the free space. Says apart a repository that is gated, one that is not there or private, a token that is
    refused, a revision that does not exist, and a hub that cannot be reached (name resolution, proxy, certificate).
  - Downloads nothing. The role C(inference_server) does that, with the engine's own C(huggingface_hub), or for a
    container with C(module_utils/gpu_provision/hub_download.py).
options:
  model:
    description: The model, a name on the hub or a path.
    type: str
    required: true
  revision:
    description: A branch, a tag or a commit.
    type: str
  environment:
    description: The environment that the server will have.
    type: dict
    default: {}
  secrets:
    description: The rest of it, with the token of the hub (C(HF_TOKEN)).
    type: dict
    default: {}
  home:
    description: The home directory of the server's user.
    type: path
    required: true
  download_directory:
    description: The engine's argument C(download-dir), where it is given.
    type: path
  left_out:
    description:
      - Patterns of files that are not downloaded. Without it, the same weights in other formats, where there are some
        as C(.safetensors).
    type: list
    elements: str
  python:
    description: The engine's Python. Without it, for a server in a container, a client of ours can download.
    type: path
  record:
    description: Where it is noted what was verified; a run that finds every file of it there does not ask the hub.
    type: path
  verify:
    description: Prove that the model is whole, and note that. Fails where it is not.
    type: bool
    default: false
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: Is the model here?
  inference_server_model:
    model: lukealonso/GLM-5-NVFP4
    home: /var/lib/inference-server
    python: /opt/sglang/bin/python
"""

RETURN = r"""
state:
  description: >-
    V(complete); V(whole) where the hub was not reached and the weights are whole by their own headers; V(missing);
    V(other) where it is no repository of the hub.
  returned: always
  type: str
why:
  description: The reason of the state.
  returned: always
  type: str
kind:
  description: >-
    What stands against it: gated, unauthorized, not_found, no_revision, limited, hub, dns, proxy, tls, offline, space,
    broken.
  returned: when it fails
  type: str
commit:
  description: The commit that the revision stands for.
  returned: always
  type: str
directory:
  description: Where the files are.
  returned: always
  type: str
cache:
  description: The cache of the hub.
  returned: always
  type: str
missing_bytes:
  description: How much is missing; files, present_files, total_bytes, present_bytes and free_bytes stand beside it.
  returned: always
  type: int
recorded:
  description: Whether every file is there that a run before this one has noted in O(record).
  returned: when the hub or the cache was looked at
  type: bool
tool:
  description: What can download it (python, a program, or own), its version and command; V(null) where nothing can.
  returned: always
  type: dict
"""

import os
import shutil
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_provision import hub_cache, model_plan
from ansible.module_utils.gpu_provision.hub_client import TOKEN_NAMES, HubProblem

ASK = "import huggingface_hub; print(huggingface_hub.__version__)"
PROGRAMS = ("hf", "huggingface-cli")
SYSTEM_PYTHON = "/usr/bin/python3"
SECONDS = 60


def find_tool(python: str | None, environment: dict[str, str]) -> dict[str, Any] | None:
    """``{kind: python | program | own, version, command}``: the engine's own huggingface_hub, or else a program of it;
    our own client where there is no environment of the engine (`python` None: it is in an image).

    `version` is None for a program, for a Python that is not installed yet, and of our own.
    """
    if python is None:
        return {"kind": "own", "version": None, "command": SYSTEM_PYTHON}
    own = {**environment, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    if not os.path.exists(python):
        return {"kind": "python", "version": None, "command": python}
    try:
        asked = subprocess.run(
            [python, "-c", ASK], env=own, cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if asked.returncode == 0:
            return {"kind": "python", "version": asked.stdout.strip(), "command": python}
    except (OSError, subprocess.TimeoutExpired):
        pass
    places = os.pathsep.join([os.path.dirname(python), environment.get("PATH") or "/usr/local/bin:/usr/bin:/bin"])
    found = next((path for path in (shutil.which(name, path=places) for name in PROGRAMS) if path), None)
    return {"kind": "program", "version": None, "command": found} if found else None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "str", "required": True},
            "revision": {"type": "str"},
            "environment": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "home": {"type": "path", "required": True},
            "download_directory": {"type": "path"},
            "left_out": {"type": "list", "elements": "str"},
            "python": {"type": "path"},
            "record": {"type": "path"},
            "verify": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    environment = {str(name): str(value) for name, value in {**params["environment"], **params["secrets"]}.items()}
    cache = hub_cache.find_cache(environment, params["home"], params["download_directory"])
    if not any(environment.get(name) for name in TOKEN_NAMES):
        environment["HF_TOKEN"] = hub_cache.find_token(environment, params["home"]) or ""
    record = None if params["verify"] else params["record"]
    try:
        plan = model_plan.plan_download(
            params["model"], params["revision"], environment,
            cache=cache, left_out=params["left_out"], record=record,
        )  # fmt: skip
    except HubProblem as problem:
        if params["verify"] or find_tool(params["python"], environment):
            module.fail_json(msg="Nothing was changed. " + problem.text, kind=problem.kind, state="missing")
        # Nothing of ours would download it: the engine may have a way of its own.
        unknown = {"changed": False, "tool": None, "state": "missing", "kind": problem.kind, "cache": cache}
        module.exit_json(text=problem.text, why=problem.text, **unknown)
        return
    sizes = plan.pop("sizes", None)
    recorded = plan["state"] == "complete" and sizes is None
    result = {"changed": False, "tool": None, "text": plan["why"], "recorded": recorded, **plan}
    if plan["state"] == "missing":
        result["text"] = model_plan.describe_plan(plan)
        result["tool"] = find_tool(params["python"], environment)
    if params["verify"]:
        faults = hub_cache.find_faults(plan["directory"], sizes) if plan["directory"] else []
        if faults:
            more = " and %d more" % (len(faults) - 5) if len(faults) > 5 else ""
            text = "%s is not whole in %s: %s%s. Remove what is wrong there, and run again."
            told = text % (params["model"], plan["directory"], "; ".join(faults[:5]), more)
            module.fail_json(msg=told, **{**result, "kind": "broken"})
            return
        snapshot = hub_cache.read_snapshot(hub_cache.name_directory(cache, params["model"]), plan["commit"] or "")
        if params["record"] and snapshot and not module.check_mode:
            noted = {name: snapshot["files"][name] for name in sizes or snapshot["files"]}
            model_plan.write_record(params["record"], plan, noted)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
