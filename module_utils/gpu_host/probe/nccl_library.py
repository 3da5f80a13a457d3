"""Where NCCL's library is on this host: the one that the inference server loads, if that can be told."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..evidence import values

NAME = "libnccl.so.2"
UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system")
HOMES = ("/opt/*", "/opt/*/.venv", "/opt/*/venv", "/srv/*", "/srv/*/.venv", "/srv/*/venv")
LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib",
    "/usr/local/cuda/lib64", "/usr/local/nccl/lib",
)  # fmt: skip
PROCESSES_SECONDS = 1.0
ASK_PYTHON = "import importlib.util as u; print(*(u.find_spec('nvidia.nccl').submodule_search_locations), sep='\\n')"
ADVICE = (
    "name the inference server's Python (host_validation_probe_python) or the library itself "
    "(host_validation_probe_nccl), or install libnccl2"
)


def find_library(named: str | None, python: str | None) -> dict[str, Any]:
    """``{path, source, owner, reason}``: `path` None where there is none, with the reason.

    `named`: the library; `python`: an interpreter whose environment has it. Else, in this order: what a running process
    has loaded, the environments that systemd units start, this Python's and `python3`'s, those below /opt and /srv, and
    the system's. `owner`: the user id that the ranks take before they load it, None for our own: root runs no code of
    another user. What was found by itself is not taken where somebody else could have written it.
    """
    if named:
        found = named if os.path.isfile(named) else os.path.join(named, NAME)
        return _take(found, "named") if os.path.isfile(found) else _nothing("%s is no file" % named)
    if python:
        path = next(list_of_python(python), None)
        if path:
            return _take(path, "the environment of %s" % python)
        known = os.path.exists(python) or shutil.which(python)
        why = "%s has no NCCL beside it (nvidia-nccl-cu12 or nvidia-nccl-cu13)" if known else "%s does not exist"
        return _nothing(why % python)
    refused = []
    for source, candidates in _candidates():
        for path in candidates:
            if os.path.isfile(path):
                objection = find_objection(path)
                if not objection:
                    return _take(path, source)
                refused.append("%s was not taken by itself: %s" % (path, objection))
    return _nothing("; ".join(["no %s was found: %s" % (NAME, ADVICE), *refused[:2]]))


def _nothing(reason: str) -> dict[str, Any]:
    return {"path": None, "source": None, "owner": None, "reason": reason}


def _take(path: str, source: str) -> dict[str, Any]:
    owner = os.stat(path).st_uid
    return {"path": path, "source": source, "owner": owner if os.geteuid() == 0 and owner else None, "reason": None}


def find_objection(path: str) -> str | None:
    """Why a library that nobody named is not loaded: whoever can write it would act as us."""
    if path.startswith("/proc/"):
        return "it is in a container"
    for place in (path, os.path.dirname(path)):
        found = os.stat(place)
        if found.st_mode & 0o002 or (found.st_mode & 0o020 and found.st_gid not in (0, found.st_uid)):
            return "others can write %s" % place
        if os.geteuid() and found.st_uid not in (0, os.geteuid()):
            return "%s belongs to another user" % place
    return None


def _candidates() -> Iterator[tuple[str, Iterator[str]]]:
    yield "a running process", list_of_processes()
    yield "the environment that a systemd unit starts", list_of_units()
    yield (
        "this host's Python",
        (path for one in (sys.executable, shutil.which("python3") or "") if one for path in list_below(_home(one))),
    )
    yield (
        "an environment below /opt or /srv",
        (path for pattern in HOMES for home in sorted(glob.glob(pattern)) for path in list_below(home)),
    )
    yield "the system", list_of_system()


def _home(program: str) -> str:
    """/opt/sglang for /opt/sglang/bin/python3. A link is not followed: it is what makes a virtual environment."""
    return os.path.dirname(os.path.dirname(os.path.abspath(program)))


def list_below(home: str) -> Iterator[str]:
    """NCCL of the packages nvidia-nccl-cu* in the environment at `home`, then of conda."""
    roots = ["/usr/local", "/usr"] if home == "/usr" else [home]
    for root in roots:
        for packages in ("site-packages", "dist-packages"):
            for python in ("lib*/python3*", "lib/python3"):
                yield from sorted(glob.glob("%s/%s/%s/nvidia/nccl/lib/%s" % (root, python, packages, NAME)))
    if home not in ("/usr", "/usr/local"):
        yield from glob.glob("%s/lib/%s" % (home, NAME))


def list_of_python(python: str) -> Iterator[str]:
    """By where a virtual environment keeps it, else by asking the interpreter."""
    program = shutil.which(python) or python
    yield from list_below(_home(program))
    try:
        asked = subprocess.run(
            [program, "-c", ASK_PYTHON], capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in asked.stdout.decode("utf-8", "replace").splitlines():
        path = os.path.join(line.strip(), "lib", NAME)
        if os.path.isfile(path):
            yield path


def list_of_processes() -> Iterator[str]:
    """What processes have loaded, seen through the root of each (a container has its own)."""
    ends = time.monotonic() + PROCESSES_SECONDS
    for entry in sorted(os.listdir("/proc")) if os.path.isdir("/proc") else ():
        if values.whole_number(entry) is None:
            continue
        if time.monotonic() > ends:
            return
        try:
            with open("/proc/%s/maps" % entry, encoding="utf-8", errors="replace") as handle:
                loaded = {line.split(None, 5)[5].strip() for line in handle if "/libnccl.so" in line}
        except (OSError, IndexError):
            continue
        for path in sorted(loaded):
            inside = "/proc/%s/root%s" % (entry, path)
            try:
                yield path if os.path.samefile(path, inside) else inside
            except OSError:
                yield inside


def list_of_units() -> Iterator[str]:
    for home in list_unit_homes():
        yield from list_below(home)


def list_unit_homes() -> Iterator[str]:
    """Above the `bin` of each program that a unit of this host's own starts."""
    for directory in UNITS:
        for unit in sorted(glob.glob(directory + "/*.service")):
            try:
                with open(unit, encoding="utf-8", errors="replace") as handle:
                    text = handle.read(1 << 16)
            except OSError:
                continue
            for program in re.findall(r"^ExecStart=[-@:+!]*(/\S+/bin/\S+)", text, re.MULTILINE):
                yield _home(program)


def list_of_system() -> Iterator[str]:
    """What the loader would take: LD_LIBRARY_PATH, ldconfig's cache, the usual directories."""
    for directory in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield os.path.join(directory, NAME)
    program = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if program:
        try:
            said = subprocess.run([program, "-p"], capture_output=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            said = b""
        for line in said.decode("utf-8", "replace").splitlines():
            if line.strip().startswith(NAME + " ") and "=> " in line:
                yield line.partition("=> ")[2].strip()
    for directory in LIBRARY_DIRECTORIES:
        yield os.path.join(directory, NAME)
