"""``nvidia-smi -q`` as text: indented ``Key : value`` lines.

The column of the colon differs by driver; nothing depends on it.
"""

from __future__ import annotations

import re

from . import smi_values
from .log_tree import Log, Node, choose_log, list_odd_heads

_MARK = "NVSMI LOG"
_GPU = re.compile(r"GPU (?P<id>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*")
_PAIR = re.compile(r"(?P<key>.{1,80}?)\s*(?:\s:(?:\s(?P<value>.*))?)?")
_LINES_LIMIT = 400_000
_LOGS_LIMIT = 8


def parse_log_text(data: bytes) -> Log | None:
    """The log in `data`, or None if it holds none. Never raises; what is wrong stands in ``problems``."""
    text = smi_values.strip_codes(data.decode("utf-8", "replace"))
    pieces = text.split(_MARK)[1:] if _MARK in text else [text]
    logs = [_parse_one(piece) for piece in pieces[-_LOGS_LIMIT:]]
    logs = [log for log in logs if log.attached is not None or log.gpus]
    return choose_log(logs) if logs else None


def _parse_one(text: str) -> Log:
    log = Log("text")
    head = Node("head")
    stack: list[tuple[int, Node]] = [(-1, head)]
    for line in text.split("\n")[:_LINES_LIMIT]:
        found = _GPU.fullmatch(line)
        if found is not None:
            gpu = Node("gpu", children=[Node("id", found.group("id"))])
            log.gpus.append(gpu)
            stack = [(-1, gpu)]
            continue
        body = line.strip()
        pair = _PAIR.fullmatch(body[:1000]) if body else None
        if pair is None or (body.startswith("=") and log.gpus == []):
            continue
        indent = len(line) - len(line.lstrip())
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        node = Node(" ".join(pair.group("key").lower().split()), pair.group("value") or "")
        stack[-1][1].children.append(node)
        stack.append((indent, node))
    log.attached = smi_values.parse_whole(head.text("attached gpus"))
    log.driver_version = smi_values.parse_version(head.text("driver version", "kmd version"))
    log.cuda_version = smi_values.parse_version(head.text("cuda version", "cuda umd version"))
    log.problems += list_odd_heads(head)
    # The list of processes is the last section that every driver prints: a block without it was cut off.
    log.closed = bool(log.gpus) and all(gpu.find("processes") is not None for gpu in log.gpus)
    if log.gpus and not log.closed:
        short = [gpu.text("id") or "?" for gpu in log.gpus if gpu.find("processes") is None]
        log.problems.append("is cut off: no end of the block of %s" % ", ".join(short[:4]))
    return log
