"""Takes out of a bundle what identifies a machine: UUIDs, serial numbers, MAC and IP addresses, the host name.

The same value becomes the same replacement everywhere, so that what belongs together still does. PCI addresses, names
of cards, versions and sizes stay: they are the evidence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_HEX = "[0-9a-fA-F]"
_UUID = re.compile(r"\b%s{8}-%s{4}-%s{4}-%s{4}-%s{12}\b" % (_HEX, _HEX, _HEX, _HEX, _HEX))
_MAC = re.compile(r"\b(?:%s{2}:){5}%s{2}\b" % (_HEX, _HEX))
# Four numbers that are no address occur too (a version such as 10.2.2.1); losing one of those costs nothing.
_IPV4 = re.compile(r"(?<![\d.\w-])(?:\d{1,3}\.){3}\d{1,3}(?![\d.\w-])")
_SERIAL = re.compile(r"(?P<keep><(?:\w+_)?serial(?:_number)?>|Serial(?: Number)?\s*: )(?P<value>[A-Za-z0-9-]{4,})")
# A host called `gpu`, `host` or `nvidia` gives nothing away, and to replace that word would destroy the evidence.
_TELLING_NAME = re.compile(r"\w[\d.-]|[\d.-]\w")
_HARMLESS_ADDRESS = re.compile(r"^(?:127\.|0\.0\.0\.0$|255\.)")


def anonymise_bundle(text: str, host: str = "host") -> str:
    """The text of a bundle without identifiers; `host` is the name that it gets.

    ValueError if the first line is no manifest.
    """
    manifest = json.loads(text.split("\n", 1)[0])
    if not isinstance(manifest, dict):
        raise ValueError("the first line is no manifest")
    replace = _Replacer()
    text = _UUID.sub(replace.by(lambda number: "00000000-0000-0000-0000-%012x" % number), text)
    text = _MAC.sub(replace.by(lambda number: "02:00:00:00:%02x:%02x" % (number >> 8 & 0xFF, number & 0xFF)), text)
    text = _IPV4.sub(replace.by(lambda number: "192.0.2.%d" % (number % 256), _HARMLESS_ADDRESS), text)
    text = _SERIAL.sub(lambda match: match["keep"] + replace.value(match["value"], "%013d".__mod__), text)
    name = str(manifest.get("host") or "")
    if _TELLING_NAME.search(name):
        text = re.sub(r"(?<![\w-])%s(?![\w-])" % re.escape(name), host, text)
    lines = text.split("\n")
    manifest = {**json.loads(lines[0]), "host": host, "anonymous": True}
    return "\n".join([json.dumps(manifest, ensure_ascii=False), *lines[1:]])


class _Replacer:
    """Numbers the distinct values in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def value(self, found: str, form: Callable[[int], str]) -> str:
        return form(self._numbers.setdefault(found.lower(), len(self._numbers) + 1))

    def by(self, form: Callable[[int], str], harmless: re.Pattern[str] | None = None) -> Callable[[re.Match[str]], str]:
        return lambda match: match[0] if harmless and harmless.search(match[0]) else self.value(match[0], form)
