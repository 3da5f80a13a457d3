"""The role on a real systemd host that is the control node: started by hand and by its timer.

One of the hosts that it validates is ready, another is not. Ansible there is that of the tests, on its own Python."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible
import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from ssh_host import SshHost, ask_over_ssh, run_over_ssh

# The release whose Python is that of the tests, so that their compiled packages work there.
RELEASES = {(3, 11): "bookworm", (3, 13): "trixie"}
UNIT = "gpu-host-validation.service"
STATE = "/var/lib/gpu-host-validation"
READY = {"gpu_host_bundle": "/opt/gpu-host-validation/tests/fixtures/hosts/h200-x2.jsonl.gz"}
PASSWORD = "open-sesame-4711"
ANSIBLE = '#!/bin/sh\nPYTHONPATH=/opt/site exec /usr/bin/python3 -m ansible playbook "$@"\n'
pytestmark = [
    pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("scheduled"),
    pytest.mark.skipif(sys.version_info[:2] not in RELEASES, reason="no test host has the Python of the tests"),
]  # fmt: skip


@pytest.fixture(scope="module")
def node(make_host: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    site = Path(ansible.__file__).parent.parent
    binds = ("--bind-ro=%s:/opt/gpu-host-validation" % ROOT, "--bind-ro=%s:/opt/site" % site)
    host = make_host("scheduled", RELEASES[sys.version_info[:2]], *binds)
    ask_over_ssh(host, "cat > /opt/ansible-playbook && chmod 755 /opt/ansible-playbook", ANSIBLE)
    write_inventory(host, {"good": READY})
    return host


def write_inventory(host: dict[str, Any], hosts: dict[str, Any]) -> None:
    text = yaml.safe_dump({"all": {"hosts": hosts}})
    ask_over_ssh(host, "mkdir -p /srv/fleet && cat > /srv/fleet/hosts.yml && chmod -R a+rX /srv/fleet", text)


def role(host: dict[str, Any], work: Path, *options: str, **variables: Any) -> tuple[int, str]:
    """(number of changed tasks, or -1 where the run failed; what was printed)."""
    there = SshHost(host, work, "control_nodes")
    settings = {
        "scheduled_validation_inventory": ["/srv/fleet/hosts.yml"],
        "scheduled_validation_ansible_playbook": "/opt/ansible-playbook",
        "scheduled_validation_on_calendar": "2040-01-01",
        **variables,
    }
    (work / "settings.json").write_text(json.dumps(settings))
    done = there.run_playbook("scheduled_validation.yml", "-e", "@%s" % (work / "settings.json"), *options)
    recap = [line for line in done.stdout.splitlines() if "changed=" in line and line.startswith(host["name"])]
    changed = int(recap[-1].partition("changed=")[2].split()[0]) if done.returncode == 0 and recap else -1
    return changed, done.stdout + done.stderr


def start(host: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return run_over_ssh(host, "systemctl reset-failed %s; systemctl start %s" % (UNIT, UNIT))


def show(host: dict[str, Any], name: str) -> str:
    return ask_over_ssh(host, "systemctl show --value -p %s %s" % (name, UNIT)).strip()


def journal(host: dict[str, Any]) -> str:
    return ask_over_ssh(host, "journalctl --no-pager -o cat -u " + UNIT)


def report(host: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(ask_over_ssh(host, "cat %s/reports/report.json" % STATE)))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"scheduled_validation_inventory": []}, "must name an inventory"),
        ({"scheduled_validation_inventory": ["/root/hosts.yml"]}, "which the unit does not see"),
        ({"scheduled_validation_inventory": ["/srv/none.yml"]}, "has no /srv/none.yml"),
        ({"scheduled_validation_project": "/srv"}, "has no /srv/validate.yml"),
    ],
)
def test_what_cannot_run_is_refused(node: dict[str, Any], tmp_path: Path, variables: dict[str, Any], said: str) -> None:
    changed, output = role(node, tmp_path, **variables)
    assert changed == -1 and said in " ".join(output.split()), output
    assert "gpu-host" not in ask_over_ssh(node, "ls /etc/systemd/system")


def test_check_mode_changes_nothing(node: dict[str, Any], tmp_path: Path) -> None:
    changed, output = role(node, tmp_path, "--check", "--diff")
    assert changed > 0 and "+ExecStart=/usr/local/sbin/gpu-host-validation-run" in output, output
    assert "gpu-host" not in ask_over_ssh(node, "ls /etc /etc/systemd/system")
    assert run_over_ssh(node, "id gpu-validation").returncode


def test_an_inventory_that_the_account_cannot_read_is_named_and_the_next_run_goes_on(
    node: dict[str, Any], tmp_path: Path
) -> None:
    ask_over_ssh(node, "chmod 700 /srv/fleet")
    changed, output = role(node, tmp_path)
    assert changed == -1 and "The account gpu-validation cannot read /srv/fleet/hosts.yml" in " ".join(output.split())
    assert run_over_ssh(node, "systemctl is-active gpu-host-validation.timer").returncode
    ask_over_ssh(node, "chmod 755 /srv/fleet")
    changed, output = role(node, tmp_path)
    assert changed > 0, output
    assert ask_over_ssh(node, "systemctl is-active gpu-host-validation.timer").strip() == "active"
    assert ask_over_ssh(node, "systemctl is-enabled gpu-host-validation.timer").strip() == "enabled"
    changed, output = role(node, tmp_path)
    assert changed == 0, output


def test_a_run_that_is_started_by_hand(node: dict[str, Any], tmp_path: Path) -> None:
    done = start(node)
    assert done.returncode == 0, journal(node)
    assert report(node)["ready"] is True and show(node, "Result") == "success"
    assert "The host is ready." in journal(node)
    owned = ask_over_ssh(node, "stat -c '%%U %%a' %s/reports/report.json %s/reports" % (STATE, STATE)).split("\n")
    assert owned[0].split()[0] == "gpu-validation" and owned[1] == "gpu-validation 750"
    assert len(ask_over_ssh(node, "ls -d %s/reports/history/*.json.gz" % STATE).split()) == 1
    exposed = ask_over_ssh(node, "systemd-analyze security --no-pager %s | tail -1" % UNIT)
    assert float(exposed.split(":")[1].split()[0]) < 3, exposed


def test_a_host_that_is_not_ready_fails_the_unit_and_is_told(node: dict[str, Any], tmp_path: Path) -> None:
    """The second host is the node itself over SSH, with the key that the role made, and a name out of a vault."""
    if run_over_ssh(node, "test -e /etc/gpu-host-validation/ssh-key").returncode:  # where this test runs alone
        role(node, tmp_path)
    key = ask_over_ssh(node, "ssh-keygen -y -f /etc/gpu-host-validation/ssh-key").strip()
    ask_over_ssh(
        node, "grep -q gpu-validation@ /root/.ssh/authorized_keys || echo '%s' >> /root/.ssh/authorized_keys" % key
    )
    known = ask_over_ssh(node, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    over_ssh = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_host": "{{ hidden }}",
    }
    write_inventory(node, {"good": READY, "empty": over_ssh})
    hidden = VaultLib([("default", VaultSecret(PASSWORD.encode()))]).encrypt(b"hidden: %s\n" % node["address"].encode())
    ask_over_ssh(node, "mkdir -p /srv/fleet/group_vars && cat > /srv/fleet/group_vars/all.yml", hidden.decode())
    more = {
        "scheduled_validation_vault_password": PASSWORD,
        "scheduled_validation_known_hosts": [" ".join([node["address"], *known])],
        "scheduled_validation_tell_command": "cat > %s/told" % STATE,
        "scheduled_validation_keep": 2,
    }
    changed, output = role(node, tmp_path, "--diff", **more)
    assert changed > 0 and PASSWORD not in output, output
    assert role(node, tmp_path, **more)[0] == 0
    assert start(node).returncode != 0
    assert (show(node, "Result"), show(node, "ExecMainStatus")) == ("exit-code", "2"), journal(node)
    hosts = report(node)["hosts"]
    assert {name: host["state"] for name, host in hosts.items()} == {"good": "ready", "empty": "not_ready"}, journal(
        node
    )
    assert UNIT in ask_over_ssh(node, "systemctl --failed --no-pager")
    told = wait_for(lambda: run_over_ssh(node, "cat %s/told" % STATE).stdout)
    assert "ended with exit status 2" in told and "1 of 2 hosts not ready" in told
    where = "/etc/systemd /usr/local/sbin /var/lib/gpu-host-validation /run/systemd/system"
    assert (
        run_over_ssh(node, "grep -rl %s %s; systemctl show %s | grep %s" % (PASSWORD, where, UNIT, PASSWORD)).stdout
        == ""
    )
    assert ask_over_ssh(node, "stat -c '%a %U' /etc/gpu-host-validation/vault-password").strip() == "600 root"


def test_a_report_of_an_earlier_run_is_no_news(node: dict[str, Any]) -> None:
    ask_over_ssh(node, "mv /srv/fleet/hosts.yml /srv/fleet/hosts.off; rm -f %s/told" % STATE)
    assert start(node).returncode != 0
    told = wait_for(lambda: run_over_ssh(node, "cat %s/told" % STATE).stdout)
    assert "No report was written. See: journalctl -u gpu-host-validation.service" in told and "# GPU" not in told
    ask_over_ssh(node, "mv /srv/fleet/hosts.off /srv/fleet/hosts.yml")


def test_a_run_that_is_ended_is_told(node: dict[str, Any]) -> None:
    ask_over_ssh(node, "rm -f %s/told; systemctl start --no-block %s" % (STATE, UNIT))
    wait_for(lambda: "activating" if show(node, "ActiveState") == "activating" else "")
    ask_over_ssh(node, "systemctl kill --signal=KILL %s" % UNIT)
    told = wait_for(lambda: run_over_ssh(node, "cat %s/told" % STATE).stdout)
    assert "was ended before it could report" in told and show(node, "Result") == "signal"


def test_two_starts_are_one_run_and_a_bounded_number_is_kept(node: dict[str, Any]) -> None:
    for _number in range(2):
        start(node)
    before = journal(node).count("check results on")
    ask_over_ssh(node, "systemctl start --no-block %s; systemctl start --no-block %s" % (UNIT, UNIT))
    run_over_ssh(node, "systemctl start %s" % UNIT)
    assert journal(node).count("check results on") == before + 1
    assert len(ask_over_ssh(node, "ls -d %s/reports/history/*.json.gz" % STATE).split()) == 2


def test_the_timer_fires(node: dict[str, Any], tmp_path: Path) -> None:
    write_inventory(node, {"good": READY})
    ask_over_ssh(node, "rm -rf /srv/fleet/group_vars")
    often = {"scheduled_validation_on_calendar": "*:*:0/5", "scheduled_validation_randomized_delay": "0"}
    fast = "mkdir -p /etc/systemd/system/gpu-host-validation.timer.d; echo '[Timer]\nAccuracySec=1s' > "
    ask_over_ssh(node, fast + "/etc/systemd/system/gpu-host-validation.timer.d/test.conf")
    started = show(node, "ExecMainStartTimestampMonotonic")
    changed, output = role(node, tmp_path, **often)
    assert changed > 0, output
    wait_for(lambda: "fired" if show(node, "ExecMainStartTimestampMonotonic") != started else "")
    role(node, tmp_path)
    wait_for(lambda: "done" if show(node, "ActiveState") == "inactive" else "")
    assert report(node)["ready"] is True and show(node, "Result") == "success", journal(node)
    assert not ask_over_ssh(node, "ls /etc/gpu-host-validation").count("vault"), "its password is no longer wanted"


def test_it_goes_again(node: dict[str, Any], tmp_path: Path) -> None:
    changed, output = role(node, tmp_path, scheduled_validation_state="absent")
    assert changed > 0, output
    left = ask_over_ssh(node, "find /etc /usr/local -name '*gpu-host-validation*' -not -name '*.timer.d'")
    assert left == "" and run_over_ssh(node, "systemctl cat " + UNIT).returncode
    assert report(node)["ready"] is True, "the reports stay"
    assert role(node, tmp_path, scheduled_validation_state="absent")[0] == 0


def wait_for(ask: Callable[[], str], seconds: float = 90) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ask()
        if found:
            return found
        time.sleep(0.5)
    pytest.fail("nothing came within %d s" % seconds)
