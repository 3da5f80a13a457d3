"""One log of ``nvidia-smi -q``, whichever way it was printed.

A small tree for each GPU, and what went wrong on the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..evidence import values
from . import smi_values

_UNREACHABLE = re.compile(
    r"(?i)unable to determine the device handle for "
    r"(?:gpu)?\s{0,8}(?:(?P<index>\d{1,3})(?::\s{0,8}|\s{1,8}))?(?:gpu)?\s{0,8}"
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s*:\s*(?P<reason>[^\n]{0,200})"
)


@dataclass
class Node:
    """An element: its name, its text, its children in order. Names of the text form are lower case."""

    name: str
    value: str = ""
    children: list[Node] = field(default_factory=list)

    def find(self, path: str) -> Node | None:
        """The first node at ``a/b/c`` below this one."""
        step, _slash, rest = path.partition("/")
        for child in self.children:
            if step == child.name:
                found = child.find(rest) if rest else child
                if found is not None:
                    return found
        return None

    def text(self, *paths: str) -> str | None:
        """The text of the first of `paths` that exists; None if none does."""
        for path in paths:
            found = self.find(path)
            if found is not None:
                return found.value.strip()
        return None

    def flat(self) -> dict[str, str]:
        """The text of every node below this one by its path, ``a/b/c``; the first of several of one name counts."""
        texts: dict[str, str] = {}
        waiting = [("", self)]
        while waiting:
            above, parent = waiting.pop()
            for node in parent.children:
                path = above + node.name
                if path not in texts:
                    texts[path] = node.value.strip()
                    if node.children:
                        waiting.append((path + "/", node))
        return texts

    def below(self) -> Iterator[Node]:
        """Every node below this one."""
        waiting = list(reversed(self.children))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


@dataclass
class Log:
    """`attached` is what the log itself says; `closed` whether it ended as a whole log does.

    `gpus` the whole blocks.
    """

    form: str  # "xml" or "text"
    attached: int | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[Node] = field(default_factory=list)
    closed: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.closed and bool(self.gpus) and self.attached in (None, len(self.gpus))


def choose_log(logs: list[Log]) -> Log:
    """The last whole log of several in one output, or else the last one with the most GPUs."""
    best = logs[0]
    for log in logs[1:]:
        if (log.whole, len(log.gpus)) >= (best.whole, len(best.gpus)):
            best = log
    if len(logs) > 1:
        best.problems.insert(0, "holds %d outputs one after the other; read the last one that is whole" % len(logs))
    return best


def list_odd_heads(head: Node) -> list[str]:
    """Sentences that name what stands at the head of a log and is no version, or no number of GPUs."""
    found = []
    for node in head.children:
        name, text = node.name.replace(" ", "_"), node.value.strip()
        version = name in ("driver_version", "kmd_version", "cuda_version", "cuda_umd_version")
        read = smi_values.parse_version if version else smi_values.parse_whole if name == "attached_gpus" else None
        if read and text and read(text) is None and not smi_values.is_not_applicable(text):
            found.append("%s is %s" % (name, values.format_value(text)))
    return found


def find_unreachable(text: str) -> list[dict[str, object]]:
    """GPUs that nvidia-smi names but could not open, from its complaints: ``{index, address, reason}``.

    Seen: ``Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error``,
    ``Unable to determine the device handle for GPU0000:34:00.0: Unknown Error`` (alone, with exit code 255) and
    ``Unable to determine the device handle for GPU 0000:34:00.0: GPU is lost.  Reboot the system to recover this GPU``.
    """
    found: dict[str, dict[str, object]] = {}
    for match in _UNREACHABLE.finditer(text[:65536]):
        where = smi_values.parse_address(match.group("address"))
        if where is not None:
            index = match.group("index")
            found[where] = {
                "index": values.whole_number(index),
                "address": where,
                "reason": " ".join(match.group("reason").split()),
            }
    return list(found.values())
