"""Takes out of a bundle what identifies a machine, a person or a network: UUIDs and other ids, serial numbers, MAC and
IP addresses, and the names of hosts, guests and users.

The same value becomes the same stand-in everywhere, in paths and in records stored as base64, too, so that what belongs
together still does. PCI addresses, names of cards, versions and sizes stay: they are the evidence.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from . import identities

_CONFIG = re.compile(r"/sys/.*/config")
_DMI_SERIAL = re.compile(r"/sys/(?:class|devices/virtual)/dmi/id/\w+_serial")
# Keys of records; any other key is a name that the evidence holds (a file in a directory).
_KEYS = frozenset(
    """
    read list run fetch status truncated reason text base64 entries rc seconds stdout stderr stdout_base64 stderr_base64
    kind target mode uid gid major minor size modified method code content_type first_byte_s label
    """.split()  # noqa: SIM905
)
_KEPT_KEYS = frozenset(("bundle", "tool", "status", "kind", "method", "content_type", "engine"))


def anonymise_bundle(text: str, host: str = "host") -> str:
    """The text of a bundle without identities; `host` is the name that it gets.

    ValueError if the first line is no manifest.
    """
    lines = text.split("\n")
    manifest = json.loads(lines[0])
    if not isinstance(manifest, dict):
        raise ValueError("the first line is no manifest")
    records = [json.loads(line) for line in lines[1:] if line.strip()]
    names = _Names(host)
    own = str(manifest.get("host") or "")
    if own:
        names.add_own(own)
    for record in (manifest, *records):
        names.collect(record)
    replace = _Replacer(names)
    manifest = {**_rewritten(manifest, replace), "host": host, "anonymous": True}
    written = [json.dumps(_anonymous_record(record, replace), ensure_ascii=True) for record in records]
    return "\n".join([json.dumps(manifest), *written, ""])


def _decoded(encoded: str) -> str:
    """The bytes of a record as text, each byte that is no UTF-8 kept."""
    return base64.b64decode(encoded, validate=True).decode("utf-8", "surrogateescape")


def _texts_of(value: Any, key: str = "") -> Iterable[str]:
    """Every text in a record: names, paths, contents."""
    if isinstance(value, str):
        yield _decoded(value) if key.endswith("base64") else value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield str(name)
            yield from _texts_of(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _texts_of(part)
        yield "\0" + "\0".join(part for part in value if isinstance(part, str))


def _rewritten(value: Any, replace: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, str):
        if key in _KEPT_KEYS:
            return value
        if key.endswith("base64"):
            changed = replace(_decoded(value)).encode("utf-8", "surrogateescape")
            return base64.b64encode(changed).decode("ascii")
        return replace(value)
    if isinstance(value, dict):
        return {
            name if name in _KEYS else replace(str(name)): _rewritten(part, replace, str(name))
            for name, part in value.items()
        }
    return [_rewritten(part, replace) for part in value] if isinstance(value, list) else value


def _anonymous_record(record: dict[str, Any], replace: _Replacer) -> dict[str, Any]:
    path = str(record.get("read", ""))
    if _CONFIG.fullmatch(path) and ("base64" in record or "text" in record):
        data = base64.b64decode(record["base64"]) if "base64" in record else record["text"].encode("utf-8")
        changed = base64.b64encode(_without_device_serial(data)).decode("ascii")
        return {
            **{key: value for key, value in record.items() if key != "text"},
            "read": replace(path),
            "base64": changed,
        }
    found: dict[str, Any] = _rewritten(record, replace)
    if _DMI_SERIAL.fullmatch(path) and isinstance(record.get("text"), str):  # all of it is the number, however short
        found["text"] = replace.take_stand_in(record["text"].strip()) + "\n"
    return found


def _without_device_serial(data: bytes) -> bytes:
    """PCI configuration space with the number in its Device Serial Number capability (0003h) zeroed."""
    place, seen = 0x100, 0
    while 0x100 <= place <= len(data) - 12 and seen < 48:
        header = int.from_bytes(data[place : place + 4], "little")
        if header & 0xFFFF == 3:
            return data[: place + 4] + bytes(8) + data[place + 12 :]
        place, seen = header >> 20 & 0xFFC, seen + 1
    return data


def _digits_of(guid: str) -> str:
    return guid.lower().replace("0x", "", 1).replace(":", "")


_FIELD = re.compile(r'"([A-Za-z]\w*)": ')


class _Names:
    """The names that the evidence shows in places of names, and their stand-ins."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._numbers: dict[str, int] = {}
        self._made: set[str] = set()
        self.table: dict[str, str] = {}  # as the evidence spells it -> its stand-in
        self.vocabulary: set[str] = set()  # words of the evidence itself
        self.fields: set[str] = set()  # of the probe's results, which are JSON
        self.guids: set[str] = set()  # their digits

    def collect(self, record: dict[str, Any]) -> None:
        """Take in the names that `record` shows, and the words that it asks with."""
        asked = record.get("run") or [record.get("read") or record.get("list") or record.get("fetch") or ""]
        for word in asked:
            if not identities.HOME.search(str(word)):
                self.vocabulary.update(re.findall("[a-z0-9]+", str(word).lower()))
        if str(asked[0]).startswith("p2p_"):
            self.fields.update(_FIELD.findall(str(record.get("stdout", ""))))
        if asked[0] == "nvidia-smi":
            self.vocabulary |= identities.find_labels(str(record.get("stdout", "")))
        if _DMI_SERIAL.fullmatch(str(record.get("read", ""))) and identities.is_serial(
            str(record.get("text", "")).strip()
        ):
            self._add(str(record["text"]).strip(), "serial", "%s", 1000000000000, always=True)
        for text in _texts_of(record):
            for kind, name in identities.find_names(text):
                self.add(kind, name)
            for match in identities.GUID.finditer(text):
                self.guids.add(_digits_of(match["value"]))
            for match in identities.SERIAL.finditer(text):
                if identities.is_serial(match["value"]):
                    self._add(match["value"], "serial", "%s", 1000000000000, always=True)

    def add(self, kind: str, name: str) -> None:
        """Of a host with dots in its name also the short form and the domain.

        Behind the name of a user ("at") every name is one: `user@example.org` is somebody's, too.
        """
        if kind not in ("host", "at"):
            self._add(name, kind, kind + "%s")
            return
        short, _dot, domain = name.partition(".")
        if kind == "at" and domain.count(".") == 0:  # of an address of mail both are the domain's
            short, domain = ("", name) if domain else (name, "")
        self._add(short, "host", "host%s")
        if domain and not domain[0].isdigit():
            self._add(domain, "domain", "domain%s.example", always=kind == "at")

    def add_own(self, name: str) -> None:
        """The name of the machine itself."""
        short = name.partition(".")[0]
        if identities.is_telling(short):
            self.table[short] = self.host
            self._made.add(self.host)
        self.add("host", name)

    def _add(self, name: str, kind: str, form: str, first: int = 0, always: bool = False) -> None:
        if name and name not in self.table and (always or identities.is_telling(name)) and name not in self._made:
            self._numbers[kind] = self._numbers.get(kind, first) + 1
            self.table[name] = made = form % self._numbers[kind]
            self._made.add(made)

    def everywhere(self) -> dict[str, str]:
        """Those of `table` that are replaced wherever they stand: long enough to be nothing else, and neither a word of
        the evidence nor a field of a result."""
        return {
            name: made
            for name, made in self.table.items()
            if name not in self.fields
            and (len(name) > 6 if made.isdigit() else len(name) > 3 and identities.is_telling(name))
            and self.vocabulary.isdisjoint(re.findall("[a-z0-9]+", name.lower()))
        }


