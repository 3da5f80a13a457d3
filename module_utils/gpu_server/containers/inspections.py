"""What a container's own runtime says of it: `docker inspect`, `podman inspect`, `crictl inspect`, in one form.

The fields are those of moby's API (types/container, `ContainerJSONBase`, `HostConfig`), of podman's
libpod/define/container_inspect.go, and of the CRI (`ContainerStatus`, with `info` as containerd and CRI-O fill it).
A field that an answer lacks is None. Secrets are masked before anything here is read (evidence/container_json.py).
"""

from __future__ import annotations

import re
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, Evidence
from . import cgroups

SECONDS = 15.0
FIELDS = (
    "name", "image", "image_id", "digest", "arguments", "mounts", "ipc_mode", "network_mode", "addresses", "published",
    "shm_mib", "privileged", "devices_asked", "restart_policy", "restarts", "out_of_memory", "log_driver", "log_path",
    "started_by",
)  # fmt: skip
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NVIDIA_KIND = re.compile(r"nvidia\.com/(?:gpu|mig-\S+?)=(?P<device>\S+)")


def inspect_command(runtime: str, identity: str) -> tuple[str, ...] | None:
    """The command that asks the runtime; None where none is known."""
    if runtime in (cgroups.DOCKER, cgroups.PODMAN, cgroups.NERDCTL):
        return (runtime, "inspect", identity)
    return ("crictl", "inspect", identity) if runtime in (cgroups.CONTAINERD, cgroups.CRIO) else None


def image_command(runtime: str, image: str) -> tuple[str, ...]:
    return (runtime, "image", "inspect", image)


def inspect_container(
    evidence: Evidence, membership: cgroups.Membership, errors: Errors, *, light: bool = False
) -> dict[str, Any] | None:
    """FIELDS of the container; None where its runtime could not be asked, or did not say. `light`: without the digest
    of the image, which takes a question of its own."""
    command = inspect_command(membership.runtime or "", membership.id or "")
    if command is None:
        return None
    content = _ask(evidence, command, errors)
    if content is None and command[0] == "crictl":  # K3s and RKE2 bring their own
        content = _ask(evidence, ("k3s", *command), errors)
    if content is None:
        return None
    if command[0] == "crictl":
        return _of_cri(content)
    found = _of_engine(content)
    if found["digest"] is None and membership.runtime == cgroups.DOCKER and found["image_id"] and not light:
        found["digest"] = _find_digest(evidence, found["image_id"], errors)
    return found


def _ask(evidence: Evidence, command: tuple[str, ...], errors: Errors) -> dict[str, Any] | None:
    outcome = evidence.run(command, SECONDS)
    if not outcome.succeeded:
        if outcome.status not in (ABSENT, NOT_CAPTURED) or command[0] != "k3s":
            errors.unsuccessful(outcome)
        return None
    try:
        content = values.json_value(outcome.text)
    except ValueError as error:
        errors.add(" ".join(command), "is not JSON: %s" % error)
        return None
    if isinstance(content, list):
        content = content[0] if content else None
    if not isinstance(content, dict) or not content:
        errors.add(" ".join(command), "does not describe a container")
        return None
    return content


def _find_digest(evidence: Evidence, image: str, errors: Errors) -> str | None:
    """The digest by which a registry knows the image; "" for one that was built here and never pushed."""
    content = _ask(evidence, image_command("docker", image), errors)
    if content is None or not isinstance(content.get("RepoDigests"), list):
        return None
    return next((match[0] for match in map(_DIGEST.search, _texts(content["RepoDigests"])) if match), "")


