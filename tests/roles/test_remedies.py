"""Every remedy that a systemd host can take: the host is broken, the printed commands are typed, and the check passes.

They are typed as printed, in a shell over SSH, and then once more: a command may be repeated. The host is a recorded
machine laid over a real one (tests/hosts/recorded_machine.py); what it breaks stands in remedies_run.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "hosts"), str(ROOT / "tests" / "roles")]
import recorded_machine  # type: ignore[import-not-found]
import remedies_run  # type: ignore[import-not-found]
from ansible.module_utils.gpu_checks import remedy_commands

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("remedies")]
COUNT = {"gpus": {"count": 8}}


@pytest.fixture(scope="module")
def host(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return recorded_machine.RecordedMachine(make_host, "remedies", tmp_path_factory.mktemp("remedies") / "m", "bare-metal")


def wished(expected: dict[str, Any]) -> dict[str, Any]:
    return {**COUNT, **expected, "gpus": {**COUNT["gpus"], **expected.get("gpus", {})}}


def type_commands(host: Any, check: str, remedy: dict[str, Any], attempt: str) -> bool:
    """Whether a reboot is among them, which is left to the end."""
    for command in remedy["commands"]:
        if command == "reboot":
            continue
        done = host.ssh(command, check=False)
        text = "%s, typed %s: %s\n%s%s" % (check, attempt, command, done.stdout, done.stderr)
        if remedy_commands.find_changes(command):
            assert done.returncode == 0, text
        assert "command not found" not in done.stderr or "lspci" in command, text
    return "reboot" in remedy["commands"]


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(remedies_run.ROUNDS)), ids=[each.name for each in remedies_run.ROUNDS])
def test_the_printed_commands_mend_what_was_broken(host: Any, number: int) -> None:
    each = remedies_run.ROUNDS[number]
    expected = wished(each.expected)
    for command in each.breaks:
        host.ssh(command)
    if each.then:
        host.boot()
    for command in each.then:
        host.ssh(command)
    before = host.results(gpu_host_expected=expected)
    statuses = {check: (before[check]["status"], before[check].get("found"), before[check].get("reason")) for check in each.remedies}
    late = {"gpu_ecc_change_not_pending"} if each.name == "a wish of the inventory" else set()  # comes of the first
    assert {check for check, (status, *_) in statuses.items() if status != "fail"} <= late, statuses
    chosen = {check: before[check]["remedy"]["number"] for check in each.remedies if check not in late}
    assert chosen == {check: wanted for check, wanted in each.remedies.items() if check not in late}
    reboots = False
    for check in each.remedies:
        if check in late:
            before = host.results(gpu_host_expected=expected)
            assert before[check]["status"] == "fail", "what waits for a reset is found"
        for attempt in ("once", "twice"):
            reboots = type_commands(host, check, before[check]["remedy"], attempt) or reboots
    if reboots:
        host.reboot()
    after = host.results(gpu_host_expected=expected)
    bad = {check: (after[check]["status"], after[check].get("found")) for check in each.remedies if after[check]["status"] != "pass"}
    assert not bad, bad


def test_what_was_replaced_was_saved(host: Any) -> None:
    """Runs after the rounds: the files that they replaced are beside the new ones."""
    kept = host.ssh("ls -a /etc/modprobe.d /etc/sysctl.d /etc/default/grub.d /etc/systemd/system.conf.d", check=False).stdout
    assert re.search(r"zz-passthrough\.conf\.before", kept) and re.search(r"vfio\.conf\.before", kept), kept
    assert "install nvidia /bin/false" in host.ssh("cat /etc/modprobe.d/zz-passthrough.conf.before").stdout
