#!/usr/bin/env python3
"""Sets up what a clone needs and runs it:

`python3 scripts/dev.py validate | read | show | collection | test | test-all | lint | bench | docs | setup | packages`.

`read PATH` validates what somebody handed in: a bug report, a folder or an archive of outputs, a pasted text.
`show PATH` lists every record of a bundle as text, to look at before it is sent.

Everything lands in .venv/ inside the clone. `validate` without arguments shows the example fleet, and exits with 0
where that gets the verdict that it should; with arguments it is `ansible-playbook validate.yml`. `test` runs the tests
that need nothing else. `test-all` runs all of them, and first installs the Debian packages that they use where it runs
as root on Debian or Ubuntu (`packages` does only that); elsewhere the tests that need them are skipped by name.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
COMMANDS = ["setup", "validate", "read", "show", "collection", "test", "test-all", "lint", "bench", "docs", "packages"]
# The verdict of the example fleet: host -> the checks that decide and fail.
EXAMPLE = {
    "llm-vm": {"vm_machine_q35", "chipset_supports_p2p", "p2p_granted"},
    "llm-ct": set(),
    "h200-x2": set(),
    "pve1": set(),
}
POLICY = Path("/usr/sbin/policy-rc.d")
NOT_READY = 2  # exit status of ansible-playbook where a host failed
# Three workers on two cores: many tests wait for a process that they started.
WORKERS = ["-n", "3", "--dist", "loadgroup"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to make the environment with")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="handed on to ansible-playbook, pytest or the benchmark"
    )
    options = parser.parse_args()
    arguments = [word for word in options.arguments if word != "--"]
    testing = options.command in ("test", "test-all", "lint", "docs", "bench")
    if options.command in ("test-all", "packages"):
        install_system_packages()
    if options.command == "packages":
        return 0
    if options.command in ("read", "show") and len(arguments) != 1:
        parser.error(options.command + " takes one path: a file, a folder or an archive")
    environment = set_up(options.python, testing)
    if options.command == "setup":
        print("Ready: %s" % environment)
        return 0
    if options.command == "validate" and not arguments:
        return show_example(environment)
    commands = {
        "validate": ["ansible-playbook", "validate.yml", *arguments],
        "read": ["ansible-playbook", "validate.yml", "-i", "case,", "-e", describe_handed_in(arguments)],
        "show": ["python", "scripts/show_bundle.py", *arguments],
        "collection": ["python", "scripts/build_collection.py", *arguments],
        "test": ["pytest", *tier_arguments("fast", arguments)],
        "test-all": ["pytest", *tier_arguments("all", arguments)],
        "lint": ["pytest", "-q", "tests/lint", *arguments],
        "bench": ["python", "benchmarks/run.py", *arguments],
        "docs": ["python", "scripts/generate_docs.py", *arguments],
    }
    scale = options.command == "bench" and arguments[:1] == ["scale"]
    if scale:
        commands["bench"] = ["python", "benchmarks/scale.py", *arguments[1:]]
    status = run_in(environment, commands[options.command])
    if options.command == "bench" and not scale:
        status = run_in(environment, ["python", "benchmarks/mixed_fleet.py"]) or status
        status = run_in(environment, ["python", "benchmarks/probe.py"]) or status
    return status


def tier_arguments(tier: str, arguments: list[str]) -> list[str]:
    """The words for pytest. Who names files or folders gets those, whatever their tier."""
    named = any((ROOT / word.split("::")[0]).exists() for word in arguments if not word.startswith("-"))
    workers = [] if named or "-n" in arguments else WORKERS
    chosen = [] if named or "--tier" in arguments else ["--tier", tier]
    return [*workers, *chosen, *arguments]


def show_example(environment: Path) -> int:
    """Validate the fleet of inventory/. 0 exactly where it is the example and gets the verdict that it should; of a
    fleet
    of one's own, the exit status of the run."""
    print("The example fleet of recorded hosts in inventory/. One of them, llm-vm, fails on purpose.", flush=True)
    began = time.time()
    status = run_in(environment, ["ansible-playbook", "validate.yml"])
    path = Path(os.environ.get("GPU_HOST_REPORTS_DIR") or ROOT / "reports") / "report.json"
    fresh = path.exists() and path.stat().st_mtime >= began - 1
    verdict = failed_checks(json.loads(path.read_text(encoding="utf-8"))) if fresh else {}
    if status == NOT_READY and verdict == EXAMPLE:
        print("\nThis is the verdict that the example should get: llm-vm is not ready, the others are.")
        return 0
    if fresh and set(verdict) != set(EXAMPLE):
        return status
    print("\nThis is not the verdict that the example should get (exit status %d): llm-vm alone fails there." % status)
    return status or 1


