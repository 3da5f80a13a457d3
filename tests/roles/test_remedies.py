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
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "hosts"), str(ROOT / "tests" / "roles")]
import recorded_machine  # type: ignore[import-not-found]
import remedies_run  # type: ignore[import-not-found]
import ssh_host  # type: ignore[import-not-found]
from ansible.module_utils.gpu_checks import remedy_commands

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("remedies")]
COUNT = {"gpus": {"count": 8}}


@pytest.fixture(scope="module")
def host(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return recorded_machine.RecordedMachine(
        make_host, "remedies", tmp_path_factory.mktemp("remedies") / "m", "bare-metal"
    )


def complete_expected(expected: dict[str, Any]) -> dict[str, Any]:
    return {**COUNT, **expected, "gpus": {**COUNT["gpus"], **expected.get("gpus", {})}}


def type_commands(host: Any, check: str, remedy: dict[str, Any], attempt: str) -> bool:
    """Whether a reboot is among them, which is left to the end."""
    for command in remedy["commands"]:
        if command == "reboot":
            continue
        done = host.ssh(command, check=False)
        text = "%s, typed %s: %s\n%s%s" % (check, attempt, command, done.stdout, done.stderr)
        if remedy_commands.find_changes(command):  # one that looks may find nothing, or its program may not be there
            assert done.returncode == 0, text
    return "reboot" in remedy["commands"]


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(remedies_run.ROUNDS)), ids=[each.name for each in remedies_run.ROUNDS])
def test_the_printed_commands_mend_what_was_broken(host: Any, number: int) -> None:
    each = remedies_run.ROUNDS[number]
    expected = complete_expected(each.expected)
    for command in each.breaks:
        host.ssh(command)
    if each.then:
        host.boot()
    for command in each.then:
        host.ssh(command)
    before = host.results(gpu_host_expected=expected)
    statuses = {
        check: (before[check]["status"], before[check].get("found"), before[check].get("reason"))
        for check in each.remedies
    }
    late = (
        {"gpu_ecc_change_not_pending"} if each.name == "a mode that the inventory names" else set()
    )  # comes of the first
    unbroken = {check: found for check, found in statuses.items() if found[0] != "fail" and check not in late}
    assert not unbroken
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
    bad = {
        check: (after[check]["status"], after[check].get("found"))
        for check in each.remedies
        if after[check]["status"] != "pass"
    }
    assert not bad, bad


@pytest.mark.long
def test_what_was_replaced_was_saved(host: Any) -> None:
    """Runs after the rounds: the files that they replaced are beside the new ones."""
    kept = host.ssh("ls -a /etc/modprobe.d").stdout
    assert "zz-passthrough.conf.before" in kept and "vfio.conf.before" in kept, kept
    assert "install nvidia /bin/false" in host.ssh("cat /etc/modprobe.d/zz-passthrough.conf.before").stdout


# -- remedy.yml ----------------------------------------------------------------------------------------------------


def carry_out(host: Any, check: str, *options: str, **variables: Any) -> tuple[int, str]:
    expected = complete_expected({"modules": {"options": {"nvidia_uvm": {"uvm_disable_hmm": True}}}})
    done = host.play("remedy.yml", *options, **{"check": check, "gpu_host_expected": expected, **variables})
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def persistence(host: Any) -> set[str]:
    return set(re.findall("<persistence_mode>([^<]*)", (host.kernel / "smi.xml").read_text()))


def test_it_shows_asks_runs_and_looks_again(host: Any) -> None:
    host.ssh("sed -i 's|<persistence_mode>Enabled|<persistence_mode>Disabled|' /opt/kernel/smi.xml")
    code, said = carry_out(host, "gpu_persistence_on", "--check", gpu_host_confirm=True)
    assert code == 0 and "nvidia-smi -pm 1" in said and persistence(host) == {"Disabled"}, said
    code, said = carry_out(host, "gpu_persistence_on")
    assert code != 0 and "run again with -e gpu_host_confirm=true" in said and persistence(host) == {"Disabled"}, said
    for words in ("gpu_persistence_on fails on remedies", "stops: nothing", "it is seen by: nvidia-smi"):
        assert words in said, words
    code, said = carry_out(host, "gpu_persistence_on", gpu_host_confirm=True)
    assert code == 0 and "gpu_persistence_on passes now." in said and persistence(host) == {"Enabled"}, said
    code, said = carry_out(host, "gpu_persistence_on", gpu_host_confirm=True)
    assert code == 0 and "There is nothing to do" in said, said


@pytest.mark.long
def test_the_first_command_that_fails_ends_it(host: Any) -> None:
    host.ssh("sed -i 's|<persistence_mode>Enabled|<persistence_mode>Disabled|' /opt/kernel/smi.xml")
    host.ssh("cd /usr/local/sbin; cp -P nvidia-smi /tmp/smi; rm nvidia-smi; cat > nvidia-smi "
             "<<'END'\n#!/bin/sh\n[ \"$1\" = -pm ] && echo 'Insufficient Permissions' && exit 4\n"
             "exec /opt/programs/nvidia-smi \"$@\"\nEND\nchmod +x /usr/local/sbin/nvidia-smi")  # fmt: skip
    code, said = carry_out(host, "gpu_persistence_on", gpu_host_confirm=True)
    host.ssh("rm /usr/local/sbin/nvidia-smi; cp -P /tmp/smi /usr/local/sbin/nvidia-smi; nvidia-smi -pm 1")
    assert code != 0 and "ended with 4: nvidia-smi -pm 1. Its last lines: Insufficient Permissions" in said, said
    assert "Done before it: systemctl enable --now nvidia-persistenced" in said, said


