"""The CUDA driver API through ctypes: the calls that the probe makes, with their exact C types.

They are those of cuda.h of CUDA 12 and 13.

`Cuda()` loads libcuda.so.1; every method either succeeds or raises CudaError with the function, the code and its name.
Run it in a child process under a time limit: any of these calls can hang in the kernel.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

# Tried in this order. The loader's own search comes first, so LD_LIBRARY_PATH and ldconfig decide as they do for every
# CUDA program.
LIBRARIES = (
    "libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
)

POINTER_TYPE = c_uint64  # CUdeviceptr
HANDLE = c_void_p  # CUcontext, CUstream, CUevent, CUmodule, CUfunction
DEVICE = c_int

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(DEVICE), c_int),
    "cuDeviceGetName": (c_char_p, c_int, DEVICE),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, DEVICE),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, DEVICE),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), DEVICE),
    "cuDeviceCanAccessPeer": (POINTER(c_int), DEVICE, DEVICE),
    "cuDeviceGetP2PAttribute": (POINTER(c_int), c_int, DEVICE, DEVICE),
    "cuDevicePrimaryCtxRetain": (POINTER(HANDLE), DEVICE),
    "cuDevicePrimaryCtxRelease_v2": (DEVICE,),
    "cuCtxSetCurrent": (HANDLE,),
    "cuCtxEnablePeerAccess": (HANDLE, c_uint),
    "cuCtxDisablePeerAccess": (HANDLE,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(POINTER_TYPE), c_size_t),
    "cuMemFree_v2": (POINTER_TYPE,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemsetD8Async": (POINTER_TYPE, c_ubyte, c_size_t, HANDLE),
    "cuMemcpyHtoDAsync_v2": (POINTER_TYPE, c_void_p, c_size_t, HANDLE),
    "cuMemcpyDtoHAsync_v2": (c_void_p, POINTER_TYPE, c_size_t, HANDLE),
    "cuMemcpyPeerAsync": (POINTER_TYPE, HANDLE, POINTER_TYPE, HANDLE, c_size_t, HANDLE),
    "cuStreamCreate": (POINTER(HANDLE), c_uint),
    "cuStreamDestroy_v2": (HANDLE,),
    "cuStreamSynchronize": (HANDLE,),
    "cuStreamQuery": (HANDLE,),
    "cuStreamWaitEvent": (HANDLE, HANDLE, c_uint),
    "cuEventCreate": (POINTER(HANDLE), c_uint),
    "cuEventDestroy_v2": (HANDLE,),
    "cuEventRecord": (HANDLE, HANDLE),
    "cuEventElapsedTime": (POINTER(c_float), HANDLE, HANDLE),
    "cuModuleLoadData": (POINTER(HANDLE), c_char_p),
    "cuModuleUnload": (HANDLE,),
    "cuModuleGetFunction": (POINTER(HANDLE), HANDLE, c_char_p),
    "cuLaunchKernel": (HANDLE, *([c_uint] * 7), HANDLE, POINTER(c_void_p), POINTER(c_void_p)),
}

# CUdevice_attribute and CUdevice_P2PAttribute
MULTIPROCESSOR_COUNT = 16
COMPUTE_MODE = 20
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
P2P_PERFORMANCE_RANK = 1
P2P_ACCESS_SUPPORTED = 2
P2P_NATIVE_ATOMIC_SUPPORTED = 3

STREAM_NON_BLOCKING = 1
HOST_PORTABLE_MAPPED = 1 | 2

ALREADY_ENABLED = 704
NOT_ENABLED = 705
TOO_MANY_PEERS = 711
# After one of these a context, and with it this process's use of the GPU, is lost: every later call fails with the same
# code.
STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 999})


class CudaError(Exception):
    """A call of the driver that did not return CUDA_SUCCESS. `code` is None when the library lacks the function."""

    def __init__(self, function: str, code: int | None, name: str) -> None:
        super().__init__("%s: %s (%s)" % (function, name, code))
        self.function = function
        self.code = code
        self.name = name

    @property
    def sticky(self) -> bool:
        return self.code in STICKY

    def as_fact(self) -> dict[str, Any]:
        return {"function": self.function, "code": self.code, "name": self.name}


class LibraryError(Exception):
    """libcuda could not be loaded; the message is the loader's."""


class Cuda:
    """The loaded library. `call` is the raw call; the methods are the few that need an out parameter."""

    def __init__(self) -> None:
        self._library = _load()
        self._functions: dict[str, Any] = {}

    def call(self, function: str, *arguments: Any) -> None:
        code = self._function(function)(*arguments)
        if code:
            raise CudaError(function, code, self.error_name(code))

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._library, name)
            except AttributeError as error:
                raise CudaError(name, None, "libcuda has no such function") from error
            found.argtypes = SIGNATURES[name]
            found.restype = c_int
            self._functions[name] = found
        return found

    def error_name(self, code: int) -> str:
        text = c_char_p()
        known = self._function("cuGetErrorName")(code, byref(text)) == 0 and text.value
        return text.value.decode("ascii", "replace") if known and text.value else "unknown error code"

    def integer(self, function: str, *arguments: Any) -> int:
        """A call whose first parameter is `int *`."""
        value = c_int()
        self.call(function, byref(value), *arguments)
        return value.value

    def handle(self, function: str, *arguments: Any) -> HANDLE:
        """A call whose first parameter points to a new context, stream, event, module or function."""
        value = HANDLE()
        self.call(function, byref(value), *arguments)
        return value

    def text(self, function: str, device: int) -> str:
        """cuDeviceGetName and cuDeviceGetPCIBusId."""
        buffer = ctypes.create_string_buffer(256)
        self.call(function, buffer, 256, device)
        return buffer.value.decode("utf-8", "replace")

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the current context's GPU."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        address = POINTER_TYPE()
        self.call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def allocate_host(self, size: int) -> int:
        """Page-locked host memory that every GPU can reach at the same address (unified addressing)."""
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), size, HOST_PORTABLE_MAPPED)
        return address.value or 0

    def elapsed_s(self, start: HANDLE, end: HANDLE) -> float:
        value = c_float()
        self.call("cuEventElapsedTime", byref(value), start, end)
        return value.value / 1e3

    def launch(self, function: HANDLE, blocks: int, threads: int, stream: HANDLE, *parameters: Any) -> None:
        """Launch a kernel; each parameter is a ctypes value (c_uint64, c_uint) as the kernel declares it."""
        pointers = (c_void_p * len(parameters))(*[ctypes.addressof(value) for value in parameters])
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)


def _load() -> ctypes.CDLL:
    problems = []
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    # A library that is there but does not load (wrong architecture, cut off) tells more than one that is missing.
    telling = [problem for problem in problems if "No such file" not in problem]
    raise LibraryError((telling or problems)[0])


def library_path() -> str | None:
    """The file that libcuda was really loaded from: a toolkit's stub and a compat library show here."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as handle:
            paths = [
                line.split(None, 5)[5].strip()
                for line in handle
                if "/libcuda.so" in line and len(line.split(None, 5)) == 6
            ]
    except OSError:
        return None
    return paths[0] if paths else None
