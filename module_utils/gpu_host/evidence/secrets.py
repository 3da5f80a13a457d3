"""What must not leave a host: secrets in environments, command lines and logs, replaced before anyone sees them.

Applied by the evidence layer itself, live and recorded alike, so facts, bundles and reports never hold them. Masking
what is masked already changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = b"********"

# Environment names that may leave a host: the settings that change how CUDA, NCCL and the engines behave.
_ALLOWED_ENVIRONMENT = re.compile(
    rb"(NCCL|CUDA|NVIDIA|OMP|SGLANG|SGL|VLLM|TORCH|TORCHINDUCTOR|PYTORCH|FLASHINFER|TRITON|SAFETENSORS|UCX|GLOO|MKL|OPENBLAS|NUMEXPR|RAY|DG)_\w*"
    rb"|HF_HOME|HF_HUB_\w*|HF_ENDPOINT|TRANSFORMERS_CACHE|TRANSFORMERS_OFFLINE|XDG_CACHE_HOME|HOME|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
    rb"|MAX_JOBS|PYTHONUNBUFFERED|PYTHONPATH|VIRTUAL_ENV|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|INVOCATION_ID|container"
)
_further_prefixes: set[bytes] = set()  # what allow_environment was given
# Of the allowed ones, those that may hold a secret after all. Strict: a setting lost is better than a key shown.
_SECRET_ENVIRONMENT = re.compile(rb"(?i)token|key|secret|passw|passphrase|credential|cookie|(?:^|_)auth")

_SECRET_WORD = (
    rb"(?:api[-_]?keys?|tokens?|secrets?|passw(?:or)?ds?|passwd|passphrase|credentials?"
    rb"|private[-_]?keys?|access[-_]?keys?|auth[-_]?keys?|secret[-_]?keys?)"
)
_SECRET_NAME = re.compile(rb"(?i)(?:^|[-_.])" + _SECRET_WORD + rb"(?:$|[-_.])")
# Names with a secret word that hold a number or a path, not a secret: --max-tokens 5, --tokenizer-path X.
_HARMLESS_NAME = re.compile(
    rb"(?i)max[-_].{0,80}tokens?$|tokens?[-_](?:limit|count|num\w*|usage|per[-_]\w+|budget)|num[-_].{0,80}tokens?|tokenizer"
    rb"|[-_]tokens?[-_]?(?:size|len\w*|ratio|threshold|id|ids)$|chunked|prefill|batch|total[-_]?(?:num[-_])?tokens?$"
)
# Values that are no secret, whatever the name says; a bare number after a word for tokens is a count.
_NO_SECRET = re.compile(rb"(?i)none|null|true|false|\*+|\.\.\.|n/a")
_COUNT = re.compile(rb"\d+(?:\.\d+)?[%kKmM]?")

# A value: a list, a quoted text with escapes, or the characters up to the next separator.
_VALUE = rb"(?P<value>\[[^\]]*\]?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s'\",;)}\]]+)"
_NAME = (
    rb"(?<![A-Za-z0-9_.-])(?P<name>%s[A-Za-z0-9_.-]{0,60}?"
    + _SECRET_WORD
    + rb"(?:[-_.][A-Za-z0-9_.-]{0,30})?)(?![A-Za-z0-9_])"
)
_WORDS = (b"key", b"token", b"secret", b"passw", b"passphrase", b"credential")
_PREFIXES = (
    b"hf_",
    b"sk-",
    b"nvapi-",
    b"glpat-",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"github_pat_",
    b"xox",
    b"akia",
    b"eyj",
)
# Signs (in lower case) of a line on which a rule can match, and the rule. Most lines of most files hold no sign, and a
# kernel log has many lines.
_TEXT_RULES = (
    # api_key='VALUE', "hf_token": "VALUE", HF_TOKEN=VALUE, X-API-Key: VALUE, --api-key=VALUE
    (_WORDS, re.compile(rb"(?i)(?P<keep>" + _NAME % rb"-{0,2}" + rb"\\?['\"]?\s*[=:]\s*\\?)" + _VALUE)),
    # --api-key VALUE: only a flag is followed by its value without a sign between ("token usage: 0.02" is a log line)
    (_WORDS, re.compile(rb"(?i)(?P<keep>" + _NAME % rb"--?" + rb"['\"]?,?\s+)(?!-)" + _VALUE)),
    ((b"bearer", b"basic "), re.compile(rb"(?i)(?P<keep>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")),
    (
        _PREFIXES,
        re.compile(
            rb"(?P<keep>)(?P<value>(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|glpat-[A-Za-z0-9_-]{16,}"
            rb"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|xox[abp]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}"
            rb"|eyJ[A-Za-z0-9_-]{10,600}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*))"
        ),
    ),
    ((b"://",), re.compile(rb"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]*:)(?P<value>[^\s/@]+)(?=@)")),
)
_SIGNS = tuple(dict.fromkeys(sign for signs, _rule in _TEXT_RULES for sign in signs))
_PRIVATE_KEY = re.compile(rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def redact_file(path: str, data: bytes) -> bytes:
    """The content of `path` with secrets replaced; /proc/PID/environ keeps allowed names only."""
    if path.startswith("/proc/") and path.endswith("/environ"):
        return redact_environment(data)
    if path.startswith("/proc/") and path.endswith("/cmdline") and path != "/proc/cmdline":
        return b"\0".join(redact_arguments(data.split(b"\0")))
    if path.startswith("/sys/"):
        return data  # binary registers and numbers; nothing in sysfs is a secret
    return redact_text(data)


def redact_environment(data: bytes) -> bytes:
    """NUL-separated NAME=VALUE entries: allowed names stay, all others are dropped, name included."""
    kept = []
    for item in data.split(b"\0"):
        name, _sep, value = item.partition(b"=")
        secret = _SECRET_ENVIRONMENT.search(name) and not _HARMLESS_NAME.search(name)
        allowed = _ALLOWED_ENVIRONMENT.fullmatch(name) or name.partition(b"_")[0] in _further_prefixes
        if allowed and not secret:
            kept.append(name + b"=" + redact_text(value))
    return b"\0".join(kept)


def allow_environment(prefixes: Sequence[str]) -> None:
    """Let variables whose names begin with one of these and an underscore leave a host, unless they look secret."""
    _further_prefixes.update(prefix.encode() for prefix in prefixes)


def is_secret_name(name: bytes) -> bool:
    """Whether an environment name or a flag looks as if its value were a secret."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def redact_arguments(arguments: list[bytes]) -> list[bytes]:
    """A command line with the value of each secret-looking flag masked, whether joined by `=` or the next word.

    --api-key may be followed by several keys: there every word up to the next flag is masked.
    """
    result = []
    masking = several = False
    for argument in arguments:
        if masking and argument and not argument.startswith(b"--"):
            result.append(MASK)
            masking = several
            continue
        masking = masking and not argument
        name, sep, _value = argument.partition(b"=")
        if name.startswith(b"-") and b" " not in name and is_secret_name(name.lstrip(b"-")):
            masking = not sep
            several = bool(re.search(rb"(?i)api[-_]?keys?$", name))
            result.append(name + sep + (MASK if sep else b""))
        else:
            result.append(redact_text(argument))
    return result