@pytest.mark.long
def test_a_role_does_it_where_one_covers_it(host: Any) -> None:
    host.ssh("rm -f /etc/modprobe.d/*uvm*.conf /etc/modprobe.d/gpu-host*; modprobe -r nvidia_uvm; modprobe nvidia_uvm")
    code, said = carry_out(host, "uvm_hmm_disabled", gpu_host_confirm=True)
    assert code == 0 and "uvm_hmm_disabled passes now." in said, said
    assert "uvm_disable_hmm=1" in host.ssh("cat /etc/modprobe.d/gpu-host-nvidia.conf").stdout


@pytest.mark.long
def test_a_gpu_in_use_is_left_alone(host: Any) -> None:
    pending = "sed -i '0,/<pending_ecc>Enabled/s||<pending_ecc>Disabled|' /opt/kernel/smi.xml"
    # A node that can be opened, in the place of one whose driver is not there.
    host.ssh(pending + "; rm /dev/nvidia0; mknod /dev/nvidia0 c 1 3")
    host.ssh("systemd-run --quiet --unit=training sh -c 'exec sleep 600 < /dev/nvidia0'; sleep 0.5")
    before = (host.kernel / "smi.xml").read_text()
    code, said = carry_out(host, "gpu_ecc_change_not_pending", gpu_host_confirm=True)
    assert code != 0 and "are in use: sleep (pid" in said and "Nothing was changed" in said, said
    assert (host.kernel / "smi.xml").read_text() == before
    host.ssh("systemctl stop training; rm /dev/nvidia0; mknod /dev/nvidia0 c 195 0; chmod 666 /dev/nvidia0")
    code, said = carry_out(host, "gpu_ecc_change_not_pending", gpu_host_confirm=True)
    assert code == 0 and "gpu_ecc_change_not_pending passes now." in said, said


def test_an_unknown_value_changes_nothing(host: Any) -> None:
    host.ssh("echo junk > /proc/sys/kernel/numa_balancing")
    code, said = carry_out(host, "numa_balancing_off", gpu_host_confirm=True)
    host.ssh("echo 0 > /proc/sys/kernel/numa_balancing")
    assert code != 0 and "An unknown value is no reason to change a host" in said, said


@pytest.mark.long
def test_what_waits_for_a_reboot_is_said_so(host: Any) -> None:
    host.ssh("touch /run/reboot-required")
    code, said = carry_out(host, "reboot_not_pending", gpu_host_confirm=True)
    host.ssh("rm /run/reboot-required")
    assert code != 0 and "takes a reboot of remedies" in said and "gpu_host_allow_reboot=true" in said, said


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"check": "gpu_persistance_on"},
            "No check has the id 'gpu_persistance_on'; the nearest are gpu_persistence_on",
        ),
        ({"check": ""}, "Say whose remedy is wanted: -e check=ID"),
        ({"check": "gpu_persistence_on", "gpu_host_confirm": "perhaps"}, "it has to be true or false"),
        ({"check": "gpu_persistence_on", "gpu_host_bundle": "x"}, "is a recorded host"),
    ],
)
def test_input_that_is_refused(host: Any, variables: dict[str, Any], words: str) -> None:
    done = host.play("remedy.yml", **variables)
    assert done.returncode != 0 and words in " ".join((done.stdout + done.stderr).split()), done.stdout


@pytest.mark.long
def test_a_guest_that_could_not_start_again_is_not_stopped(
    host: Any, make_host: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The recorded machine as a container, and a Proxmox host whose configuration names a node that is not there."""
    pve = ROOT / "tests" / "fixtures" / "pve"
    binds = ["--bind-ro=%s:/opt/pve" % pve, "--bind-ro=%s:/opt/module_utils" % (ROOT / "module_utils")]
    other = make_host("remedies-pve", "trixie", *binds)
    inventory = yaml.safe_load(host.inventory.read_text())
    address = inventory["all"]["hosts"][host.host["name"]]
    inventory["all"]["hosts"][host.host["name"]] = {**address, "proxmox_host": "remedies-pve", "proxmox_vmid": 102}
    node = ssh_host.describe_connection(other)
    inventory["all"]["children"] = {"proxmox_hosts": {"hosts": {"remedies-pve": node}}}
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(inventory))
    script = (
        "mkdir -p /etc/pve/qemu-server /etc/pve/lxc; for t in qm pct pvesh lxc-info; do ln -s /opt/pve/bin/$t "
        "/usr/local/sbin/$t; done; printf 'hostname: ct\\ndev0: /dev/nvidia-of-nobody\\n' > /etc/pve/lxc/102.conf"
    )
    ssh_host.ask_over_ssh(other, script)
    virt = "'#!/bin/sh\\n[ \"$1\" = --vm ] && echo none && exit 1\\necho lxc\\n'"
    host.ssh("cp /usr/local/sbin/systemd-detect-virt /tmp/virt; mount -o remount,size=64M /dev/shm")
    host.ssh("printf %s > /usr/local/sbin/systemd-detect-virt" % virt)
    saved, host.inventory = host.inventory, path
    try:
        code, said = carry_out(
            host, "dev_shm_large_enough", "-l", host.host["name"], gpu_host_confirm=True, gpu_host_disrupt=True
        )
    finally:
        host.inventory = saved
        host.ssh("cp /tmp/virt /usr/local/sbin/systemd-detect-virt; mount -o remount,size=50% /dev/shm")
    assert code != 0 and "to do, on remedies-pve" in said, said
    assert "The guest would be stopped and could not start again" in said, said
    assert "dev/shm" not in ssh_host.ask_over_ssh(other, "cat /etc/pve/lxc/102.conf")
