"""NCCL through ctypes: the calls that the checked all-reduce makes, with the C types of nccl.h (2.8 to 2.32).

`Nccl(path)` loads the library; a call either succeeds or raises NcclError with the function, the code, its name and
what NCCL says of it (ncclGetLastError). NCCL takes its GPU from the current context of the thread, which has to be the
primary context of that GPU. Run it in a child process under a time limit: any of these calls can wait for ever.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

UNIQUE_ID_BYTES = 128
FLOAT32 = 7  # ncclDataType_t
SUM = 0  # ncclRedOp_t
IN_PROGRESS = 7
_CODES = {
    1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 4: "ncclInvalidArgument",
    5: "ncclInvalidUsage", 6: "ncclRemoteError", 7: "ncclInProgress",
}  # fmt: skip


class UniqueId(ctypes.Structure):
    """ncclUniqueId: passed by value."""

    _fields_ = [("internal", c_char * UNIQUE_ID_BYTES)]


COMMUNICATOR = c_void_p
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(COMMUNICATOR), c_int, UniqueId, c_int),
    "ncclCommInitAll": (POINTER(COMMUNICATOR), c_int, POINTER(c_int)),
    "ncclCommCuDevice": (COMMUNICATOR, POINTER(c_int)),
    "ncclCommGetAsyncError": (COMMUNICATOR, POINTER(c_int)),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, COMMUNICATOR, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
# Without these no all-reduce can be run; the others came with later versions.
REQUIRED = (
    "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclCommInitAll", "ncclAllReduce", "ncclGroupStart",
    "ncclGroupEnd",
)  # fmt: skip


class NcclError(Exception):
    """A call of NCCL that did not return ncclSuccess. `code` is None when the library lacks the function.

    `text` is what ncclGetLastError says, "" where this version has no such call or nothing to say.
    """

    def __init__(self, function: str, code: int | None, name: str, text: str = "") -> None:
        super().__init__("%s: %s%s" % (function, name, ": " + text if text else ""))
        self.function, self.code, self.name, self.text = function, code, name, text


class NcclLibraryError(Exception):
    """The library could not be loaded; the message is the loader's."""


class Nccl:
    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NcclLibraryError(str(error)) from error
        self._functions: dict[str, Any] = {}
        for name in REQUIRED:
            self._function(name)

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def call(self, function: str, *arguments: Any, communicator: Any = None) -> None:
        code = self._function(function)(*arguments)
        if code:
            raise NcclError(function, code, name_code(code), self.last_error(communicator))

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._library, name)
            except AttributeError as error:
                raise NcclError(name, None, "the library has no such function") from error
            found.argtypes, found.restype = SIGNATURES[name], c_int
            self._functions[name] = found
        return found

    def last_error(self, communicator: Any = None) -> str:
        """What NCCL keeps of the last error (since 2.13), else ""."""
        try:
            function = self._library.ncclGetLastError
        except AttributeError:
            return ""
        function.argtypes, function.restype = (COMMUNICATOR,), c_char_p
        said = function(communicator)
        return said.decode("utf-8", "replace").strip() if said else ""

    def version(self) -> str:
        """ "2.28.9": 22809 since 2.9, 2809 as 2.8.9 before."""
        value = c_int()
        self.call("ncclGetVersion", byref(value))
        major, rest = divmod(value.value, 10000 if value.value >= 10000 else 1000)
        return "%d.%d.%d" % (major, *divmod(rest, 100))

    def make_id(self) -> bytes:
        """The identifier that all ranks of a communicator share; this process then listens for them."""
        value = UniqueId()
        self.call("ncclGetUniqueId", byref(value))
        return bytes(ctypes.string_at(byref(value), UNIQUE_ID_BYTES))

    def join(self, world: int, identifier: bytes, rank: int) -> Any:
        """The communicator of this rank, on the GPU of the current context. Returns when all ranks are here."""
        communicator, value = COMMUNICATOR(), UniqueId()
        ctypes.memmove(byref(value), identifier, UNIQUE_ID_BYTES)
        self.call("ncclCommInitRank", byref(communicator), world, value, rank)
        return communicator

    def join_all(self, devices: list[int]) -> list[Any]:
        """One communicator for each of CUDA's ordinals in `devices`, all in this process."""
        communicators = (COMMUNICATOR * len(devices))()
        self.call("ncclCommInitAll", communicators, len(devices), (c_int * len(devices))(*devices))
        return [COMMUNICATOR(value) for value in communicators]

    def device_of(self, communicator: Any) -> int:
        value = c_int()
        self.call("ncclCommCuDevice", communicator, byref(value), communicator=communicator)
        return value.value

    def sum_across(self, source: int, target: int, count: int, communicator: Any, stream: Any) -> None:
        """Queue an all-reduce of `count` float32 on `stream`; addresses on the communicator's GPU."""
        self.call("ncclAllReduce", source, target, count, FLOAT32, SUM, communicator, stream, communicator=communicator)

    def raise_later_error(self, communicator: Any) -> None:
        """NcclError if something failed after a call had returned: a rank that died, a network that broke."""
        if not self.has("ncclCommGetAsyncError"):
            return
        value = c_int()
        self.call("ncclCommGetAsyncError", communicator, byref(value), communicator=communicator)
        if value.value not in (0, IN_PROGRESS):
            raise NcclError("ncclCommGetAsyncError", value.value, name_code(value.value), self.last_error(communicator))


def name_code(code: int) -> str:
    return _CODES.get(code, "unknown result %d" % code)