def redact_text(data: bytes) -> bytes:
    """Free text (a log, a unit file, a configuration) with what looks like a secret masked."""
    signs = _signs_in(data.lower(), _SIGNS)
    if not signs:
        return data
    if b"PRIVATE KEY-----" in data:
        data = _PRIVATE_KEY.sub(rb"\1" + MASK + rb"\2", data)
    rules = [([sign for sign in signs if sign in its_signs], rule) for its_signs, rule in _TEXT_RULES]
    return b"\n".join(_redact_line(line, rules) for line in data.split(b"\n"))


def _signs_in(lowered: bytes, signs: Sequence[bytes]) -> list[bytes]:
    return [sign for sign in signs if sign in lowered]


def _redact_line(line: bytes, rules: Sequence[tuple[Sequence[bytes], re.Pattern[bytes]]]) -> bytes:
    lowered = line.lower()
    for signs, rule in rules:
        if signs and _signs_in(lowered, signs):
            line = rule.sub(_masked, line)
    return line


def _masked(match: re.Match[bytes]) -> bytes:
    groups = match.groupdict()
    name, value = groups.get("name") or b"", groups["value"]
    quote = value[:1] if value[:1] in (b"'", b'"', b"[") else b""
    bare = value.strip(b"'\"[] ")
    count = b"token" in name.lower() and _COUNT.fullmatch(bare)
    if name and (not is_secret_name(name.lstrip(b"-")) or not bare or _NO_SECRET.fullmatch(bare) or count):
        return match.group(0)
    closing = {b"[": b"]"}.get(quote, quote)
    return groups["keep"] + quote + MASK + (closing if value[-1:] == closing else b"")
