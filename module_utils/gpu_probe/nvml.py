"""The few calls of NVML that say what a link did while the probe worked.

By ctypes on the driver's own libnvidia-ml.so.1, because a run of nvidia-smi takes longer than a phase of the probe.
What NVML cannot say of a GPU is None; a counter that the GPU does not have is left out.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_INVALID_ARGUMENT, _NOT_SUPPORTED = 2, 3
_MOST_LINKS = 18
# [nvml.h, nvmlNvLinkErrorCounter_t] Those that stay at 0 on a good link.
_LINK_COUNTERS = {"replay": 0, "recovery": 1}
# [nvml.h, NVML_FI_DEV_NVLINK_COUNT_*] The same of NVLink 5, each asked for by link: what got past its correction.
_LINK_FIELDS = {
    "malformed packets": 206,
    "buffer overruns": 207,
    "receive errors": 208,
    "local link integrity": 211,
    "failed recoveries": 214,
    "effective errors": 219,
}
_UNSIGNED_INT = 1  # nvmlValueType_t; the others that counters have fill all of the value
# [nvml.h, nvmlClocksEventReason*] Those that are no part of normal work.
_BRAKES = {0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake"}


class _Field(ctypes.Structure):
    """nvmlFieldValue_t of nvml.h; of the value, which is a union, the whole number."""

    _fields_ = (
        ("field", c_uint),
        ("scope", c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", c_int),
        ("code", c_int),
        ("value", c_ulonglong),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvmlInit_v2": (),
    "nvmlDeviceGetHandleByPciBusId_v2": (c_char_p, POINTER(c_void_p)),
    "nvmlDeviceGetPcieReplayCounter": (c_void_p, POINTER(c_uint)),
    "nvmlDeviceGetCurrPcieLinkGeneration": (c_void_p, POINTER(c_uint)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (c_void_p, POINTER(c_ulonglong)),
    "nvmlDeviceGetNvLinkState": (c_void_p, c_uint, POINTER(c_int)),
    "nvmlDeviceGetNvLinkErrorCounter": (c_void_p, c_uint, c_int, POINTER(c_ulonglong)),
    "nvmlDeviceGetFieldValues": (c_void_p, c_int, POINTER(_Field)),
}
# Keys of `read_counters` -> the function and the type of its number.
_NUMBERS: dict[str, tuple[str, Any]] = {
    "replays": ("nvmlDeviceGetPcieReplayCounter", c_uint),
    "generation": ("nvmlDeviceGetCurrPcieLinkGeneration", c_uint),
    "brakes": ("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong),
}
NOT_SUPPORTED = -1


class Nvml:
    """The loaded library; `error` says why it does not answer, None where it does."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._devices: dict[str, c_void_p] = {}
        self._links: dict[str, list[int]] = {}
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            code = self._call("nvmlInit_v2")
            self.error = None if code == 0 else "nvmlInit_v2 returned %s" % code
        except OSError as error:
            self.error = str(error)

    def _call(self, name: str, *arguments: Any) -> int | None:
        """The result code; None where the library has no such function."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        return int(function(*arguments))

    def read_counters(self, address: str) -> dict[str, Any]:
        """``{replays, generation, brakes: [name], nvlink: {"link 3 replay": count}}``, each None where it is not known,
        and left out where the GPU does not have it; `nvlink` is empty for a GPU without active links."""
        device = self._device(address)
        if device is None:
            return dict.fromkeys(("replays", "generation", "brakes", "nvlink"))
        found: dict[str, Any] = {"nvlink": self._count_links(address, device)}
        for key, (name, kind) in _NUMBERS.items():
            number = self._number(name, kind(), device)
            if number != NOT_SUPPORTED:
                found[key] = number
        mask = found.get("brakes")
        if mask is not None:
            found["brakes"] = [name for bit, name in _BRAKES.items() if mask & bit]
        return found

    def has_active_links(self, address: str) -> bool | None:
        """Whether an NVLink of the GPU is active; None where that is not known. Call `read_counters` first."""
        links = self._links.get(address)
        return None if links is None else bool(links)

    def _device(self, address: str) -> c_void_p | None:
        if self.error is None and address not in self._devices:
            handle = c_void_p()
            if self._call("nvmlDeviceGetHandleByPciBusId_v2", address.encode("ascii"), byref(handle)) != 0:
                return None
            self._devices[address] = handle
        return self._devices.get(address)

    def _number(self, name: str, value: Any, device: c_void_p, *arguments: Any) -> int | None:
        """The number that a call gives, NOT_SUPPORTED, or None where the call fails."""
        code = self._call(name, device, *arguments, byref(value))
        return int(value.value) if code == 0 else NOT_SUPPORTED if code == _NOT_SUPPORTED else None

    def _count_links(self, address: str, device: c_void_p) -> dict[str, int] | None:
        if address not in self._links:
            state = c_int()
            codes = [
                (self._call("nvmlDeviceGetNvLinkState", device, c_uint(link), byref(state)), state.value, link)
                for link in range(_MOST_LINKS)
            ]
            # A GPU without NVLink says "not supported", one with fewer links "invalid argument" for the rest.
            if any(code not in (0, _INVALID_ARGUMENT, _NOT_SUPPORTED) for code, _on, _link in codes):
                return None
            self._links[address] = [link for code, on, link in codes if code == 0 and on == 1]
        found = {}
        for link in self._links[address]:
            for name, number in _LINK_COUNTERS.items():
                count = self._number("nvmlDeviceGetNvLinkErrorCounter", c_ulonglong(), device, link, number)
                if count is None:
                    return None
                if count == NOT_SUPPORTED:
                    return self._read_fields(device, self._links[address])
                found["link %d %s" % (link, name)] = count
        return found

    def _read_fields(self, device: c_void_p, links: list[int]) -> dict[str, int] | None:
        """The counters of NVLink 5; None where one link has none of them: that it made no errors is not known then."""
        asked = [(link, name, number) for link in links for name, number in _LINK_FIELDS.items()]
        fields = (_Field * len(asked))(*[_Field(field=number, scope=link) for link, _name, number in asked])
        if self._call("nvmlDeviceGetFieldValues", device, len(asked), fields) != 0:
            return None
        found = {}
        for (link, name, _number), field in zip(asked, fields):
            if field.code == 0:
                found["link %d %s" % (link, name)] = int(field.value) & (
                    0xFFFFFFFF if field.value_type == _UNSIGNED_INT else 0xFFFFFFFFFFFFFFFF
                )
        counted = {link for (link, _name, _number), field in zip(asked, fields) if field.code == 0}
        return found if counted == set(links) else None