def _of_engine(content: dict[str, Any]) -> dict[str, Any]:
    """Of docker, podman or nerdctl."""
    host, config = _mapping(content, "HostConfig"), _mapping(content, "Config")
    state, network = _mapping(content, "State"), _mapping(content, "NetworkSettings")
    found: dict[str, Any] = dict.fromkeys(FIELDS)
    image = _text(content, "ImageName") or _text(config, "Image")
    digest = _DIGEST.search(
        _text(content, "ImageDigest") or _text(_mapping(content, "ImageManifestDescriptor"), "digest") or image or ""
    )
    words = [_text(content, "Path"), *_texts(content.get("Args"))] if "Path" in content else []
    log = _mapping(host, "LogConfig")
    shm = values.whole_number(host.get("ShmSize"))
    found.update(
        name=(_text(content, "Name") or "").lstrip("/") or None,
        image=image,
        image_id=_text(content, "Image"),
        digest=digest[0] if digest else None,
        arguments=[word for word in words if word] or None,
        mounts=_mounts(content.get("Mounts"), "Source", "Destination"),
        ipc_mode=_text(host, "IpcMode"),
        network_mode=_text(host, "NetworkMode"),
        addresses=_addresses(network),
        published=_published(network, host),
        shm_mib=None if shm is None else shm >> 20,
        privileged=host.get("Privileged") if isinstance(host.get("Privileged"), bool) else None,
        devices_asked=_devices_asked(host, config),
        restart_policy=_text(_mapping(host, "RestartPolicy"), "Name", "no") if "RestartPolicy" in host else None,
        restarts=values.whole_number(content.get("RestartCount")),
        out_of_memory=state.get("OOMKilled") if isinstance(state.get("OOMKilled"), bool) else None,
        log_driver=_text(log, "Type"),
        log_path=_text(content, "LogPath") or _text(log, "Path"),
        started_by=_started_by(_mapping(config, "Labels")),
    )
    return found


def _of_cri(content: dict[str, Any]) -> dict[str, Any]:
    status, info = _mapping(content, "status"), _mapping(content, "info")
    spec, config = _mapping(info, "runtimeSpec"), _mapping(info, "config")
    labels = _mapping(status, "labels") or _mapping(config, "labels")
    found: dict[str, Any] = dict.fromkeys(FIELDS)
    reference = _text(status, "imageRef") or ""
    digest = _DIGEST.search(reference) if "@" in reference else None
    annotations = _mapping(status, "annotations") or _mapping(config, "annotations")
    given = [*_texts(_mapping(spec, "process").get("env")), *_pairs(config.get("envs"))]
    found.update(
        name=_text(_mapping(status, "metadata"), "name") or _text(labels, "io.kubernetes.container.name"),
        image=_text(_mapping(status, "image"), "image") or _text(_mapping(config, "image"), "user_specified_image"),
        image_id=_text(status, "imageId") or (reference if not digest else None) or None,
        digest=digest[0] if digest else None,
        arguments=_texts(_mapping(spec, "process").get("args")) or None,
        mounts=_mounts(status.get("mounts"), "hostPath", "containerPath"),
        ipc_mode=_namespace_mode(spec, "ipc"),
        network_mode=_namespace_mode(spec, "network"),
        privileged=_is_privileged(config, info),
        devices_asked=_cdi_names(info) or _visible_devices(given),
        # The pod's, which the CRI does not know.
        restart_policy=None,
        restarts=values.whole_number(annotations.get("io.kubernetes.container.restartCount")),
        out_of_memory=_text(status, "reason") == "OOMKilled",
        log_driver="cri" if status.get("logPath") else None,
        log_path=_text(status, "logPath"),
        started_by=_started_by(labels),
    )
    return found


def _mapping(content: dict[str, Any], name: str) -> dict[str, Any]:
    return values.parse_mapping(content.get(name))


def _text(content: dict[str, Any], name: str, otherwise: str | None = None) -> str | None:
    value = content.get(name)
    return value if isinstance(value, str) and value else otherwise


def _texts(value: Any) -> list[str]:
    return [one for one in values.parse_sequence(value) if isinstance(one, str)]


def _pairs(value: Any) -> list[str]:
    """NAME=VALUE of the CRI's list of key and value."""
    return [
        "%s=%s" % (one.get("key"), one.get("value")) for one in map(values.parse_mapping, values.parse_sequence(value))
    ]


def _mounts(value: Any, source: str, target: str) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        return None
    return [
        {"path": _text(one, target), "source": _text(one, source)}
        for one in map(values.parse_mapping, value)
        if _text(one, target)
    ]


def _addresses(network: dict[str, Any]) -> list[str] | None:
    if not network:
        return None
    networks = [values.parse_mapping(one) for one in _mapping(network, "Networks").values()]
    found = [_text(one, "IPAddress") for one in (network, *networks)]
    return list(dict.fromkeys(one for one in found if one))


