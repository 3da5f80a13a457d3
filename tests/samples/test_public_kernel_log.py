"""Public kernel logs: what the note beside each says is in it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from captures import SAMPLES  # type: ignore[import-not-found]
from test_kernel_log import log  # type: ignore[import-not-found]


class TestSamples:
    """What the note beside each capture says is in it."""

    EXPECTED = {
        "a100-8gpu-vm-window-exhausted": {
            ("bar_unassigned", "0000:06:00.0", "BAR 1"),
            ("bar_unassigned", "0000:06:00.0", "BAR 3"),
        },
        "a100-xid63-row-remapper": {("xid", "0000:10:1c.0", "63")},
        "amdvi-io-page-fault-two-spellings": set(),
        "api-mismatch-syslog-double-stamp": {("api_mismatch", None, "440.100, 440.95.01")},
        "bar1-0m-old-form-no-domain": {("bar_unassigned", "0000:02:00.0", "BAR 1")},
        "blackwell-needs-open-modules-no-stamp": {("needs_open_modules", "0000:02:00.0", None)},
        "gpud-fallen-off-bus-multiline-no-xid": {("fallen_off_bus", "0000:18:00.0", None)},
        "gpud-kmsg-peermem-raw-prefix": {("peermem", None, None)},
        "gpud-xid119-gsp-timeout": {("xid", "0000:9b:00.0", "119")},
        "h100-xid79-off-the-bus-with-sxid20034": {("xid", "0000:91:00.0", "79")},
        "pve-4card-nvrm-assert-flood": {
            ("driver_assert", None, "kern_bus.c:298"),
            ("driver_assert", None, "kern_bus_gm200.c:89"),
        },
        "rk3588-3090-bar-invalid-delta-stamps": {
            ("bar_unassigned", "0002:21:00.0", "BAR %d" % bar) for bar in (1, 2, 3, 4)
        },
        "rtxpro6000-iommu-off-but-default-domain-translated": set(),
        "uvm-hmm-kaslr-err-34": {("uvm_hmm", None, None)},
    }

    @pytest.mark.parametrize("name", sorted(EXPECTED))
    def test_reading(self, name: str) -> None:
        facts = log((SAMPLES / "dmesg" / (name + ".txt")).read_text(errors="replace"))
        found = {(item["kind"], item["address"], item["code"]) for items in facts["by_kind"].values() for item in items}
        assert found == self.EXPECTED[name]

    def test_every_sample_is_read_here(self) -> None:
        assert {path.stem for path in (SAMPLES / "dmesg").glob("*.txt")} == set(self.EXPECTED)

    def test_counts_and_severity(self) -> None:
        gsp = log((SAMPLES / "dmesg" / "gpud-xid119-gsp-timeout.txt").read_text())["fatal_xids"]
        assert [(item["count"], item["last"]) for item in gsp] == [(5, "Sun Feb 23 16:30:13 2025")]
        row = log((SAMPLES / "dmesg" / "a100-xid63-row-remapper.txt").read_text())
        assert row["fatal_xids"] == [] and "reset" in row["other_xids"][0]["action"].lower()
        amd = log((SAMPLES / "dmesg" / "amdvi-io-page-fault-two-spellings.txt").read_text())
        assert amd["other_devices"] == 1 and amd["findings"][0]["count"] == 2
