"""A server over two systemd hosts: the stand-in engine, whose ranks meet over TCP between the hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from ssh_host import PLAYBOOK, ask_over_ssh, describe_connection, run_over_ssh

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("servers")]
NAMES = ("rank-a", "rank-b")
STATE = "/var/lib/inference-server"
QUICK = ("-e", '{"inference_server_validate": false}')
PREPARE = r"""
mkdir -p /srv/venv/bin /srv/models/glm
ln -sfn /usr/bin/python3 /srv/venv/bin/python
echo '{"model_type": "glm_moe_dsa"}' > /srv/models/glm/config.json
cat > /usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
# One GPU, also before the stand-in has started for the first time.
STANDIN_STATE=/var/lib/inference-server
[ -e $STANDIN_STATE/gpus.csv ] || case "$*" in
  *query-gpu*) echo '00000000:01:00.0, 0, 0, 97887, 0, 82.00, 600.00, P0'; exit ;;
  *) exit ;;
esac
export STANDIN_STATE
exec /srv/engine/bin/nvidia-smi "$@"
END
chmod 755 /usr/local/bin/nvidia-smi
"""
VARIABLES: dict[str, Any] = {
    "inference_server_group": "serve_glm",
    "inference_server_venv": "/srv/venv",
    "inference_server_model": "/srv/models/glm",
    "inference_server_served_name": "glm-5",
    "inference_server_port": 8000,
    "inference_server_arguments": {"tp": 2, "enable-metrics": True},
    "inference_server_environment": {"PYTHONPATH": "/srv/engine", "STANDIN_SPEED": 60, "STANDIN_STATE": STATE},
    "inference_server_poll_interval": 0.5,
    "inference_server_patience_scale": 0.1,
}


class Group:
    """Both hosts in one inventory."""

    def __init__(self, hosts: dict[str, dict[str, Any]], work: Path) -> None:
        self.hosts, self.work = hosts, work
        self.inventory = work / "inventory.yml"

    def run(self, *arguments: str, book: str = "server_group.yml", **by_host: dict[str, Any]) -> tuple[int, str]:
        """(exit status, what was printed); `by_host` are variables of single hosts, - of their names as _."""
        hosts = {
            name: {**describe_connection(host), **by_host.get(name.replace("-", "_"), {})}
            for name, host in self.hosts.items()
        }
        self.inventory.write_text(yaml.safe_dump({"serve_glm": {"hosts": hosts, "vars": VARIABLES}}))
        environment = {
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1", "ANSIBLE_NOCOLOR": "1",
            "GPU_HOST_REPORTS_DIR": str(self.work / "reports"),
        }  # fmt: skip
        environment.pop("ANSIBLE_FORCE_COLOR", None)
        done = subprocess.run(
            [PLAYBOOK, "-i", str(self.inventory), str(ROOT / book), *arguments], cwd=ROOT, env=environment,
            timeout=900, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def ask(self, name: str, command: str) -> str:
        return ask_over_ssh(self.hosts[name], command).strip()

    def pids(self) -> list[str]:
        return [self.ask(name, "systemctl show inference-server --property=MainPID --value") for name in NAMES]

    def serves(self) -> bool:
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/health', timeout=5).status)"
        return all(run_over_ssh(self.hosts[name], 'python3 -c "%s"' % code).stdout.strip() == "200" for name in NAMES)


@pytest.fixture(scope="module")
def group(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Group:
    mount = "--bind-ro=%s:/srv/engine" % (ROOT / "tests" / "fixtures" / "engine")
    hosts = {name: make_host(name, "bookworm", mount) for name in NAMES}
    for host in hosts.values():
        ask_over_ssh(host, "sh -s", PREPARE)
    return Group(hosts, tmp_path_factory.mktemp("ranks"))


def test_one_host_of_a_group_is_refused(group: Group) -> None:
    code, text = group.run("-l", "rank-b")
    assert code == 2, text
    assert "This host is rank 1 of serve_glm, whose hosts start, stop and roll back together." in text
    assert "Not in this run: rank-a" in text
    assert group.ask("rank-b", "getent passwd inference || true") == "", "something was changed"


def test_the_ranks_start_in_order_and_stay(group: Group) -> None:
    code, text = group.run()  # which ends with the checks of the server on both hosts
    assert code == 0, text[-6000:]
    assert 0 < text.index("Start rank 0") < text.index("Start the other ranks")
    assert "All 2 hosts are ready" in text
    assert "is missing" not in text
    assert group.serves()
    before = group.pids()
    assert "--node-rank 1" in group.ask("rank-b", "tr '\\0' ' ' < /proc/%s/cmdline" % before[1])
    assert '"GLOO_SOCKET_IFNAME=host0"' in group.ask("rank-b", "cat /etc/systemd/system/inference-server.service")
    code, text = group.run(*QUICK)
    assert code == 0, text[-6000:]
    assert text.count("changed=0") == 2
    assert group.pids() == before


def test_a_rank_that_fails_is_named_and_both_hosts_go_back(group: Group) -> None:
    broken = {**VARIABLES["inference_server_environment"], "STANDIN_SCENARIO": "oom_graphs"}
    code, text = group.run(*QUICK, rank_b={"inference_server_environment": broken})
    assert code == 2, text[-3000:]
    named = "The new configuration did not come up. rank 1 (rank-b) is missing: failed: no memory was left to capture"
    assert named in text, text[-6000:]
    assert "Ended with it: rank 0 (rank-a)." in text
    assert text.count("The former configuration is back, and serves.") >= 2
    assert group.serves()
    for name in NAMES:
        assert "oom_graphs" not in group.ask(name, "cat /etc/systemd/system/inference-server.service")


def test_a_rank_that_goes_later_is_seen_on_rank_0(group: Group) -> None:
    group.ask("rank-b", "systemctl stop inference-server")
    group.ask("rank-a", "for i in $(seq 100); do systemctl is-active -q inference-server && sleep 0.1 || break; done")
    group.ask("rank-a", "systemctl restart inference-server; sleep 3")
    code, text = group.run("--tags", "server", book="validate.yml")
    assert code == 2, text[-3000:]
    assert "NOT READY rank-a: 2 failed: server_hosts_complete, server_ready" in text
    assert "1 of 1 other hosts are not connected to" in text
    assert "NOT READY rank-b: 1 failed: server_started" in text
