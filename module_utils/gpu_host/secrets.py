"""What must not leave a host: secrets in environments, command lines and logs, replaced before anyone sees them.

Applied by the evidence layer itself, live and recorded alike, so facts, bundles and reports never hold them.
"""
from __future__ import annotations

import re

MASK = b"********"

# Environment names that may leave a host: the settings that change how CUDA, NCCL and the engines behave.
_ALLOWED_ENVIRONMENT = re.compile(
    rb"(NCCL|CUDA|NVIDIA|OMP|SGLANG|SGL|VLLM|TORCH|TORCHINDUCTOR|PYTORCH|FLASHINFER|TRITON|SAFETENSORS|UCX|GLOO|MKL|OPENBLAS|NUMEXPR|RAY|DG)_\w*"
    rb"|HF_HOME|HF_HUB_\w*|HF_ENDPOINT|TRANSFORMERS_CACHE|TRANSFORMERS_OFFLINE|XDG_CACHE_HOME|HOME|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
    rb"|MAX_JOBS|PYTHONUNBUFFERED|PYTHONPATH|VIRTUAL_ENV|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|INVOCATION_ID|container"
)
_SECRET_WORD = rb"(?:api[-_]?keys?|tokens?|secrets?|passw(?:or)?ds?|passwd|credentials?|private[-_]?keys?|access[-_]?keys?)"
_SECRET_NAME = re.compile(rb"(?i)(?:^|[-_.])" + _SECRET_WORD + rb"(?:$|[-_.])")
# Names with a secret word that hold a number or a path, not a secret: --max-tokens 5, --tokenizer-path X.
_HARMLESS_NAME = re.compile(rb"(?i)max[-_].*tokens?$|tokens?[-_](?:limit|count|num\w*|usage|per[-_]\w+|budget)|num[-_].*tokens?|tokenizer|[-_]tokens?[-_]?(?:size|len\w*|ratio|threshold)|chunked|prefill|batch")

_TEXT_RULES = (
    # --api-key VALUE, --api-key=VALUE, api_key='VALUE', "hf_token": "VALUE", HF_TOKEN=VALUE
    re.compile(
        rb"(?i)(?P<keep>(?<![A-Za-z0-9])(?P<name>(?:--?)?[A-Za-z0-9_.-]{0,40}?" + _SECRET_WORD + rb")(?![A-Za-z])['\"]?(?:\s*[=:]\s*|\s+(?=[^-\s=:])))(?P<quote>['\"]?)(?P<value>[^\s'\",;)}\]]{4,})"
    ),
    re.compile(rb"(?P<keep>(?i:bearer)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})"),
    re.compile(rb"(?P<keep>)(?P<value>\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|xox[abp]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16})\b)"),
    re.compile(rb"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)(?P<value>[^\s/@]+)(?=@)"),
)
# Proxmox's cloud-init password of a VM, a hash.
_CLOUD_INIT_PASSWORD = re.compile(rb"(?m)^(cipassword:[ \t]*)\S.*$")
# A cheap test first: most lines of most files hold none of these words, and a kernel log has many lines.
_MAY_HOLD_SECRET = re.compile(rb"(?i)key|token|secret|passw|credential|bearer|hf_|sk-|gh[pousr]_|xox|AKIA|://")


def redact_file(path: str, data: bytes) -> bytes:
    """The content of `path` with secrets replaced; /proc/PID/environ keeps allowed names only."""
    if path.startswith("/proc/") and path.endswith("/environ"):
        return redact_environment(data)
    if path.startswith("/proc/") and path.endswith("/cmdline") and path != "/proc/cmdline":
        return b"\0".join(redact_arguments(data.split(b"\0")))
    if path.startswith("/etc/pve/"):
        return redact_text(_CLOUD_INIT_PASSWORD.sub(rb"\1" + MASK, data))
    if path.startswith("/sys/"):
        return data  # binary registers and numbers; nothing in sysfs is a secret
    return redact_text(data)


def redact_environment(data: bytes) -> bytes:
    """NUL-separated NAME=VALUE entries: allowed names stay, all others are dropped, name included."""
    kept = []
    for item in data.split(b"\0"):
        name, _sep, value = item.partition(b"=")
        if _ALLOWED_ENVIRONMENT.fullmatch(name) and not is_secret_name(name):
            kept.append(name + b"=" + redact_text(value))
    return b"\0".join(kept)


def is_secret_name(name: bytes) -> bool:
    """Whether an environment name or a flag looks as if its value were a secret."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def redact_arguments(arguments: list[bytes]) -> list[bytes]:
    """A command line with the value of each secret-looking flag masked, whether joined by `=` or the next word."""
    result = []
    mask_next = False
    for argument in arguments:
        if mask_next and not argument.startswith(b"--"):
            result.append(MASK if argument else argument)
            mask_next = False
            continue
        mask_next = False
        name, sep, _value = argument.partition(b"=")
        if name.startswith(b"-") and is_secret_name(name.lstrip(b"-")):
            mask_next = not sep
            result.append(name + sep + (MASK if sep else b""))
        else:
            result.append(redact_text(argument))
    return result


def redact_text(data: bytes) -> bytes:
    """Free text (a log, a unit file, a configuration) with what looks like a secret masked."""
    if not _MAY_HOLD_SECRET.search(data):
        return data
    return b"\n".join(_redact_line(line) if _MAY_HOLD_SECRET.search(line) else line for line in data.split(b"\n"))


def _redact_line(line: bytes) -> bytes:
    for rule in _TEXT_RULES:
        line = rule.sub(_masked, line)
    return line


def _masked(match: re.Match[bytes]) -> bytes:
    groups = match.groupdict()
    name = groups.get("name") or b""
    value = groups["value"]
    if name and (_HARMLESS_NAME.search(name) or not is_secret_name(name) or re.fullmatch(rb"(?i)none|null|true|false|\d+(\.\d+)?|\*+", value)):
        return match.group(0)
    return groups["keep"] + (groups.get("quote") or b"") + MASK
