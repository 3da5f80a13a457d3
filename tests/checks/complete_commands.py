"""Whether a command that is offered for copying is complete: nothing in it stands for something that the reader has to
know, and nothing in it is an example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Words in capitals that are a program's own.
_OWN_WORDS = re.compile(
    r"NVRM|LOCKUP|TOTAL|NET|BAR|AER|ACS|ECC|ROW_REMAPPER|MCE|EDAC|IO_PAGE_FAULT|DMAR|DEFAULT|PERFORMANCE|TEMPERATURE|POWER|MEMORY|CLOCK|"
    r"NUMA|IOMMU|API|FLR|SXM|MIG|SYS|INFO|OK|GPU|GPUs|UUID|PCI|VGA|RM|LABEL|PATH=\S+|"
    r"GRUB|ALL|NCCL_?|P2P|VM|BAR1|[A-Z0-9]+(?:_[A-Z0-9]+)+"
)
_CAPITALS = re.compile(r"(?<![\w$%'\"/.-])(?:[A-Z][A-Z0-9_]+|N)(?![\w=:'\"-])")
_STANDS_FOR = re.compile(r"…|<[a-z][a-z _-]*>|\bNone\b|^unknown$|\bVMID\b|\bCTID\b|\bWATTS\b|\bNUMBER\b|/(?:HOST|N)\b")
_ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
_GUEST = re.compile(r"\b(?:qm|pct) [a-z]+ ([^\s;-][^\s;]*)|/(?:lxc|qemu-server)/([^\s*/]+)\.conf")
_NODE = re.compile(r"/dev/(nvidia\d+)\b")


def find_incomplete(result: dict[str, Any], host: dict[str, Any]) -> list[str]:
    """What stands in the commands of a result's remedy, or in its `verify`, and is not known of this host."""
    remedy = result["remedy"]
    texts = [*remedy["commands"], remedy["verify"]] if remedy else []
    if not texts:
        return []
    known = json.dumps(host, default=str)
    return [problem for text in texts for problem in _problems(text, known)]


def _problems(text: str, known: str) -> Iterator[str]:
    for word in _STANDS_FOR.findall(text):
        yield "%r in %r" % (word, text)
    for word in _CAPITALS.findall(text):
        if not _OWN_WORDS.fullmatch(word):
            yield "%r in %r" % (word, text)
    for address in _ADDRESS.findall(text):
        if address not in known:
            yield "%s, of which nothing is known here, in %r" % (address, text)
    for number in (left or right for left, right in _GUEST.findall(text)):
        if not number.islower() and (not number.isdigit() or '"%s"' % number not in known):
            yield "%s, no guest that is known here, in %r" % (number, text)
    for node in _NODE.findall(text):
        if node not in known:
            yield "/dev/%s, of which nothing is known here, in %r" % (node, text)
