"""Real systemd hosts for the tests of roles."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import faulty_host

MAKE_HOSTS = [sys.executable, str(ROOT / "tests" / "hosts" / "make_hosts.py")]


def made(*arguments: str) -> str:
    done = subprocess.run([*MAKE_HOSTS, *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def make_host() -> Iterator[Callable[..., dict[str, Any]]]:
    """`make_host(name, system, *options)` -> {name, address, key, inventory}; the hosts go when the session ends."""
    reason = subprocess.run([*MAKE_HOSTS, "why-not"], capture_output=True, text=True, check=False).stdout.strip()
    if reason:
        pytest.skip(reason)
    names = []

    def make(name: str, system: str, *options: str) -> dict[str, Any]:
        names.append(name)
        host = json.loads(made("up", "%s=%s" % (name, system), "--format", "json", *options))[0]
        return dict(host)

    yield make
    for name in names:
        subprocess.run([*MAKE_HOSTS, "down", name], capture_output=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def faulty_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., faulty_host.FaultyHost]]:
    """`faulty_hosts(name, files={path: text}, **how it is made)` starts one; all go with the tests of the file."""
    reason = subprocess.run([*MAKE_HOSTS, "why-not"], capture_output=True, text=True, check=False).stdout.strip()
    if reason:
        pytest.skip(reason)
    made: list[faulty_host.FaultyHost] = []
    directory = tmp_path_factory.mktemp("hosts")

    def start(name: str, files: dict[str, str] | None = None, **how: Any) -> faulty_host.FaultyHost:
        host = faulty_host.FaultyHost(name, directory / name, **how)
        made.append(host)
        host.make()
        for path, text in (files or {}).items():
            host.write(path, text)
        host.start()
        return host

    yield start
    for host in made:
        host.remove()
