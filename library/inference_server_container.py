#!/usr/bin/python
"""The inference_server_container module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_container
short_description: Say whether this host can run an inference server in a container, and with which options
description:
  - Looks for podman or docker, and for what a container needs to be given the GPUs, which is a CDI specification of the
    running driver, or NVIDIA's container toolkit.
  - Names directories that the container would not see, the links of a model that lead out of what it sees, and an image
    for another processor.
  - Pulls no image.
options:
  runtime:
    description: V(podman) or V(docker). Empty for the one that is installed, podman where both are.
    type: str
    choices: [podman, docker, ""]
    default: ""
  image:
    description: The image, by tag, digest or id.
    type: str
    required: true
  gpus:
    description: The GPUs, V(all), or indices or UUIDs; none where the list is empty.
    type: list
    elements: str
    default: [all]
  user:
    description: The user that the engine runs as.
    type: str
    required: true
  home:
    description: The directory of the server, which need not be there yet.
    type: str
    default: ""
  model:
    description: The model, a directory or a name on a hub.
    type: str
    default: ""
  volumes:
    description: What of the host the container sees, as C(path:path) or C(path:path:ro).
    type: list
    elements: str
    default: []
  environment:
    description: The environment of the engine. A cache in a place that the container does not see is refused.
    type: dict
    default: {}
  arguments:
    description: The arguments of the engine. A file of the host that the container does not see is warned of.
    type: dict
    default: {}
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: Could it run here?
  inference_server_container:
    image: lmsysorg/sglang:v0.5.23
    user: inference
"""

RETURN = r"""
runtime:
  description: podman or docker.
  returned: always
  type: str
program:
  description: Its path.
  returned: always
  type: str
version:
  description: Its version.
  returned: always
  type: str
quadlet:
  description: Whether systemd makes a unit of a C(.container) file here.
  returned: always
  type: bool
init:
  description: Whether the runtime has a process 1 for a container, which hands signals on.
  returned: always
  type: bool
selinux:
  description: Whether SELinux is on.
  returned: always
  type: bool
gpu_options:
  description: The options that give a container the GPUs.
  returned: always
  type: list
  elements: str
user:
  description: The number of the user and of its group, C(UID:GID), or its name where it is not there yet.
  returned: always
  type: str
image:
  description: id, digest and created of the image; null where it is not on this host.
  returned: always
  type: dict
"""

import posixpath
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, Evidence
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import container_runtimes, container_words


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": ["podman", "docker", ""], "default": ""},
            "image": {"type": "str", "required": True},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "user": {"type": "str", "required": True},
            "home": {"type": "str", "default": ""},
            "model": {"type": "str", "default": ""},
            "volumes": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "arguments": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params, evidence = module.params, LiveEvidence()
    runtime, problem = container_runtimes.read_runtime(evidence, params["runtime"])
    problems = [problem] if problem else []
    image = None
    gpu_options: list[str] = []
    if not problem:
        gpu_options, without_gpus = container_runtimes.find_gpu_options(evidence, runtime, params["gpus"])
        image, unfit = container_runtimes.read_image(evidence, runtime["program"], params["image"])
        problems += [one for one in (without_gpus, unfit) if one]
    problems += find_blind_spots(params)
    missing = find_missing(evidence, params)
    if missing and module.check_mode:  # without check mode, an earlier task may have brought it
        module.warn("Not on this host: %s" % ", ".join(missing))
    elif missing:
        problems.append("not on this host: %s" % ", ".join(missing))
    outside = container_words.find_outside_links(evidence, params["model"], params["volumes"])
    if outside:
        problems.append(
            "files of the model are links to what the container does not see (%s): name the directory in "
            "inference_server_readable" % ", ".join(outside[:3])
        )
    if problems:
        module.fail_json(msg="Nothing was changed. " + "\n".join(one[0].upper() + one[1:] + "." for one in problems))
    for name in find_hidden_files(evidence, params):
        module.warn("The argument %s names a file of this host that the container does not see" % name)
    if container_runtimes.is_moving_tag(params["image"]):
        module.warn(
            "The image %s has no tag that stays: another host, or another day, gets another engine. Name a version or "
            "a digest." % params["image"]
        )
    found = {**runtime, "gpu_options": gpu_options, "image": image, "user": find_user_numbers(params["user"])}
    module.exit_json(changed=False, **found)


def find_missing(evidence: Evidence, params: dict) -> list[str]:
    """Directories that are to be mounted and are not there; docker would make them, empty."""
    paths = [one.partition(":")[0] for one in params["volumes"]]
    listings = {path: evidence.list(posixpath.dirname(path)) for path in paths if path != params["home"]}
    return [
        path
        for path, around in listings.items()
        if around.status == ABSENT or (around.ok and posixpath.basename(path) not in around.entries)
    ]


def find_blind_spots(params: dict) -> list[str]:
    """Caches that would be lost with the container."""
    caches = {name: params["environment"].get(name) for name in container_words.CACHES}
    names = container_words.find_unseen(params["volumes"], caches)
    told = "%s is %s, which the container does not see: name the directory in inference_server_writable"
    return [told % (name, params["environment"][name]) for name in names]


def find_hidden_files(evidence: Evidence, params: dict) -> list[str]:
    """Names of arguments whose value is a file of the host that the container does not see."""
    unseen = container_words.find_unseen(params["volumes"], params["arguments"])
    paths = {name: params["arguments"][name] for name in unseen if not params["arguments"][name].startswith("/dev/")}
    return [
        name
        for name, path in paths.items()
        if posixpath.basename(path) in evidence.list(posixpath.dirname(path)).entries
    ]


def find_user_numbers(name: str) -> str:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return name
    return "%d:%d" % (entry.pw_uid, entry.pw_gid)


if __name__ == "__main__":
    main()
