"""What in a text says which machine, person or network it is of, found by its form or by where it stands."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

_HEX = "[0-9a-fA-F]"
UUID = re.compile(r"(?<![0-9A-Za-z])%s{8}-%s{4}-%s{4}-%s{4}-%s{12}(?![0-9A-Za-z])" % ((_HEX,) * 5))
# A UUID without its dashes, a machine-id; 64: the id of a container or an image.
LONG_ID = re.compile(r"(?<![0-9A-Za-z])(?:%s{64}|%s{32})(?![0-9A-Za-z])" % (_HEX, _HEX))
PARTITION = re.compile(r"(?<=PARTUUID=)%s{8}-%s{2}(?!%s)|(?<=[ \"'=]UUID=)%s{4}-%s{4}(?!%s)" % ((_HEX,) * 6))
LVM_ID = re.compile(r"(?<![0-9A-Za-z])[0-9A-Za-z]{6}(?:-[0-9A-Za-z]{4}){5}-[0-9A-Za-z]{6}(?![0-9A-Za-z])")
# Colons, dashes, Cisco's dots, and the name of an interface that is made of one; eight groups: serial numbers of PCI
# devices, GUIDs.
MAC = re.compile(
    r"(?<![0-9A-Za-z:-])(?:(?:%(h)s{2}:){5}%(h)s{2}|(?:%(h)s{2}:){7}%(h)s{2}|(?:%(h)s{2}-){5}%(h)s{2}"
    r"|(?:%(h)s{2}-){7}%(h)s{2})(?![0-9A-Za-z:-])"
    r"|(?<![0-9A-Za-z.])%(h)s{4}\.%(h)s{4}\.%(h)s{4}(?![0-9A-Za-z.])|(?<=\benx)%(h)s{12}(?![0-9A-Za-z])" % {"h": _HEX}
)
# A number of 64 bits is an address of the kernel as well; as a GUID it is known by the word before it.
GUID = re.compile(
    r"(?i)(?:\b\w{0,20}guid|\bwwi?[nd]|\bwwpn|\bwwnn|\beui|\bnaa"
    r"|\bnguid)(?P<gap>[\"']?[\s:=.]{1,12}[\"']?)(?P<value>(?:0x)?%s{16}(?:%s{16})?|%s{4}(?::%s{4}){3})(?![0-9A-Za-z:])"
    % ((_HEX,) * 4)
)
# Four numbers that are no address occur too (a version such as 10.2.2.1); losing one of those costs nothing.
IPV4 = re.compile(r"(?<![\d.\w-])(?:\d{1,3}\.){3}\d{1,3}(?![\d\w-]|\.\d)")
HARMLESS_IPV4 = re.compile(r"127\.|0\.0\.0\.0$|255\.")
_IPV6 = re.compile(
    r"(?<![0-9A-Za-z:.])(?:%s{1,4}|:)?(?::%s{0,4}){2,8}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?(?![0-9A-Za-z:.]*[0-9A-Za-z:])"
    % (_HEX, _HEX)
)
SERIAL = re.compile(
    r"(?i)(?:<(?:\w{1,30}_)?serial(?:_number)?>|(?<![0-9A-Za-z])(?:serial(?:[ _-]?(?:number|no|num))?|s/n"
    r"|asset[ _]tag|service[ _]tag)\\?[\"']?\s{0,60}[:=]\s{0,8}\\?[\"']?)"
    r"(?P<value>[A-Za-z0-9][A-Za-z0-9./_+-]{3,63}={0,2})"
)
BY_ID = re.compile(r"(?<=disk/by-id/)[A-Za-z0-9][^\s'\",)\]]{3,120}")
KEY_PRINT = re.compile(r"(?<=\bSHA256:)[A-Za-z0-9+/]{43}")
# The name of a user at the name of a host: an address of mail, a login, a prompt.
USER_AT = re.compile(
    r"(?<![\w.+@/-])(?P<user>[A-Za-z_][\w.+-]{0,40})@(?P<host>[A-Za-z0-9][A-Za-z0-9-]{0,60}(?:\.[A-Za-z0-9-]{1,60}){0,6})(?![\w@-])"
)
_UNIT = re.compile(r"\.(?:service|socket|slice|timer|mount|scope|target|device|path|swap)$")
HOME = re.compile(r"(?<![\w.])/(?:home|Users|users|export/home|data/home|mnt/home)/(?P<name>[A-Za-z_][\w.-]{0,40})")
# Where the name of a machine stands: a log's column, uname -a, prompts, hostname and its kin, Proxmox's folders.
_HOST_PLACES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,]{8,15}(?:Z|[+-]\d\d:?\d\d)?"
        r"|\d{9,11}\.\d{3,6}) (?P<name>[A-Za-z0-9][\w.-]{0,62}) [\w./()@-]{1,40}(?:\[\d{1,8}\])?: ",
        r"^Linux (?P<name>[A-Za-z0-9][\w.-]{0,62}) \d+\.\d+",
        r"(?<![\w.-])(?:[Ss]tatic hostname|[Hh]ost ?name|HOSTNAME|[Nn]ode[Nn]ame"
        r"|Icon name: computer-\w{1,20} name)\s{0,20}[:=]?\s{1,20}(?P<name>[A-Za-z0-9][\w.-]{0,62})(?=\s|$)",
        r"(?<![\w.-])(?:[Hh]ostname|HOSTNAME|host_name|hostname_override"
        r"|systemd\.hostname)[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<name>[A-Za-z0-9][\w.-]{0,62})",
        r"(?:/etc/pve/)?nodes/(?P<name>[A-Za-z0-9][\w-]{0,62})(?![\w.-])",
        r"(?<![\w-])node=(?P<name>[A-Za-z][\w-]{0,62})",
        r"^(?P<name>[A-Za-z0-9][\w.-]{0,62}):\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL ",
        r"^127\.0\.1\.1\s{1,20}(?P<name>[A-Za-z0-9][\w.-]{0,62})",
    )
)
_GUEST_PLACES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:name|hostname): ?(?P<name>[A-Za-z0-9][\w.-]{0,62})\s{0,4}$",
        r"\0-name\0(?:guest=)?(?P<name>[A-Za-z0-9][\w.-]{0,62})",
        r"(?<![\w-])-name ['\"]?(?:guest=)?(?P<name>[A-Za-z0-9][\w.-]{0,62})[^ ]{0,60}",
    )
)
# Words of the field, of Linux and of roles: who is called that is not known by it, and in the evidence it means itself.
_COMMON = frozenset(
    """
    host hosts localhost local gpu gpus nvidia node nodes server servers vm vms guest guests container containers ct
    lxc kvm qemu pve proxmox debian ubuntu linux kernel root user users admin test tests dev prod main default none
    null true false unknown name names model models cuda nccl sglang vllm python python3 engine inference llm ai ml
    docker podman systemd dmesg pci pcie usb net eth cpu memory disk boot home data srv opt usr var etc tmp run proc
    sys bin lib mnt media work shared cache share storage public common build buildd nobody daemon www-data service
    services worker head master slave primary secondary one two three driver module modules device devices bridge
    router dns web db api app apps log logs info error warning card cards hgx dgx h100 h200 a100 b200 b300 gb200
    l40s rtx tesla geforce machine system computer bare-metal metal cluster group rank tp pp dp fabric link switch
    firmware bios uefi q35 i440fx pc virtio vfio iommu acs read list text fetch stdout stderr status reason entries
    base64 code label seconds blackwell hopper ampere ada turing volta pascal titan grace com org io lan example
    github google huggingface nvidia.com the and for with from this that not has was are is it on off
    """.split()  # noqa: SIM905  a list of words is easier to read
)
_PUBLIC_DOMAIN = re.compile(
    r"(?:^|\.)(?:github\.com|gitlab\.com|kernel\.org|nvidia\.com|debian\.org|ubuntu\.com|proxmox\.com"
    r"|huggingface\.co|python\.org|pytorch\.org"
    r"|redhat\.com|canonical\.com|intel\.com|amd\.com|google\.com|example\.(?:org|com|net))$"
)
_NO_SERIAL = re.compile(
    r"(?i)n/?a$|none|not|unknown|default|0+$|to[ _]be|system|standard|tty|8250|socket|null|true|false|/dev/"
    r"|unset|disabled|enabled"
)


def find_addresses(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, the address without spelling) of every IPv6 address in `text` that is somebody's."""
    for match in _IPV6.finditer(text):
        found = match.group(0)
        if sum(letter.isdigit() for letter in found) == 0 and found.count(":") < 4:
            continue
        try:
            address = ipaddress.IPv6Address(found)
        except ValueError:
            continue
        if not (
            address.is_unspecified or address.is_loopback or (address.ipv4_mapped and address.ipv4_mapped.is_loopback)
        ):
            yield match.start(), match.end(), address.compressed


