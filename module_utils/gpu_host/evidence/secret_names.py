"""Which names have a secret as their value: of environment variables, flags, fields and headers."""

from __future__ import annotations

import re

# Words that end the part of a name that says what its value is. The short ones need a boundary before and behind.
WORD = (
    rb"(?:api[-_]?keys?|tokens?|secrets?|pass[-_]?(?:words?|wort|wds?|phrases?|codes?)|pass|pwd|pw|psk|cred(?:ential)?s?"
    rb"|auth(?:orization)?|cookies?|jwt|otp|sess(?:ion)?[-_]?id|phpsessid|csrf|signature"
    rb"|(?:private|access|auth|secret|shared|preshared|account|master|encryption|encrypt|enc|signing|license|ssh|session"
    rb"|storage|service|client|admin|deploy|app|webhook|wrapping|subscription|crypt|luks|wg|rpc|root)[-_]?keys?"
    rb"|(?<=[-_.])keys?)[0-9]{0,3}"
)
_SECRET_NAME = re.compile(rb"(?i)(?:^|[-_.])" + WORD + rb"(?:$|[-_.])")
# Strong enough inside a word: cipassword, PGPASSWORD, dbpasswd, hfapikey, rootpw.
_INSIDE = re.compile(
    rb"(?i)password|passwd|passphrase|apikey|(?:db|root|user|admin|my|my?sql|smtp|ftp|vnc|ldap|bind|store|redis)(?:pass|pwd|pw)$"
)
# Names with a secret word that hold a number, a setting or a path, not a secret: --max-tokens 5, --tokenizer-path X.
HARMLESS_NAME = re.compile(
    rb"(?i)max[-_].{0,80}tokens?$|tokens?[-_](?:limit|count|num\w*|usage|per[-_]\w+|budget)|num[-_].{0,80}tokens?|tokenizer"
    rb"|[-_]tokens?[-_]?(?:size|len\w*|ratio|threshold|id|ids)$|chunked|prefill|batch|total[-_]?(?:num[-_])?tokens?$"
    rb"|sig(?:nature)?[-_]key|pub(?:lic)?[-_]?key|(?:sort|cache|primary|foreign|partition|barrier|host|object|dict)[-_]key"
)
_CAMEL = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])")
# Values that are no secret, whatever the name says.
_NO_SECRET = re.compile(
    rb"(?i)none|null|true|false|yes|no|on|off|enabled?|disabled?|required|optional|unset|not|\*+|\.\.\.|n/a|-|~|"
)
# A bare number after a word for tokens, keys or tests is a count; after another word it may be a PIN.
_COUNT = re.compile(rb"\d+(?:\.\d+)?[%kKmM]?")
_COUNTED_NAME = re.compile(rb"(?i)token|keys?$|^pass(?:es|ed)?$|cookie|auth")
_NUMBERS = re.compile(rb"[\d\s,.eE+-]+")
_WORKING_DIRECTORY = re.compile(rb"(?:OLD)?PWD")


def is_secret_name(name: bytes) -> bool:
    """Whether an environment name, a field or a flag looks as if its value were a secret."""
    words = _CAMEL.sub(b"_", name.lstrip(b"-"))
    return bool(_SECRET_NAME.search(words) or _INSIDE.search(words)) and not HARMLESS_NAME.search(words)


def is_secret_value(name: bytes, value: bytes) -> bool:
    """Whether `value`, without its quotes, may be a secret where `name` is a secret's."""
    bare = value.strip(b"'\"[]\\ ")
    if _NO_SECRET.fullmatch(bare) or (_WORKING_DIRECTORY.fullmatch(name) and bare.startswith(b"/")):
        return False
    number = _COUNT.fullmatch(bare) or (value.startswith(b"[") and _NUMBERS.fullmatch(bare))
    return not (number and _COUNTED_NAME.search(name))
