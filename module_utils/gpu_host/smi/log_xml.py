"""``nvidia-smi -q -x``: XML, also cut off, concatenated or damaged. Every whole ``<gpu>`` block is kept.

Elements differ by driver (DTD v10 to v13): see log_fields.py. Only the text from ``<nvidia_smi_log>`` on is parsed, so
no document type and no entity ever reaches the parser; a log that declares entities is refused.
"""

from __future__ import annotations

import re
from xml.parsers import expat

from . import smi_values
from .log_tree import Log, Node, choose_log, list_odd_heads

# Long lists of clocks and of processes that ended: nothing reads them.
_SKIPPED = frozenset({"supported_clocks", "accounted_processes", "retired_pagelist"})
_DEPTH_LIMIT = 32
_NODE_LIMIT = 300_000
_LOGS_LIMIT = 8
_START = re.compile(rb"<nvidia_smi_log[\s>]")
_END = b"</nvidia_smi_log>"
_BARE_AMPERSAND = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9A-Fa-f]{1,6});)")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


_BLOCK = re.compile(rb'<gpu id="([0-9A-Fa-f:.]{12,16})">')
_ATTACHED = re.compile(rb"<attached_gpus>\s{0,8}(\d{1,4})\s{0,8}</attached_gpus>")


class _TooLarge(Exception):
    """More or deeper elements than any real log has."""


def parse_log_xml(data: bytes) -> Log | None:
    """The log in `data`, or None if it holds none. Never raises; what is wrong stands in ``problems``."""
    starts = [match.start() for match in _START.finditer(data)]
    if not starts:
        return None
    if b"<!ENTITY" in data:
        return Log("xml", problems=["declares XML entities, which no nvidia-smi does; refused"])
    starts = starts[-_LOGS_LIMIT:]
    pieces = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)])]
    return choose_log([_parse_one(piece) for piece in pieces])


def read_order(data: bytes) -> list[str] | None:
    """PCI addresses in the order of the blocks, at a fraction of the cost of ``parse``.

    None unless `data` is one whole log.
    """
    attached, found = (
        _ATTACHED.findall(data),
        [smi_values.parse_address(where.decode()) for where in _BLOCK.findall(data)],
    )
    if (
        len(_START.findall(data)) != 1
        or data.count(b"</gpu>") != len(found)
        or not data.rstrip().endswith(_END)
        or None in found
    ):
        return None
    named = [where for where in found if where is not None]
    return named if attached == [b"%d" % len(found)] and len(set(named)) == len(named) else None


def _parse_one(data: bytes) -> Log:
    end = data.find(_END)
    if end >= 0:
        data = data[: end + len(_END)]
    # Process names come unescaped from some drivers, and no byte of them is sure to be UTF-8.
    data = _CONTROL.sub(b"?", data.decode("utf-8", "replace").encode("utf-8"))
    builder = _Builder()
    log = Log("xml")
    try:
        builder.feed(_BARE_AMPERSAND.sub(b"&amp;", data))
        log.closed = True
    except expat.ExpatError as error:
        log.problems.append(
            "is cut off or damaged at line %d of the XML (%s)" % (error.lineno, expat.ErrorString(error.code))
        )
    except _TooLarge as error:
        log.problems.append(str(error))
    root = builder.root
    log.gpus = [node for node in root.children if node.name == "gpu" and id(node) in builder.finished]
    log.attached = smi_values.parse_whole(root.text("attached_gpus"))
    log.driver_version = smi_values.parse_version(root.text("driver_version", "kmd_version"))
    log.cuda_version = smi_values.parse_version(root.text("cuda_version", "cuda_umd_version"))
    log.problems += list_odd_heads(root)
    return log


class _Builder:
    """Builds the tree from expat's events. A ``<gpu>`` keeps its ``id`` as a child of that name."""

    def __init__(self) -> None:
        self.root = Node("nvidia_smi_log")
        self.finished: set[int] = set()
        self._stack: list[Node] = []
        self._skipping = 0
        self._nodes = 0
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def feed(self, data: bytes) -> None:
        self._parser.Parse(data, True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._skipping or name in _SKIPPED:
            self._skipping += 1
            return
        self._nodes += 1
        if self._nodes > _NODE_LIMIT or len(self._stack) >= _DEPTH_LIMIT:
            raise _TooLarge("has more or deeper elements than any nvidia-smi prints; the rest is not read")
        if not self._stack:
            self._stack.append(self.root)
            return
        node = Node(name)
        if name == "gpu":
            node.children.append(Node("id", attributes.get("id", "")))
        self._stack[-1].children.append(node)
        self._stack.append(node)

    def _end(self, _name: str) -> None:
        if self._skipping:
            self._skipping -= 1
            return
        node = self._stack.pop()
        if len(self._stack) == 1:
            self.finished.add(id(node))

    def _characters(self, text: str) -> None:
        if self._stack and not self._skipping and len(self._stack[-1].value) < 4096:
            self._stack[-1].value += text
