"""What must not leave a host: secrets in environments, command lines, logs and configurations, replaced before anyone
sees them.

By place (a field, a flag or a line that holds one) and by look (the form of a token or a key). Applied by the evidence
layer itself, where evidence is taken and again where it is written and read, so facts, bundles and reports never hold
them. Masking what is masked already changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import container_json, guest_lines, secret_text
from .secret_names import HARMLESS_NAME, is_secret_name
from .secret_words import MASK, redact_words

__all__ = ["MASK", "is_secret_name"]

# Environment names that may leave a host: the settings that change how CUDA, NCCL and the engines behave.
_ALLOWED_ENVIRONMENT = re.compile(
    rb"(NCCL|CUDA|NVIDIA|OMP|SGLANG|SGL|VLLM|TORCH|TORCHINDUCTOR|PYTORCH|FLASHINFER|TRITON|SAFETENSORS|UCX|GLOO|MKL|OPENBLAS|NUMEXPR|RAY|DG)_\w*"
    rb"|HF_HOME|HF_HUB_\w*|HF_ENDPOINT|TRANSFORMERS_CACHE|TRANSFORMERS_OFFLINE|XDG_CACHE_HOME|HOME|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
    rb"|MAX_JOBS|PYTHONUNBUFFERED|PYTHONPATH|VIRTUAL_ENV|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|INVOCATION_ID|container"
)
_further_prefixes: set[bytes] = set()  # what allow_environment was given
# Of the allowed ones, those that may hold a secret after all. Strict: a setting lost is better than a key shown.
_SECRET_ENVIRONMENT = re.compile(rb"(?i)token|key|secret|passw|passphrase|credential|cookie|(?:^|_)auth")

_LABEL = re.compile(
    rb"[\"'#]{0,2}[A-Za-z][A-Za-z0-9_.-]{1,60}[\"']?[:=]|(?i:[\"'#]{0,2}(?:root)?(?:passw(?:or)?d|passphrase|pw|pwd))"
)
# Files of registers, not of text.
_REGISTERS = re.compile(r"/sys/.*/(?:config|rom|vpd|resource[0-9]+(?:_wc)?)")


def redact_file(path: str, data: bytes) -> bytes:
    """The content of `path` with secrets replaced; /proc/PID/environ keeps allowed names only."""
    if path.startswith("/proc/") and path.endswith("/environ"):
        return redact_environment(data)
    if path.startswith("/proc/") and path.endswith("/cmdline") and path != "/proc/cmdline":
        return b"\0".join(redact_arguments(data.split(b"\0")))
    if _REGISTERS.fullmatch(path):
        return data
    if guest_lines.PATH.fullmatch(path):
        return guest_lines.redact_guest(data, redact_text)
    return redact_text(data)


def redact_environment(data: bytes) -> bytes:
    """NUL-separated NAME=VALUE entries: allowed names stay, all others are dropped, name included."""
    kept = []
    for item in data.split(b"\0"):
        name, _sep, value = item.partition(b"=")
        if may_leave(name):
            kept.append(name + b"=" + redact_text(value))
    return b"\0".join(kept)


def allow_environment(prefixes: Sequence[str]) -> None:
    """Let variables whose names begin with one of these and an underscore leave a host, unless they look secret."""
    _further_prefixes.update(prefix.encode() for prefix in prefixes)


def may_leave(name: bytes) -> bool:
    """Whether the value of this environment variable may leave a host."""
    secret = _SECRET_ENVIRONMENT.search(name) and not HARMLESS_NAME.search(name)
    allowed = _ALLOWED_ENVIRONMENT.fullmatch(name) or name.partition(b"_")[0] in _further_prefixes
    return bool(allowed and not secret)


def redact_arguments(arguments: list[bytes]) -> list[bytes]:
    """A command line with the value of each secret-looking flag masked, whether joined by `=` or the next word.

    --api-key may be followed by several keys: there every word up to the next flag is masked.
    """
    result = []
    masking = several = False
    for argument in redact_words(arguments):
        if masking and argument and not argument.startswith(b"--"):
            result.append(MASK)
            masking = several
            continue
        masking = masking and not argument
        if _LABEL.fullmatch(argument) and is_secret_name(argument.strip(b"\"'#:=")):
            result.append(argument)  # `password: X`, `pw X` as words of their own
            masking, several = True, False
            continue
        name, sep, _value = argument.partition(b"=")
        if name.startswith(b"-") and not re.search(rb"\s", name) and is_secret_name(name.lstrip(b"-")):
            masking = not sep
            several = bool(re.search(rb"(?i)api[-_]?keys?$", name))
            result.append(name + sep + (MASK if sep else b""))
        else:
            result.append(_redact_after(result[-1] if result else b"", argument))
    return result


def _redact_after(before: bytes, argument: bytes) -> bytes:
    """An argument of a command line; the one before it may say what it is (`-smbios type=1,serial=X`)."""
    if before:
        both = redact_text(before + b" " + argument)
        if both.startswith(before + b" "):
            argument = both[len(before) + 1 :]  # and by itself: some forms are known by the line that they begin
    return redact_text(argument)


def redact_text(data: bytes) -> bytes:
    """Free text (a log, a unit file, a configuration) with what looks like a secret masked."""
    return secret_text.redact_text(data, may_leave)


def redact_output(argv: Sequence[str], data: bytes) -> bytes:
    """What a command printed; of the tools of containers the JSON, masked by where each value stands."""
    if container_json.is_container_json(argv):
        return container_json.redact_container_json(
            data, may_leave=may_leave, redact_arguments=redact_arguments, redact_text=redact_text
        )
    return redact_text(data)


def redact_strings(value: Any) -> Any:
    """The same of every text in a dictionary or list: a manifest, a record."""
    if isinstance(value, str):
        return redact_text(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        return {key: redact_strings(part) for key, part in value.items()}
    return [redact_strings(part) for part in value] if isinstance(value, (list, tuple)) else value
