"""``nvidia-smi -q`` in both forms: whole, cut off, concatenated, damaged."""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.smi import log_fields, log_text, log_xml
from smi_host import block, gathered, printed, xml

XML = ("nvidia-smi", "-q", "-x")
TEXT = ("nvidia-smi", "-q")
TWO = xml(block() + block("00000000:02:00.0", minor_number="1"), attached=2)


def test_a_whole_log() -> None:
    facts, problems = gathered({XML: TWO})
    assert (facts["answered"], facts["attached"], facts["parsed"], facts["count"], facts["complete"]) == (
        True,
        2,
        2,
        2,
        True,
    )
    assert list(facts["devices"]) == ["0000:01:00.0", "0000:02:00.0"]
    assert [gpu["index"] for gpu in facts["devices"].values()] == [0, 1]
    assert facts["driver_version"] == "595.58.03"
    assert problems == []


def test_a_cut_keeps_the_whole_blocks_and_says_so() -> None:
    facts, problems = gathered({XML: TWO[: TWO.index("00000000:02:00.0") + 400]})
    assert list(facts["devices"]) == ["0000:01:00.0"]
    assert (facts["attached"], facts["parsed"], facts["count"], facts["complete"]) == (2, 1, None, False)
    assert "2 GPUs attached, 1 parsed" in problems
    assert any("cut off" in problem for problem in problems)
    assert facts["mig_enabled"] is None and facts["idle"] is None, "nothing is known of the GPU that is missing"


def test_of_two_outputs_the_last_whole_one_counts() -> None:
    first = xml(block(product_name="NVIDIA T4"))
    facts, problems = gathered({XML: first + TWO})
    assert facts["count"] == 2
    assert any("2 outputs" in problem for problem in problems)
    facts, _problems = gathered({XML: TWO + first[: len(first) // 2]})
    assert facts["count"] == 2, "the whole one, although the last is cut off"


def test_entities_are_refused() -> None:
    bomb = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]>' + TWO.partition("?>\n")[
        2
    ].replace("NVIDIA L40S", "&b;")
    facts, problems = gathered({XML: bomb})
    assert not facts["devices"] and facts["count"] is None
    assert any("entities" in problem for problem in problems)


def test_an_unescaped_process_name_does_not_cost_the_log() -> None:
    process = (
        "<process_info><pid>7</pid><type>C</type><process_name>a&b \x01\xff</process_name><used_memory>5 "
        "MiB</used_memory></process_info>"
    )
    facts, problems = gathered({XML: xml(block(processes=process)).encode("latin-1")})
    assert facts["complete"] is True and problems == []
    assert facts["devices"]["0000:01:00.0"]["processes"][0]["pid"] == 7
    assert facts["idle"] is False


@pytest.mark.slow
def test_absurd_depth_and_size_are_bounded() -> None:
    began = time.monotonic()
    deep = "<nvidia_smi_log>" + "<a>" * 200_000
    wide = xml("<gpu id='00000000:01:00.0'>" + "<a/>" * 400_000 + "</gpu>")
    for data in (deep, wide, "<nvidia_smi_log>" * 50_000, "&" * 500_000, "<nvidia_smi_log " + "a='" * 100_000):
        log = log_xml.parse_log_xml(data.encode())
        assert log is None or not log.whole
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00\xff\xfe" * 1000, b"Segmentation fault\n", b"<html>no</html>"])
def test_what_is_no_log_leaves_everything_unknown(data: bytes) -> None:
    facts, problems = gathered({XML: data})
    assert facts["answered"] is False and facts["devices"] is None and facts["count"] is None
    assert problems


def test_two_blocks_of_one_address_are_not_two_gpus() -> None:
    facts, problems = gathered({XML: xml(block() + block(), attached=2)})
    assert facts["count"] is None and facts["complete"] is False
    assert any("twice" in problem for problem in problems)


def test_the_attached_count_decides() -> None:
    facts, _problems = gathered({XML: xml(block(), attached=4)})
    assert (facts["count"], facts["parsed"]) == (None, 1)
    facts, _problems = gathered({XML: xml(block()).replace("<attached_gpus>1</attached_gpus>", "")})
    assert facts["count"] == 1, "the log is whole, and names no other number"


def test_order_is_that_of_the_blocks_or_nothing() -> None:
    assert log_xml.read_order(TWO.encode()) == ["0000:01:00.0", "0000:02:00.0"]
    assert log_xml.read_order(TWO[:-30].encode()) is None
    assert log_xml.read_order((TWO + TWO).encode()) is None
    assert log_xml.read_order(TWO.replace(">2<", ">3<").encode()) is None
    assert log_xml.read_order(b"") is None


def test_the_recording_reads_the_same_by_its_order() -> None:
    data = printed("h200-x2", *XML)
    log = log_xml.parse_log_xml(data)
    assert log is not None and log.whole
    assert (
        log_xml.read_order(data)
        == [log_fields.read_location(gpu, "xml") for gpu in log.gpus]
        == ["0000:00:06.0", "0000:00:07.0"]
    )


TEXT_LOG = """
==============NVSMI LOG==============

Driver Version                            : 470.57.02
CUDA Version                              : 11.4

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : Tesla V100
    Clocks Throttle Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 1
                Total                     : 1
            Double Bit
                Device Memory             : 2
                Total                     : 3
    Power Readings
        Power Draw                        : 24.00 W
        Power Limit                       : 300.00 W
    Processes
        Process ID                        : 77
            Type                          : C
            Name                          : C:\\python : x
            Used GPU Memory               : 5 MiB
GPU 00000000:02:00.0
    Product Name                          : Tesla V100
    Processes                             : None
"""


def test_the_text_form_with_the_spellings_of_driver_470() -> None:
    facts, _problems = gathered({TEXT: TEXT_LOG})
    gpu = facts["devices"]["0000:01:00.0"]
    assert (facts["count"], facts["driver_version"], facts["cuda_version"]) == (2, "470.57.02", "11.4")
    assert gpu["clock_event_reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert gpu["ecc_volatile"] == {"correctable": 1, "uncorrectable": 3}
    assert (gpu["power_draw_w"], gpu["power_limit_w"]) == (24.0, 300.0)
    assert gpu["processes"] == [{"pid": 77, "type": "C", "name": "C:\\python : x", "memory_mib": 5}]
    assert facts["slowed"][0]["reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]


def test_a_cut_text_is_never_complete() -> None:
    for cut in range(0, len(TEXT_LOG) - 60, 7):
        log = log_text.parse_log_text(TEXT_LOG[:cut].encode())
        assert log is None or not log.whole, TEXT_LOG[:cut][-60:]


def test_both_forms_of_one_host_agree() -> None:
    """Machines of one kind were recorded in both forms: what belongs to the kind must be the same."""
    recorded = (
        Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "h200-x2-nvlink" / "nvidia-smi_-q.txt.gz"
    )
    from_xml, _problems = gathered({XML: printed("h200-x2", *XML)})
    from_text, _problems = gathered({TEXT: gzip.decompress(recorded.read_bytes())})
    moving = {"power_draw_w", "temperature_c", "temperature_margin_c", "memory_temperature_c", "clock_graphics_mhz"}
    moving |= {"mig_devices", "serial", "uuid", "link_replays"}  # not in the text form; of one machine
    moving |= {"fabric_cluster_uuid"}  # replaced in one of them
    assert list(from_xml["devices"]) == list(from_text["devices"])
    for where, gpu in from_xml["devices"].items():
        other = from_text["devices"][where]
        assert {
            name: (value, other[name]) for name, value in gpu.items() if name not in moving and value != other[name]
        } == {}
