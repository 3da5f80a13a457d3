"""What a host can run containers with, podman or docker, and what it knows of an image.

Sources: podman-run(1) and podman-systemd.unit(5) of podman 4.4 to 5.6, `docker run` and `docker info` of Docker 20.10
to 28.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any

from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.linux import versions
from . import cdi_specs

RUNTIMES = ("podman", "docker")
SECONDS = 60.0
# Podman: CDI came with 4.1, quadlet with 4.4.
OLDEST = {"podman": "4.1", "docker": "20.10"}
QUADLET = "4.4"
DOCKER_CDI = "25.0"
_PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# In the order of systemd.generator(7): the first that has the name decides.
_GENERATORS = tuple(
    place + "/systemd/system-generators" for place in ("/run", "/etc", "/usr/local/lib", "/usr/lib", "/lib")
)
GENERATOR = "podman-system-generator"
IMAGE_FORMAT = "{{.Id}}\n{{.Architecture}}\n{{.Created}}\n{{json .RepoDigests}}"
# A process 1 that ends its children and hands signals on.
_INITS = {
    "podman": (("/usr/libexec/podman", "catatonit"), ("/usr/lib/podman", "catatonit"), ("/usr/bin", "catatonit")),
    "docker": (("/usr/bin", "docker-init"), ("/usr/libexec/docker", "docker-init"), ("/usr/local/bin", "docker-init")),
}
_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def find_program(evidence: Evidence, name: str) -> str | None:
    """The path of a program; None where no directory has it."""
    return next(("%s/%s" % (one, name) for one in _PROGRAMS if name in evidence.list(one).entries), None)


def read_runtime(evidence: Evidence, wanted: str) -> tuple[dict[str, Any], str | None]:
    """(``{runtime, program, version, quadlet, init, selinux, cdi}``, why it cannot be used).

    `quadlet`: whether systemd makes a unit of a .container file; `cdi`: whether it takes CDI devices; `init`: whether
    it has a process 1 for a container. The problem says what to do; None where there is none.
    """
    programs = {name: find_program(evidence, name) for name in RUNTIMES}
    runtime = wanted or next((name for name in RUNTIMES if programs[name]), "podman")
    program = programs[runtime]
    found: dict[str, Any] = {
        "runtime": runtime, "program": program, "version": None, "quadlet": False, "init": False, "cdi": False,
        "selinux": _has_selinux(evidence),
    }  # fmt: skip
    if not program:
        what = "%s is not" % runtime if wanted else "neither podman nor docker is"
        return found, "%s installed: install it (the package podman of RHEL, Debian and Ubuntu)" % what
    if runtime == "docker":
        problem = _read_docker(evidence, found)
    else:
        outcome = evidence.run([program, "--version"], SECONDS)
        match = re.search(r"version (\d+\.\d+(?:\.\d+)?)", outcome.text)
        found["version"] = match[1] if outcome.succeeded and match else None
        found["cdi"] = True
        problem = None if found["version"] else "podman does not say its version: %s" % _last_line(outcome)
        found["quadlet"] = bool(versions.is_at_least(found["version"], QUADLET)) and _has_generator(evidence)
    found["init"] = any(name in evidence.list(directory).entries for directory, name in _INITS[runtime])
    if not problem and not versions.is_at_least(found["version"], OLDEST[runtime]):
        problem = "%s %s is too old: %s or newer is needed" % (runtime, found["version"], OLDEST[runtime])
    return found, problem


def _read_docker(evidence: Evidence, found: dict[str, Any]) -> str | None:
    # Single fields: what evidence masks in a whole answer ("Authorization":null) leaves no JSON.
    outcome = evidence.run([found["program"], "version", "--format", "{{.Server.Version}}"], SECONDS)
    match = re.match(r"\d+\.\d+(?:\.\d+)?", outcome.text)
    if not outcome.succeeded or not match:
        return "docker's daemon does not answer: %s" % _last_line(outcome)
    found["version"] = match[0]
    if versions.is_at_least(found["version"], DOCKER_CDI):
        told = evidence.run([found["program"], "info", "--format", "{{json .CDISpecDirs}}"], SECONDS)
        # Named where it is switched on: "features": {"cdi": true} of its daemon.json, by default from 28.3 on.
        found["cdi"] = told.succeeded and told.text.strip().startswith("[") and told.text.strip() != "[]"
    return None


def _has_generator(evidence: Evidence) -> bool:
    """Whether systemd runs quadlet. A generator is masked by a link to /dev/null in a directory that goes before."""
    for directory in _GENERATORS:
        entry = evidence.list(directory).entries.get(GENERATOR)
        if entry:
            return entry.target != "/dev/null"
    return False


def _has_selinux(evidence: Evidence) -> bool:
    return evidence.read("/sys/fs/selinux/enforce", 16).ok


def find_gpu_options(
    evidence: Evidence, runtime: dict[str, Any], wanted: Sequence[str]
) -> tuple[list[str], str | None]:
    """(the options that give a container the GPUs `wanted`: "all", indices or UUIDs; why they do not)."""
    if not wanted:
        return [], None
    by_cdi = ["--device=%s=%s" % (cdi_specs.KIND, one) for one in wanted]
    if runtime["cdi"]:
        problem = cdi_specs.find_problem(evidence, wanted, cdi_specs.read_driver_version(evidence))
        if not problem or runtime["runtime"] == "podman":
            return by_cdi, problem
    if not any(find_program(evidence, name) for name in _TOOLKIT):
        return [], (
            "docker gives a container no GPU without NVIDIA's toolkit: install nvidia-container-toolkit, run "
            "`nvidia-ctk runtime configure --runtime=docker` and restart docker"
        )
    # docker splits the value at commas unless it is quoted.
    return ["--gpus=all" if list(wanted) == ["all"] else '--gpus="device=%s"' % ",".join(wanted)], None


def read_image(evidence: Evidence, program: str, image: str) -> tuple[dict[str, Any] | None, str | None]:
    """(``{id, digest, created}`` of an image on this host, why it cannot be used); (None, None) where it is not here.

    `id`: 64 hexadecimal digits, by which this very image is run whatever its tag means later; `digest`: the name by
    which a registry has it, None for one that was made here.
    """
    # By env: evidence masks what `inspect` prints of a container, and its errors; these fields hold no secrets.
    outcome = evidence.run(["env", program, "image", "inspect", "--format", IMAGE_FORMAT, image], SECONDS)
    if not outcome.ok:
        return None, "%s does not say whether the image %s is here: %s" % (program, image, _last_line(outcome))
    if outcome.rc:
        absent = re.search(r"(?i)no such image|image not known|unable to find|failed to find", outcome.error_text)
        return None, None if absent else "%s: %s" % (program, _last_line(outcome))
    fields = [line.strip() for line in outcome.text.splitlines()]
    number = re.search(r"([0-9a-f]{64})$", fields[0]) if len(fields) == 4 else None
    if not number:
        return None, "%s does not say the id of the image %s" % (program, image)
    own = _ARCHITECTURES.get(evidence.run(["uname", "-m"], SECONDS).text.strip())
    theirs = fields[1]
    problem = None
    if own and theirs and theirs != own:
        problem = "the image %s is for %s, and this host is %s" % (image, theirs, own)
    digests = [
        one for one in re.findall(r"[^\s\"\[\],]+@sha256:[0-9a-f]{64}", fields[3]) if not one.startswith("localhost/")
    ]
    return {"id": number[1], "digest": digests[0] if digests else None, "created": fields[2]}, problem


def is_moving_tag(image: str) -> bool:
    """Whether the name means another image tomorrow: no tag, or `latest`."""
    if "@" in image or re.fullmatch(r"(?:sha256:)?[0-9a-f]{64}", image):
        return False
    _repository, colon, tag = posixpath.basename(image).partition(":")
    return not colon or tag == "latest"


def _last_line(outcome: Any) -> str:
    lines = [line.strip() for line in (outcome.error_text + "\n" + outcome.text).splitlines() if line.strip()]
    return outcome.reason or (lines[-1][:300] if lines else outcome.ending)
