"""How the role downloads a model: files/download_model.py in a sandbox as the server's unit has."""

from __future__ import annotations

DOCUMENTATION = r"""
name: inference_download_command
short_description: How the role inference_server downloads a model
description:
  - The words of systemd-run for a download that the module inference_server_model has planned.
options:
  _input:
    description: The plan, as the module returns it.
    type: dict
    required: true
  unit:
    description: The name of the unit that it runs as.
    type: str
    required: true
  user:
    description: The user of the server.
    type: str
    required: true
  home:
    description: The home directory of the server.
    type: path
    required: true
  secrets:
    description: The environment file with the token, which only root reads.
    type: path
    required: true
  environment:
    description: The environment of the server.
    type: dict
    required: true
  writable:
    description: What the unit of the server may write beside its home.
    type: list
    elements: path
    required: true
  python:
    description: The Python of the engine's environment.
    type: path
    required: true
  hides:
    description: Whether the server does not see C(/home) and C(/tmp), as in the sandbox of its unit.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Show the words that download the model
  ansible.builtin.debug:
    msg: "{{ plan | inference_download_command(unit='a-download.service', user='a', home='/var/lib/a',
      secrets='/etc/a.env', environment={}, writable=[], python='/opt/a/bin/python') }}"
"""

RETURN = r"""
_value:
  description: The words of the command.
  type: list
  elements: str
"""

import importlib
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("gpu_facts", class_only=True)  # which puts our module_utils in reach
OWN_CLIENT = ("__init__", "hub_cache", "hub_client", "hub_download")


def list_client_files(plan: dict[str, Any]) -> list[str]:
    """The files on the controller that our own client needs beside files/download_model.py, a package of their own;
    empty where another tool downloads."""
    if (plan.get("tool") or {}).get("kind") != "own":
        return []
    package = importlib.import_module("ansible.module_utils.gpu_provision")
    directory = str(package.__file__).rpartition("/")[0]
    return ["%s/%s.py" % (directory, name) for name in OWN_CLIENT]


def make_command(
    plan: dict[str, Any],
    *,
    unit: str,
    user: str,
    home: str,
    secrets: str,
    environment: dict[str, Any],
    writable: list[str],
    python: str,
    hides: bool = True,
) -> list[str]:
    """The words of systemd-run for what the module inference_server_model has planned.

    As the server's user, with its environment and with what its unit may write: what can be downloaded so can be read
    so. The token comes from the file `secrets`, which only root reads.
    """
    places = [home, plan["cache"], *("-" + path.lstrip("-+") for path in writable)]
    words = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec", "--unit=" + unit]
    words += ["--uid=" + user, "--gid=" + user, "--working-directory=" + home]
    words += ["--property=" + line for line in (
        "EnvironmentFile=" + secrets, "NoNewPrivileges=yes", "ProtectSystem=strict",
        *(("ProtectHome=yes", "PrivateTmp=yes") if hides else ()), "KillMode=mixed",
        "ReadWritePaths=" + " ".join(places),
    )]  # fmt: skip
    words += ["--setenv=%s=%s" % (name, value) for name, value in sorted(environment.items())]
    tool = plan["tool"]
    words += [python if tool["kind"] == "python" else "/usr/bin/python3", home + "/download/download_model.py"]
    words += ["--program=" + tool["command"]] if tool["kind"] == "program" else []
    words += ["--own"] if tool["kind"] == "own" else []
    for name, value in (
        ("repository", plan["repository"]), ("revision", plan["revision"]), ("cache", plan["cache"]),
        ("files", plan["files"]), ("present-files", plan["present_files"]),
        ("total-bytes", plan["total_bytes"]), ("present-bytes", plan["present_bytes"]),
    ):  # fmt: skip
        words.append("--%s=%s" % (name, value))
    return words + ["--left-out=" + name for name in plan["left_out"]]


class FilterModule:
    """Filters of the role inference_server."""

    def filters(self) -> dict[str, Any]:
        return {"inference_download_command": make_command, "inference_download_client": list_client_files}
