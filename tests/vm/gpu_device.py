"""PCI functions with NVIDIA's identifiers in a QEMU guest.

So the readers under test need no exception for the test.

QEMU has no NVIDIA device, and none of its devices takes another maker's identifiers (its `x-pci-proxy-dev`, which would
forward configuration space to us, crashes QEMU 7.2 in one of six boots). So the test starts QEMU stopped, finds the
configuration spaces of some of its NVMe and `edu` devices in its memory, writes identifiers, class and link into these
read-only registers, and lets it run. All else stays QEMU's: BARs that the firmware sizes and places, the port above
with its link and ACS, IOMMU groups, the bus. There is no function behind it and no driver that binds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

NVIDIA = 0x10DE
QEMU_NVME, QEMU_EDU = (0x1B36, 0x0010), (0x1234, 0x11E8)
SUBSYSTEM_VENDOR = b"\xf4\x1a"  # 1af4, of every device of QEMU's that names no other
CONFIG_BYTES = 256
CAP_MSIX, CAP_EXPRESS = 0x11, 0x10
SPEED_CODES = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}  # of Link Capabilities and Link Status


class DeviceError(Exception):
    """A device that is not in QEMU's memory as expected."""


@dataclass(frozen=True)
class Gpu:
    """What a function says of itself.

    Without `vectors` it is made from the `edu` device, which has no PCI Express capability, as if passed through
    without pcie=1; else from the NVMe device that has `msix_qsize` set to `vectors`, by which it is found.
    """

    vectors: int | None = None
    device: int = 0x2BB5
    subsystem: int = 0x204E
    device_class: int = 0x0302  # 3D controller
    speed_gt_s: float = 2.5  # an idle GPU's
    max_speed_gt_s: float = 32.0
    width: int = 16
    max_width: int = 16

    @property
    def origin(self) -> tuple[int, int]:
        return QEMU_EDU if self.vectors is None else QEMU_NVME


def disguise(pid: int, gpus: list[Gpu]) -> None:
    """Turn devices of the QEMU process `pid`, which has not run its guest yet, into `gpus`."""
    with open("/proc/%d/mem" % pid, "r+b", buffering=0) as memory:
        for gpu in gpus:
            found = [
                (at, data) for at, data in _configurations(pid, memory, gpu.origin) if _vectors(data) == gpu.vectors
            ]
            if len(found) != 1:
                raise DeviceError(
                    "%d devices %04x:%04x with %s interrupt vectors in QEMU's memory"
                    % (len(found), *gpu.origin, gpu.vectors)
                )
            at, data = found[0]
            memory.seek(at)
            memory.write(changed(data, gpu))


def changed(data: bytes, gpu: Gpu) -> bytes:
    """Configuration space with the registers of `gpu` in it."""
    new = bytearray(data)
    struct.pack_into("<HH", new, 0x00, NVIDIA, gpu.device)
    struct.pack_into("<BBH", new, 0x08, 0xA1, 0, gpu.device_class)  # revision, programming interface, class
    struct.pack_into("<HH", new, 0x2C, NVIDIA, gpu.subsystem)
    express = _capability(data, CAP_EXPRESS)
    if express is not None:
        codes = [code for speed, code in SPEED_CODES.items() if speed <= gpu.max_speed_gt_s]
        link = struct.unpack_from("<I", data, express + 0x0C)[0] & ~0x3FF
        struct.pack_into("<I", new, express + 0x0C, link | SPEED_CODES[gpu.max_speed_gt_s] | gpu.max_width << 4)
        status = struct.unpack_from("<H", data, express + 0x12)[0] & ~0x3FF
        struct.pack_into("<H", new, express + 0x12, status | SPEED_CODES[gpu.speed_gt_s] | gpu.width << 4)
        struct.pack_into("<I", new, express + 0x2C, sum(1 << code for code in codes))
    return bytes(new)


def _configurations(pid: int, memory: object, identifiers: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
    """(address, content) of every configuration space with these identifiers.

    QEMU's main thread keeps them in its heap.
    """
    with open("/proc/%d/maps" % pid) as maps:
        heaps = [line.split()[0].split("-") for line in maps if line.rstrip().endswith("[heap]")]
    for start, end in heaps:
        base = int(start, 16)
        memory.seek(base)  # type: ignore[attr-defined]
        heap = memory.read(int(end, 16) - base)  # type: ignore[attr-defined]
        for match in re.finditer(re.escape(struct.pack("<HH", *identifiers)), heap):
            data = heap[match.start() : match.start() + CONFIG_BYTES]
            # Allocated, so aligned to 16. QEMU's class structures hold the same identifiers, but no subsystem of Red
            # Hat's behind.
            if match.start() % 16 == 0 and len(data) == CONFIG_BYTES and data[0x2C:0x2E] == SUBSYSTEM_VENDOR:
                yield base + match.start(), data


def _capability(data: bytes, wanted: int) -> int | None:
    offset = data[0x34] if data[0x06] & 0x10 else 0
    for _step in range(48):
        if offset < 0x40:
            return None
        if data[offset] == wanted:
            return offset
        offset = data[offset + 1]
    return None


def _vectors(data: bytes) -> int | None:
    at = _capability(data, CAP_MSIX)
    return None if at is None else (struct.unpack_from("<H", data, at + 2)[0] & 0x7FF) + 1
