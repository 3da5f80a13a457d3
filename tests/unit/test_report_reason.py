"""The one line per host for schedulers: short, plain, the worst first, and nothing where the host is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_report import reason, writers

from . import report_samples as samples


def lines(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Host -> state, reason."""
    rows = [line.split(" ", 2) for line in reason.render_reasons(report).decode("ascii").split("\n")[:-1]]
    return {row[0]: (row[1], row[2]) for row in rows}


def one_host(*results: dict[str, Any]) -> str:
    found = samples.run()
    found.results("gpu1", samples.judged(list(results)))
    return lines(found.report(samples.RUN))["gpu1"][1]


def test_each_host_has_its_line() -> None:
    assert lines(samples.report()) == {
        "gpu2": ("ready", ""),
        "gpu3": ("not_validated", "Failed to connect to the host via ssh: Connection refused"),
        "gpu10": ("not_ready", "chipset_supports_p2p: i440FX chipset (440FX - 82441FX PMC Natoma ), and 1 more"),
    }


def test_what_is_unknown_is_a_reason_too() -> None:
    unknown = samples.result("gpu_ecc_clean", "unknown", reason="nvidia-smi gave no answer within 30 s")
    assert one_host(unknown) == "gpu_ecc_clean unknown: nvidia-smi gave no answer within 30 s"


def test_a_cause_comes_before_what_is_unknown() -> None:
    unknown = samples.result("gpu_ecc_clean", "unknown", reason="no answer")
    lost = samples.result("gpu_not_lost", "fail", found="GPU 0000:91:00.0 is lost")
    assert one_host(unknown, lost) == "gpu_not_lost: GPU 0000:91:00.0 is lost, and 1 more"


@pytest.mark.parametrize(
    "found",
    [
        "x" * 5000,
        "line\nline\r\n\x1b[31mred\x1b[0m\x00",
        "';$(reboot)`id`|\"&<>\\",
        "température 91 °C, 3 µs → \U0001f525 \ud800",
        "",
    ],
)
def test_the_line_is_short_and_plain_whatever_was_found(found: str) -> None:
    text = one_host(
        samples.result("gpu_not_lost", "fail", found=found), samples.result("driver_loaded", "fail", found="no")
    )
    assert 0 < len(text) <= reason.LONGEST and text.endswith(", and 1 more")
    assert text.isascii() and text.isprintable() and not set(text) & set("\"'`$\\|;&<>\n")


def test_it_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    assert writers.write_reasons(samples.report(), str(tmp_path / "reasons")) == []
    assert (tmp_path / "reasons").read_bytes() == reason.render_reasons(samples.report())
    said = writers.write_reasons(samples.report(), str(tmp_path / "reasons" / "below a file"))
    assert len(said) == 1 and "cannot be written" in said[0]
