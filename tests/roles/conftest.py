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
