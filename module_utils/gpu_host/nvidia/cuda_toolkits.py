"""CUDA toolkits and compatibility libraries on the host."""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from ..evidence.offenders import list_offenders
from ..linux import versions
from . import driver_requirements

_TOOLKIT = re.compile(r"cuda-(\d+\.\d+)")
_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)")
_LD_CONF = "/etc/ld.so.conf.d"


def gather(evidence: Evidence, errors: Errors, driver: str | None, minimum_toolkit: str | None) -> dict[str, Any]:
    """Facts: `toolkits` ([{path, version, default, minimum_driver, runs, full}]):

    `runs` says whether its programs start on this driver, `full` whether all it offers works; `unsupported_toolkits`
    (paths that do not run), `toolkits_too_old` (paths whose compiler does not know the GPUs), `compat_libraries`
    ([{path, version}]), `compat_in_library_path`: whether the dynamic linker is told to look into such a directory
    (cause of CUDA error 803 or 804). None where /usr/local is unknown.
    """
    local = evidence.list("/usr/local")
    errors.unanswered(local, absent_is_fine=True)
    if not local.ok and local.status != ABSENT:
        return {
            "toolkits": None,
            "unsupported_toolkits": None,
            "toolkits_too_old": None,
            "compat_libraries": None,
            "compat_in_library_path": None,
        }
    default = local.entries["cuda"].target if "cuda" in local.entries else None
    toolkits: list[dict[str, Any]] = []
    compat = []
    for name, entry in local.entries.items():
        match = _TOOLKIT.fullmatch(name)
        if not match or entry.kind != "dir":
            continue
        path = "/usr/local/" + name
        version = _version(evidence, path, errors) or match.group(1)
        toolkits.append(
            {
                "path": path,
                "version": version,
                # Debian's alternatives lead through /etc/alternatives/cuda; a direct link names the directory.
                "default": (default or "").rstrip("/").rpartition("/")[2] == name
                if default and "alternatives" not in default
                else None,
                "minimum_driver": driver_requirements.driver_for_cuda(version),
                "runs": driver_requirements.runs_cuda(driver, version),
                "full": versions.is_at_least(driver, driver_requirements.driver_for_cuda(version)),
            }
        )
        for library in evidence.list(path + "/compat").entries:
            found = _LIBCUDA.fullmatch(library)
            if found:
                compat.append({"path": "%s/compat/%s" % (path, library), "version": found.group(1)})
    return {
        "toolkits": toolkits,
        "unsupported_toolkits": list_offenders(
            toolkits, lambda item: None if driver is None else item["runs"] is False, lambda item: item["path"]
        ),
        "toolkits_too_old": [
            item["path"]
            for item in toolkits
            if minimum_toolkit and versions.is_at_least(item["version"], minimum_toolkit) is False
        ],
        "compat_libraries": compat,
        "compat_in_library_path": _compat_in_path(evidence),
    }


def _version(evidence: Evidence, path: str, errors: Errors) -> str | None:
    """The full version, 13.1.0, from version.json (since CUDA 11); None where that file is missing or broken."""
    try:
        document = values.parse_mapping(values.json_value(evidence.read(path + "/version.json").text))
    except ValueError:
        return None
    version = values.parse_mapping(document.get("cuda")).get("version")
    if version is not None and not (
        isinstance(version, str) and re.fullmatch(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}", version)
    ):
        errors.odd(path + "/version.json", "it is no version of CUDA", version)
        return None
    return version


def _compat_in_path(evidence: Evidence) -> bool | None:
    directory = evidence.list(_LD_CONF)
    if not directory.ok:
        return False if directory.status == ABSENT else None
    names = [name for name in directory.entries if name.endswith(".conf") and re.search(r"cuda|nvidia|compat|^0", name)]
    readings = [evidence.read("%s/%s" % (_LD_CONF, name)) for name in names]
    lines = [line.strip() for reading in readings for line in reading.text.splitlines()]
    found = any(re.search(r"cuda[^#]*/compat/?$", line) for line in lines if not line.startswith("#"))
    return True if found else (False if all(reading.ok for reading in readings) else None)
