"""What one host brings to a server over several, and whether it reaches rank 0, before anything is stopped.

Its networks and the way to rank 0 are read by gpu_host/probe/host_network.py.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import subprocess
import time

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.linux import detached
from . import gpu_load, installed

CONNECT_SECONDS = 5.0
GREETING = b"gpu-host: rank 0 listens\n"
# Whose versions have to be the same on every host: the engine's own, and what moves the data between them.
COMPARED = ("torch", "nvidia-nccl")
PYTHON_SECONDS = 20


def find_versions(
    evidence: Evidence, words: list[str], environment: dict[str, str], packages: tuple[str, ...]
) -> dict[str, str]:
    """``{distribution: version}`` of what every rank has to have alike; empty where none is found."""
    found = installed.find_packages(evidence, words, environment) or {}
    names = (*packages, *COMPARED)
    return {name: version for name, version in sorted(found.items()) if name.startswith(names)}


def find_python_version(words: list[str]) -> str:
    """The version of the Python that starts the engine, which Ray wants alike on every node; "" where it says none."""
    try:
        code = "import platform; print(platform.python_version())"
        asked = subprocess.run(
            [words[0], "-c", code], capture_output=True, text=True, timeout=PYTHON_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return ""
    return asked.stdout.strip()


def hash_model(directory: str | None) -> dict[str, str] | None:
    """``{file: SHA-256}`` of what says which model it is and how its weights are cut; None where neither is there."""
    found = {}
    for name in ("config.json", "model.safetensors.index.json", "generation_config.json", "tokenizer.json"):
        try:
            with open(os.path.join(directory or "", name), "rb") as file:
                found[name] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue
    return found if directory and found else None


def count_gpus(evidence: Evidence, visible: str | None, errors: Errors) -> int | None:
    """How many GPUs the server will see: those that CUDA_VISIBLE_DEVICES names, else all of nvidia-smi."""
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip()])
    gpus = gpu_load.read_gpu_load(evidence, errors, set())["gpus"]
    return None if gpus is None else len(gpus)


def match_interfaces(setting: str, names: list[str], exact: bool) -> list[str]:
    """Those of `names` that NCCL_SOCKET_IFNAME means: beginnings of names, "=" before whole ones, "^" before those that
    are left out [NCCL, src/misc/socket.cc]; Gloo (`exact`) takes whole names only."""
    text, leave_out = (setting[1:], True) if setting.startswith("^") and not exact else (setting, False)
    text, whole = (text[1:], True) if text.startswith("=") and not exact else (text, exact)
    given = [one for one in text.split(",") if one]
    found = [name for name in names if any(name == one if whole else name.startswith(one) for one in given)]
    return [name for name in names if name not in found] if leave_out else found


def find_port_problem(address: str, port: int) -> str | None:
    """Why rank 0 could not wait at this address of this host; None where it can. "in use" where another does."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen(1)
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else str(error)
    return None


def start_listening(address: str, port: int, seconds: float) -> int | None:
    """A process of its own that greets whoever connects, for so long; its number. None where the port is in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
        sock.listen(64)
    except OSError:
        sock.close()
        return None
    child = os.fork()
    if child:
        sock.close()
        return child
    try:
        os.setsid()
        detached.leave_caller(keep=(sock.fileno(),))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sock.settimeout(max(0.1, until - time.monotonic()))
            try:
                client, _address = sock.accept()
                client.sendall(GREETING)
                client.close()
            except OSError:
                continue
    finally:
        os._exit(0)


def find_connection_problem(address: str, port: int, greeted: bool) -> str | None:
    """Why this host does not reach rank 0; None where it does. `greeted`: our own listener waits there."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as sock:
            if greeted:
                sock.settimeout(CONNECT_SECONDS)
                said = sock.recv(len(GREETING))
                return None if said == GREETING else "another process answers there"
            return None
    except ConnectionRefusedError:
        return "refused: nothing listens there, or a firewall rejects it"
    except (socket.timeout, TimeoutError):
        return "no answer within %g s: a firewall drops it" % CONNECT_SECONDS
    except OSError as error:
        return error.strerror or str(error)
