"""Facts of the GPUs: how nvidia-smi ended, which GPUs are lost, and the lists of what stands out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import gpus
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, HUNG, OK, TIMEOUT, Outcome
from ansible.module_utils.gpu_host.smi.gpu_findings import LISTS
from smi_host import block, evidence, gathered, xml

XML, TEXT, TABLE, INDEX = gpus.XML, gpus.TEXT, gpus.TABLE, gpus.INDEX
WHERE = "0000:01:00.0"
# Elements of a block that is not well.
TWO_MEMORIES = (
    "<volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity>"
    "<dram_uncorrectable>2</dram_uncorrectable></volatile>"
)
REPAIR_DUE = (
    "<volatile><dram_uncorrectable>0</dram_uncorrectable></volatile>"
    "<channel_repair_pending>Yes</channel_repair_pending>"
)
ECC_GOES_OFF = "<current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc>"
ROW_WAITS = "<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>"
BRAKE = "<clocks_event_reason_hw_power_brake_slowdown>Active</clocks_event_reason_hw_power_brake_slowdown>"
TOO_HOT = "<gpu_temp>91 C</gpu_temp><gpu_temp_max_gpu_threshold>88 C</gpu_temp_max_gpu_threshold>"


def one(**elements: str) -> dict[str, Any]:
    """Facts of a host with one GPU."""
    facts, _problems = gathered({XML: xml(block(**elements))})
    return facts


def test_every_list_is_empty_for_a_healthy_gpu() -> None:
    facts, problems = gathered({XML: xml(block())})
    assert [facts[name] for name in LISTS] == [[]] * len(LISTS)
    assert facts["lost"] == [] and facts["idle"] is True and facts["differing"] == [] and problems == []


@pytest.mark.parametrize(
    ("name", "element", "text", "details"),
    [
        ("recovery_needed", "gpu_recovery_action", "Reset", {"action": "Reset"}),
        ("recovery_needed", "serial", "GPU requires reset", {"action": "Reset"}),
        ("ecc_errors", "ecc_errors", TWO_MEMORIES, {"uncorrectable": 3}),
        ("ecc_errors", "ecc_errors", REPAIR_DUE, {"channel_repair_pending": True}),
        ("ecc_change_pending", "ecc_mode", ECC_GOES_OFF, {"pending": False}),
        ("remapping_unfinished", "remapped_rows", ROW_WAITS, {"pending": True}),
        ("remapping_unfinished", "retired_pages", "<pending_retirement>Yes</pending_retirement>", {"pending": True}),
        ("slowed", "clocks_throttle_reasons", "", None),
        ("slowed", "clocks_event_reasons", BRAKE, {"reasons": ["hw_power_brake_slowdown"]}),
        ("hot", "temperature", TOO_HOT, {"temperature_c": 91, "limit_c": 88}),
        ("hot", "temperature", "<gpu_temp>85 C</gpu_temp><gpu_temp_tlimit>-1 C</gpu_temp_tlimit>", {"margin_c": -1}),
        ("mig_enabled", "mig_mode", "<current_mig>Enabled</current_mig>", {}),
        ("compute_mode_restricted", "compute_mode", "Prohibited", {"compute_mode": "Prohibited"}),
        ("persistence_off", "persistence_mode", "Disabled", {}),
        (
            "bar1_smaller_than_memory",
            "bar1_memory_usage",
            "<total>256 MiB</total>",
            {"bar1_mib": 256, "memory_mib": 46068},
        ),
        ("fabric_not_ready", "fabric", "<state>In Progress</state><status>N/A</status>", {"state": "In Progress"}),
        ("fabric_not_ready", "fabric", "<state>Completed</state><status>Failure</status>", {"status": "Failure"}),
    ],
)
def test_what_stands_out(name: str, element: str, text: str, details: dict[str, Any] | None) -> None:
    found = one(**{element: text})[name]
    if details is None:
        assert found == []
    else:
        assert found is not None and len(found) == 1
        assert {"address": WHERE, "index": 0, **details}.items() <= found[0].items()


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("recovery_needed", {"gpu_recovery_action": "Unknown Error"}),
        ("ecc_errors", {"ecc_errors": "<volatile><dram_uncorrectable>ERR!</dram_uncorrectable></volatile>"}),
        (
            "ecc_change_pending",
            {"ecc_mode": "<current_ecc>Enabled</current_ecc><pending_ecc>Unknown Error</pending_ecc>"},
        ),
        ("remapping_unfinished", {"remapped_rows": "Unknown Error"}),
        (
            "slowed",
            {
                "clocks_event_reasons": "<clocks_event_reason_hw_slowdown>Unknown "
                "Error</clocks_event_reason_hw_slowdown>"
            },
        ),
        ("slowed", {"clocks_event_reasons": "absent"}),
        ("hot", {"temperature": "<gpu_temp>ERR!</gpu_temp>"}),
        ("mig_enabled", {"mig_mode": "absent"}),
        ("compute_mode_restricted", {"compute_mode": "Insufficient Permissions"}),
        ("persistence_off", {"persistence_mode": "ERR!"}),
        ("width_reduced", {"pci": "absent"}),
        ("bar1_smaller_than_memory", {"bar1_memory_usage": "<total>Unknown Error</total>"}),
        ("fabric_not_ready", {"fabric": "<state>Unknown Error</state>"}),
        ("unlicensed", {"gpu_virtualization_mode": "<virtualization_mode>VGPU</virtualization_mode>"}),
    ],
)
def test_what_cannot_be_judged_is_unknown_never_good(name: str, elements: dict[str, str]) -> None:
    assert one(**elements)[name] is None


def link(now: str, most: str, *, host: str = "5", width: str = "16x", width_max: str = "16x") -> str:
    return (
        "<pci_gpu_link_info><pcie_gen><max_link_gen>%s</max_link_gen><current_link_gen>%s</current_link_gen><max_device_link_gen>6</max_device_link_gen>"
        "<max_host_link_gen>%s</max_host_link_gen></pcie_gen><link_widths><max_link_width>%s</max_link_width>"
        "<current_link_width>%s</current_link_width></link_widths></pci_gpu_link_info>"
        % (most, now, host, width_max, width)
    )


BUSY = "<gpu_util>90 %</gpu_util>"


@pytest.mark.parametrize(
    ("text", "use", "state", "found"),
    [
        (link("1", "5"), "<gpu_util>0 %</gpu_util>", "P8", []),  # an idle link saves power
        (link("1", "5"), BUSY, "P8", []),  # and so it may in P8
        (link("5", "5", host="N/A"), BUSY, "P0", []),
        (
            link("5", "5", host="0"),
            BUSY,
            "P0",
            [],
        ),  # Host Max 0 says nothing; Device Max 6 is what the card alone could do
        (link("4", "5"), BUSY, "P0", [(4, 5)]),
        (link("3", "5", host="4"), BUSY, "P2", [(3, 4)]),
        (link("4", "5", host="4"), BUSY, "P0", []),
        (link("N/A", "5"), BUSY, "P0", None),
        (link("5", "N/A"), BUSY, "P0", None),
    ],
)
def test_generation_is_judged_under_load_only(
    text: str, use: str, state: str, found: list[tuple[int, int]] | None
) -> None:
    seen = one(pci=text, utilization=use, performance_state=state)["generation_reduced"]
    assert (None if seen is None else [(gpu["generation"], gpu["generation_max"]) for gpu in seen]) == found


def test_width_is_judged_at_any_time() -> None:
    facts = one(pci=link("1", "5", width="8x"), performance_state="P8")
    assert [(gpu["width"], gpu["width_max"]) for gpu in facts["width_reduced"]] == [(8, 16)]
    assert facts["link_width_lowest"] == 8
    facts = one(pci=link("N/A", "N/A", width="N/A", width_max="N/A"))
    assert facts["width_reduced"] is None and facts["link_reported"] is False and facts["link_width_lowest"] is None


def test_a_vgpu_has_neither_link_nor_bar1_to_judge() -> None:
    licence = "<license_status>Unlicensed (Unrestricted)</license_status>"
    facts = one(
        gpu_virtualization_mode="<virtualization_mode>VGPU</virtualization_mode>",
        pci=link("N/A", "N/A", width="N/A", width_max="N/A"),
        bar1_memory_usage="<total>256 MiB</total>",
        vgpu_software_licensed_product=licence,
    )
    assert facts["width_reduced"] == [] and facts["bar1_smaller_than_memory"] == []
    assert facts["vgpu_present"] is True and facts["unlicensed"][0]["license"] == "Unlicensed (Unrestricted)"


def test_a_lost_gpu_is_lost_and_nothing_else() -> None:
    lost = block(
        "00000000:02:00.0",
        temperature="<gpu_temp>GPU is lost</gpu_temp>",
        remapped_rows="GPU is lost",
        fabric="<state>GPU is lost</state>",
    )
    facts, problems = gathered({XML: xml(block() + lost, attached=2)})
    assert facts["lost"] == [
        {"address": "0000:02:00.0", "index": 1, "label": "GPU 1 (0000:02:00.0)", "reason": "GPU is lost"}
    ]
    assert (facts["attached"], facts["parsed"], facts["count"]) == (2, 2, 1)
    assert facts["hot"] == [] and facts["fabric_not_ready"] == [], "the others are judged without it"
    assert facts["idle"] is None
    assert problems == ["0000:02:00.0 is lost: its values cannot be read"]


def test_a_gpu_that_cannot_be_opened_is_lost() -> None:
    said = "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\n"
    answer = Outcome(XML, OK, rc=0, stdout=(said + xml(block(), attached=2)).encode())
    facts, _problems = gathered({XML: answer})
    assert facts["lost"] == [
        {"index": 1, "address": "0000:34:00.0", "label": "GPU 1 (0000:34:00.0)", "reason": "Unknown Error"}
    ]
    assert facts["count"] == 1 and facts["answered"] is True
    said = (
        "Unable to determine the device handle for GPU 0000:34:00.0: GPU is lost.  Reboot the system to recover "
        "this GPU\n"
    )
    facts, _problems = gathered({XML: Outcome(XML, OK, rc=15, stdout=b"", stderr=said.encode())})
    assert (
        facts["answered"] is False
        and facts["exit_meaning"] == "a GPU has fallen off the bus"
        and "Unable to determine" in facts["message"]
    )


@pytest.mark.parametrize(
    ("text", "code", "meaning"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            9,
            "the NVIDIA driver is not loaded",
        ),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
            18,
            "library and kernel module are of different versions",
        ),
        ("Failed to initialize NVML: Unknown Error\n", 255, "other error"),
    ],
)
def test_a_failure_is_told_in_its_own_words(text: str, code: int, meaning: str) -> None:
    facts, problems = gathered({XML: Outcome(XML, OK, rc=code, stdout=text.encode())})
    assert (facts["installed"], facts["answered"], facts["exit_code"], facts["exit_meaning"]) == (
        True,
        False,
        code,
        meaning,
    )
    first_line = text.partition("\n")[0]
    assert facts["message"] == first_line
    assert facts["count"] is None and problems == ["exit code %d: %s" % (code, first_line)]


def test_no_devices_is_an_answer() -> None:
    facts, _problems = gathered({XML: Outcome(XML, OK, rc=6, stdout=b"No devices were found\n")})
    assert (facts["answered"], facts["count"], facts["complete"], facts["devices"]) == (True, 0, True, {})


@pytest.mark.parametrize("status", [TIMEOUT, HUNG])
def test_a_hang_is_a_finding_and_nothing_more_is_run(status: str) -> None:
    class OneHang:
        ran = 0

        def run(self, argv: tuple[str, ...], timeout: float = 0) -> Outcome:
            OneHang.ran += argv != INDEX
            return Outcome(argv, status, reason="no answer within 30 s")

    facts = gpus.gather(OneHang(), Errors("gpus"))  # type: ignore[arg-type]
    assert facts["hung"] is True and facts["answered"] is False and facts["count"] is None
    assert OneHang.ran == 1


def test_not_installed_is_not_not_captured() -> None:
    facts, problems = gathered({XML: Outcome(XML, ABSENT, reason="no program nvidia-smi on the search path")})
    assert facts["installed"] is False and facts["answered"] is False and facts["count"] is None and problems
    facts, problems = gathered({})
    assert facts["installed"] is None and facts["answered"] is None and problems == ["not captured in this bundle"]


def test_the_query_gives_the_index_where_a_gpu_is_missing_in_between() -> None:
    rows = "index, pci.bus_id, uuid\n0, 00000000:01:00.0, GPU-1\n2, 00000000:03:00.0, GPU-3\n"
    facts, _problems = gathered({XML: xml(block() + block("00000000:03:00.0"), attached=2), INDEX: rows})
    assert [gpu["index"] for gpu in facts["devices"].values()] == [0, 2]
    assert gpus.read_indices(evidence({INDEX: rows})) == {0: "0000:01:00.0", 2: "0000:03:00.0"}
    assert gpus.read_indices(evidence({XML: xml(block())})) == {0: "0000:01:00.0"}
    assert gpus.read_indices(evidence({XML: xml(block(), attached=2)})) == {}, (
        "with a GPU missing, the order of the blocks tells nothing"
    )


def test_mixed_gpus_differ() -> None:
    other = block(
        "00000000:02:00.0", product_name="NVIDIA L4", fb_memory_usage="<total>23034 MiB</total><used>0 MiB</used>"
    )
    facts, _problems = gathered({XML: xml(block() + other, attached=2)})
    assert facts["differing"] == ["models", "memory_sizes_mib"]
    assert facts["models"] == ["NVIDIA L4", "NVIDIA L40S"]


@pytest.mark.parametrize(
    ("elements", "idle"),
    [
        ({}, True),
        ({"utilization": BUSY}, False),
        (
            {"fb_memory_usage": "<total>46068 MiB</total><used>40000 MiB</used>"},
            False,
        ),  # a container does not see its neighbours' processes
        ({"processes": "<process_info><pid>1</pid><type>C</type></process_info>"}, False),
        ({"processes": "<process_info><pid>1</pid><type>G</type></process_info>"}, True),
        ({"processes": "absent"}, None),
        ({"utilization": "<gpu_util>ERR!</gpu_util>"}, None),
        ({"utilization": "<gpu_util>N/A</gpu_util>"}, True),  # MIG shows no utilisation; processes and memory decide
    ],
)
def test_idle_only_if_seen_to_be(elements: dict[str, str], idle: bool | None) -> None:
    assert one(**elements)["idle"] is idle


TABLE_TEXT = """\
Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:16:00.0 Off |                  Off |
|ERR!   87C    P1            299W /  300W |   88450MiB /  97887MiB |    100%   E. Process |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
"""


def test_the_table_is_better_than_nothing() -> None:
    facts, _problems = gathered({TABLE: TABLE_TEXT})
    gpu = facts["devices"]["0000:16:00.0"]
    assert facts["lost"] == [
        {"index": 1, "address": "0000:34:00.0", "label": "GPU 1 (0000:34:00.0)", "reason": "Unknown Error"}
    ]
    assert (facts["driver_version"], facts["count"]) == ("610.43.02", 1)
    assert (gpu["name"], gpu["fan_percent"], gpu["ecc"], gpu["compute_mode"], gpu["power_draw_w"]) == (
        None,
        None,
        False,
        "Exclusive_Process",
        299,
    )
    assert facts["idle"] is False and facts["slowed"] is None and facts["width_reduced"] is None
    cut, _problems = gathered({TABLE: TABLE_TEXT[: TABLE_TEXT.rindex("\n+---")]})
    assert cut["count"] is None and cut["complete"] is False


def test_csv_columns_go_by_name() -> None:
    text = "name, pci.bus_id, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%], kmd_version\n"
    text += "NVIDIA L40S, 00000000:01:00.0, 3, 5 MiB, [N/A], [N/A], 610.43.02\n"
    facts, _problems = gathered({INDEX: text})
    gpu = facts["devices"][WHERE]
    assert (gpu["index"], gpu["memory_used_mib"], gpu["memory_total_mib"], gpu["utilization_percent"]) == (
        3,
        5,
        "n/a",
        "n/a",
    )
    assert facts["driver_version"] == "610.43.02"
