"""Facts of the GPUs: how nvidia-smi ended, which GPUs are lost, and the lists of what stands out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import gpus
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import (
    ABSENT,
    HUNG,
    OK,
    TIMEOUT,
    Entry,
    Listing,
    Outcome,
    Reading,
)
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

        def list(self, path: str) -> Listing:
            return Listing(path, OK, {"4711": Entry("dir"), "self": Entry("link")})

        def read(self, path: str, limit: int = 0) -> Reading:
            files = {"stat": b"4711 (nvidia-smi) D 1 4711", "wchan": b"os_acquire_rwlock_write"}
            return Reading(path, OK, files[path.rpartition("/")[2]])

    facts = gpus.gather(OneHang(), Errors("gpus"))  # type: ignore[arg-type]
    assert facts["hung"] is True and facts["answered"] is False and facts["count"] is None
    assert facts["stuck"] == ["nvidia-smi (4711) waits in os_acquire_rwlock_write"]
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


@pytest.mark.parametrize("address", ["0000:71:00.0", "00000000:71:00.0"])
@pytest.mark.parametrize(
    "form", ["GPU%s: Unknown Error", "GPU %s: GPU is lost.  Reboot the system", "gpu 2: GPU %s: Timeout"]
)
def test_nvidia_smi_that_says_only_that_it_cannot_open_a_gpu(form: str, address: str) -> None:
    said = "Unable to determine the device handle for %s\n" % (form % address)
    facts, _problems = gathered({XML: Outcome(XML, OK, rc=255, stdout=said.encode())})
    assert [entry["address"] for entry in facts["lost"]] == ["0000:71:00.0"]
    assert facts["lost"][0]["index"] == (2 if "2:" in form else None)
    assert facts["devices"] is None and facts["count"] is None and facts["ecc_errors"] is None


def test_another_failure_names_no_gpu() -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    facts, _problems = gathered({XML: Outcome(XML, OK, rc=18, stdout=said.encode())})
    assert facts["lost"] is None and facts["answered"] is False


@pytest.mark.parametrize(
    "answer",
    [
        xml(block(), attached=8),
        xml(block() + block("00000000:02:00.0"), attached="absent").replace("</nvidia_smi_log>", ""),
        xml(""),
        "No devices were found\n",
    ],
    ids=["one of eight", "cut off", "none of one", "none"],
)
def test_no_gpu_is_lost_only_where_every_gpu_was_read(answer: str) -> None:
    facts, problems = gathered({XML: answer})
    assert facts["lost"] is None and problems
    assert all(facts[name] is None for name in ("ecc_errors", "mig_enabled", "fabric_present", "vgpu_present", "idle"))


def test_one_of_eight_still_shows_what_is_wrong_with_it() -> None:
    rows = "<remapped_row_corr>1</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>"
    rows += "<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>"
    facts, _problems = gathered({XML: xml(block(remapped_rows=rows), attached=8)})
    assert [(gpu["pending"], gpu["failure"]) for gpu in facts["remapping_unfinished"]] == [(True, False)]


CSV = b"index, pci.bus_id, uuid, name\n0, 00000000:01:00.0, GPU-1, NVIDIA H200\n"


def test_an_output_that_was_too_long_is_not_whole() -> None:
    facts, _problems = gathered({INDEX: CSV})
    assert facts["count"] == 1
    facts, _problems = gathered({INDEX: Outcome(INDEX, OK, rc=0, stdout=CSV, truncated=True)})
    assert (facts["parsed"], facts["count"], facts["complete"], facts["lost"]) == (1, None, False, None)


def fabric(state: str = "Completed", status: str = "Success", **members: str) -> str:
    health = {
        "summary": "Healthy",
        "bandwidth": "Full",
        "route_recovery_in_progress": "False",
        "route_unhealthy": "False",
        "access_timeout_recovery": "False",
        "incorrect_configuration": "None",
        **members,
    }
    inside = "".join("<%s>%s</%s>" % (name, value, name) for name, value in health.items() if value)
    return "<state>%s</state><status>%s</status><health>%s</health>" % (state, status, inside)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (fabric(), []),
        (fabric(partition_assigned="True"), []),
        (fabric(**dict.fromkeys(("summary", "bandwidth", "route_unhealthy", "incorrect_configuration"), "N/A")), []),
        (fabric(**dict.fromkeys(("summary", "bandwidth", "route_unhealthy", "incorrect_configuration"), "")), []),
        (fabric(summary="Unhealthy", route_unhealthy="True"), ["summary Unhealthy", "route_unhealthy True"]),
        (fabric(summary="Limited Capacity", bandwidth="Degraded"), ["summary Limited Capacity", "bandwidth Degraded"]),
        (fabric(route_unhealthy="True"), ["route_unhealthy True"]),
        (fabric(bandwidth="Degraded"), ["bandwidth Degraded"]),
        (fabric(route_recovery_in_progress="True"), ["route_recovery_in_progress True"]),
        (fabric(access_timeout_recovery="True"), ["access_timeout_recovery True"]),
        (fabric(incorrect_configuration="Insufficient Nvlinks"), ["incorrect_configuration Insufficient Nvlinks"]),
        (fabric("In Progress", "N/A"), []),
        (fabric(status="Not Supported"), "n/a"),
        (fabric(status="Unknown Error"), None),
        (fabric(bandwidth="Unknown Error"), None),
        (fabric("Unknown Error"), None),
        (fabric(new_member="Up"), "good"),
        (fabric(summary="", new_member="Up"), None),
    ],
)
def test_every_member_of_the_fabrics_health_is_judged(text: str, found: list[str] | str | None) -> None:
    facts, _problems = gathered({XML: xml(block(fabric=text))})
    entries = facts["fabric_not_ready"]
    if found is None:
        assert entries is None
    elif found in ("good", "n/a") or (found == [] and "In Progress" not in text):
        assert entries == [] and facts["fabric_present"] is True
    else:
        assert [entry["health"] for entry in entries] == [found]
        assert entries[0]["label"] == "GPU 0 (0000:01:00.0)"


def test_the_fabrics_health_in_the_text_form() -> None:
    text = (
        "==============NVSMI LOG==============\n\nDriver Version : 580.10\nAttached GPUs : 1\nGPU 00000000:01:00.0\n"
        "    Product Name : NVIDIA GB200\n    Fabric\n        State : Completed\n        Status : Success\n        "
        "Health\n"
        "            Bandwidth : Full\n            Route Recovery in progress : False\n            Route Unhealthy : "
        "True\n"
        "            Access Timeout Recovery : False\n    Processes : None\n"
    )
    facts, _problems = gathered({TEXT: text})
    assert [entry["health"] for entry in facts["fabric_not_ready"]] == [["route_unhealthy True"]]


def test_what_a_query_does_not_show_is_not_denied() -> None:
    facts, _problems = gathered({INDEX: CSV})
    assert facts["devices"] and facts["fabric_present"] is None and facts["recovery_reported"] is None


@pytest.mark.parametrize("element", ["utilization", "performance_state"])
def test_a_load_that_cannot_be_read_is_no_idle_link(element: str) -> None:
    bad = "<gpu_util>Unknown Error</gpu_util>" if element == "utilization" else "Unknown Error"
    busy = "<gpu_util>90 %</gpu_util>"
    facts, _problems = gathered({XML: xml(block(**{"utilization": busy, element: bad}))})
    assert facts["loaded"] is None and facts["generation_reduced"] is None


@pytest.mark.parametrize(
    ("code", "message", "failure"),
    [
        (0, "", ""),
        (18, "Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        (255, "Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        (255, "Failed to initialize NVML: Unknown Error", "unknown_error"),
        (4, "Failed to initialize NVML: Insufficient Permissions", "no_permission"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no_driver"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "no_library"),
        (255, "Unable to determine the device handle for GPU0000:91:00.0: Unknown Error", "lost"),
        (255, "Unable to determine the device handle for GPU0000:91:00.0: GPU requires reset", "reset"),
        (8, "", "power_cable"),
        (14, None, "inforom"),
        (77, "something new", ""),
    ],
)
def test_the_kind_of_a_failure(code: int, message: str | None, failure: str) -> None:
    assert gpus.name_failure(code, message) == failure


def test_the_query_says_that_a_gpu_requires_a_reset() -> None:
    header = INDEX[1].partition("=")[2].replace(",", ", ")
    row = "0, 00000000:01:00.0, GPU-0, NVIDIA X, 595.58.03, 1000 MiB, [GPU requires reset], [GPU requires reset]"
    facts, _problems = gathered({XML: xml(block("00000000:01:00.0")), INDEX: header + "\n" + row + "\n"})
    assert facts["devices"][WHERE]["reset_required"] is True
    assert [entry["action"] for entry in facts["recovery_needed"]] == ["Reset"]
