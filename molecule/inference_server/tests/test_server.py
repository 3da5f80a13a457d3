"""What the role left: a server that serves, under its own user.

Its secrets stand in one file that only root reads.
"""

from __future__ import annotations

import os
from typing import Any

import testinfra.utils.ansible_runner

testinfra_hosts = testinfra.utils.ansible_runner.AnsibleRunner(os.environ["MOLECULE_INVENTORY_FILE"]).get_hosts("all")
SECRET = 'molecule"secret$1'  # noqa: S105  made for this scenario


def test_it_serves(host: Any) -> None:
    code = (
        "import sys, urllib.request as u; headers = {'Authorization': 'Bearer ' + sys.stdin.read()};"
        "print(u.urlopen(u.Request('http://127.0.0.1:8000/v1/models', headers=headers)).read().decode())"
    )
    done = host.run("printf %%s '%s' | python3 -c \"%s\"" % (SECRET, code))
    assert '"glm-5"' in done.stdout, done.stderr


def test_its_secret_stands_in_one_file_only(host: Any) -> None:
    assert host.run("grep -rlF 'secret$1' /etc").stdout.split() == ["/etc/inference-server/secrets.env"]
    assert host.file("/var/log/inference-server").mode == 0o750  # the engine writes its arguments there
    assert host.file("/etc/inference-server/secrets.env").mode == 0o600
    assert not host.file("/etc/inference-server/secrets.env.new").exists


def test_its_user_is_its_own_and_its_limits_are_high(host: Any) -> None:
    pid = host.run("systemctl show inference-server --property=MainPID --value").stdout.strip()
    assert host.run("stat -c %%U /proc/%s" % pid).stdout.strip() == "inference"
    # What a container's processes get is bounded by its own hard limits; the unit asks for all of it.
    assert host.run("systemctl show inference-server --property=LimitMEMLOCK --value").stdout.strip() == "infinity"
    assert host.run("systemctl show inference-server --property=LimitNOFILE --value").stdout.strip() == "1048576"


def test_values_reach_the_process_as_they_are_written(host: Any) -> None:
    pid = host.run("systemctl show inference-server --property=MainPID --value").stdout.strip()
    environment = host.run("tr '\\0' '\\n' < /proc/%s/environ" % pid).stdout
    assert 'ODD=a "quoted" $value of 50 %\n' in environment
    words = host.run("tr '\\0' '\\n' < /proc/%s/cmdline" % pid).stdout
    assert "--api-key\n%s\n" % SECRET in words


def test_nothing_of_the_configuration_that_failed_is_left(host: Any) -> None:
    assert "oom_graphs" not in host.file("/etc/systemd/system/inference-server.service").content_string
    assert host.service("inference-server").is_enabled


def test_its_log_is_rotated(host: Any) -> None:
    assert "copytruncate" in host.file("/etc/logrotate.d/inference-server").content_string
