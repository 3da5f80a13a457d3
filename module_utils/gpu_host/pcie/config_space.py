"""PCI configuration space, from its bytes: header, PCI Express link, Access Control Services, Resizable BAR.

Pure: no evidence, no errors. Register layouts: PCI Local Bus 3.0 (header), PCI Express Base 6.0 (7.5.3 express
capability, 7.7.11 ACS, 7.8.6 Resizable BAR); the same offsets stand in Linux's include/uapi/linux/pci_regs.h. Without
root the kernel gives the first 64 bytes only: everything behind them is then None, which is "unknown", not "not there".
"""

from __future__ import annotations

import struct
from typing import Any

HEADER_BYTES = 64
CONVENTIONAL_BYTES = 256
EXTENDED_BYTES = 4096
SIZES = (HEADER_BYTES, CONVENTIONAL_BYTES, EXTENDED_BYTES)  # in which the kernel gives it whole or cut

CAP_EXPRESS = 0x10
EXT_ACS = 0x0D
EXT_PHYSICAL_REBAR = 0x15
STATUS_CAPABILITY_LIST = 0x10

PORT_KINDS = {
    0x0: "endpoint",
    0x1: "legacy_endpoint",
    0x4: "root_port",
    0x5: "upstream",
    0x6: "downstream",
    0x7: "express_to_pci_bridge",
    0x8: "pci_to_express_bridge",
    0x9: "root_complex_endpoint",
    0xA: "root_complex_event_collector",
}
# Code in Link Capabilities and Link Status -> GT/s.
LINK_SPEEDS_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# Bit of the ACS capability and control registers -> our name, lspci's name.
ACS_BITS = {
    0x01: ("source_validation", "SrcValid"),
    0x02: ("translation_blocking", "TransBlk"),
    0x04: ("request_redirect", "ReqRedir"),
    0x08: ("completion_redirect", "CmpltRedir"),
    0x10: ("upstream_forwarding", "UpstreamFwd"),
    0x20: ("egress_control", "EgressCtrl"),
    0x40: ("direct_translated", "DirectTrans"),
}


def parse(data: bytes) -> dict[str, Any] | None:
    """What `data`, the bytes of a device's configuration space from offset 0, says; None if it says nothing.

    None: fewer than 64 bytes, or all ones (the device does not answer: powered off, in D3cold, fallen off the bus).

    ``vendor`` and ``device``: 4 hex digits; ``class``: 6 hex digits; ``header_type``: 0 device, 1 bridge;
    ``secondary_bus`` and ``subordinate_bus`` of a bridge (int); ``bars``: raw base address registers;
    ``capabilities_known``: False when the list could not be walked to its end; ``express``: None if unknown, False if a
    conventional PCI device, else {kind, slot, speed_gt_s, max_speed_gt_s, width, max_width}; ``extended_known``;
    ``acs``: None if unknown, False if the device has none, else {capabilities: {name: bool}, control: {name: bool},
    control_raw}; ``resizable_bars``: None if unknown, else [{index, size_mib, max_size_mib}].
    """
    if len(data) < HEADER_BYTES or data[:4] == b"\xff\xff\xff\xff":
        return None
    data = data[:EXTENDED_BYTES]
    header_type = data[0x0E] & 0x7F
    found: dict[str, Any] = {
        "vendor": "%04x" % _word(data, 0x00),
        "device": "%04x" % _word(data, 0x02),
        "class": "%02x%02x%02x" % (data[0x0B], data[0x0A], data[0x09]),
        "header_type": header_type,
        "multifunction": bool(data[0x0E] & 0x80),
        "secondary_bus": data[0x19] if header_type == 1 else None,
        "subordinate_bus": data[0x1A] if header_type == 1 else None,
        "bars": [_double(data, 0x10 + 4 * index) for index in range(6 if header_type == 0 else 2)],
    }
    capabilities, complete = walk_capabilities(data)
    found["capabilities_known"] = complete
    found["express"] = _express(data, capabilities, complete)
    extended, extended_complete = walk_extended(data, found["express"])
    found["extended_known"] = extended_complete
    found["acs"] = _acs(data, extended, extended_complete)
    found["resizable_bars"] = _resizable_bars(data, extended, extended_complete)
    return found