def _published(network: dict[str, Any], host: dict[str, Any]) -> list[dict[str, Any]] | None:
    """``[{port, host_address, host_port}]`` of TCP ports; of a container that shares its pod's network nothing is
    known here."""
    ports = network.get("Ports")
    if not isinstance(ports, dict):
        ports = host.get("PortBindings")
    if not isinstance(ports, dict):
        return None
    found = []
    for name, bindings in ports.items():
        number, _slash, protocol = str(name).partition("/")
        port = values.whole_number(number)
        for binding in map(values.parse_mapping, values.parse_sequence(bindings)):
            host_port = values.whole_number(binding.get("HostPort"))
            if port and host_port and protocol in ("tcp", ""):
                found.append(
                    {"port": port, "host_address": _text(binding, "HostIp") or "0.0.0.0", "host_port": host_port}  # noqa: S104  compared, not bound
                )
    return found


def _devices_asked(host: dict[str, Any], config: dict[str, Any]) -> list[str] | None:
    """Which GPUs the container was to get: "all", "count=N", or names of GPUs; [] where it asked for none; None where
    it is not known."""
    found: list[str] = []
    known = "DeviceRequests" in host or "Devices" in host
    for request in map(values.parse_mapping, values.parse_sequence(host.get("DeviceRequests"))):
        kinds = [kind for group in values.parse_sequence(request.get("Capabilities")) for kind in _texts(group)]
        names = _texts(request.get("DeviceIDs"))
        if request.get("Driver") == "cdi":
            found += [match["device"] for match in map(_NVIDIA_KIND.fullmatch, names) if match]
        elif request.get("Driver") == "nvidia" or "gpu" in kinds:
            count = values.whole_number(request.get("Count"))
            found += names or (["all"] if count is not None and count < 0 else ["count=%s" % count] if count else [])
    for device in map(values.parse_mapping, values.parse_sequence(host.get("Devices"))):
        path = _text(device, "PathOnHost") or ""
        match = _NVIDIA_KIND.fullmatch(path) or re.fullmatch(r"/dev/nvidia(?P<device>[0-9]{1,3})", path)
        found += [match["device"]] if match else []
    return found or _visible_devices(_texts(config.get("Env"))) or ([] if known else None)


def _visible_devices(environment: list[str]) -> list[str] | None:
    """NVIDIA_VISIBLE_DEVICES of an environment, as NVIDIA's runtime reads it."""
    given = next((one.partition("=")[2] for one in environment if one.startswith("NVIDIA_VISIBLE_DEVICES=")), None)
    return None if given is None else parse_visible_devices(given)


def parse_visible_devices(given: str) -> list[str]:
    """all; none, void and "" for no GPU; else a list of indices, UUIDs or MIG devices."""
    return [] if given in ("", "none", "void") else [one.strip() for one in given.split(",") if one.strip()]


def _cdi_names(info: dict[str, Any]) -> list[str] | None:
    devices = values.parse_sequence(_mapping(info, "config").get("CDI_devices"))
    names = [_text(values.parse_mapping(one), "name") or "" for one in devices]
    return [match["device"] for match in map(_NVIDIA_KIND.fullmatch, names) if match] or None


def _namespace_mode(spec: dict[str, Any], kind: str) -> str | None:
    """Of an OCI runtime specification: a namespace that is not listed is the host's."""
    listed = _mapping(spec, "linux").get("namespaces")
    if not isinstance(listed, list):
        return None
    entry = next((one for one in map(values.parse_mapping, listed) if one.get("type") == kind), None)
    return "host" if entry is None else "pod" if entry.get("path") else "private"


def _is_privileged(config: dict[str, Any], info: dict[str, Any]) -> bool | None:
    for place in (_mapping(_mapping(config, "linux"), "security_context"), info):
        if isinstance(place.get("privileged"), bool):
            return bool(place["privileged"])
    return None


def _started_by(labels: dict[str, Any]) -> dict[str, Any]:
    """Who made the container, by the labels that they put on it: ``{kind, ...}``; `kind` None where none says it."""
    project = _text(labels, "com.docker.compose.project")
    if project:
        return {
            "kind": "compose",
            "project": project,
            "service": _text(labels, "com.docker.compose.service"),
            "files": _text(labels, "com.docker.compose.project.config_files"),
        }
    if _text(labels, "io.kubernetes.pod.name"):
        return {
            "kind": "kubernetes",
            "pod": _text(labels, "io.kubernetes.pod.name"),
            "namespace": _text(labels, "io.kubernetes.pod.namespace"),
            "container": _text(labels, "io.kubernetes.container.name"),
        }
    if _text(labels, "PODMAN_SYSTEMD_UNIT"):
        return {"kind": "systemd", "unit": _text(labels, "PODMAN_SYSTEMD_UNIT")}
    return {"kind": None}
