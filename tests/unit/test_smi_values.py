"""The words that nvidia-smi prints in place of a value."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_host.smi import smi_values as values


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("97887 MiB", "MiB", 97887),
        ("32.41 W", "W", 32.41),
        ("-5 C", "C", -5),
        ("16x", "x", 16),
        ("0", "", 0),
        ("N/A", "MiB", "n/a"),
        ("[N/A]", "", "n/a"),
        ("[Not Supported]", "%", "n/a"),
        ("Requested functionality has been deprecated", "MHz", "n/a"),
        ("ERR!", "%", None),
        ("GPU is lost", "MiB", None),
        ("[Unknown Error]", "", None),
        ("[GPU requires reset]", "MiB", None),
        ("97887 KiB", "MiB", None),  # another unit is another number
        ("97887", "MiB", None),
        ("", "", None),
        (None, "", None),
        ("9" * 40, "", None),
        ("1e5", "", None),
        ("٣", "", None),
    ],
)
def test_a_number_is_a_number_with_its_unit_or_nothing(text: str | None, unit: str, value: object) -> None:
    read = values.parse_number(text, unit)
    if text == "٣":  # a digit of another script: never a surprise, whichever way
        assert read in (None, 3)
    else:
        assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Default", "Default"),
        ("None", "None"),
        ("N/A", "n/a"),
        ("Unknown Error", None),
        ("Insufficient Permissions", None),
        ("", None),
    ],
)
def test_a_word(text: str, value: str | None) -> None:
    assert values.parse_word(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Enabled", True),
        ("Disabled", False),
        ("Yes", True),
        ("No", False),
        ("Not Active", False),
        ("N/A", "n/a"),
        ("GPU is lost", None),
    ],
)
def test_yes_and_no(text: str, value: object) -> None:
    assert values.parse_boolean(text) is value or values.parse_boolean(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0000:E1:00.0", "0000:e1:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("01:00.0", None),
        ("00000000:01:00.9", None),
    ],
)
def test_addresses_have_the_kernels_form(text: str, value: str | None) -> None:
    assert values.parse_address(text) == value


def test_versions_and_ids() -> None:
    assert (
        values.parse_version("610.62 [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]") == "610.62"
    )
    assert values.parse_version("N/A") is None
    assert values.device_id("0x2BB510DE") == values.device_id("2BB510DE") == "10de:2bb5"
    assert values.device_id("2bb5") is None


def test_terminal_codes_go_also_without_their_escape() -> None:
    assert values.strip_codes("\t\x1b[4mGPU0\tGPU1\x1b[0m\r\n") == "\tGPU0\tGPU1\n"
    assert values.strip_codes("\t[4mGPU0\tGPU NUMA ID[0m\n") == "\tGPU0\tGPU NUMA ID\n"
