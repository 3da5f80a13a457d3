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
ln -sfn /srv/engine_ray/bin/ray /srv/venv/bin/ray
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


# vLLM 0.10, which has no --nnodes.
BY_RAY: dict[str, Any] = {
    **VARIABLES,
    "inference_server_engine": "vllm",
    "inference_server_arguments": {"tensor-parallel-size": 2},
    "inference_server_environment": {
        "PYTHONPATH": "/srv/engine_ray:/srv/engine", "STANDIN_SPEED": 60, "STANDIN_STATE": STATE,
    },
}  # fmt: skip


class Group:
    """Both hosts in one inventory."""

    def __init__(self, hosts: dict[str, dict[str, Any]], work: Path, variables: dict[str, Any]) -> None:
        self.hosts, self.work, self.variables = hosts, work, variables
        self.inventory = work / "inventory.yml"

    def run(self, *arguments: str, book: str = "server_group.yml", **by_host: dict[str, Any]) -> tuple[int, str]:
        """(exit status, what was printed); `by_host` are variables of single hosts, - of their names as _."""
        hosts = {
            name: {**describe_connection(host), **by_host.get(name.replace("-", "_"), {})}
            for name, host in self.hosts.items()
        }
        self.inventory.write_text(yaml.safe_dump({"serve_glm": {"hosts": hosts, "vars": self.variables}}))
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
        return [self.ask(name, "systemctl show inference-server --property=MainPID --value") for name in self.hosts]

    def serves(self, *names: str) -> bool:
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/health', timeout=5).status)"
        return all(
            run_over_ssh(self.hosts[name], 'python3 -c "%s"' % code).stdout.strip() == "200"
            for name in names or self.hosts
        )


def make_group(
    make_host: Callable[..., dict[str, Any]], work: Path, names: tuple[str, ...], variables: dict[str, Any]
) -> Group:
    mounts = ["--bind-ro=%s:/srv/%s" % (ROOT / "tests" / "fixtures" / one, one) for one in ("engine", "engine_ray")]
    hosts = {name: make_host(name, "bookworm", *mounts) for name in names}
    for host in hosts.values():
        ask_over_ssh(host, "sh -s", PREPARE)
    return Group(hosts, work, variables)


@pytest.fixture(scope="module")
def group(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Group:
    return make_group(make_host, tmp_path_factory.mktemp("ranks"), NAMES, VARIABLES)


@pytest.fixture(scope="module")
def ray_group(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Group:
    return make_group(make_host, tmp_path_factory.mktemp("ray"), ("ray-a", "ray-b"), BY_RAY)


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


def test_an_engine_without_arguments_for_several_hosts_is_started_by_ray(ray_group: Group) -> None:
    late = {**BY_RAY["inference_server_environment"], "STANDIN_SCENARIO": "late"}
    code, text = ray_group.run(ray_b={"inference_server_environment": late})  # which ends with the checks of the server
    assert code == 0, text[-6000:]
    assert "waits until Ray has a GPU for each rank; not connected yet: rank 1 (ray-b)" in text
    assert "its Ray node waits for the ranks that rank 0 will start in it" in text
    assert "All 2 hosts are ready" in text
    assert ray_group.serves("ray-a")
    first, second = (
        ray_group.ask(name, "cat /etc/systemd/system/inference-server.service") for name in ray_group.hosts
    )
    assert '--distributed-executor-backend "ray"' in first
    assert "--include-dashboard=false --disable-usage-stats" in first
    address = ray_group.hosts["ray-a"]["address"]
    assert '/srv/venv/bin/ray "start" "--address=%s:20000"' % address in second
    assert "vllm" not in second.partition("ExecStart=")[2]
    before = ray_group.pids()
    code, text = ray_group.run(*QUICK, ray_b={"inference_server_environment": late})
    assert code == 0, text[-6000:]
    assert text.count("changed=0") == 2
    assert ray_group.pids() == before


def test_a_host_whose_ray_does_not_join_is_named_and_both_go_back(ray_group: Group) -> None:
    late = {**BY_RAY["inference_server_environment"], "STANDIN_SCENARIO": "no_gcs"}
    code, text = ray_group.run(*QUICK, ray_b={"inference_server_environment": late})
    assert code == 2, text[-3000:]
    assert "rank 1 (ray-b) is missing: failed: " in text, text[-6000:]
    assert "RuntimeError: Failed to connect to GCS" in text
    assert "Ended with it: rank 0 (ray-a)." in text
    assert text.count("The former configuration is back, and serves.") >= 2
    assert ray_group.serves("ray-a")


def test_a_rank_that_fails_is_named_by_the_host_of_its_address(ray_group: Group) -> None:
    broken = {**BY_RAY["inference_server_environment"], "STANDIN_SCENARIO": "oom_graphs"}
    code, text = ray_group.run(*QUICK, ray_b={"inference_server_environment": broken})
    assert code == 2, text[-3000:]
    assert "torch.OutOfMemoryError" in text, text[-6000:]
    assert "(rank 1 (ray-b))" in text, text[-6000:]
    assert text.count("The former configuration is back, and serves.") >= 2
