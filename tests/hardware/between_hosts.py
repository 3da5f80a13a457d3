"""An all-reduce between two "hosts" of one machine, by the code of the module on both sides and without Ansible.

Each host is a network namespace with one end of a veth pair; where namespaces cannot be made (no root, no `ip`), both
are this machine's own network. NCCL_HOSTID makes NCCL take them for two machines. `python3 between_hosts.py` is one
side: it reads lines of ``{step, params, environment}`` from standard input and answers each with what the step returns.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("one", "two")
RESULT_SECONDS = 200.0


def load_module() -> Any:
    """library/between_hosts.py, with our module_utils in its reach."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import probe as benchmark  # type: ignore[import-not-found]

    benchmark.importable()
    with contextlib.suppress(ImportError):
        importlib.import_module("ansible.module_utils.basic")
    if "ansible.module_utils.basic" not in sys.modules:  # Ansible itself is not installed; nothing here is run by it
        stand_in: Any = types.ModuleType("ansible.module_utils.basic")
        stand_in.AnsibleModule = None
        sys.modules["ansible.module_utils.basic"] = stand_in
    spec = importlib.util.spec_from_file_location("between_hosts_module", ROOT / "library" / "between_hosts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_side() -> None:
    module = load_module()
    step = {"look": module.look_around, "first": module.start_first, "others": module.start_others}
    before = dict(os.environ)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.update(asked["environment"])
        print(json.dumps(step[asked["step"]](asked["params"])), flush=True)
        os.environ.clear()
        os.environ.update(before)


class Place:
    """One host: a namespace, or this machine's own network where `namespace` is None, and the process of its side."""

    def __init__(self, host: str, namespace: str | None, address: str) -> None:
        self.host, self.namespace, self.address = host, namespace, address
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        self._side = subprocess.Popen(
            [*inside, sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, step: str, params: dict[str, Any], environment: dict[str, str] | None = None) -> dict[str, Any]:
        assert self._side.stdin and self._side.stdout
        asked = {"step": step, "params": params, "environment": environment or {}}
        self._side.stdin.write(json.dumps(asked).encode() + b"\n")
        self._side.stdin.flush()
        found: dict[str, Any] = json.loads(self._side.stdout.readline())
        return found

    def close(self) -> None:
        assert self._side.stdin and self._side.stdout
        self._side.stdin.close()
        self._side.wait(20)
        self._side.stdout.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@contextlib.contextmanager
def two_places(networks: int = 1) -> Iterator[list[Place]]:
    """Two namespaces that `networks` veth pairs join: eth0 in 10.77.0.0/24, eth1 in 10.77.1.0/24 ..."""
    names = ["gpu-host-%d-%s" % (os.getpid(), host) for host in HOSTS]
    places: list[Place] = []
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for number in range(networks):
                peer = ("type", "veth", "peer", "name", "eth%d" % number, "netns", names[1])
                _ip("link", "add", "eth%d" % number, "netns", names[0], *peer)
                for at, name in enumerate(names, start=1):
                    _ip("-n", name, "address", "add", "10.77.%d.%d/24" % (number, at), "dev", "eth%d" % number)
                    _ip("-n", name, "link", "set", "eth%d" % number, "up")
            places = [
                Place(host, name, "10.77.0.%d" % at) for at, (host, name) in enumerate(zip(HOSTS, names), start=1)
            ]
        except (OSError, subprocess.CalledProcessError):
            places = [Place(host, None, "127.0.0.1") for host in HOSTS]
        yield places
    finally:
        for place in places:
            place.close()
        for name in names:
            if shutil.which("ip"):
                subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def measure(
    places: Sequence[Place],
    gpus: Sequence[str],
    library: str,
    sizes: Sequence[int] | None = None,
    more: dict[str, dict[str, str]] | None = None,
    absent: bool = False,
    limits: dict[str, float] | None = None,
    arms: int | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the raw result as the first host's bundle holds it, the looks). `more`: environment by host; `absent`: the
    second host never starts its ranks; `arms`: only so many."""
    module = load_module()
    between, ranks = module.between_hosts, module.host_ranks
    own = {place.host: {"NCCL_HOSTID": place.host, **(more or {}).get(place.host, {})} for place in places}
    looks = []
    for place, gpu in zip(places, gpus):
        params = {"nccl_library": library, "python": None, "address": places[0].address}
        look = place.call("look", params, own[place.host])
        looks.append({**look, "gpus": [gpu], "busy": None})
    if any(place.namespace is None for place in places):  # both are this machine
        for look in looks:
            look["way"].update(address="this machine")
    hosts = [{"host": place.host, "look": look, "lost": None, "own_probe": None} for place, look in zip(places, looks)]
    plan = between.plan_run(hosts)
    plan["arms"] = plan["arms"][:arms]
    if sizes:
        plan["sizes"] = list(sizes)
    said = {place.host: {"look": look, "started": {}, "fetched": {}} for place, look in zip(places, looks)}
    token = between.make_token()
    if plan["arms"]:
        for number, (place, look) in enumerate(zip(places, looks)):
            first = said[places[0].host]["started"]
            order = between.make_order(
                plan, place.host, look, own[place.host], first["identifiers"] if number else None, token
            )
            order.update(limits or {})
            params = {"order": order, "address": places[0].address, "meeting": {"port": first.get("port")}}
            if not number or not (absent or first["problem"]):
                said[place.host]["started"] = place.call("others" if number else "first", params)
        fetch_all(ranks, said)
    return between.join_results("pair", places[0].host, plan, said), looks


def fetch_all(ranks: Any, said: dict[str, dict[str, Any]]) -> None:
    """What the action does on all hosts at the same time: look until the ranks end, then remove what they left."""
    directories = {host: one["started"].get("directory") for host, one in said.items()}
    there = [directory for directory in directories.values() if directory]
    if len(there) < len(directories):
        for directory in there:
            ranks.write_whole(directory, ranks.STOP, "not all hosts came")
    ends = time.monotonic() + RESULT_SECONDS
    while not all(os.path.exists(os.path.join(one, ranks.RESULT)) for one in there) and time.monotonic() < ends:
        for directory in there:
            ranks.write_whole(directory, ranks.ALIVE, "")
        time.sleep(0.1)
    for host, directory in directories.items():
        said[host]["fetched"] = {"result": None}
        if directory:
            with contextlib.suppress(OSError):
                said[host]["fetched"] = {"result": json.loads(Path(directory, ranks.RESULT).read_text())}
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    run_side()
