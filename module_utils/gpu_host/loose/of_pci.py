"""lspci in each form: a listing, a tree, and lines that somebody cut out of one."""

from __future__ import annotations

import re

from ..pcie import lspci
from . import command_lines
from .piece import Piece, Recognised, run_record

LISTING = tuple(lspci.LISTINGS[0])
TREE = tuple(lspci.TREES[0])
_DEVICE = re.compile(
    r"^\s{0,12}(?P<address>%s) (?P<rest>(?:[A-Z\d][\w /.-]{2,60}(?: \[[0-9a-f]{4}\])?: |[0-9a-f]{4}: "
    r"[0-9a-f]{4}:[0-9a-f]{4}).*)$" % lspci.ADDRESS,
    re.M,
)
_LOOSE_LINES = re.compile(r"^\s+(?:LnkSta|LnkCap|ACSCtl|ACSCap|Kernel driver in use|Region \d):", re.M)
_HOST_BRIDGE = re.compile(r"^(?:[0-9a-f]{4,8}:)?00:00\.0 (?:Host bridge|0600|PCI bridge)", re.M)


def recognise_piece(piece: Piece) -> Recognised | None:
    text = piece.text
    devices = _DEVICE.findall(text)
    if devices:
        filtered = command_lines.is_filtered(piece.command) or re.search(r"\s-[ds]\s|\s-[ds]$", piece.command + " ")
        partial = bool(filtered) or not _HOST_BRIDGE.search(text) or piece.cut
        form = "lspci, %d devices%s%s" % (
            len({address for address, _rest in devices}),
            ", in detail" if "Capabilities:" in text or "Control:" in text else "",
            ", a part of the bus" if partial else "",
        )
        return Recognised(form, (run_record(LISTING, _undented(text)),), "pci", partial, extra={"lspci": True})
    if re.search(r"^[\s|+\\-]{0,200}\[[0-9a-f]{4}:[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", text, re.M) and lspci.parse_tree(
        text
    ):
        return Recognised("lspci -t", (run_record(TREE, piece.data),))
    if _LOOSE_LINES.search(text) and len(_LOOSE_LINES.findall(text)) * 3 > len(
        [line for line in text.split("\n") if line.strip()]
    ):
        return Recognised("lines of lspci without their devices: nothing can be told from them")
    return None


def _undented(text: str) -> bytes:
    """A block that was indented as a whole, as in a posting, without its margin."""
    margins = [len(match.group(0)) - len(match.group(0).lstrip()) for match in _DEVICE.finditer(text)]
    margin = min(margins)
    if margin:
        text = "\n".join(line[margin:] if not line[:margin].strip() else line for line in text.split("\n"))
    return text.encode("utf-8")


def merge_listings(listings: list[bytes]) -> bytes:
    """Several listings as one: of each device the block that says most, under the heading that has its numbers."""
    blocks: dict[str, tuple[str, list[str]]] = {}
    for data in listings:
        title, lines, address = "", [], ""
        for line in [*data.decode("utf-8", "replace").split("\n"), ""]:
            heading = lspci.HEADER.match(line)
            if heading is None:
                lines.append(line)
                continue
            _keep(blocks, address, title, lines)
            address, title, lines = lspci.full_address(heading.group(1)), heading.group(2), []
        _keep(blocks, address, title, lines)
    return "\n".join(
        "%s %s\n%s" % (address, title, "\n".join(lines)) for address, (title, lines) in sorted(blocks.items())
    ).encode("utf-8")


def _keep(blocks: dict[str, tuple[str, list[str]]], address: str, title: str, lines: list[str]) -> None:
    if not address:
        return
    while lines and not lines[-1].strip():
        lines.pop()
    before = blocks.get(address)
    if before is None:
        blocks[address] = (title, lines)
        return
    numbered = title if re.search(r"\[[0-9a-f]{4}:[0-9a-f]{4}\]", title) else before[0]
    blocks[address] = (numbered, lines if len(lines) > len(before[1]) else before[1])
