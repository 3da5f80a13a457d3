"""What one host brings to a server over several, and whether it reaches rank 0, before anything is stopped."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import os
import socket
import struct
import subprocess
import time

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import gpu_load, installed

SIOCGIFADDR = 0x8915
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


def resolve_address(name: str) -> str:
    """The IP address of a name; OSError where it has none."""
    address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
    return str(address)


def find_source(address: str) -> str:
    """This host's own address on the way to `address`; OSError where there is no way. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))
        return str(sock.getsockname()[0])


def find_interface(address: str) -> str | None:
    """The name of the interface that has this address of the host; None where none has."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if wanted.version == 6:
        try:
            with open("/proc/net/if_inet6", encoding="ascii") as file:
                rows = [line.split() for line in file]
        except OSError:
            return None
        return next((row[5] for row in rows if len(row) > 5 and bytes.fromhex(row[0]) == wanted.packed), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _number, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if answer[20:24] == wanted.packed:
                return name
    return None


def list_interfaces() -> list[str]:
    """The network interfaces of the host, by name."""
    return sorted(name for _number, name in socket.if_nameindex())


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
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
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
