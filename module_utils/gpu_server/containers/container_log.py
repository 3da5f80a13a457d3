"""Where the output of a container's first process is kept, and the text of it in the form of a journal.

- Docker's json-file: ID-json.log, a JSON object per line; rotated to ID-json.log.1 (moby, daemon/logger/jsonfilelog).
- The CRI's format, of Kubernetes and of podman's k8s-file: `TIME stdout F text`, with P for a part of a line
  (kubernetes/community, CRI logging).
- journald, with CONTAINER_ID_FULL (moby, daemon/logger/journald; podman, libpod/container_log_linux.go).
- Anything else: what `docker logs` or `podman logs` gives.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterable
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.interface import Evidence
from . import cgroups

DOCKER_JSON, CRI, STAMPED = "docker_json", "cri", "stamped"
LINES = 40000
_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})")
_CRI_LINE = re.compile(r"(?P<stamp>\S{20,40}) (?P<stream>stdout|stderr) (?P<tag>[PF])(?::\S*)? (?P<text>.*)")


def find_log(evidence: Evidence, container: dict[str, Any]) -> dict[str, Any]:
    """``{form, path, command}``: a file and its form, or a command; all None where there is no log on this host."""
    identity, driver, path = container["id"], container["log_driver"], container["log_path"]
    if container["runtime"] in (cgroups.CONTAINERD, cgroups.CRIO) or container["pod_uid"]:
        path = path or _find_pod_log(evidence, identity)
        docker_writes = container["runtime"] == cgroups.DOCKER
        return _file(path, DOCKER_JSON if docker_writes else CRI) if path else _nothing()
    if container["runtime"] == cgroups.DOCKER:
        if driver in ("json-file", None):
            return _file(path or "/var/lib/docker/containers/%s/%s-json.log" % (identity, identity), DOCKER_JSON)
        return (
            _command(journal_command(identity)) if driver == "journald" else _command(logs_command("docker", identity))
        )
    if container["runtime"] == cgroups.PODMAN:
        if driver in ("k8s-file", "json-file"):  # podman takes the second word for the first
            return _file(path, CRI) if path else _command(logs_command("podman", identity))
        if driver is None:
            kept = "/var/lib/containers/storage/overlay-containers/%s/userdata/ctr.log" % identity
            return _file(kept, CRI) if evidence.read(kept, 1).status == "ok" else _command(journal_command(identity))
        return (
            _nothing() if driver in ("none", "passthrough", "passthrough-tty") else _command(journal_command(identity))
        )
    if container["runtime"] == cgroups.NERDCTL:
        return _command(logs_command("nerdctl", identity))
    return _nothing()


def _file(path: str, form: str) -> dict[str, Any]:
    return {"form": form, "path": path, "command": None}


def _command(command: tuple[str, ...]) -> dict[str, Any]:
    return {"form": STAMPED if "logs" in command else None, "path": None, "command": command}


def _nothing() -> dict[str, Any]:
    return {"form": None, "path": None, "command": None}


def journal_command(identity: str) -> tuple[str, ...]:
    """The container's lines in the journal, whatever unit its monitor runs in."""
    return (
        "journalctl", "--no-pager", "--all", "--quiet", "--output=short-unix", "--lines=%d" % LINES,
        "CONTAINER_ID_FULL=" + identity,
    )  # fmt: skip


def logs_command(runtime: str, identity: str) -> tuple[str, ...]:
    return (runtime, "logs", "--timestamps", "--tail", str(LINES), identity)


def _find_pod_log(evidence: Evidence, identity: str) -> str | None:
    """By the link that the kubelet makes, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log."""
    entries = evidence.list("/var/log/containers").entries
    return next((entry.target for name, entry in entries.items() if name.endswith("-%s.log" % identity)), None)


def parse_link_name(name: str) -> dict[str, str] | None:
    """``{pod, namespace, container}`` of a name in /var/log/containers."""
    match = re.fullmatch(
        r"(?P<pod>[a-z0-9.-]+)_(?P<namespace>[a-z0-9-]+)_(?P<container>[a-z0-9-]+)-[0-9a-f]{64}\.log", name
    )
    return match.groupdict() if match else None


def find_rotated(evidence: Evidence, path: str, form: str | None) -> str:
    """The file that the one at `path` was before the last rotation: PATH.1, or of the kubelet PATH.20260101-010203."""
    directory, _slash, own = path.rpartition("/")
    if form == CRI:
        names = evidence.list(directory).entries
        older = [name for name in names if re.fullmatch(re.escape(own) + r"\.\d{8}-\d{6}", name)]
        if older:
            return "%s/%s" % (directory, max(older))
    return path + ".1"


def decode_log(text: str, form: str | None) -> str:
    """The lines that the process wrote, each with its time as `journalctl -o short-unix` shows it.

    A line that was cut off at the beginning or the end of `text`, and what is of another form, is left out.
    """
    if form == DOCKER_JSON:
        return _join(_docker_parts(text))
    if form == CRI:
        return _join(_cri_parts(text))
    return _join(_stamped_parts(text)) if form == STAMPED else text


def merge_streams(stdout: str, stderr: str) -> str:
    """The two outputs of `docker logs --timestamps` in the order of their times."""
    lines = [line for text in (stdout, stderr) for line in text.splitlines()]
    return "\n".join(sorted(lines, key=lambda line: line.partition(" ")[0])) + "\n" if lines else ""


def _docker_parts(text: str) -> Iterable[tuple[str, str, str, bool]]:
    for line in text.split("\n"):
        try:
            entry = values.parse_mapping(values.json_value(line))
        except ValueError:
            continue
        content = entry.get("log")
        if isinstance(content, str):
            yield str(entry.get("time")), str(entry.get("stream")), content.rstrip("\n"), content.endswith("\n")


def _cri_parts(text: str) -> Iterable[tuple[str, str, str, bool]]:
    for match in map(_CRI_LINE.fullmatch, text.split("\n")):
        if match:
            yield match["stamp"], match["stream"], match["text"], match["tag"] == "F"


def _stamped_parts(text: str) -> Iterable[tuple[str, str, str, bool]]:
    for line in text.split("\n"):
        stamp, _blank, rest = line.partition(" ")
        if _STAMP.fullmatch(stamp):
            yield stamp, "", rest, True


def _join(parts: Iterable[tuple[str, str, str, bool]]) -> str:
    """Of (time, stream, text, whether the line ends): lines, each stream's parts put together."""
    lines: list[str] = []
    begun: dict[str, str] = {}
    for stamp, stream, text, ends in parts:
        whole = begun.pop(stream, "") + text
        if not ends:
            begun[stream] = whole
            continue
        at = _unix_time(stamp)
        lines.append("%s container engine: %s" % (at, whole) if at else whole)
    lines += begun.values()
    return "\n".join(lines) + "\n" if lines else ""


def _unix_time(stamp: str) -> str | None:
    match = _STAMP.fullmatch(stamp)
    if not match:
        return None
    second = _seconds(match[1], match[3])
    return None if second is None else "%d.%s" % (second, (match[2] or "").ljust(6, "0")[:6])


@functools.lru_cache(maxsize=1024)
def _seconds(text: str, zone: str) -> int | None:
    try:
        moment = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return None
    hours, _colon, minutes = zone[1:].partition(":")
    offset = values.number_in_name(hours) * 3600 + values.number_in_name(minutes) * 60 if zone != "Z" else 0
    return round(moment.timestamp()) - (-offset if zone[0] == "-" else offset)
