#!/usr/bin/env python3
"""Make the environment of the real engine once, in .cache/engine/venv: `environment.py`.

`environment.py why-not`: why it cannot be made.

It is a virtual environment of Debian 12's Python 3.11, filled by pip of whichever Python runs this, and mounted into
the hosts of the scenario.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "engine"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
PYTHON = "3.11"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
ENTRY = "#!/opt/inference/bin/python\nimport sys\nfrom transformers.cli.transformers import main\nsys.exit(main())\n"
NO_TORCH = (
    "pip finds no %s. PyTorch keeps its builds without CUDA in an index of its own, which the page 'Get started' of "
    "pytorch.org names for "
    "the platform CPU: give it to pip as PIP_EXTRA_INDEX_URL, or a directory with the wheel for Python "
    + PYTHON
    + " as PIP_FIND_LINKS."
)


class EnvironmentProblem(Exception):
    """The message says what to do."""


def wanted() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + ENTRY.encode()).hexdigest()


def present() -> bool:
    stamp = HOME / "venv" / "made-from"
    return stamp.exists() and stamp.read_text() == wanted()


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    """pip, for the hosts' Python rather than for its own."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        words[0],
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += [
        "--implementation=cp",
        "--python-version=" + PYTHON,
        "--abi=cp" + PYTHON.replace(".", ""),
        "--abi=abi3",
        "--abi=none",
    ]
    command += ["--platform=" + name for name in (*PLATFORMS, "any")]
    return subprocess.run([*command, *words[1:]], capture_output=True, text=True, check=False)


def why_not() -> str:
    if present():
        return ""
    torch = next(line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("torch=="))
    tried = pip("install", "--dry-run", "--target", str(HOME / "unused"), torch)
    return "" if tried.returncode == 0 else NO_TORCH % torch


def make() -> Path:
    """The environment, made if it is not there or its pins have changed. Safe beside another process that makes it."""
    final = HOME / "venv"
    (HOME / "models").mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if present():
            return final
        reason = why_not()
        if reason:
            raise EnvironmentProblem(reason)
        partial = HOME / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "bin").mkdir(parents=True)
        (partial / "pyvenv.cfg").write_text(
            "home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n" % PYTHON
        )
        for name in ("python", "python3"):
            (partial / "bin" / name).symlink_to("/usr/bin/python3")
        packages = partial / "lib" / ("python" + PYTHON) / "site-packages"
        installed = pip("install", "--no-compile", "--target", str(packages), "--requirement", str(REQUIREMENTS))
        if installed.returncode:
            raise EnvironmentProblem("pip could not install %s:\n%s" % (REQUIREMENTS, installed.stderr[-3000:]))
        (partial / "bin" / "transformers").write_text(ENTRY)
        (partial / "bin" / "transformers").chmod(0o755)
        (partial / "made-from").write_text(wanted())
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    return final


def wheels() -> Path:
    """A directory with the wheels of the pinned packages, for a host that makes the environment itself."""
    place = HOME / "wheels"
    fetched = pip("download", "--dest", str(place), "--requirement", str(REQUIREMENTS))
    if fetched.returncode:
        raise EnvironmentProblem("pip could not download %s:\n%s" % (REQUIREMENTS, fetched.stderr[-3000:]))
    return place


if __name__ == "__main__":
    if sys.argv[1:] == ["why-not"]:
        print(why_not())
        sys.exit()
    try:
        print(wheels() if sys.argv[1:] == ["wheels"] else make())
    except EnvironmentProblem as problem:
        sys.exit("environment.py: %s" % problem)