def failed_checks(report: dict[str, Any]) -> dict[str, set[str]]:
    """Host -> the checks of severity error that neither passed nor were skipped; all where it is not validated."""
    return {
        name: {
            result["id"]
            for result in host["results"]
            if report["checks"][result["id"]]["severity"] == "error" and result["status"] not in ("pass", "skip")
        }
        if host["results"]
        else {"not validated"}
        for name, host in report["hosts"].items()
    }


def describe_handed_in(arguments: list[str]) -> str:
    """The variable that names the path, as JSON: it may hold blanks."""
    return json.dumps({"gpu_host_bundle": str(Path(arguments[0]).expanduser().resolve())}) if arguments else ""


def set_up(python: str, testing: bool) -> Path:
    """A virtual environment with the pinned dependencies; made once, renewed when the pins change."""
    version = output_of(python, "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    if tuple(int(part) for part in version.split(".")) < MINIMUM:
        sys.exit("Python %d.%d or newer is needed; this is %s. Name another with --python." % (*MINIMUM, version))
    environment = ROOT / ".venv" / version
    testing = testing or (environment / "test.stamp").exists()  # what is there for the tests is not lost to `validate`
    names = requirements(python, testing)
    pins = (ROOT / "constraints.txt").read_text()
    wanted = hashlib.sha256("\n".join([*names, pins]).encode()).hexdigest()
    stamp = environment / ("test.stamp" if testing else "run.stamp")
    if stamp.exists() and stamp.read_text() == wanted:
        return environment
    print("Setting up %s (once) ..." % environment.relative_to(ROOT), flush=True)
    made = subprocess.run(
        [python, "-m", "venv", "--clear", str(environment)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        sys.exit(
            "Could not make a virtual environment: %s\nOn Debian and Ubuntu: apt-get install python3-venv"
            % (made.stdout + made.stderr).strip()
        )
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        "constraints.txt",
    ]
    installed = subprocess.run([*pip, *names], cwd=ROOT, check=False)
    if installed.returncode != 0:
        sys.exit("pip could not install %s; see its message above." % ", ".join(names))
    stamp.write_text(wanted)
    return environment


def requirements(python: str, testing: bool) -> list[str]:
    """The dependencies that pyproject.toml declares."""
    code = "import json, tomllib; print(json.dumps(tomllib.load(open('pyproject.toml', 'rb'))['project']))"
    project = json.loads(output_of(python, code))
    return project["dependencies"] + (project["optional-dependencies"]["test"] if testing else [])


def output_of(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def install_system_packages() -> None:
    """Install the Debian packages that the tests use, where that is ours to do."""
    lines = [
        line for path in sorted((ROOT / "tests").glob("**/packages.txt")) for line in path.read_text().splitlines()
    ]
    wanted = [line.split("#")[0].strip() for line in lines]
    wanted = [name for name in wanted if name]
    if not shutil.which("apt-get"):
        print("Not Debian or Ubuntu: tests that need %s are skipped where those are missing." % ", ".join(wanted))
        return
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted]
    status = subprocess.run(query, capture_output=True, text=True, check=False)
    present = {line.split()[0] for line in status.stdout.splitlines() if line.endswith(" installed")}
    missing = [name for name in wanted if name not in present]
    if not missing:
        return
    if os.geteuid() != 0:
        print("Not root: tests that need them are skipped. To run them too: apt-get install %s" % " ".join(missing))
        return
    print("Installing Debian packages for the tests: %s ..." % " ".join(missing), flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    with no_services_started():
        done = subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=False)
    disable_services(missing)
    if done.returncode != 0:
        print("apt-get could not install all of them; the tests that need them are skipped by name.")


@contextlib.contextmanager
def no_services_started() -> Iterator[None]:
    """Meanwhile no package starts a service (Debian policy 9.3.3, invoke-rc.d): the tests start what they need
    themselves. A policy of the machine's own stays as it is."""
    try:
        with POLICY.open("x") as handle:
            handle.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


def disable_services(packages: list[str]) -> None:
    """Nor do the services of these packages start at the next boot."""
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout.splitlines()
    units = sorted({Path(path).name for path in listed if fnmatch(path, "*/lib/systemd/system/*.service")})
    units = [unit for unit in units if "@" not in unit]
    if units and shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", "--quiet", *units], capture_output=True, check=False)


def run_in(environment: Path, command: list[str]) -> int:
    binaries = environment / "bin"
    settings = dict(
        os.environ, PATH="%s%s%s" % (binaries, os.pathsep, os.environ.get("PATH", "")), VIRTUAL_ENV=str(environment)
    )
    # Ansible refuses to start where Python would decode file names as ASCII.
    if "utf" not in (settings.get("LC_ALL") or settings.get("LC_CTYPE") or settings.get("LANG") or "").lower():
        settings["LC_ALL"] = "C.UTF-8"
    return subprocess.run([str(binaries / command[0]), *command[1:]], cwd=ROOT, env=settings, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
