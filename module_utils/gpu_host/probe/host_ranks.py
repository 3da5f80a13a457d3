"""This host's ranks of an all-reduce over several hosts, run detached from whoever started them.

The connection that starts them ends, and rank 0 has to be there when the others come. So a process of its own keeps
the ranks of all arms, and a directory holds what it tells: `first.json` (of rank 0's host: the identifiers, and the
port at which it says whether hosts reach one another), `progress`, and at the end `result.json`. It ends by itself:
after its limit, where nobody looks any more (`alive`), or where a file `stop` says why. Then nothing of it is left.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from ..linux.detached import run_detached, write_whole
from . import host_network
from .rank_processes import KEPT_LINES, START_LIMIT_S, RankProcesses, read_messages, read_text
from .worker_run import PACKAGES

ALIVE, STOP, FIRST, PROGRESS, RESULT = "alive", "stop", "first.json", "progress", "result.json"
ARM_LIMIT_S = 120.0  # of one arm's all-reduces
STEP_LIMIT_S = 45.0  # of one size and its repeats: 64 MiB twenty-four times over 1 Gbit/s take 14 s
JOIN_LIMIT_S = 45.0  # until every rank of every host has come
TOGETHER_S = 6.0  # how long the first arm waits for the others, whose start would disturb it
LIMIT_S = 300.0
ALONE_S = 100.0  # without a look
FIRST_LOOK_S = 300.0  # until the first look, which waits where a run has more hosts than forks
LOOK_S = 0.2
RANKS = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_probe.collective import main; main()"
# NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.0.1.1<0>   NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
USING = re.compile(r"NET/(?P<kind>[\w ]{1,40}?) ?: Using (?P<list>.{0,2000})")
DEVICE = re.compile(r"\[(\d{1,4})\]([^\s<\[\]/]{1,64})(?:/(\w{1,20}))?(?:<\d{1,6}>)?")
# Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0(8)/GDRDMA
CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : \d{1,6}\[\w{1,20}\] -> \d{1,6}\[\w{1,20}\](?: \[(?:send|receive)\])? via "
    r"NET/(?P<kind>[\w ]{1,40})/(?P<index>\d{1,4})(?:\(\w{0,20}\))?(?P<rest>[/\w()]{0,60})"
)
GDR_OFF = re.compile(r"GPU Direct RDMA [Dd]isabled for .{1,160}")


class HostArm(RankProcesses):
    """The ranks of this host in one arm, a process for each GPU."""

    def __init__(self, order: dict[str, Any], arm: dict[str, Any], packages: str) -> None:
        super().__init__([[rank] for rank in order["ranks"]], order["addresses"], order["owner"], None)
        self._order, self._arm, self._packages = order, arm, packages
        self.name: str = arm["name"]

    def launch(self, number: int) -> tuple[list[str], dict[str, str], dict[str, Any], dict[str, Any]]:
        identifier, place = self._arm.get("identifier"), os.path.join(self.directory, "identifier")
        if identifier and not os.path.exists(place):
            with open(place, "wb") as handle:
                handle.write(bytes.fromhex(identifier))
            os.chmod(place, 0o644)  # of the ranks' user
        environment = {**os.environ, **self._order["environment"], **self._arm["environment"]}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,ENV,P2P,SHM,NET",
            NCCL_DEBUG_FILE=os.path.join(self.directory, "nccl.%p"),
            NCCL_RAS_ENABLE="0",  # the arms would be in one another's way at its port
        )
        options = {
            "library": self._order["library"],
            "ranks": self.ranks[number],
            "addresses": self.addresses,
            "sizes": self._order["sizes"],
            "store": self.directory,
            "step_limit_s": self._order.get("step_limit_s") or STEP_LIMIT_S,
            "init_limit_s": START_LIMIT_S,
            "join_limit_s": self._order.get("join_limit_s") or JOIN_LIMIT_S,
            "owner": self.owner,
        }
        return [sys.executable, "-I", "-c", RANKS, self._packages], environment, options, {}

    def read_identifier(self) -> bytes | None:
        """What rank 0 of this arm made; None before that."""
        try:
            with open(os.path.join(self.directory, "identifier"), "rb") as handle:
                return handle.read(1024)
        except OSError:
            return None

    def is_over(self) -> bool:
        """Whether a rank has ended or overstayed, so that the arm will not become ready."""
        told = [self._told(number) for number in range(len(self.processes))]
        now = time.monotonic()
        return any(process.poll() is not None for process in self.processes) or any(
            now > said.get("at", now) + said.get("limit_s", START_LIMIT_S) for said in told
        )

    def measure(self) -> dict[str, Any]:
        """``{state, detail, failure, waiting, ready, nccl, sizes, network, warnings, errors}``: what
        `RankProcesses.wait` gives and what the ranks of this host wrote. `sizes`: the messages of
        `gpu_probe/collective.py`, one for each rank and size."""
        self.begin()
        result = self.wait(time.monotonic() + (self._order.get("arm_limit_s") or ARM_LIMIT_S))
        names = ("state", "detail", "failure", "waiting")
        return {**self._written(), **{name: result[name] for name in names}}

    def _written(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ready": True, "nccl": None, "sizes": []}
        for number in range(len(self.ranks)):
            messages = read_messages(self.path_of("out", number))
            found["sizes"] += [message for message in messages if "size_bytes" in message]
            told = [message["nccl"] for message in messages if message.get("ready")]
            found["nccl"] = (told or [found["nccl"]])[0]
            found["ready"] = found["ready"] and bool(told)
        logs = "\n".join(read_text(path) for path in sorted(glob.glob(os.path.join(self.directory, "nccl.*"))))
        found["network"] = parse_network(logs)
        warned = {line.partition("NCCL WARN ")[2].strip()[:300] for line in logs.splitlines() if "NCCL WARN " in line}
        found["warnings"] = sorted(warned)[:KEPT_LINES]
        errors = [read_text(self.path_of("err", number)).strip().splitlines()[-1:] for number in range(len(self.ranks))]
        found["errors"] = sorted({line[0][:300] for line in errors if line})[:KEPT_LINES]
        return found


def parse_network(log: str) -> dict[str, Any]:
    """What NCCL's log says of the way to other hosts:

    ``{kind, devices: [{index, name, layer}], channels, gdr_channels, disabled}``: `kind` Socket, IB or a plugin's;
    `devices` those that channels use (eth0, mlx5_0:1); `disabled`: why there is no GPUDirect RDMA. All None and empty
    where no channel leaves the host.
    """
    listed: dict[tuple[str, str], tuple[str, str | None]] = {}
    for match in USING.finditer(log):
        for index, name, layer in DEVICE.findall(match["list"].partition("; OOB")[0]):
            # eth0:10.0.0.1 of a socket, mlx5_0:1 of an RDMA device, whose port is a part of its name
            shown = name.partition(":")[0] if match["kind"] == "Socket" else name
            listed[match["kind"], index] = (shown, layer or None)
    channels = list(CHANNEL.finditer(log))
    used = sorted({(match["kind"], match["index"]) for match in channels})
    kinds = sorted({kind for kind, _index in used})
    devices = [
        {
            "index": index,
            "name": listed.get((kind, index), (None, None))[0],
            "layer": listed.get((kind, index), (0, None))[1],
        }
        for kind, index in used
    ]
    return {
        "kind": "+".join(kinds) or None,
        "devices": devices,
        "channels": len(channels),
        "gdr_channels": sum("GDR" in match["rest"] for match in channels),
        "disabled": sorted({match[0] for match in GDR_OFF.finditer(log)})[:KEPT_LINES],
    }


class _Watch:
    """Ends the ranks where they are not wanted any more: the limit, a file `stop`, nobody who looks."""

    def __init__(self, directory: str, limit_s: float) -> None:
        self._directory, self._ends = directory, time.monotonic() + limit_s
        self.reason: str | None = None
        self._arms: list[HostArm] = []

    def begin(self, arms: list[HostArm]) -> None:
        self._arms = arms
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while self.find_reason() is None:
            time.sleep(LOOK_S)
        for arm in self._arms:
            for process in arm.processes:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)

    def find_reason(self) -> str | None:
        """Why the ranks are to end; None while they are wanted."""
        if self.reason is None:
            said = read_text(os.path.join(self._directory, STOP)).strip()
            if said:
                self.reason = said[:500]
            elif time.monotonic() > self._ends:
                self.reason = "the limit of the whole was reached"
            elif not is_looked_at(self._directory):
                self.reason = "nobody looked at it any more"
        return self.reason


def is_looked_at(directory: str) -> bool:
    """Whether the play that started it is still there: each of its looks renews the file."""
    try:
        return time.time() - os.stat(os.path.join(directory, ALIVE)).st_mtime < ALONE_S
    except OSError:
        return False


def start_detached(order: dict[str, Any]) -> str:
    """Run this host's ranks in a process that outlives this one; the directory.

    `order`: ``{host, ranks, addresses, library, owner, environment, sizes, arms: [{name, environment, identifier}],
    first, token}``; of rank 0's host (`first`) the arms have no identifier yet.
    """
    directory = tempfile.mkdtemp(prefix="gpu-host-between-")
    os.chmod(directory, 0o711)  # noqa: S103  the ranks may be another user's, and each arm has a directory of its own in it
    write_whole(directory, ALIVE, "")
    first_look = time.time() + FIRST_LOOK_S - ALONE_S
    os.utime(os.path.join(directory, ALIVE), (first_look, first_look))
    packages = _keep_packages(directory)

    def work() -> None:
        tempfile.tempdir = directory
        run_ranks(directory, order, packages)
        _tidy(directory)

    run_detached(directory, work)
    return directory


def _keep_packages(directory: str) -> str:
    """Where the ranks find their package: Ansible removes the archive in which it sent this module."""
    place = PACKAGES
    while place != os.path.dirname(place) and not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.path.isfile(place):
        return PACKAGES
    kept = os.path.join(directory, "packages.zip")
    shutil.copyfile(place, kept)
    os.chmod(kept, 0o644)
    return kept + PACKAGES[len(place) :]


def _tidy(directory: str) -> None:
    """Who fetches the result removes the directory; what nobody fetches is removed here."""
    while os.path.isdir(directory) and is_looked_at(directory):
        time.sleep(LOOK_S)
    shutil.rmtree(directory, ignore_errors=True)


def run_ranks(directory: str, order: dict[str, Any], packages: str = PACKAGES) -> dict[str, Any]:
    """Run all arms of this host and write ``{arms: {name: HostArm.measure()}, stopped, problem, seconds}``."""
    began = time.monotonic()
    watch = _Watch(directory, order.get("limit_s") or LIMIT_S)
    arms = [HostArm(order, arm, packages) for arm in order["arms"]]
    result: dict[str, Any] = {"arms": {}, "stopped": None, "problem": None}
    try:
        write_whole(directory, PROGRESS, "starting %d ranks of %d arms" % (len(order["ranks"]), len(arms)))
        for arm in arms:
            arm.start()
        watch.begin(arms)
        if order["first"]:
            _invite(directory, order, arms, watch)
        _wait_for_arms(directory, arms, watch)
        for arm in arms:
            if watch.find_reason() is not None:
                break
            write_whole(directory, PROGRESS, "all-reduce, %s" % arm.name)
            result["arms"][arm.name] = arm.measure()
            if result["arms"][arm.name]["state"] != "finished":
                arm.end()
    except Exception as error:  # there is nobody to see a traceback
        result["problem"] = "%s: %s" % (type(error).__name__, error)
    finally:
        for arm in arms:
            arm.release()
        for arm in arms:
            arm.end()
    result.update(stopped=watch.reason, seconds=round(time.monotonic() - began, 1))
    if os.path.isdir(directory):
        write_whole(directory, RESULT, json.dumps(result))
    return result


def _wait_for_arms(directory: str, arms: list[HostArm], watch: _Watch) -> None:
    """Until all arms are ready: one that starts while another measures would disturb it."""
    until = None
    while watch.find_reason() is None:
        ready = [arm.is_ready() for arm in arms]
        write_whole(directory, PROGRESS, "%d of %d arms have come together" % (sum(ready), len(arms)))
        if all(one or arm.is_over() for one, arm in zip(ready, arms)) or (not ready[0] and arms[0].is_over()):
            return
        until = until or (time.monotonic() + TOGETHER_S if ready[0] else None)
        if until and time.monotonic() > until:
            return
        time.sleep(0.05)


# -- whether hosts reach one another
# ----------------------------------------------------------------------------------------------------------------------


def _invite(directory: str, order: dict[str, Any], arms: list[HostArm], watch: _Watch) -> None:
    """Tell where rank 0 waits: ``first.json`` with ``{identifiers: {arm: hexadecimal or None}, port, problem}``."""
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", 0))
    listener.listen(64)
    threading.Thread(target=_greet, args=(listener, order["token"]), daemon=True).start()
    while watch.find_reason() is None:
        made = [arm.read_identifier() for arm in arms]
        if all(one is not None or arm.is_over() for one, arm in zip(made, arms)):
            break
        time.sleep(0.02)
    identifiers = {arm.name: (arm.read_identifier() or b"").hex() or None for arm in arms}
    said = {"identifiers": identifiers, "port": listener.getsockname()[1], "problem": None}
    if identifiers[arms[0].name] is None:
        said["problem"] = watch.reason or arms[0].measure()["detail"]
    write_whole(directory, FIRST, json.dumps(said))


def _greet(listener: socket.socket, token: str) -> None:
    while True:
        try:
            client, peer = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer_guest, args=(client, peer[0], token), daemon=True).start()


def _answer_guest(client: socket.socket, address: str, token: str) -> None:
    """Say whether this host reaches the guest as well: NCCL connects in both directions."""
    with client, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        client.settimeout(host_network.CONNECT_SECONDS)
        asked = json.loads(client.recv(host_network.GREETING_BYTES).decode("utf-8"))
        port = asked["port"]
        if asked["token"] != token or not isinstance(port, int):
            return
        address = address[7:] if address.startswith("::ffff:") else address
        problem = None
        try:
            socket.create_connection((address, port), timeout=host_network.CONNECT_SECONDS).close()
        except OSError as error:
            where = host_network.name_place(address, port)
            problem = host_network.explain_connect_error(error, where)
        client.sendall(json.dumps({"token": token, "back": problem}).encode("utf-8"))


def find_meeting_problem(address: str, port: int, token: str) -> str | None:
    """Why this host and rank 0's, whose NCCL waits at `address`, do not reach one another; None where they do.

    Asked of a listener of ours beside NCCL's, whose own would take a strange connection amiss.
    """
    where = host_network.name_place(address, port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as own:
        own.bind(("", 0))
        own.listen(8)
        try:
            with socket.create_connection((address, port), timeout=host_network.CONNECT_SECONDS) as sock:
                sock.settimeout(3 * host_network.CONNECT_SECONDS)
                sock.sendall(json.dumps({"token": token, "port": own.getsockname()[1]}).encode("utf-8"))
                answer = json.loads(sock.recv(host_network.GREETING_BYTES).decode("utf-8") or "null")
        except OSError as error:
            return host_network.explain_connect_error(error, where)
        except ValueError:
            answer = None
    if not isinstance(answer, dict) or answer.get("token") != token:
        return "another machine answers at %s: the address means something else on this host" % where
    back = answer.get("back")
    return "rank 0 does not reach this host back, and NCCL connects in both directions: %s" % back if back else None


def wait_for_file(directory: str, name: str, seconds: float, wanted: Callable[[], bool]) -> str | None:
    """The content of a file of the detached process; None where it did not come while `wanted()`."""
    ends = time.monotonic() + seconds
    path = os.path.join(directory, name)
    while not os.path.exists(path):
        if time.monotonic() > ends or not wanted():
            return None
        time.sleep(0.05)
    return read_text(path)