def is_serial(value: str) -> bool:
    """Whether what stands behind "serial" is a serial number and no word."""
    return not _NO_SERIAL.match(value) and (
        any(letter.isdigit() for letter in value) or (value.isupper() and len(value) > 5)
    )


def is_telling(name: str) -> bool:
    """Whether a name gives somebody away, wherever it stands."""
    lowered = name.lower()
    return len(name) > 2 and lowered not in _COMMON and not name.isdigit() and not _PUBLIC_DOMAIN.search(lowered)


# (kind, pattern): what stands in `name` is the name of a host, a guest or a user.
PLACES = (
    *(("host", pattern) for pattern in _HOST_PLACES),
    *(("guest", pattern) for pattern in _GUEST_PLACES),
    ("user", HOME),
)


def find_names(text: str) -> Iterator[tuple[str, str]]:
    """(host, guest, user, or "at": a host behind a user's name; the name) of every name that stands in its place."""
    for kind, pattern in PLACES:
        for match in pattern.finditer(text):
            yield kind, match["name"].rstrip(".-")
    for match in USER_AT.finditer(text):
        if is_login(match):
            yield "user", match["user"]
            yield "at", match["host"]


def is_login(match: re.Match[str]) -> bool:
    """Whether user@host is one, and no instance of a systemd unit."""
    return not (_UNIT.search(match["host"]) or match["host"].isdigit())


# A number that another place calls a GUID.
ANY_GUID = re.compile(
    r"(?<![0-9A-Za-z:])(?:(?:0x)?%s{16}(?:%s{16})?|%s{4}(?::%s{4}){3})(?![0-9A-Za-z:])" % ((_HEX,) * 4)
)
FILE_ENDINGS = frozenset(
    """
    log gz json jsonl txt conf yml yaml md csv xml zst xz service out err cfg bak old tar tgz zip so py sh ko
    """.split()  # noqa: SIM905
)
_LABEL = re.compile(r"<([A-Za-z_]\w{1,40})>|^\s{0,60}([A-Za-z][\w ./()-]{1,40}?)\s{0,60}:", re.MULTILINE)


def find_labels(text: str) -> set[str]:
    """The words of the labels in an output of nvidia-smi, in lower case: a user called Max is none of them."""
    words: set[str] = set()
    for match in _LABEL.finditer(text):
        words.update(re.findall("[a-z0-9]+", (match[1] or match[2]).lower()))
    return words
