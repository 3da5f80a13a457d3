"""Two hosts that serve one model together, each in a network namespace of its own, measured together by
validate.yml."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for _folder in ("unit", "hardware"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _folder))

import between_hosts as two_hosts
import nccl_standin

from .conftest import LOCAL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("between_hosts")]

CHECKS = [
    "hosts_fit_together", "hosts_connect", "hosts_all_reduce_correct", "hosts_gdr_used", "hosts_fastest_network",
    "hosts_bandwidth_fits_link",
]  # fmt: skip
EVERYWHERE = "kernel_command_line_expected"
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*mig.mode*) echo "0000{gpu}, 4, 0, Disabled";;
*power.draw*) echo "0000{gpu}, 0, 70.0, 4";;
esac
"""
INTERPRETER = """#!/bin/sh
export PATH={programs}:$PATH LD_LIBRARY_PATH={library} STANDIN_NCCL_TCP=1 STANDIN_GPUS=1 STANDIN_FREE_MIB=130 {more}
exec ip netns exec {namespace} {python} "$@"
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[two_hosts.Place]]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    with two_hosts.two_places() as made:
        if made[0].namespace is None:
            pytest.skip("network namespaces cannot be made here")
        yield made


@pytest.fixture
def fleet(places: list[two_hosts.Place], tmp_path: Path) -> Any:
    """`fleet(two="VARIABLE=value")`: an inventory of both hosts; what one is given stands in its modules'
    environment."""
    library = nccl_standin.compiled(tmp_path)

    def make(**more: str) -> dict[str, Any]:
        hosts = {}
        for place in places:
            programs = tmp_path / place.host
            programs.mkdir()
            words = {"gpu": "0000:01:00.0", "programs": programs, "library": library, "more": more.get(place.host, "")}
            for name, text in (("nvidia-smi", NVIDIA_SMI), ("python", INTERPRETER)):
                program = programs / name
                program.write_text(text.format(**words, namespace=place.namespace, python=sys.executable))
                program.chmod(0o755)
            hosts[place.host] = {**LOCAL, "ansible_python_interpreter": str(programs / "python")}
        # One check that passes on any machine, so that a host without a between-hosts result is validated at all.
        word = Path("/proc/cmdline").read_text().split()[0]
        variables = {
            "gpu_host_expected": {"kernel": {"cmdline": [word]}}, "host_validation_gather_subset": ["kernel"],
            "inference_server_group": "glm", "inference_server_rank0_address": places[0].address,
            "host_validation_probe_nccl": str(library / "libnccl.so.2"), "host_validation_only": [EVERYWHERE, *CHECKS],
            "host_validation_between_hosts_sizes": [4096, 131072], "host_validation_probe": "true",
        }  # fmt: skip
        return {"all": {"children": {"glm": {"hosts": hosts, "vars": variables}}}}

    return make


@pytest.mark.long
def test_hosts_that_serve_together_are_measured_together(play: Any, fleet: Any, tmp_path: Path) -> None:
    inventory = fleet()
    asked = play("validate.yml", inventory, probe_between_hosts=True)
    assert asked.rc == 0, asked.text
    for host in two_hosts.HOSTS:
        statuses = asked.statuses(host)
        assert [statuses[name] for name in CHECKS] == ["pass", "pass", "pass", "skip", "pass", "pass"], statuses
    assert "was not proven: no all-reduce" not in asked.text
    bundles = tmp_path / "bundles"
    assert play("capture.yml", inventory, probe_between_hosts=True, capture_dir=str(bundles)).rc == 0
    only = {"gpu_host_bundle": str(bundles / "two.jsonl.gz"), "host_validation_only": CHECKS}
    replayed = play("validate.yml", {"all": {"hosts": {"copy": only}}})
    assert [replayed.statuses("copy")[name] for name in CHECKS] == [asked.statuses("two")[name] for name in CHECKS]
    assert [path.name for path in Path("/tmp").glob("gpu-host-between-*")] == []


def test_what_was_not_asked_for_stands_on_the_first_screen(play: Any, fleet: Any) -> None:
    plain = play("validate.yml", fleet())
    assert "serves one model together with two was not proven" in plain.text
    assert "validate.yml -l glm -e probe_between_hosts=true" in plain.text


@pytest.mark.long
def test_a_host_with_another_nccl_is_named_and_nothing_runs(play: Any, fleet: Any) -> None:
    run = play("validate.yml", fleet(two="STANDIN_NCCL_VERSION=22105"), probe_between_hosts=True)
    assert run.rc == 2 and {run.statuses(host)["hosts_fit_together"] for host in two_hosts.HOSTS} == {"fail"}
    assert "the versions of NCCL differ: 2.28.9 on one" in run.text and "2.21.5 on two" in run.text


@pytest.mark.long
def test_a_host_that_is_not_in_the_run_leaves_the_others_unproven(play: Any, fleet: Any) -> None:
    run = play("validate.yml", fleet(), "-l one", probe_between_hosts=True)
    assert (
        "was not proven: no all-reduce ran between them, two was not looked at: it is not part of this run" in run.text
    )
