"""The forms of secrets in free text: a log, a unit file, a configuration, a command line, an answer in JSON."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import Callable, Union

from .secret_names import is_secret_name, is_secret_value
from .secret_words import MASK, redact_command
from .secret_words import SIGNS as PROGRAMS

# A value: a list, a quoted text with escapes, or the characters up to the next separator. A separator that another
# character of the value follows belongs to it (`p;w,d`), unless a new name begins there (`api_key=x,tp_size=8`).
_VALUE = (
    rb"(?P<value>\[[^\]]*\]?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
    rb"|(?!\{)(?:[^\s'\",;)}\]\\]|\\(?!['\"])|[,;)}\]](?![\s'\",;)}\]]|$|[A-Za-z_][A-Za-z0-9_.-]{0,40}\\?['\"]?[=:]))+)"
)
_NAME = rb"(?P<name>[A-Za-z0-9_.-]{1,100})"
# What a secret's name holds; the rest of the name before it and behind it; and what stands between it and its value:
# NAME=, "NAME": , --NAME=, NAME%3D, and for a flag a blank alone.
_HINT = re.compile(rb"key|token|secret|pass|pwd|pw|psk|cred|auth|cookie|jwt|otp|sess|csrf|signature")
_OF_A_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_NAME_REST = re.compile(rb"[A-Za-z0-9_.-]{0,100}")
_SIGN = re.compile(rb"\\{0,7}['\"]?\s{0,60}(?:[=:]|%3[dDaA])>?\s{0,60}(?P<escape>\\{0,7})")
_BLANK = re.compile(rb"\\{0,7}['\"]?,?\s{1,60}(?P<escape>\\{0,7})(?!-)")
# A word of a sentence or of a command: JSON's escapes and quotes end it.
_BARE = rb"(?P<value>(?:[^\s'\"`\\]|\\(?!['\"nrt]))+)"
_QUOTE = rb"(?:\\{0,7}['\"`])?"
_FIELD_VALUE = re.compile(_VALUE)
_SAID = (
    rb"(?:pass[- ]?(?:words?|wd|phrase|code)|pwd|pw|api[- ]key|secret|pin|credentials?"
    rb"|token(?!.{0,160}\s\d{1,9}(?:\W|$)))"
)
# What follows the bare word "password" in a sentence.
_NO_VALUE = (
    rb"(?:requests?|prompt\w*|files?|for|from|auth\w*|databases?|manag\w*|hash\w*|chang\w*|expir\w*|requir\w*"
    rb"|protect\w*"
    rb"|polic\w*|based|of|to|in|on|at|and|or|is|was|are|not|has|must|should|will|may|can|cannot|fail\w*"
    rb"|check\w*|entr\w*"
    rb"|wall|agent|quality|strength|less|fields?|stor\w*|length|reset\w*|logins?|mismatch|does|do|with|the|a|an|your|by"
    rb"|via|set|again|too|ok|incorrect|wrong|accept\w*|reject\w*|invalid|sent|plugin|server|daemon|caching|support\w*"
    rb"|method|module|verif\w*|dialog|option\w*|argument|parameter|value|unknown|missing|empty|disabled|enabled|none"
    rb"|valid|correct|known|stale|longer|only|used|being|now|still|needed|undefined|usage|ids?|count)"
)
_END = rb"(?![A-Za-z0-9_-])"
_OF_WORDS = tuple(b"key token secret pass pwd pw psk cred auth cookie jwt otp sess csrf signature".split())
_LOOKS = (
    rb"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|[srp]k_(?:live|test)_[A-Za-z0-9]{12,}"
    rb"|nvapi-[A-Za-z0-9_-]{16,}"
    rb"|glpat-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    rb"|xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"
    rb"|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}"
    rb"|pypi-[A-Za-z0-9_-]{16,}|dckr_pat_[A-Za-z0-9_-]{16,}"
    rb"|dop_v1_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}|tskey-[A-Za-z0-9-]{12,}"
    rb"|hv[sbr]\.[A-Za-z0-9_-]{16,}"
    rb"|SG\.[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{12,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|AQ[A-Za-z0-9+/]{36,38}==?"
    rb"|lsv2_pt_[A-Za-z0-9_]{16,}"
    rb"|eyJ[A-Za-z0-9_-]{10,600}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
    rb"|\\{0,7}\$(?:1|2[abxy]|5|6|7|y|gy|apr1|argon2id?|scrypt)\\{0,7}\$[A-Za-z0-9./$=,+*\\-]{8,}"
)
_LOOK_SIGNS = tuple(
    b"hf_ sk- k_live_ k_test_ nvapi- glpat- ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ xox xapp- akia asia aiza ya29."
    b" npm_ pypi- dckr_pat_ dop_v1_ gsk_ r8_ tskey- hvs. hvb. hvr. sg. age-secret aq lsv2_pt_ eyj $1 $2 $5 $6 $7"
    b" $y $gy $apr1 $argon2 $scrypt".split()
)


def _masked(match: re.Match[bytes]) -> bytes:
    groups = match.groupdict()
    keep, name, value = groups["keep"], groups.get("name"), groups["value"]
    if name is not None and not (is_secret_name(name) and is_secret_value(name, value)):
        return match.group(0)
    if name is None and is_masked(value):
        return match.group(0)
    return keep + _mask_value(keep, value)


def _mask_value(before: bytes, value: bytes) -> bytes:
    """The mask in the form of `value`, which stands behind `before`."""
    first = value[:1]
    if first == b"[":
        quote = re.search(rb"\\{0,7}['\"]", value)
        inner = quote[0] if quote else b""
        return b"[" + inner + MASK + inner + (b"]" if value.endswith(b"]") else b"")
    if first in (b"'", b'"'):
        closing = re.search(rb"['\"]\Z", value[1:])
        closing_escape = before[len(before.rstrip(b"\\")) :]
        return first + MASK + (closing_escape + first if closing and value.endswith(first) and len(value) > 1 else b"")
    # A bare number in JSON: what takes its place has to be JSON, too.
    quoted = re.search(rb"(\\?\")\s{0,60}:\s{0,60}\Z", before[-130:])
    if quoted and not before.endswith(b"\\"):
        return quoted[1] + MASK + quoted[1]
    return MASK


def _redact_fields(line: bytes) -> bytes:
    """`line` with the value of every field and flag masked whose name is a secret's."""
    parts: list[bytes] = []
    end = 0
    position, lowered = 0, line.lower()
    while True:
        hint = _HINT.search(lowered, position)
        if hint is None:
            return b"".join([*parts, line[end:]]) if parts else line
        start = hint.start()
        while start > position and hint.start() - start < 100 and line[start - 1] in _OF_A_NAME:
            start -= 1
        position = _NAME_REST.match(line, hint.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
        name = line[start:position]
        sign = _SIGN.match(line, position) or (_BLANK.match(line, position) if name.startswith(b"-") else None)
        if sign is None:
            continue
        if line[start - 1 : start] == b"%":
            name = name[2:]  # the digits of an escape: %26token%3D
        if not is_secret_name(name):
            continue
        value = _find_value(line, sign.end(), sign["escape"])
        if not value or not is_secret_value(name, value):
            continue
        parts += [line[end : sign.end()], _mask_value(line[start : sign.end()], value)]
        end = position = sign.end() + len(value)


def _find_value(line: bytes, start: int, escape: bytes) -> bytes:
    """The value that begins at `start`; empty where none does. Behind `escape` a quote is closed by an escaped one."""
    quote = line[start : start + 1]
    if escape and quote in (b"'", b'"'):
        end = line.find(escape + quote, start + 1)
        while end > 0 and line[end - 1 : end] == b"\\":  # a quote inside, escaped once more
            end = line.find(escape + quote, end + 1)
        return line[start:] if end < 0 else line[start : end + len(escape) + 1]
    found = _FIELD_VALUE.match(line, start)
    return found[0] if found else b""


def is_masked(value: bytes) -> bool:
    return not value.strip(b"*'\"[]\\ ")


Rule = Union["re.Pattern[bytes]", Callable[[bytes], bytes]]
# Signs (in lower case) of a line on which a rule can match, and the rule. Most lines of most files hold no sign, and a
# kernel log has many lines.
_RULES: tuple[tuple[tuple[bytes, ...], Rule], ...] = (
    # Authorization: Digest username="x", response="VALUE"
    (
        (b"digest",),
        re.compile(rb"(?i)(?P<keep>\b(?:response|c?nonce|opaque)=\\{0,7}['\"])(?P<value>[^'\"\\\s]+)"),
    ),
    (
        _OF_WORDS,
        _redact_fields,
    ),  # api_key='VALUE', "hf_token": "VALUE", HF_TOKEN=VALUE, X-API-Key: VALUE, --api-key VALUE
    # invalid api key: VALUE
    (
        (b" key",),
        re.compile(
            rb"(?i)(?P<keep>\b(?:api|access|secret|private|license|licence|auth|encryption|master"
            rb"|ssh) keys?\s{0,3}(?:[:=]|was|is)\s{0,3}" + _QUOTE + rb")(?!" + _NO_VALUE + _END + rb")" + _BARE
        ),
    ),
    # setenv HF_TOKEN VALUE, ENV HF_TOKEN VALUE, set -gx HF_TOKEN VALUE
    (
        (b"setenv", b"env ", b"set -"),
        re.compile(rb"(?i)(?P<keep>\b(?:setenv|env|set -[a-z]{1,4})\s+" + _NAME + rb"\s+)" + _VALUE),
    ),
    # <password>VALUE</password>, <entry name="password">VALUE<
    (
        _OF_WORDS,
        re.compile(
            rb"(?i)(?P<keep><(?:[a-z]{1,20}:)?" + _NAME + rb"(?:\s[^<>]{0,200})?>)(?P<value>[^<>\s][^<>]*)(?=<|$)"
        ),
    ),
    (
        _OF_WORDS,
        re.compile(
            rb"(?i)(?P<keep><\w{1,40}\s[^<>]{0,80}=\\{0,7}['\"]"
            + _NAME
            + rb"\\{0,7}['\"]>)(?P<value>[^<>\s][^<>]*)(?=<|$)"
        ),
    ),
    # password is X; root password of this guest is X
    (
        (b"pass", b"pwd", b"pw", b"token", b"secret", b"api", b"pin", b"cred"),
        re.compile(
            rb"(?i)(?P<keep>(?<![A-Za-z0-9])"
            + _SAID
            + rb"['\"]?(?:\s{1,3}[A-Za-z']{1,20}){0,6}?\s{1,3}(?:is|was)\s{0,3}:?\s{1,3}"
            + _QUOTE
            + rb")(?!"
            + _NO_VALUE
            + _END
            + rb")"
            + _BARE
        ),
    ),
    # PASSWD X, #pw X, password X (.netrc)
    (
        (b"pass", b"pwd", b"pw"),
        re.compile(
            rb"(?i)(?P<keep>(?<![A-Za-z0-9_.-])(?:root|db|user|admin|ci)?(?:pass(?:word|wd|phrase|code)|pwd"
            rb"|pw)\s{1,8}(?:--[a-z]{1,12}\s{1,8})?" + _QUOTE + rb")(?!" + _NO_VALUE + _END + rb"|[-=:(])" + _BARE
        ),
    ),
    ((b"bearer", b"basic "), re.compile(rb"(?i)(?P<keep>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")),
    (_LOOK_SIGNS, re.compile(rb"(?P<keep>)(?P<value>" + _LOOKS + rb")")),
    (
        (b"ssh-", b"ecdsa-"),
        re.compile(
            rb"(?P<keep>\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[a-z0-9]{1,20})(?:\s+|%20"
            rb"|\+))(?P<value>[A-Za-z0-9+/=%]{8,})"
        ),
    ),
    # scheme://user:VALUE@host, and scheme://VALUE@host
    ((b"://",), re.compile(rb"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]*:)(?P<value>[^\s/@]+)(?=@)")),
    ((b"://",), re.compile(rb"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<value>[^\s/:@'\"]{9,})(?=@)")),
    # user:VALUE@tcp(host), :VALUE@host:6379
    (
        (b"@",),
        re.compile(
            rb"(?P<keep>(?<![A-Za-z0-9_.:/-])[A-Za-z0-9_.-]{0,32}:)(?P<value>[^\s/:@'\"<>(),;]{6,64})(?=@[A-Za-z0-9(\[])"
        ),
    ),
    (
        (b"hooks.", b"webhooks"),
        re.compile(rb"(?P<keep>(?:hooks\.slack\.com/services/|/api/webhooks/))(?P<value>[A-Za-z0-9_/-]+)"),
    ),
    # GET /o?X-Amz-Signature=VALUE&sig=VALUE
    (
        (b"?", b"&"),
        re.compile(
            rb"(?i)(?P<keep>[?&;](?:x-(?:amz|goog|ms)-[\w-]{1,40}|awsaccesskeyid|googleaccessid|sig(?:nature)?"
            rb"|key(?:-pair-id)?|code|ticket"
            rb"|policy|hash|hmac|sas|auth\w{0,20}|pass\w{0,20}|pwd|session\w{0,20}|st|skoid)=)(?P<value>[^\s&'\"<>]+)"
        ),
    ),
    # -object secret,id=s0,data=VALUE, and the same as JSON; -fw_cfg name=opt/x,string=VALUE; SMBIOS credentials
    (
        (b"secret",),
        re.compile(
            rb"(?i)(?P<keep>\bsecret\b[^\s]{0,200}?[,{]['\"]?(?:data|raw)['\"]?[=:]['\"]?)(?P<value>[^\s,'\"}]+)"
        ),
    ),
    ((b"qom-type",), re.compile(rb"(?i)(?P<keep>\"(?:data|raw)\\?\"\s{0,4}:\s{0,4}\\?\")(?P<value>[^\"\\]+)")),
    ((b"opt/",), re.compile(rb"(?P<keep>\bname=opt/(?!ovmf/)[^\s,'\"]{0,200},string=)(?P<value>[^\s,'\"]+)")),
    ((b"smbios",), re.compile(rb"(?i)(?P<keep>\bsmbios1?\b[^\n]{0,200}?\b(?:serial|asset|sku)=)(?P<value>[^\s,'\"]+)")),
    (
        (b"io.systemd.cred",),
        re.compile(rb"(?P<keep>io\.systemd\.credential(?:\.binary)?:[\w.-]{0,100}=)(?P<value>[^\s,'\"]+)"),
    ),
    ((b"setcredential",), re.compile(rb"(?P<keep>\bSetCredential(?:Encrypted)?=[^\s:]{0,100}:)(?P<value>[^\s'\"\\]+)")),
    # openssl -passin pass:VALUE; user%VALUE of smbclient; echo root:VALUE | chpasswd; htpasswd -b FILE USER VALUE
    ((b"pass:",), re.compile(rb"(?P<keep>\bpass:)(?P<value>[^\s'\"]+)")),
    (
        (b"chpasswd",),
        re.compile(
            rb"(?P<keep>[A-Za-z_][\w.-]{0,40}:)(?P<value>[^\s'\":|]+)(?=[^|\n]{0,40}\|\s{0,4}(?:sudo\s)?chpasswd)"
        ),
    ),
    (
        (b"htpasswd",),
        re.compile(rb"(?P<keep>\bhtpasswd\s+-[a-zA-Z]{0,6}b[a-zA-Z]{0,6}\s+\S{1,200}\s+\S{1,80}\s+)" + _BARE),
    ),
    (
        (b"identified",),
        re.compile(rb"(?i)(?P<keep>\bidentified\s+(?:with\s+\S{1,60}\s+)?(?:by|as)\s+['\"]?)(?P<value>[^\s'\"]+)"),
    ),
    ((b"-u ",), re.compile(rb"(?P<keep>(?<![A-Za-z0-9_%])-U\s+[A-Za-z0-9_.\\-]{1,60}%)(?P<value>[^\s'\"]+)")),
    # Authorization: any VALUE; Cookie: a=b; c=d: the whole rest, after what may stand behind it. JSON's and Python's
    # forms end at a quote.
    (
        (b"authorization", b"cookie", b"x-auth"),
        re.compile(
            rb"(?i)(?P<keep>\b(?:(?:proxy-)?authorization|(?:set-)?cookie"
            rb"|x-auth[a-z-]{0,30})\\{0,7}['\"]?\s{0,8}:\s{0,8}\\{0,7}['\"]?)"
            rb"(?P<value>[^\s'\"\\,;)}\]][^'\"\\\r]*)"
        ),
    ),
)
_RULES += ((PROGRAMS, redact_command),)
_SIGNS = tuple(dict.fromkeys(sign for signs, _rule in _RULES for sign in signs))
_KEY_KIND = rb"(?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1)"
_PRIVATE_KEY = re.compile(rb"(-----BEGIN " + _KEY_KIND + rb"-----).*?(-----END " + _KEY_KIND + rb"-----|\Z)", re.DOTALL)
_KEY_LINE = re.compile(rb"[\s\"']*[A-Za-z0-9+/=]{8,80}\\?[\s\"',+]*")
_ENVIRONMENT_LINE = re.compile(rb"\s*(?:Environment=|lxc\.environment(?:\.runtime)?\s{0,8}[:=]|env:)")
_QUOTED_WORD = re.compile(rb"(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s\"'\0])+")


def redact_text(data: bytes, may_leave: Callable[[bytes], bool]) -> bytes:
    """Free text with what looks like a secret masked; of a line that sets an environment, every value whose name
    `may_leave` refuses."""
    lowered = data.lower()
    signs = [sign for sign in _SIGNS if sign in lowered]
    if b"environment" in lowered or b"env:" in lowered:
        data = b"\n".join(_redact_environment_line(line, may_leave) for line in data.split(b"\n"))
    if not signs:
        return data
    if b" key-----" in lowered or b"key block-----" in lowered or b" key v1-----" in lowered:
        data = _PRIVATE_KEY.sub(rb"\1" + MASK + rb"\2", _mask_headless_key(data))
    lines = data.split(b"\n")
    found = _find_lines(data.lower(), signs)
    for signs_of_rule, rule in _RULES:
        for number in sorted(set().union(*(found.get(sign, ()) for sign in signs_of_rule))):
            lines[number] = rule.sub(_masked, lines[number]) if isinstance(rule, re.Pattern) else rule(lines[number])
    return b"\n".join(lines)


def _find_lines(lowered: bytes, signs: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Sign -> the numbers of the lines that hold it."""
    starts = [0]
    for line in lowered.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found: dict[bytes, list[int]] = {}
    for sign in signs:
        numbers, position = [], lowered.find(sign)
        while position >= 0:
            number = bisect.bisect_right(starts, position) - 1
            numbers.append(number)
            position = lowered.find(sign, starts[number + 1])
        found[sign] = numbers
    return found


def _mask_headless_key(data: bytes) -> bytes:
    """The lines of a key whose beginning was cut off, as a tail of a log begins anywhere."""
    end = re.search(rb"-----END " + _KEY_KIND + rb"-----", data)
    if end is None or b"-----BEGIN " in data[: end.start()]:
        return data
    lines = data[: end.start()].split(b"\n")
    first = len(lines) - 1  # the END line's own beginning
    while first > 0 and _KEY_LINE.fullmatch(lines[first - 1]):
        first -= 1
    if first == len(lines) - 1:
        return data
    return b"\n".join([*lines[:first], MASK, lines[-1]]) + data[end.start() :]


def _redact_environment_line(line: bytes, may_leave: Callable[[bytes], bool]) -> bytes:
    """`Environment=A=x "B=y z"` of a unit, `lxc.environment: A=x` of a container."""
    start = _ENVIRONMENT_LINE.match(line)
    if start is None:
        return line

    def masked(match: re.Match[bytes]) -> bytes:
        word = match.group(0)
        quote = word[:1] if word[:1] in (b"'", b'"') else b""
        name, separator, value = word[len(quote) :].partition(b"=")
        if not separator or may_leave(name) or not value.strip(b"'\""):
            return word
        return quote + name + separator + MASK + (quote if quote and word.endswith(quote) else b"")

    return line[: start.end()] + _QUOTED_WORD.sub(masked, line[start.end() :])
