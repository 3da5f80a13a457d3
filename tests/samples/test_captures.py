"""Every capture of the folder that GPU_HOST_SAMPLES names, read by its reader: nothing raises, and no reader has a
fault.

The folder holds KIND/NAME.txt; KINDS says which kinds there are. What the facts should be is not known here: look at
them with `ansible -m gpu_facts`, or write a fixture (CONTRIBUTING.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import gather, gpus, proxmox
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome
from ansible.module_utils.gpu_host.pve import guest_config
from ansible.module_utils.gpu_server import engines
from ansible.module_utils.gpu_server.log import log_reader
from captures import NAMED, SAMPLES, VARIABLE  # type: ignore[import-not-found]

Try = Callable[[bytes], list[dict[str, Any]]]  # the errors that name a fault of a reader


def as_command(*argvs: tuple[str, ...]) -> Try:
    """As the output of each of these commands, on a host of which nothing else is known."""

    def read(data: bytes) -> list[dict[str, Any]]:
        return [
            error
            for argv in argvs
            for error in facts_of([bundle.encode_outcome(Outcome(argv, OK, rc=0, stdout=data))])["errors"]
        ]

    return read


def as_file(path: str) -> Try:
    return lambda data: facts_of([{"read": path, "status": "ok", "text": data.decode("utf-8", "replace")}])["errors"]


def facts_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(gather.gather(bundle.BundleEvidence({"captured_at": 1.8e9}, records)))


def as_guest(folder: str) -> Try:
    def read(data: bytes) -> list[dict[str, Any]]:
        text = data.decode("utf-8", "replace")
        assert guest_config.render_config(guest_config.parse_config(text)) == text, "what is written back differs"
        records = [
            {"list": folder, "status": "ok", "entries": {"100.conf": {"kind": "file"}}},
            {"read": folder + "/100.conf", "status": "ok", "text": text},
        ]
        return list(proxmox.gather_host(bundle.BundleEvidence({"captured_at": 1.8e9}, records))["errors"])

    return read


def as_server_log(data: bytes) -> list[dict[str, Any]]:
    text = data.decode("utf-8", "replace")
    for engine in (None, engines.ENGINES["sglang"], engines.ENGINES["vllm"], engines.ENGINES["transformers"]):
        log_reader.read_log(text, 1.8e9, 0, engine) if engine else log_reader.read_log(text, 1.8e9)
    return []


KINDS: dict[str, Try] = {
    "smi_xml": as_command(gpus.XML),
    "smi_q": as_command(gpus.TEXT),
    "smi_table": as_command(gpus.TABLE),
    "smi_csv": as_command(gpus.INDEX),
    "topo_m": as_command(("nvidia-smi", "topo", "-m")),
    "topo_p2p": as_command(*(("nvidia-smi", "topo", "-p2p", letter) for letter in "rwnap")),
    "nvlink": as_command(("nvidia-smi", "nvlink", "-s")),
    "dmesg": as_command(("dmesg",)),
    "lspci": as_command(("lspci", "-vvv"), ("lspci", "-tv")),
    "cmdline": as_file("/proc/cmdline"),
    "modprobe": as_file("/etc/modprobe.d/capture.conf"),
    "pve_vm": as_guest("/etc/pve/qemu-server"),
    "pve_lxc": as_guest("/etc/pve/lxc"),
    "server_log": as_server_log,
}
CAPTURES = sorted(path for kind in KINDS for path in (SAMPLES / kind).glob("*.txt")) if NAMED else []


def test_the_folder_holds_captures() -> None:
    if not NAMED:
        pytest.skip("%s names no folder of captures" % VARIABLE)
    assert SAMPLES.is_dir(), "%s: there is no folder %s" % (VARIABLE, SAMPLES)
    assert CAPTURES, "%s holds no KIND/NAME.txt; kinds are %s" % (SAMPLES, ", ".join(KINDS))


if CAPTURES:

    @pytest.mark.parametrize("path", CAPTURES, ids=lambda path: "%s/%s" % (path.parent.name, path.stem))
    def test_a_capture_is_read_without_a_fault(path: Path) -> None:
        faults = [error for error in KINDS[path.parent.name](path.read_bytes()) if "a fault" in error["problem"]]
        assert faults == []