def walk_capabilities(data: bytes) -> tuple[dict[int, int], bool]:
    """``{capability id: offset}`` of the first of each kind, and whether the list was followed to its end.

    Each offset is visited once, so that a list that points back into itself ends.
    """
    if len(data) < HEADER_BYTES:
        return {}, False
    if not _word(data, 0x06) & STATUS_CAPABILITY_LIST:
        return {}, True
    found: dict[int, int] = {}
    visited: set[int] = set()
    offset = data[0x34] & 0xFC
    while offset:
        if offset < HEADER_BYTES or offset in visited or offset + 2 > len(data) or data[offset] == 0xFF:
            return found, False
        visited.add(offset)
        found.setdefault(data[offset], offset)
        offset = data[offset + 1] & 0xFC
    return found, True


def walk_extended(data: bytes, express: Any = None) -> tuple[dict[int, int], bool]:
    """The same for the extended list at 0x100. A conventional device (`express` False) has none.

    256 bytes of a PCI Express device are a cut: extended space is then unknown.
    """
    if express is False:
        return {}, True
    if len(data) < CONVENTIONAL_BYTES + 4:
        return {}, False
    found: dict[int, int] = {}
    visited: set[int] = set()
    offset = CONVENTIONAL_BYTES
    while offset:
        if offset < CONVENTIONAL_BYTES or offset in visited or offset + 4 > len(data):
            return found, False
        visited.add(offset)
        header = _double(data, offset)
        if header in (0, 0xFFFFFFFF):
            # No capability at 0x100 is an empty list; anywhere else the list is broken, and all ones is no answer.
            return found, header == 0 and offset == CONVENTIONAL_BYTES
        found.setdefault(header & 0xFFFF, offset)
        offset = (header >> 20) & 0xFFC
    return found, True


def acs_names(value: int) -> dict[str, bool]:
    """The bits of an ACS capability or control register by name."""
    return {name: bool(value & bit) for bit, (name, _) in ACS_BITS.items()}


def _express(data: bytes, capabilities: dict[int, int], complete: bool) -> Any:
    offset = capabilities.get(CAP_EXPRESS)
    if offset is None:
        return False if complete else None
    if offset + 0x14 > len(data):
        return None
    flags = _word(data, offset + 0x02)
    can, now = _double(data, offset + 0x0C), _word(data, offset + 0x12)
    return {
        "kind": PORT_KINDS.get((flags >> 4) & 0xF),
        "slot": bool(flags & 0x100),
        "speed_gt_s": LINK_SPEEDS_GT_S.get(now & 0xF),
        "max_speed_gt_s": LINK_SPEEDS_GT_S.get(can & 0xF),
        # Width 0 in the status is a link that is down; the capability has no such value.
        "width": (now >> 4) & 0x3F,
        "max_width": (can >> 4) & 0x3F or None,
    }


def _acs(data: bytes, extended: dict[int, int], complete: bool) -> Any:
    offset = extended.get(EXT_ACS)
    if offset is None:
        return False if complete else None
    if offset + 8 > len(data):
        return None
    control = _word(data, offset + 6)
    return {
        "capabilities": acs_names(_word(data, offset + 4)),
        "control": acs_names(control),
        "control_raw": "%04x" % control,
    }


def _resizable_bars(data: bytes, extended: dict[int, int], complete: bool) -> list[dict[str, Any]] | None:
    offset = extended.get(EXT_PHYSICAL_REBAR)
    if offset is None:
        return [] if complete else None
    if offset + 12 > len(data):
        return None
    count = min(max((_double(data, offset + 8) >> 5) & 7, 1), 6)
    bars = []
    for position in range(count):
        at = offset + 4 + 8 * position
        if at + 8 > len(data):
            return None
        can, control = _double(data, at), _double(data, at + 4)
        # Bit 4 of the capability is 1 MiB; sizes from 256 TiB on continue in the upper half of the control register.
        sizes = (can >> 4) | ((control >> 16) << 28)
        largest = 1 << (sizes.bit_length() - 1) if sizes else None
        bars.append({"index": control & 7, "size_mib": 1 << ((control >> 8) & 0x3F), "max_size_mib": largest})
    return bars


def _word(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<H", data, offset)[0])


def _double(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<I", data, offset)[0])