_WORD = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")


class _Replacer:
    """Replaces by form, and every name by its stand-in; numbers the values in the order in which they come."""

    def __init__(self, names: _Names) -> None:
        self._placed = names.table
        self._table = names.everywhere()
        self._guids = names.guids
        self._host_forms = (names.host, "host")
        self._stand_ins = set(names.table.values())
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}
        self._parts = frozenset(part for name in self._table for part in re.split("[._-]+", name))

    def __call__(self, text: str) -> str:
        if len(text) < 3:
            return text
        text = identities.UUID.sub(lambda match: self._uuid(match[0]), text)
        text = identities.LONG_ID.sub(lambda match: self._long_id(match[0]), text)
        text = identities.PARTITION.sub(self._by("partition", self._partition), text)
        text = identities.LVM_ID.sub(lambda match: self._lvm(match[0]), text)
        if self._guids:
            text = identities.GUID.sub(self._guid, text)
            text = identities.ANY_GUID.sub(self._known_guid, text)
        text = self._addresses(text)
        text = identities.MAC.sub(lambda match: self._mac(match[0]), text)
        text = identities.IPV4.sub(self._ipv4, text)
        text = identities.SERIAL.sub(self._serial, text)
        text = identities.BY_ID.sub(self._by("disk", lambda number: "disk-%d" % number), text)
        text = identities.KEY_PRINT.sub(self._by("print", lambda number: "%043d" % number), text)
        for _kind, pattern in identities.PLACES:
            text = pattern.sub(self._place, text)
        text = identities.USER_AT.sub(self._login, text)
        return _WORD.sub(self._word, text) if self._table else text

    def take_stand_in(self, value: str) -> str:
        """What stands for `value`, which is a name or a number and nothing else."""
        return self._placed.get(value, value)

    def _number(self, kind: str, value: str) -> int:
        if (kind, value) not in self._numbers:
            self._numbers[kind, value] = self._last[kind] = self._last.get(kind, 0) + 1
        return self._numbers[kind, value]

    def _place(self, match: re.Match[str]) -> str:
        start, end = match.start("name") - match.start(), match.end("name") - match.start()
        return match[0][:start] + self._name(match["name"]) + match[0][end:]

    @staticmethod
    def _is_domain(pieces: list[str], end: int) -> bool:
        """Whether what follows the name of a host is its domain: joined by dots, and no ending of a file."""
        signs, labels = pieces[end::2], pieces[end + 1 :: 2]
        return bool(labels) and signs[0] == "." and labels[-1].isalpha() and labels[-1] not in identities.FILE_ENDINGS

    def _name(self, name: str) -> str:
        """The stand-in of a name that stands where a name stands."""
        bare = name.rstrip(".-")
        if bare in self._placed:
            return self._placed[bare] + name[len(bare) :]
        short, dot, domain = bare.partition(".")
        made = self._placed.get(short, short) + (dot + self._placed.get(domain, domain))
        return made + name[len(bare) :]

    def _login(self, match: re.Match[str]) -> str:
        if not identities.is_login(match):
            return match[0]
        return "%s@%s" % (self._placed.get(match["user"], match["user"]), self._name(match["host"]))

    def _by(self, kind: str, form: Callable[[int], str]) -> Callable[[re.Match[str]], str]:
        return lambda match: form(self._number(kind, match[0].lower()))

    def _uuid(self, found: str) -> str:
        return "00000000-0000-0000-0000-%012x" % self._number("id", found.replace("-", "").lower())

    def _long_id(self, found: str) -> str:
        if not found.strip("0"):
            return found
        number = self._number("id", found.lower())
        return "%0*x" % (len(found), number)

    @staticmethod
    def _partition(number: int) -> str:
        return "%08x-01" % number

    def _lvm(self, found: str) -> str:
        if not (any(letter.isdigit() for letter in found) and any(letter.isupper() for letter in found)):
            return found  # words with dashes between them
        return "000000-0000-0000-0000-0000-0000-%06d" % self._number("lvm", found)

    def _guid(self, match: re.Match[str]) -> str:
        value = match["value"]
        return match[0][: match.start("value") - match.start()] + self._guid_stand_in(value)

    def _known_guid(self, match: re.Match[str]) -> str:
        return self._guid_stand_in(match[0]) if _digits_of(match[0]) in self._guids else match[0]

    def _guid_stand_in(self, value: str) -> str:
        digits = _digits_of(value)
        if not digits.strip("0"):
            return value
        made = "%0*x" % (len(digits), 0x0200 << 48 | self._number("guid", digits))
        if ":" in value:
            made = ":".join(made[start : start + 4] for start in range(0, len(made), 4))
        return ("0x" if value[:2].lower() == "0x" else "") + made

    def _mac(self, found: str) -> str:
        digits = re.sub("[^0-9a-f]", "", found.lower())
        if not digits.strip("0f"):
            return found
        if len(digits) == 16:
            made = "%016x" % (0x0200 << 48 | self._number("guid", digits))
        else:
            made = "%012x" % (0x02 << 40 | self._number("mac", digits))
        if "." in found:
            return ".".join(made[start : start + 4] for start in range(0, 12, 4))
        mark = next((mark for mark in ":-" if mark in found), "")
        return mark.join(made[start : start + 2] for start in range(0, len(made), 2))

    def _ipv4(self, match: re.Match[str]) -> str:
        found = match[0]
        if identities.HARMLESS_IPV4.match(found) or any(int(part) > 255 for part in found.split(".")):
            return found
        number = self._number("ipv4", found)
        return "192.0.2.%d" % number if number < 255 else "198.18.%d.%d" % (number >> 8 & 0xFF, number & 0xFF)

    def _addresses(self, text: str) -> str:
        parts, end = [], 0
        for start, stop, address in identities.find_addresses(text) if "::" in text or text.count(":") > 6 else ():
            parts += [text[end:start], "2001:db8::%x" % self._number("ipv6", address)]
            end = stop
        return "".join([*parts, text[end:]])

    def _serial(self, match: re.Match[str]) -> str:
        value = match["value"]
        if not identities.is_serial(value) or value in self._stand_ins:
            return match[0]
        made = self._placed.get(value, value)
        return match[0][: match.start("value") - match.start()] + made

    def _word(self, match: re.Match[str]) -> str:
        """A word, or one of the words that dots and dashes join: gpuserver--vg-root, gpuserver.example.org."""
        word = match[0]
        whole = self._table.get(word)
        if whole is not None:
            return whole
        pieces = re.split("([._-]+)", word)
        if self._parts.isdisjoint(pieces):
            return word
        made, index = "", 0
        while index < len(pieces):
            for end in range(len(pieces), index, -2):  # the longest name that begins here
                found = self._table.get("".join(pieces[index:end]))
                if found is not None:
                    made, index = made + found, end
                    if found.startswith(self._host_forms) and self._is_domain(pieces, end):
                        domain = "".join(pieces[end + 1 :])
                        return "%s.domain%d.example" % (made, 100 + self._number("domain", domain))
                    break
            else:
                made, index = made + pieces[index], index + 1
            if index < len(pieces):  # the dots and dashes
                made, index = made + pieces[index], index + 1
        return made
