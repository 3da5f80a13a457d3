"""What holds for all tests.

module_utils under the name that Ansible gives it, two tiers, names of cases, no skips where none may be.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import ansible.module_utils
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
# Where the environment forbids to keep compiled Python, each playbook run of the tests would compile 187 files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The modules of library/, imported by name: `import gpu_facts`.
sys.path.insert(0, str(ROOT / "library"))


# How fast a machine makes examples says nothing of the code that is tested.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
LONGEST_ID = 100
# What `make test` runs: it needs nothing but Python and git, and changes nothing of the machine.
FAST_FOLDERS = ("unit", "checks", "e2e", "samples")
SLOW_MARKS = {"hosts", "vm", "browser", "engine", "gpu", "slow"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["fast", "rest", "all"],
        default="all",
        help="fast: `make test`; rest: what `make test-all` adds",
    )
    parser.addoption(
        "--degrade-all", action="store_true", help="tests/checks: degrade every record of every host, not a sample"
    )
    parser.addoption(
        "--few-ways", action="store_true", help="tests/checks: degrade each record in as few ways as `make test` does"
    )
    parser.addoption("--write-known", action="store_true", help="tests/checks: write degraded_known.json anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier == "all":
        return
    left_out = [item for item in items if is_fast(item) != (tier == "fast")]
    items[:] = [item for item in items if is_fast(item) == (tier == "fast")]
    config.hook.pytest_deselected(items=left_out)


def is_fast(item: pytest.Item) -> bool:
    folder = item.path.relative_to(ROOT / "tests").parts[0] if item.path.is_relative_to(ROOT / "tests") else ""
    return folder in FAST_FOLDERS and not SLOW_MARKS & {mark.name for mark in item.iter_markers()}


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """The name of a case that is a megabyte of hostile text is its beginning.

    Every worker sends the names of all tests to the others.
    """
    if not isinstance(val, (str, bytes)) or len(val) <= LONGEST_ID:
        return None
    shown = val.decode("latin-1") if isinstance(val, bytes) else val
    return "%s...%d" % (shown[:LONGEST_ID], len(val))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The counts of what could not be read (tests/checks/test_degraded.py), of all workers together."""
    counts: collections.Counter[str] = collections.Counter()
    violations: dict[str, list[str]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(getattr(report, "user_properties", ()))
            counts.update(properties.get("degradations") or {})
            for reader, lines in (properties.get("violations") or {}).items():
                violations.setdefault(reader, []).extend(lines)
    if counts:
        words = ", ".join("%d %s" % (counts[name], name) for name in counts if name != "tried")
        terminalreporter.write_line("degradations: %d tried, of which %s" % (counts["tried"], words))
    if config.getoption("--write-known"):
        text = json.dumps({reader: sorted(lines) for reader, lines in sorted(violations.items())}, indent=1)
        (ROOT / "tests" / "checks" / "degraded_known.json").write_text(text + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a machine must be able to run everything (continuous integration), a skipped test is a failed one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("GPU_HOST_TESTS_FORBID_SKIPS"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = "skipped where nothing may be skipped: %s" % reason
    return report
