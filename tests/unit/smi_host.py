"""A host's nvidia-smi, as the records of a bundle: what each command printed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ansible.module_utils.gpu_host import gpus
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome

HOSTS = Path(__file__).resolve().parents[1] / "fixtures" / "hosts"
Answers = dict[tuple[str, ...], "bytes | str | Outcome"]


def evidence(answers: Answers) -> bundle.BundleEvidence:
    """A bundle that holds `answers` (standard output with exit code 0, or a whole Outcome) and nothing else."""
    records = []
    for argv, answer in answers.items():
        stdout = answer.encode() if isinstance(answer, str) else answer
        records.append(
            bundle.encode_outcome(stdout if isinstance(stdout, Outcome) else Outcome(argv, OK, rc=0, stdout=stdout))
        )
    return bundle.BundleEvidence({}, records)


def gathered(answers: Answers) -> tuple[dict[str, Any], list[str]]:
    """The facts of the GPUs, and each problem that was recorded."""
    errors = Errors("gpus")
    return gpus.gather(evidence(answers), errors), [entry["problem"] for entry in errors.entries]


@functools.cache
def host(name: str) -> bundle.BundleEvidence:
    """A recorded host of tests/fixtures/hosts."""
    return bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz")))


def printed(name: str, *argv: str) -> bytes:
    """What a command printed on a recorded host."""
    answer = host(name).run(argv)
    assert answer.ok, "%s has no %s" % (name, " ".join(argv))
    return answer.stdout


def xml(gpus_xml: str, attached: object = 1, driver: str = "595.58.03") -> str:
    """A log of ``nvidia-smi -q -x`` around the blocks of its GPUs."""
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        "<driver_version>%s</driver_version><attached_gpus>%s</attached_gpus>\n%s\n</nvidia_smi_log>\n"
        % (driver, attached, gpus_xml)
    )


def block(address: str = "00000000:01:00.0", **elements: str) -> str:
    """A ``<gpu>`` with `elements` (a path in dots, or plain text) and the rest as a healthy card has it."""
    known = {
        "product_name": "NVIDIA L40S",
        "minor_number": "0",
        "performance_state": "P0",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "addressing_mode": "None",
        "mig_mode": "<current_mig>N/A</current_mig><pending_mig>N/A</pending_mig>",
        "gpu_virtualization_mode": "<virtualization_mode>None</virtualization_mode>",
        "gpu_recovery_action": "None",
        "fb_memory_usage": "<total>46068 MiB</total><used>0 MiB</used>",
        "bar1_memory_usage": "<total>65536 MiB</total>",
        "utilization": "<gpu_util>0 %</gpu_util>",
        "temperature": "<gpu_temp>30 C</gpu_temp>",
        "gpu_power_readings": "<current_power_limit>350.00 W</current_power_limit>",
        "ecc_mode": "<current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc>",
        "ecc_errors": "<volatile><dram_uncorrectable>0</dram_uncorrectable></volatile>",
        "remapped_rows": "N/A",
        "clocks_event_reasons": "<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>",
        "pci": "<pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>4</current_link_gen>"
        "<max_host_link_gen>4</max_host_link_gen></pcie_gen><link_widths><max_link_width>16x</max_link_width>"
        "<current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info>",
        "fabric": "<state>N/A</state><status>N/A</status>",
        "processes": "",
        **elements,
    }
    return '<gpu id="%s">%s</gpu>' % (
        address,
        "".join("<%s>%s</%s>" % (name, text, name) for name, text in known.items() if text != "absent"),
    )
