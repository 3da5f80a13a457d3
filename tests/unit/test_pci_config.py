"""Configuration space, read from bytes, against lspci's reading of the same bytes, and against damage."""

from __future__ import annotations

import gzip
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pci_tree
import pytest
from ansible.module_utils.gpu_host.pcie import config_space, lspci
from hypothesis import given, settings
from hypothesis import strategies as st

RECORDINGS = Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "qemu"
DUMP = gzip.decompress((RECORDINGS / "tcg-q35-acs8-lspci-vvvxxxx.txt.gz").read_bytes()).decode()
WORDS = lspci.parse_lspci(gzip.decompress((RECORDINGS / "tcg-q35-acs8-lspci-vvv.txt.gz").read_bytes()).decode())


def dumped() -> dict[str, bytes]:
    found: dict[str, list[str]] = {}
    at = ""
    for line in DUMP.splitlines():
        header = lspci.HEADER.match(line)
        at = lspci.full_address(header.group(1)) if header else at
        found.setdefault(at, []).append(line)
    return {address: lspci.hex_dump(lines) for address, lines in found.items()}


BYTES = dumped()
GOOD = pci_tree.config(pci_tree.ROOT_PORT, pci_tree.REDIRECT, secondary=1)


def test_the_recording_holds_what_these_tests_are_about() -> None:
    assert len(BYTES) == len(WORDS) == 37
    kinds = [(config_space.parse_config_space(data) or {}).get("express") for data in BYTES.values()]
    assert {express["kind"] for express in kinds if express} == {"root_port", "upstream", "downstream", "endpoint"}


@pytest.mark.parametrize("address", sorted(BYTES))
def test_bytes_and_lspcis_words_agree(address: str) -> None:
    """The words come from lspci's own decoder (`-vvv`, without the dump), the bytes from ours."""
    ours, theirs = config_space.parse_config_space(BYTES[address]), WORDS[address]["config"]
    assert ours is not None
    assert {name: ours[name] for name in ("secondary_bus", "subordinate_bus", "acs", "resizable_bars")} == {
        name: theirs[name] for name in ("secondary_bus", "subordinate_bus", "acs", "resizable_bars")
    }
    assert ours["express"] == theirs["express"]


@pytest.mark.parametrize(
    ("value", "redirects"),
    [(0x0000, False), (0x0011, False), (0x001D, True), (0x005F, True), (0x0004, True), (0x0008, True)],
)
def test_acs_control_bit_by_bit(value: int, redirects: bool) -> None:
    """The values that setpci wrote and lspci showed in the recording of a port (0x007f reads back as 0x005f)."""
    data = bytearray(BYTES["0000:20:00.0"])
    offset = config_space.walk_extended(bytes(data), True)[0][config_space.EXT_ACS]
    struct.pack_into("<H", data, offset + 6, value)
    acs = (config_space.parse_config_space(bytes(data)) or {})["acs"]
    assert acs["control_raw"] == "%04x" % value
    assert acs["control"]["source_validation"] == bool(value & 1)
    assert (acs["control"]["request_redirect"] or acs["control"]["completion_redirect"]) == redirects


def test_a_port_without_the_capability_has_none() -> None:
    assert (config_space.parse_config_space(BYTES["0000:00:0c.0"]) or {})["acs"] is False


@pytest.mark.parametrize("length", [*range(0, 300), 500, 0x2A0, 0x2A7, 1000, 4095])
def test_a_cut_makes_unknown_never_wrong(length: int) -> None:
    whole = config_space.parse_config_space(pci_tree.config(pci_tree.ROOT_PORT, pci_tree.REDIRECT, secondary=5))
    cut = config_space.parse_config_space(pci_tree.config(pci_tree.ROOT_PORT, pci_tree.REDIRECT, secondary=5)[:length])
    assert whole is not None
    if length < 64:
        assert cut is None
        return
    assert cut is not None
    for name in ("express", "acs"):
        assert cut[name] in (None, whole[name])
    if length < 0x2A8:
        assert cut["acs"] is None


def test_an_ordinary_user_sees_64_bytes() -> None:
    seen = config_space.parse_config_space(pci_tree.config(pci_tree.ROOT_PORT, pci_tree.REDIRECT, secondary=5)[:64])
    assert seen is not None
    assert (seen["secondary_bus"], seen["express"], seen["acs"], seen["resizable_bars"]) == (5, None, None, None)


def test_all_ones_is_no_answer() -> None:
    assert config_space.parse_config_space(b"\xff" * 4096) is None
    lost_above = pci_tree.config()[:256] + b"\xff" * 3840
    assert (config_space.parse_config_space(lost_above) or {})["acs"] is None


def test_lists_that_run_in_a_circle_end() -> None:
    data = bytearray(pci_tree.config(acs=0))
    data[0x60], data[0x61] = 0x05, 0x60  # a capability that points to itself
    struct.pack_into("<I", data, 0x2A0, 0x0002 | 1 << 16 | 0x100 << 20)  # and an extended one that points back
    seen = config_space.parse_config_space(bytes(data))
    assert seen is not None
    assert (seen["express"], seen["acs"], seen["capabilities_known"]) == (None, None, False)


def test_resizable_bar() -> None:
    """A card with 256 MiB now and 32 GiB at most, and one with 512 TiB as the largest size.

    The latter stands in the upper half of the control register.
    """
    data = bytearray(pci_tree.config())
    struct.pack_into("<I", data, 0x100, 0x15 | 1 << 16)
    struct.pack_into("<II", data, 0x104, 0x0000FC00 << 4 | 0x10, 1 | 1 << 5 | 8 << 8)
    assert (config_space.parse_config_space(bytes(data)) or {})["resizable_bars"] == [
        {"index": 1, "size_mib": 256, "max_size_mib": 32768}
    ]
    struct.pack_into("<II", data, 0x104, 0, 2 | 1 << 5 | 17 << 8 | 2 << 16)
    assert (config_space.parse_config_space(bytes(data)) or {})["resizable_bars"] == [
        {"index": 2, "size_mib": 131072, "max_size_mib": 1 << 29}
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=4200),
        st.builds(
            lambda start, patch: GOOD[:start] + patch + GOOD[start + len(patch) :],
            st.integers(0, 4095),
            st.binary(min_size=1, max_size=64),
        ),
    )
)
def test_any_bytes_are_read_without_a_fault_and_soon(data: bytes) -> None:
    began = time.monotonic()
    seen = config_space.parse_config_space(data)
    assert time.monotonic() - began < 0.5
    assert seen is None or {"express", "acs", "resizable_bars"} <= set(seen)
